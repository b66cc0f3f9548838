"""The critical operations."""
