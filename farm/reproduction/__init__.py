"""One case of a lake again: found, run, shown, and written down as a finding."""
