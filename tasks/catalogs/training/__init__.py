"""Training: networks that are trained step by step, each by several recipes."""
