"""Rows that a vote acquitted: what they were stands in columns; lakes of before 1.0 told it in a sentence of their error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.model import Status
from tasks.model.kind import KIND_ORACLE, KIND_SUSPECT

#: What `upgrade` fills, and what it reads for that.
FILLED = ("was_status", "was_kind", "acquitted", "error")
READ = ("status", "kind", "error")
#: The error of a row that was acquitted before these columns were there, in RE2's syntax.
_SENTENCE = (
    r"(?s)^suspect reference: (?P<acquitted>.*?); it was (?P<was_status>\w+) ?(?P<was_kind>[^:]*): (?P<error>.*)$"
)


def restore(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the status and kind that it had before a vote; any other row as it is."""
    return dict(row) if not row.get("acquitted") else {**row, "status": row["was_status"], "kind": row["was_kind"]}


def upgrade(table: pa.Table) -> pa.Table:
    """Rows of a lake that has no column ``acquitted``, with `FILLED` filled from the error's sentence. A table without the
    columns `READ` is returned as it is."""
    if "acquitted" in table.column_names or not set(READ) <= set(table.column_names):
        return table
    status, kind, error = (table[name].cast(pa.string()) for name in READ)
    voted = pc.and_(
        pc.equal(status, Status.INVALID.value), pc.is_in(kind, pa.array([KIND_SUSPECT, KIND_ORACLE]))
    )  # the latter is what it was called at first
    parts = pc.extract_regex(pc.if_else(voted, error, pa.scalar(None, pa.string())), _SENTENCE)
    found = pc.is_valid(parts)
    if not pc.any(found).as_py():
        return table
    for name in FILLED:
        told = pc.struct_field(parts, name)
        if name == "error":
            table = table.set_column(table.column_names.index(name), name, pc.if_else(found, told, error))
        else:
            table = table.append_column(name, told)
    return table
