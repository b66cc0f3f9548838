"""One case of a lake again: found by its key, run, compared and shown, and written down as a finding: a folder whose program runs and checks the case without the farm (`compare_batches`)."""
