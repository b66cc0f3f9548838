"""What this process was told of catalogs whose ops are the user's: kernels, models, and folders of harvested nodes."""

from __future__ import annotations

import functools
import json
from typing import Any

#: As JSON: {"deadline_s": seconds a reference may take, "sources": [{"at": place among the config's catalogs, "root": folder,
#: "modules": [names], "kernels": [fields of UserOp]}], "nodes": [{"at": place, "path": folder}],
#: "models": [{"at": place, "root": folder, "name": …, "model": …, "inputs": [paths]}]}.
_told: list[str] = [""]


def announce(definitions: str) -> None:
    """Tell this process the definitions ("" for none). Not by a variable, which a kernel may clear."""
    _told[:] = [definitions]


def announced() -> str:
    """What this process was told."""
    return _told[0]


def definitions() -> dict[str, Any]:
    """What this process was told, read."""
    return parsed(announced())


@functools.lru_cache(maxsize=4)
def parsed(text: str) -> dict[str, Any]:
    """Definitions that were announced, read."""
    made: dict[str, Any] = json.loads(text) if text else {}
    return made
