"""The Parquet lake: stores opened, parts and tables read, written and compacted; rows, run records, traces, passports, manifests and minimal cases, and old ones upgraded."""

from farm.lake.compaction import Change, compact
from farm.lake.origin_columns import KEY, PASSPORT_KEY, PASSPORT_SCHEMA, SCHEMA, TRACE_KEY, TRACE_SCHEMA, Origin
from farm.lake.passports import find_passports, read_passports
from farm.lake.store import (
    CopyWarning,
    Lake,
    LakeError,
    LakeWarning,
    Where,
    append,
    check_writable,
    from_stream,
    known_runs,
    open_lake,
    other_run,
    read,
    read_run,
    read_table,
    run_ids,
    to_batch,
    to_stream,
    write_run,
)
from farm.lake.traces import read_trace, steps_of
