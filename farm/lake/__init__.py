"""The Parquet lake of rows: columns and store."""

from farm.lake.columns import COLUMNS, KEY, SCHEMA, Origin
from farm.lake.store import (
    Lake,
    LakeError,
    LakeWarning,
    append,
    check_writable,
    compact,
    from_stream,
    open_lake,
    parts,
    read,
    read_run,
    read_table,
    run_ids,
    to_batch,
    to_stream,
    write_run,
)

__all__ = [
    "COLUMNS",
    "KEY",
    "SCHEMA",
    "Lake",
    "LakeError",
    "LakeWarning",
    "Origin",
    "append",
    "check_writable",
    "compact",
    "from_stream",
    "open_lake",
    "parts",
    "read",
    "read_run",
    "read_table",
    "run_ids",
    "to_batch",
    "to_stream",
    "write_run",
]
