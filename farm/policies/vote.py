"""Vote before blame: what generated cases are judged by is the farm's own reference, which may itself be wrong.

A failure of a generated case is a runtime's only if somebody independent stands with the reference: another vendor's
runtime, or the case's second oracle. If nobody does, or if three vendors agree with one another against it, the
reference is suspect: the row becomes `invalid`, kind `suspect`. Vendors whose common result is the op's own formula
computed with fewer digits (log(1 + exp(x)), sums in float16) are not independent of one another: they share how they
lose them, and say nothing against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tasks.model import Status
from tasks.model.kind import CAUSE_ARITHMETIC, KIND_SUSPECT

if TYPE_CHECKING:
    import pandas as pd

#: Kind of a row whose backend gives something else for the same graph written otherwise: it is wrong whatever the
#: reference is.
CONTRADICTED = "contradicted"
#: Vendors that agree with one another against the reference, from which on nobody believes the reference.
AGAINST = 3
#: Statuses that are blamed on a backend.
_BLAMED = [Status.WRONG.value, Status.IMPRECISE.value, Status.ERROR.value]
#: Columns that it changes: what a row is now, and in those of `farm.lake.origin_columns.Vote` why and what it was.
CHANGED = ("status", "kind", "acquitted", "was_status", "was_kind")
#: Columns that it reads.
COLUMNS = (
    "run_id case_id backend vendor catalog check op_class status kind weak second_oracle output_digest signature error_units "
    "max_ulp limit compute_precision error cause cause_code attempts"
).split()


def apply_vote_to_rows(table: pa.Table) -> pa.Table:
    """The rows of a run, in the schema of the lake, after the vote; of one that was resumed after a vote, after another
    one."""
    before = undo_vote(table.select([*COLUMNS, *CHANGED[2:]]).to_pandas())
    changed = find_suspects_of_vote(before)
    for name in CHANGED:
        values: Any = before[name].tolist()
        for place, value in changed[name].items():
            values[place] = value
        values = [None if value != value else value for value in values]
        number = table.schema.get_field_index(name)
        table = table.set_column(number, table.schema.field(number), pa.array(values, table.schema.field(number).type))
    return table


def undo_vote(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows as they were before a vote: a suspect has its status and kind again. Other frames are returned as they
    are."""
    if "acquitted" not in rows.columns or not (some := rows["acquitted"].fillna("") != "").any():
        return rows
    rows = rows.copy()
    for name, was in (("status", "was_status"), ("kind", "was_kind")):
        rows[name] = rows[name].astype(object).where(~some, rows[was])
    for name in CHANGED[2:]:
        rows[name] = None
    return rows


def find_suspects_of_vote(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of generated cases that nobody may be blamed for, with their new values in the columns `CHANGED`; index
    as given.

    A weak result is no support: a constant would have passed.
    """
    from farm.report.tables import agreement
    from farm.report.tables.generated import are_rows_generated

    table = rows[are_rows_generated(rows)]
    blamed = table[table["status"].isin(_BLAMED) & (table["kind"] != CONTRADICTED)]
    table = table[table["case_id"].isin(blamed["case_id"].unique())]
    if blamed.empty:
        return blamed.assign(**dict.fromkeys(CHANGED[2:]))
    table = table.assign(agrees=agreement.group_agreeing_rows(table))
    found = [line for _, some in table.groupby("case_id", sort=False) for line in _vote_on_case(some)]
    made = rows.loc[[line[0] for line in found]].copy()
    for place, name in enumerate(CHANGED, 1):
        made[name] = [line[place] for line in found]
    return made


def _vote_on_case(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    """(index, *`CHANGED`) of the rows of one case that nobody may be blamed for."""
    from farm.report.tables import agreement

    supports = set(rows.loc[(rows["status"] == Status.PASS.value) & (rows["weak"] != True), "vendor"])  # noqa: E712
    second = rows["second_oracle"].fillna("").ne("").any()
    outside = rows[~rows["agrees"].isin([agreement.REFERENCE, agreement.NO_RESULT, agreement.UNKNOWN])]
    if second or supports:
        alike = outside.loc[outside["cause_code"] == CAUSE_ARITHMETIC, "agrees"].unique()
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
        (index, Status.INVALID.value, KIND_SUSPECT, why, *was)
        for index, *was in rows.loc[blamed, ["status", "kind"]].fillna("").itertuples()
    ]
