"""The Parquet lake of rows: columns and store."""

from farm.lake.columns import KEY, SCHEMA
from farm.lake.store import (
    Lake,
    LakeError,
    LakeWarning,
    append,
    check_writable,
    compact,
    open_lake,
    parts,
    read,
    read_json,
    read_run,
    read_table,
    run_ids,
    to_batch,
    write_json,
)

__all__ = [
    "KEY",
    "SCHEMA",
    "Lake",
    "LakeError",
    "LakeWarning",
    "append",
    "check_writable",
    "compact",
    "open_lake",
    "parts",
    "read",
    "read_json",
    "read_run",
    "read_table",
    "run_ids",
    "to_batch",
    "write_json",
]
