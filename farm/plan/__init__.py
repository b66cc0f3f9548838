"""From a config and its known failures to a matrix of cells: what is to be run, on which backends, by which policy."""
