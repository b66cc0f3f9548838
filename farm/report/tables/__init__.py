"""Tables of a run as DataFrames, and the views, columns and sentences made of them: coverage, causes, changes, gate, trends, vendors."""
