"""Failing cases made small: between the search and the backend, what is kept of it, the script, the issue's text."""
