"""What a bench measured: figures and a sentence, kept in the one file that the docs are made from."""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "measured.json"


@dataclass(frozen=True)
class Result:
    """figures: numbers by name; text: one line for people."""

    figures: Mapping[str, float]
    text: str


def machine() -> str:
    """What figures are measured on from now on, in words. load: runnable processes of the last minute; above the number
    of CPUs every wall time is longer than on a machine of one's own."""
    model = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    name = ", " + model.partition(":")[2].strip() if model else ""
    return f"{os.cpu_count()} CPUs{name}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} before"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def write(name: str, result: Result, where: str, path: Path = MEASURED) -> None:
    """Put a bench's result into the file, in place of its earlier one. where: what `machine` said before it."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = {
        "command": f"python -m tests.bench {name}",
        "when": datetime.date.today().isoformat(),
        "machine": where,
        "figures": dict(result.figures),
        "text": result.text,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
