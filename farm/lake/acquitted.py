"""A row that a vote acquitted: `was_status`, `was_kind` and `was_error` say what it was before, its error why nobody is blamed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.model import Status
from tasks.model.kind import KIND_ORACLE, KIND_SUSPECT

if TYPE_CHECKING:
    import pandas as pd

#: What a vote changes → the column that keeps what it was.
WAS = {"status": "was_status", "kind": "was_kind", "error": "was_error"}
#: Kinds of such a row, the latter of an older one.
KINDS = (KIND_SUSPECT, KIND_ORACLE)
#: (status, kind, error) from before, in the error of a row of a farm before 1.0, which has no such columns.
_OLDER = re.compile(r"suspect reference: .*?; it was (\w+) ?([^:]*): (.*)", re.DOTALL)


def columns(why: str, status: str, kind: str, error: str) -> dict[str, str]:
    """What becomes of a row that was this before."""
    was = " ".join(filter(None, (status, kind)))
    said = f"suspect reference: {why}; it was {was}: {error}"
    new = {"status": Status.INVALID.value, "kind": KIND_SUSPECT, "error": said}
    return new | dict(zip(WAS.values(), (status, kind, error)))


def before(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the status, kind and error from before a vote, and ``acquitted``: why; any other row as it is, without that."""
    if row["status"] != Status.INVALID or row["kind"] not in KINDS:
        return dict(row)
    was: Any = [row.get(name) for name in WAS.values()]
    if not was[0]:
        if (found := _OLDER.match(row["error"] or "")) is None:
            return dict(row)
        was = found.groups()
    why = (row["error"] or "").partition("; it was ")[0].removeprefix("suspect reference: ")
    return {**row, **dict(zip(WAS, (x or "" for x in was))), "acquitted": why}


def restored(rows: pd.DataFrame, some: pd.Series) -> pd.DataFrame:
    """Rows with the status, kind and error from before a vote, of those of ``some`` that one acquitted; index as given."""
    kept = [*WAS.values()]
    was = rows.loc[some & (rows["status"] == Status.INVALID.value) & rows["kind"].isin(KINDS)].reindex(columns=kept)
    was = was.astype(object)
    older = was.index[was[kept[0]].fillna("") == ""]
    was.loc[older] = rows.loc[older, "error"].astype(object).str.extract(_OLDER).to_numpy(dtype=object)
    was = was.dropna(subset=kept[:1]).fillna("")
    if was.empty:
        return rows
    rows = rows.copy()
    for name, place in WAS.items():
        rows[name] = rows[name].astype(object)
        rows.loc[was.index, name] = was[place]
        if place in rows:
            rows[place] = rows[place].astype(object)
            rows.loc[was.index, place] = None
    return rows
