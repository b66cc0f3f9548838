"""The judge: outputs to metrics, metrics and a policy to a status."""
