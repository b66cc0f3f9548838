"""Tables of a run as DataFrames, and the views, columns, cells and sentences made of them: verdict, coverage, causes, changes, gate, trends, vendors."""
