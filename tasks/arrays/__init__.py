"""Arrays: encoded as argument trees, packed on disk, laid out in memory (strides, gaps), filled with values, moved by noise, widened to float64; also a torch module's, and its training step."""
