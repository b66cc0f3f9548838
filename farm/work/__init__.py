"""A run at work: its plan launched; jobs in flight and their batches on lanes, devices and Ray; pooled children, budget, estimates and progress; lost work and blame, rows."""
