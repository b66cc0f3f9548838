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
    """What the figures were measured on, in words."""
    model = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "")
    return f"{os.cpu_count()} CPUs{', ' + model.partition(':')[2].strip() if model else ''}, Python {platform.python_version()}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def write(name: str, result: Result, path: Path = MEASURED) -> None:
    """Put a bench's result into the file, in place of its earlier one."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[name] = {
        "command": f"python -m tests.bench {name}",
        "when": datetime.date.today().isoformat(),
        "machine": machine(),
        "figures": dict(result.figures),
        "text": result.text,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
