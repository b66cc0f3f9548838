"""The Parquet lake of rows: columns and store."""

from farm.lake.columns import KEY, SCHEMA, Origin
from farm.lake.compaction import Change, compact
from farm.lake.store import (
    Lake,
    LakeError,
    LakeWarning,
    Where,
    append,
    check_writable,
    from_stream,
    open_lake,
    read,
    read_run,
    read_table,
    run_ids,
    to_batch,
    to_stream,
    write_run,
)
