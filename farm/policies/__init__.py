"""Policies at work: a lake judged again, limits found from a lake, and the planted faults that they must catch."""
