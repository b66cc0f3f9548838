"""Whose fault a known failure is, and where lists of them lie."""

from __future__ import annotations

from pathlib import Path

#: Where lists of known failures are looked for and written, if nothing else is said.
FOLDER = Path("configs/known")

#: Whose a known failure is, if not the backend's.
WHOSE = {
    "exporter": "the exporter's: the backend was given another function",
    "suite": "the suite's: what it expects is wrong",
    "open": "not settled",
}
