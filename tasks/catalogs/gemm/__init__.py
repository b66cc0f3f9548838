"""Matrix products at the edges of tiles: plain, int8, block-scaled and grouped, as torch is called and as they are exactly."""
