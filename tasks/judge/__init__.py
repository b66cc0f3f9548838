"""The judge: from outputs to errors and metrics, and from metrics and a policy to a status."""
