"""Names what makes a model fail on a backend: a node, a window of nodes, an optimiser's pass, a precision, the exporter.

A search of the hunt (`tasks.hunt`): it asks for pieces to be run and is sent their outputs.
"""
