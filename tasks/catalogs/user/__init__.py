"""The `user` catalog, of kernels and functions of the user's own: definitions, sources, samples, references, gradients, races and promises."""
