"""The table `trace` beside the rows of a run: a row for each step of a case whose check looks at several.

It lies in `_trace-*.parquet`, which readers of the rows leave alone for the underscore. A run that has no such case has no such file.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs as pafs

from farm.lake import store
from farm.lake.columns import KEY, TRACE_KEY, TRACE_SCHEMA, Origin
from farm.lake.store import AnyLake, Lake, LakeWarning, Where, open_lake
from tasks.model.row import Row
from tasks.model.trace import Step

if TYPE_CHECKING:
    import pandas as pd

#: How the names of its files begin.
PREFIX = "_trace-"
#: What makes a step that of a row: a case that was run again has another start.
_OF_ROW = [*KEY, "started_at"]


def to_stream(cases: Iterable[tuple[Row, Sequence[Step]]], origin: Origin) -> bytes:
    """The steps of cases of one origin, serialized; no bytes if there are none."""
    found = [(row, step) for row, steps in cases for step in steps]
    if not found:
        return b""
    given = {
        "run_id": lambda row, step: origin.run_id,
        "case_id": lambda row, step: row.case_id,
        "backend": lambda row, step: origin.backend,
        "started_at": lambda row, step: int(row.started_at * 1e6),
    }
    columns = [
        pa.array(
            [given[f.name](*x) if f.name in given else _drop_surrogates(getattr(x[1], f.name)) for x in found], f.type
        )
        for f in TRACE_SCHEMA
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, TRACE_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=TRACE_SCHEMA))
    return bytes(sink.getvalue().to_pybytes())


def from_stream(data: bytes) -> list[pa.RecordBatch]:
    """Read what `to_stream` made."""
    return list(pa.ipc.open_stream(data)) if data else []


def _drop_surrogates(value: object) -> object:
    """The value without lone surrogates, which an error's text may contain."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def append(lake: Lake, run_id: str, rows: Sequence[pa.RecordBatch], steps: Sequence[pa.RecordBatch] = ()) -> None:
    """Write rows and the steps of their cases. The steps are there first, so that no row is ever without them. Raises OSError."""
    if steps:
        _write(lake, run_id, pa.Table.from_batches(steps), uuid.uuid4().hex)
    store.append(lake, run_id, rows)


def _write(lake: Lake, run_id: str, table: pa.Table, name: str) -> None:
    write = partial(pq.write_table, table, filesystem=lake.filesystem, compression="zstd")
    store.write_beside(lake, run_id, f"{PREFIX}{name}.parquet", write)


def read_trace(results: AnyLake, run_id: str | None = None, where: Where | None = None) -> pd.DataFrame:
    """The steps of one run, or of all runs, as a DataFrame: a row per key (run_id, case_id, backend, step), in this order.

    Steps of the rows that `farm.lake.read` returns for the same ``where``, which is of the columns of rows. Empty for a run without a
    trace, be it of a farm that wrote none. A damaged file is skipped with a LakeWarning. Raises LakeError.
    """
    lake = open_lake(results)
    frame: pd.DataFrame = _read_run_trace(lake, run_id, where).to_pandas()
    return frame.drop_duplicates(TRACE_KEY, keep="last").sort_values(TRACE_KEY, kind="stable", ignore_index=True)


def steps_of(results: AnyLake, run_id: str, case_id: str, backend: str) -> list[Step]:
    """The steps of one row, in order; empty if it has no trace. Raises LakeError."""
    found = read_trace(results, run_id, {"case_id": [case_id], "backend": [backend]})
    lines = found.astype(object).where(found.notna(), None).to_dict("records")
    return [Step(**{str(k): v for k, v in line.items() if k not in _OF_ROW}) for line in lines]


def _read_run_trace(lake: Lake, run_id: str | None, where: Where | None) -> pa.Table:
    runs = [run_id] if run_id is not None else store.run_ids(lake)
    tables = [table for one in runs for table in _read_trace_tables(lake, one, where)]
    found = pa.concat_tables([TRACE_SCHEMA.empty_table(), *tables])
    if not found.num_rows:
        return found
    rows = store.read_table(lake, run_id, [*KEY, "attempts", "started_at"], where)
    kept = store.unique(rows).select(_OF_ROW)
    return found.join(kept, _OF_ROW, join_type="left semi") if kept.num_rows else found.slice(0, 0)


def _read_trace_tables(lake: Lake, run_id: str, where: Where | None = None) -> list[pa.Table]:
    """What the files of a run have, but for what ``where`` leaves out by the key alone."""
    for _ in range(store.LISTED):
        with contextlib.suppress(FileNotFoundError):  # somebody compacts the run: what a file had is in another now
            return [x for path in paths(lake, run_id) if (x := _read_trace_table(lake, path, where or {})) is not None]
    return [x for path in paths(lake, run_id) if (x := _read_trace_table(lake, path, where or {})) is not None]


def _read_trace_table(lake: Lake, path: str, where: Where) -> pa.Table | None:
    """A file in this farm's columns, null where it has none; None where it cannot be read."""
    try:
        with lake.filesystem.open_input_file(path) as file:
            part = pq.ParquetFile(file)
            present = set(part.schema_arrow.names)
            if missing := [name for name in TRACE_KEY if name not in present]:
                raise pa.ArrowInvalid(f"a foreign file: no column {missing[0]}")
            table = part.read([name for name in TRACE_SCHEMA.names if name in present])
        columns = [
            table[f.name].cast(f.type) if f.name in present else pa.nulls(table.num_rows, f.type) for f in TRACE_SCHEMA
        ]
        table = pa.Table.from_arrays(columns, schema=TRACE_SCHEMA)
        for name in KEY:
            if name in where:
                table = table.filter(pc.is_in(table[name], pa.array(list(where[name]), pa.string())))
        return table
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        if lake.filesystem.get_file_info(path).type == pafs.FileType.NotFound:
            raise FileNotFoundError(path) from None
        said = (str(error).splitlines() or [""])[0]
        warnings.warn(f"{path}: skipped, not a readable trace ({said})", LakeWarning, stacklevel=2)
        return None


def paths(lake: Lake, run_id: str) -> list[str]:
    """The files of a run's trace. Raises LakeError."""
    found = store.files(lake, run_id)
    return sorted(i.path for i in found if i.base_name.startswith(PREFIX) and i.base_name.endswith(".parquet"))


def compact(lake: Lake, run_id: str) -> None:
    """Make one file of a run's trace. As with the rows, what is merged is there before what it is made of goes; a file that cannot be
    read, or has columns that this farm does not know, leaves all as they are. Raises OSError."""
    old = paths(lake, run_id)
    if len(old) < 2:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", LakeWarning)
            for path in old:
                with lake.filesystem.open_input_file(path) as file:
                    if set(pq.read_schema(file).names) - set(TRACE_SCHEMA.names):
                        return
            tables = [x for path in old if (x := _read_trace_table(lake, path, {})) is not None]
    except (FileNotFoundError, LakeWarning, pa.ArrowException):
        return
    frame = pa.concat_tables(tables).to_pandas().drop_duplicates([*_OF_ROW, "step"], keep="last")
    table = pa.Table.from_pandas(frame.sort_values(TRACE_KEY, kind="stable"), TRACE_SCHEMA, preserve_index=False)
    _write(
        lake, run_id, table, hashlib.sha256("".join(path.rpartition("/")[2] for path in old).encode()).hexdigest()[:32]
    )
    for path in old:
        with contextlib.suppress(FileNotFoundError):  # somebody else compacts the run as well
            lake.filesystem.delete_file(path)
