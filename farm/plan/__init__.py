"""Config to cells: what is to be run, on which backends, by which policy."""
