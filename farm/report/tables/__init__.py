"""Tables of a run as DataFrames."""
