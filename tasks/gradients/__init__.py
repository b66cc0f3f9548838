"""Gradients: by autograd, by formula (`derive_gelu`), by slopes and differences along lines in float64, by a library of the user's own; and whether two of these agree."""
