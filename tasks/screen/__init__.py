"""Screening a device: known products through its datapaths, over and over, what its answers say of it, and its features (`screen_rounding`)."""
