"""Vote before blame: what generated cases are judged by is the farm's own reference, which may itself be wrong.

A failure of a generated case is a runtime's only if somebody independent stands with the reference: another vendor's
runtime, or the case's second oracle. If nobody does, or if three vendors agree with one another against it, the reference
is suspect: the row becomes `invalid`, kind `suspect`. Vendors whose common result is the op's own formula computed with fewer digits
(log(1 + exp(x)), sums in float16) are not independent of one another: they share how they lose them, and say nothing against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from farm.lake import acquitted, causes
from tasks.catalogs.fuzz import GENERATED
from tasks.model import Status
from tasks.model.kind import CAUSE_ARITHMETIC

if TYPE_CHECKING:
    import pandas as pd

#: Kind of a row whose backend gives something else for the same graph written otherwise: it is wrong whatever the reference is.
CONTRADICTED = "contradicted"
#: Vendors that agree with one another against the reference, from which on nobody believes the reference.
AGAINST = 3
#: Statuses that are blamed on a backend.
_BLAMED = [Status.WRONG.value, Status.IMPRECISE.value, Status.ERROR.value]
#: Columns that it changes.
_CHANGED = (*acquitted.WAS, *acquitted.WAS.values())
#: Columns that it reads.
COLUMNS = (
    "run_id case_id backend vendor catalog check op_class status kind weak second_oracle output_digest signature error_units "
    "max_ulp limit compute_precision error cause cause_code was_status was_kind was_error attempts"
).split()


def voted(table: pa.Table) -> pa.Table:
    """The rows of a run, in the schema of the lake, after the vote; of one that was resumed after a vote, after another one."""
    before = unvoted(table.select([*COLUMNS]).to_pandas())
    changed = suspects(before)
    for name in _CHANGED:
        values: Any = before[name].tolist()
        for place, value in changed[name].items():
            values[place] = value
        values = [None if value != value else value for value in values]
        number = table.schema.get_field_index(name)
        table = table.set_column(number, table.schema.field(number), pa.array(values, table.schema.field(number).type))
    return table


def unvoted(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows as they were before a vote: a suspect has its status, kind and error again. Other frames are returned as they are."""
    if not {"catalog", "status", "kind", "error"} <= set(rows.columns):
        return rows
    return acquitted.restored(rows, rows["catalog"] == GENERATED)


def suspects(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of generated cases that nobody may be blamed for, with their new status, kind and error, and what these were; index as given.

    A weak result is no support: a constant would have passed.
    """
    from farm.report.tables import agreement

    table = rows[rows["catalog"] == GENERATED]
    blamed = table[table["status"].isin(_BLAMED) & (table["kind"] != CONTRADICTED)]
    table = table[table["case_id"].isin(blamed["case_id"].unique())]
    if blamed.empty:
        return blamed.assign(**{name: blamed["error"] for name in acquitted.WAS.values()})
    table = table.assign(agrees=agreement.groups(table))
    found = [line for _, some in table.groupby("case_id", sort=False) for line in _of_case(some)]
    made = rows.loc[[line[0] for line in found]].copy()
    for name in _CHANGED:
        made[name] = [columns[name] for _, columns in found]
    return made


def _of_case(rows: pd.DataFrame) -> list[tuple[Any, dict[str, str]]]:
    """(index, what becomes of its columns) of the rows of one case that nobody may be blamed for."""
    from farm.report.tables import agreement

    supports = set(rows.loc[(rows["status"] == Status.PASS.value) & (rows["weak"] != True), "vendor"])  # noqa: E712
    second = rows["second_oracle"].fillna("").ne("").any()
    outside = rows[~rows["agrees"].isin([agreement.REFERENCE, agreement.NO_RESULT, agreement.UNKNOWN])]
    if second or supports:
        alike = outside.loc[causes.codes(outside) == CAUSE_ARITHMETIC, "agrees"].unique()
        outside = outside[~outside["agrees"].isin(alike)]
    most = outside.groupby("agrees")["vendor"].nunique().max() if len(outside) else 0
    if most >= AGAINST and most > len(supports):
        why = f"{most} vendors agree with one another against it"
        blamed = rows["status"].isin([Status.WRONG.value, Status.IMPRECISE.value]) & (rows["kind"] != CONTRADICTED)
    elif second or supports:
        return []
    else:
        why = "neither another vendor's runtime nor a second oracle computes what it says"
        blamed = rows["status"].isin(_BLAMED) & (rows["kind"] != CONTRADICTED)
    return [
        (index, acquitted.columns(why, *was))
        for index, *was in rows.loc[blamed, ["status", "kind", "error"]].fillna("").itertuples()
    ]
