"""Arrays: packed on disk, as argument trees, laid out, drawn, moved by noise."""
