"""What a search for a smaller case may be told to try, by name, and how often it may run the backend."""

from __future__ import annotations

#: Everything below; fewer choices of a generated case; fewer nodes; smaller dims; plainer values.
ALL, CHOICES, GRAPH, DIMS, VALUES = "shrink-all", "choices", "graph", "binary-search-dims", "shrink-values"
#: Fewer of the cases that ran before one that does not fail by itself.
SEQUENCE = "sequence"
#: What may be asked for.
NAMES = (ALL, CHOICES, GRAPH, DIMS, VALUES, SEQUENCE)
#: Runs of the backend that a search may take.
BUDGET = 200
