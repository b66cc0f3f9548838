"""Arrays: packed on disk, as argument trees, drawn, moved, differentiated."""
