"""What a runtime compiled or converted for a case, kept by content on disk: a second run does not compile again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from tasks import sources
from tasks.devices.processor import describe_processor

#: Variable that names the folder; without it nothing is kept.
FOLDER = "FARM_ARTEFACTS"
#: Bytes of the digest in front of what is kept.
_DIGEST = 32


def load_or_make(kind: str, parts: tuple[bytes | str, ...], make: Callable[[], bytes]) -> bytes:
    """``make()``, or what it gave for the same ``kind`` and ``parts`` before.

    ``parts`` must hold everything that decides the bytes: versions, options, the model (the farm's own code of backends
    counts by itself). What ``make`` raises is raised and not kept. A folder that cannot be written to is as if there
    were none.
    """
    found = recall_artefact(kind, parts)
    if found is not None:
        return found
    made = make()
    keep_artefact(kind, parts, made)
    return made


def recall_artefact(kind: str, parts: tuple[bytes | str, ...]) -> bytes | None:
    """What was kept for ``kind`` and ``parts``; None if nothing was, or not whole."""
    path = _locate_artefact(kind, parts)
    if path is not None:
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if data[:_DIGEST] == hashlib.sha256(data[_DIGEST:]).digest():
                return data[_DIGEST:]
    return None


def keep_artefact(kind: str, parts: tuple[bytes | str, ...], data: bytes) -> None:
    """Keep ``data``, in the place of what was kept before: for what grows, as a compiler's cache of timings does."""
    path = _locate_artefact(kind, parts)
    if path is None:
        return
    aside = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A name of its own: processes of several containers that share the folder may have the same number.
        number, aside = tempfile.mkstemp(dir=path.parent, prefix=".")
        with os.fdopen(number, "wb") as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(aside, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(aside)


def _locate_artefact(kind: str, parts: tuple[bytes | str, ...]) -> Path | None:
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    digest = hashlib.sha256()
    for part in (kind, sources.digest_artefact_sources(), *parts):
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    name = digest.hexdigest()[:40]
    return Path(folder) / kind / name[:2] / name


def name_inductor_cache(cache: Path) -> str:
    """Where inductor keeps what it compiles for this processor: its own keys do not know all of its features."""
    return str(cache / "inductor" / hashlib.sha256(describe_processor().encode()).hexdigest()[:12])
