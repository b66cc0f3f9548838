"""`farm node screen`: every device of a cluster computes known products, equal devices are compared, and who is off becomes rows."""
