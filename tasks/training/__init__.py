"""Training: small networks with their recipes, what a step of them is worth in float64, and the loop that a device or several ranks run."""
