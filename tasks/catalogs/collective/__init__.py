"""Collectives: what several processes compute together."""
