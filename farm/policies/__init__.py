"""Policies at work: a lake judged again, limits calibrated from a lake, generated cases put to a vote, and the planted faults that policies must catch."""
