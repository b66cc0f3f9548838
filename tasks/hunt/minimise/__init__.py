"""Makes a failing case small while it fails in the same way: its graph, dims, attributes, values, the cases before it.

A search of the hunt (`tasks.hunt`): it asks for cases to be run and is sent their rows.
"""
