"""Decoders that an engine serves, with requests and what float64 makes of them."""
