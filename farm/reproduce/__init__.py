"""One case of a lake again: found, run, shown, and as a standalone script."""
