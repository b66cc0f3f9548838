"""From a config, its known failures and patterns to a matrix of cells: YAML read and checked, entries matched, submissions to tasks, what is to be run and what is left out."""
