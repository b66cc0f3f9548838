"""Gradients: by autograd, by formula, by differences in float64, by a library of the user's own; and whether two of these agree."""
