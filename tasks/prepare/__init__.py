"""Prepared cases and their exported forms, made once and kept by content."""
