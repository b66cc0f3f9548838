"""The Parquet lake: stores opened, runs found by their word, read and written (rows, run records, traces, passports, manifests, minimal cases), parts compacted, old columns upgraded."""

from farm.lake.compaction import Change, compact_run
from farm.lake.origin_columns import KEY, PASSPORT_KEY, PASSPORT_SCHEMA, SCHEMA, TRACE_KEY, TRACE_SCHEMA, Origin
from farm.lake.passports import find_passports, read_passports
from farm.lake.store import (
    CopyWarning,
    Lake,
    LakeError,
    LakeWarning,
    Where,
    append_part,
    check_lake_writable,
    explain_misnamed_run,
    list_known_runs,
    make_row_batch,
    make_row_stream,
    open_lake,
    read,
    read_row_stream,
    read_run,
    read_table,
    run_ids,
    write_run_record,
)
from farm.lake.traces import read_trace, read_trace_steps

#: What others may build on (docs/stability.md), exported for type checkers as well.
__all__ = [
    "KEY",
    "PASSPORT_KEY",
    "PASSPORT_SCHEMA",
    "SCHEMA",
    "TRACE_KEY",
    "TRACE_SCHEMA",
    "LakeError",
    "open_lake",
    "read",
    "read_passports",
    "read_run",
    "read_table",
    "read_trace",
    "run_ids",
]
