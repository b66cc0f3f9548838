"""How inputs are drawn: seeds, choices over bounded integers, and what structure integers and floats can have (offsets, segments, masks, permutations)."""
