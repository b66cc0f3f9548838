"""Ray metrics of a run, to watch it with (a scrape can miss counts: the lake accounts)."""

from __future__ import annotations

import functools
from typing import Any

from tasks.backends import BackendSpec
from tasks.wire import Rows


@functools.cache
def _metrics() -> tuple[Any, Any, Any]:
    from ray.util.metrics import Counter, Histogram

    bounds = [1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 60000]
    return (
        Counter("farm_outcomes", "Outcomes by backend and status", tag_keys=("backend", "status")),
        Histogram("farm_build_ms", "Time to build or compile a case, in ms", bounds, ("backend",)),
        Histogram("farm_run_ms", "Time to run a case, in ms", bounds, ("backend",)),
    )


def count(backend: BackendSpec | None, rows: Rows) -> None:
    """Count the rows of a supervisor's message. Exported by Ray as ray_farm_outcomes, ray_farm_build_ms, …"""
    outcomes, build, run = _metrics()
    name = backend.name if backend else ""
    for status, number in rows.status.items():
        outcomes.inc(number, {"backend": name, "status": status})
    # One observation a chunk, its mean: thousands of calls a second would cost more than the cells.
    build.observe(max(sum(t[0] for t in rows.times) / len(rows.times), 1e-3), {"backend": name})
    run.observe(max(sum(t[1] for t in rows.times) / len(rows.times), 1e-3), {"backend": name})
