"""Which outcomes the known failures of a config cover, and which known failures nothing in a run meets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from glob import has_magic
from typing import Any

import numpy as np

from farm.plan.matrix import Matrix, matcher, names
from farm.plan.model import Config, KnownFailure
from tasks.catalogs.base import Entry
from tasks.model import JUDGED, Status
from tasks.model import names as words

#: Columns that say whether a known failure covers an outcome, and what an older lake, which lacks some, means.
COLUMNS = {"op": "", "variant": "", "dtype": "", "backend": "", "distribution": "own", "status": "", "kind": ""}
#: Whose a known failure is, if not the backend's.
WHOSE = {
    "exporter": "the exporter's: the backend was given another function",
    "suite": "the suite's: what it expects is wrong",
    "open": "not settled",
}


@dataclass(frozen=True)
class Met:
    """Known failures beside the rows of a run.

    entry: per row the place of the first known failure that covers it, -1 for none; gone: the places of the stale known
    failures, in their order: they cover no row, and what was judged of what they name (op, dtype, backend, distribution), but
    for rows that others cover, is some and all passed; stale: per row that passed the place of the first of these, else -1.
    """

    entry: np.ndarray
    stale: np.ndarray
    gone: tuple[int, ...]


def recorded(run: Mapping[str, Any]) -> list[KnownFailure] | None:
    """The known failures of a run's record; None where it holds no config (an older or damaged record)."""
    config = run.get("config")
    if not isinstance(config, Mapping):
        return None
    try:
        return [KnownFailure(**entry) for entry in config.get("known_failures") or ()]
    except (TypeError, ValueError):  # of another version
        return None


def met(rows: Any, entries: Sequence[KnownFailure]) -> Met:
    """Which of the known failures cover which rows of a lake; columns that the rows lack are as in `COLUMNS`."""
    told = {c: np.array(rows[c].fillna(absent) if c in rows else [absent] * len(rows)) for c, absent in COLUMNS.items()}
    judged, right = np.isin(told["status"], words(JUDGED)), told["status"] == Status.PASS.value
    entry, near = np.full((2, len(rows)), -1)
    seen, unseen = set[int](), set[int]()
    for backend in dict.fromkeys(told["backend"]):  # few known failures are about one backend
        mine = np.array([k for k, known in enumerate(entries) if matcher([known.backend])([backend])], dtype="int64")
        places = np.flatnonzero(told["backend"] == backend)
        named, covered = _matches([entries[k] for k in mine], {c: column[places] for c, column in told.items()})
        entry[places] = _first(covered, mine)
        free = named & (entry[places] < 0) & judged[places]
        seen.update(mine[(covered | (free & ~right[places])).any(axis=1)].tolist())
        unseen.update(mine[free.any(axis=1)].tolist())
    gone = unseen - seen
    for backend in dict.fromkeys(told["backend"]) if gone else ():
        mine = np.array([k for k in sorted(gone) if matcher([entries[k].backend])([backend])], dtype="int64")
        places = np.flatnonzero((told["backend"] == backend) & right & (entry < 0))
        named, _ = _matches([entries[k] for k in mine], {c: column[places] for c, column in told.items()})
        near[places] = _first(named, mine)
    return Met(entry, near, tuple(sorted(gone)))


def _matches(entries: Sequence[KnownFailure], told: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(named, covered), known failures × rows: op, dtype and distribution are theirs; status and kind too.

    What fails in today's suite covers the case of that name in an older release's ("onnx-1.16:…" is covered by "onnx:…"),
    and is not asked of it: there it may be another model, and right.
    """

    def match(globs: Sequence[str], values: Any, called: Any = lambda value: [value]) -> np.ndarray:
        place = {value: k for k, value in enumerate(dict.fromkeys(values))}
        codes = np.array([place[value] for value in values], dtype="int64")
        index: dict[str, list[int]] = {}  # what values are called → their codes
        for value, code in place.items():
            for name in called(value):
                index.setdefault(name, []).append(code)
        said = {glob: np.zeros(len(place), dtype=bool) for glob in globs}
        for glob, hit in said.items():
            ask = matcher([glob])
            named = [name for name in index if ask([name])] if has_magic(glob) else [glob]
            hit[[code for name in named for code in index.get(name, ())]] = True
        return np.array([said[glob][codes] for glob in globs], dtype=bool).reshape(len(globs), len(values))

    called = list(zip(told["op"], told["variant"]))
    ops = [k.op for k in entries]
    named = match(ops, called, lambda value: names(Entry(value[0], value[1], ())))
    covered = match(
        ops, called, lambda value: [x for op in _releases(value[0]) for x in names(Entry(op, value[1], ()))]
    )
    for column in ("dtype", "distribution"):
        theirs = match([getattr(k, column) for k in entries], told[column])
        named, covered = named & theirs, covered & theirs
    covered &= (told["status"] != Status.PASS.value) & match([k.kind for k in entries], told["kind"])
    covered &= match([k.status for k in entries], told["status"], _called)
    return named, covered


def _releases(op: str) -> list[str]:
    """An op, and as it is called in today's release of its catalog: the suffix of a catalog's name is a version."""
    catalog, _, name = op.partition(":")
    return [op, *([f"{catalog.partition('-')[0]}:{name}"] if "-" in catalog else [])]


def _called(status: str) -> list[str]:
    """The statuses of known failures that cover an outcome: what may be wrong may as well be imprecise."""
    return [status, Status.WRONG.value] if status == Status.IMPRECISE else [status]


def _first(matches: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Per column the place of the first row that is true, -1 for none."""
    if not len(places):
        return np.full(matches.shape[1], -1)
    return np.where(matches.any(axis=0), places[matches.argmax(axis=0)], -1)


def not_known(rows: Any, config: Config) -> Any:
    """The rows that no known failure of the config covers."""
    return rows[met(rows, config.known_failures).entry < 0]


def unmet(config: Config, matrix: Matrix) -> Iterator[str]:
    """One line about the known failures of the run's backends that name no op it plans: most likely misspelt or gone.

    Not of a catalog that the config does not have or takes a part of: lists of known failures are shared.
    """
    called = list({n for g in matrix.groups for n in names(Entry(g.op, g.variant, ()))})
    backends = [s.name for s in matrix.backends]
    parts = {c.name for c in config.catalogs if "*" not in c.ops or c.exclude}
    whole = {c.name for c in config.catalogs} - parts

    def here(op: str) -> bool:
        return op.partition(":")[0] in whole if ":" in op else not parts

    mine = [k for k in config.known_failures if here(k.op) and matcher([k.backend])(backends)]
    idle = [f"{k.op} on {k.backend}" for k in mine if not matcher([k.op])(called)]
    if idle:
        more = f", and {len(idle) - 3} more" if len(idle) > 3 else ""
        yield f"known_failures: {len(idle)} of {len(mine)} match no planned op: {', '.join(idle[:3])}{more}"
