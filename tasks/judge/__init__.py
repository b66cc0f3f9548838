"""The judge: from outputs to metrics, and from metrics and a policy to a status."""
