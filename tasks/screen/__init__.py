"""Screening a device: known products through its datapaths, over and over, and what its answers say of it."""
