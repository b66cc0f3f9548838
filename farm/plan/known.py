"""Which outcomes the known failures of a config cover, and which known failures nothing in a run meets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from farm.plan.matrix import Matrix, matcher, names
from farm.plan.model import Config, KnownFailure
from tasks.catalogs.base import Entry
from tasks.model import Status

#: Columns that say whether a known failure covers an outcome, and what an older lake, which lacks some, means.
COLUMNS = {"op": "", "variant": "", "dtype": "", "backend": "", "distribution": "own", "status": "", "kind": ""}


def not_known(rows: Any, config: Config) -> Any:
    """The rows that no known failure of the config covers."""
    covered = _coverer(config.known_failures)
    met: dict[tuple[str, ...], bool] = {}
    keep = []
    for outcome in zip(
        *(rows[c].fillna(absent) if c in rows else [absent] * len(rows) for c, absent in COLUMNS.items())
    ):
        if outcome not in met:
            met[outcome] = covered(*outcome)
        keep.append(not met[outcome])
    return rows[keep]


def _coverer(entries: Sequence[KnownFailure]) -> Any:
    matchers = [
        (matcher([k.op]), k.status, [matcher([glob]) for glob in (k.dtype, k.backend, k.distribution, k.kind)])
        for k in entries
    ]

    def covered(op: str, variant: str, dtype: str, backend: str, distribution: str, status: str, kind: str) -> bool:
        called = names(Entry(op, variant, ()))
        values = (dtype, backend, distribution, kind)
        return any(
            known in ("*", *_called(status)) and all(match([v]) for match, v in zip(globs, values)) and named(called)
            for named, known, globs in matchers
        )

    return covered


def _called(status: str) -> list[str]:
    """The statuses of known failures that cover an outcome: who knows that numbers are wrong knows that they are imprecise."""
    return [status, Status.WRONG.value] if status == Status.IMPRECISE else [status]


def unmet(config: Config, matrix: Matrix) -> Iterator[str]:
    """One line about the known failures of the run's backends that name no op it plans: most likely misspelt or gone."""
    called = list({n for g in matrix.groups for n in names(Entry(g.op, g.variant, ()))})
    backends = [s.name for s in matrix.backends]
    mine = [k for k in config.known_failures if matcher([k.backend])(backends)]
    idle = [f"{k.op} on {k.backend}" for k in mine if not matcher([k.op])(called)]
    if idle:
        more = f", and {len(idle) - 3} more" if len(idle) > 3 else ""
        yield f"known_failures: {len(idle)} of {len(mine)} match no planned op: {', '.join(idle[:3])}{more}"
