"""A run at work: its jobs and batches on lanes, devices and Ray, their children, budget and progress, lost work and blame, rows."""
