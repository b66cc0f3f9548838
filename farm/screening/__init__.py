"""`farm screen`: every device of a cluster computes known products, and equals are compared."""
