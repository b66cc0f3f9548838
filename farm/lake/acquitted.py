"""A row that a vote acquitted: what it was before is kept in its error, and read again from there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tasks.model import Status
from tasks.model.kind import KIND_ORACLE, KIND_SUSPECT

_TOLD = "suspect reference: {why}; it was {was}: {error}"
#: (why, status, kind, error) of such a text.
WAS = re.compile(r"suspect reference: (.*?); it was (\w+) ?([^:]*): (.*)", re.DOTALL)
#: Kinds of such a row, the latter of an older one.
KINDS = (KIND_SUSPECT, KIND_ORACLE)


def text(why: str, status: str, kind: str, error: str) -> str:
    """The error of a row that was this before."""
    return _TOLD.format(why=why, was=" ".join(filter(None, (status, kind))), error=error)


def before(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the status, kind and error from before a vote, and ``acquitted``: why; any other row as it is, without that."""
    found = WAS.match(row["error"] or "") if row["status"] == Status.INVALID and row["kind"] in KINDS else None
    if found is None:
        return dict(row)
    return {**row, "status": found[2], "kind": found[3], "error": found[4], "acquitted": found[1]}
