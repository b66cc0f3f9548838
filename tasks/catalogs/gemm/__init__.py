"""Matrix products at the edges of tiles."""
