"""The work: jobs to slots, child processes, blame, rows."""
