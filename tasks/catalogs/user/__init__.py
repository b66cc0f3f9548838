"""The `user` catalog, of kernels and functions of the user's own: declarations checked key by key, sources, sizes, samples, references, gradients, watched launches and races, promises."""
