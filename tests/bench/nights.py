"""A lake of many nights: the rows of a real run again and again, with what changes from night to night planted."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farm import lake
from farm.work.launch import run_id_at

#: When the first night began.
FIRST = datetime.datetime(2025, 1, 1, 2, 0, tzinfo=datetime.timezone.utc)


@dataclass(frozen=True)
class Planted:
    """What happens to a backend. op: whose rows fail from night ``since`` on (all of them, for ever); flaky: share of
    its other passing rows that fail on any night."""

    backend: str
    op: str = ""
    since: int = 0
    flaky: float = 0.0


def write(
    opened: lake.Lake,
    rows: pa.Table,
    record: dict[str, Any],
    nights: int,
    planted: tuple[Planted, ...] = (),
    hours: float = 24.0,
    parts: int = 1,
) -> Iterator[str]:
    """Write ``rows`` of one run as so many runs, each in so many parts; yields their ids as they are written."""
    for night in range(nights):
        began = FIRST + night * datetime.timedelta(hours=hours)
        made = _night(rows, run_id_at(began), began, night, planted)
        yield keep(opened, made, {**record, "planned": made.num_rows}, began, parts)


def keep(opened: lake.Lake, rows: pa.Table, record: dict[str, Any], began: datetime.datetime, parts: int = 1) -> str:
    """Write a run that began then; its id."""
    run_id = run_id_at(began)
    step = -(-rows.num_rows // parts)
    for at in range(0, rows.num_rows, step):
        lake.append_part(opened, run_id, rows.slice(at, step).to_batches())
    ended = began + datetime.timedelta(minutes=20)
    times = {"started_at": began.isoformat(), "finished_at": ended.isoformat()}
    lake.write_run_record(opened, run_id, {**record, **times, "run_id": run_id})
    return run_id


def _night(rows: pa.Table, run_id: str, began: datetime.datetime, night: int, planted: tuple[Planted, ...]) -> pa.Table:
    status, kind = (rows[name].to_numpy(zero_copy_only=False).copy() for name in ("status", "kind"))
    backend, op = (rows[name].to_numpy(zero_copy_only=False) for name in ("backend", "op"))
    noise = np.random.default_rng(night)
    for one in planted:
        here = (backend == one.backend) & (status == "pass")
        broken = here & (op == one.op) if one.op and night >= one.since else np.zeros(len(rows), dtype=bool)
        broken |= here & (noise.random(len(rows)) < one.flaky)
        status[broken], kind[broken] = "wrong", "values"
    units = pc.multiply(rows["error_units"], pa.array(noise.uniform(0.9, 1.1, len(rows))))
    columns = {"status": pa.array(status, pa.string()), "kind": pa.array(kind, pa.string()), "error_units": units}
    return moved(_with(rows, columns), run_id, began)


def moved(rows: pa.Table, run_id: str, began: datetime.datetime) -> pa.Table:
    """The rows of a run as those of another one, that began when ``began`` says."""
    at = rows["started_at"].cast(pa.int64())
    shifted = pc.add(pc.subtract(at, pc.min(at)), int(began.timestamp() * 1e6)).cast(rows["started_at"].type)
    return _with(rows, {"run_id": pa.repeat(run_id, len(rows)), "started_at": shifted})


def _with(rows: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    return pa.Table.from_arrays([columns.get(name, rows[name]) for name in rows.column_names], schema=rows.schema)
