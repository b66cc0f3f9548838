"""Whose fault a known failure is."""

from __future__ import annotations

#: Whose a known failure is, if not the backend's.
WHOSE = {
    "exporter": "the exporter's: the backend was given another function",
    "suite": "the suite's: what it expects is wrong",
    "open": "not settled",
}
