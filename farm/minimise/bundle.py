"""What is kept beside a minimal case: its script, run in a clean environment first, and the text of an issue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from farm.reproduce.find import Case
from tasks.wire import Minimised


def of(case: Case, found: Minimised, record: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """Files by name; fills ``record`` with what was expected, what came, and what the script showed."""
    return {}
