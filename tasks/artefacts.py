"""What a runtime compiled or converted for a case, kept by content on disk: a second run does not compile again."""
from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

#: Variable that names the folder; without it nothing is kept.
FOLDER = "FARM_ARTEFACTS"


def kept(kind: str, parts: tuple[bytes | str, ...], make: Callable[[], bytes]) -> bytes:
    """``make()``, or what it gave for the same ``kind`` and ``parts`` before.

    ``parts`` must hold everything that decides the bytes: versions, options, the model. What ``make`` raises is
    raised and not kept. A folder that cannot be written to is as if there were none.
    """
    found = recall(kind, parts)
    if found is not None:
        return found
    made = make()
    keep(kind, parts, made)
    return made


def recall(kind: str, parts: tuple[bytes | str, ...]) -> bytes | None:
    """What was kept for ``kind`` and ``parts``; None if nothing was."""
    path = _path(kind, parts)
    if path is not None:
        with contextlib.suppress(OSError):
            return path.read_bytes()
    return None


def keep(kind: str, parts: tuple[bytes | str, ...], data: bytes) -> None:
    """Keep ``data``, in the place of what was kept before: for what grows, as a compiler's cache of timings does."""
    path = _path(kind, parts)
    if path is None:
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(data)
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()


def _path(kind: str, parts: tuple[bytes | str, ...]) -> Path | None:
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    digest = hashlib.sha256()
    for part in (kind, *parts):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    name = digest.hexdigest()[:40]
    return Path(folder) / kind / name[:2] / name
