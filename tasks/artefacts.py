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
    folder = os.environ.get(FOLDER)
    if not folder:
        return make()
    digest = hashlib.sha256()
    for part in (kind, *parts):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    name = digest.hexdigest()[:40]
    path = Path(folder) / kind / name[:2] / name
    with contextlib.suppress(OSError):
        return path.read_bytes()
    made = make()
    aside = path.with_name(f".{name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(made)
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
    return made
