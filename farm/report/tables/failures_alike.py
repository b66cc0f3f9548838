"""Which rows are one finding, by the minimal cases beside them and by how they failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from farm.lake import minimal
from farm.plan import match_known
from farm.plan.known_failure import KnownFailure
from farm.report.tables.coverage import FAILED_STATUSES
from tasks.model import Status
from tasks.model.failing import FailureManner, describe_failure_manner

#: Rows that can be made small.
SOUGHT = (*FAILED_STATUSES, Status.IMPRECISE.value)


def find_finding_of_rows(found: Iterable[Mapping[str, Any]], rows: pd.DataFrame) -> pd.Series:
    """The finding that each row is of which failed or is imprecise, "" for none yet; every such row is of one at most.

    A row's own minimal case tells; else those of rows of its backend and op that failed alike (`tasks.model.failing`),
    where they all are one finding.
    """
    sought = rows[rows["status"].isin(SOUGHT)]
    own = {(x["case_id"], x["backend"]): x["finding"]["id"] for x in found}
    mine = [own.get(pair, "") for pair in zip(sought["case_id"], sought["backend"])]
    alike = group_failures_alike(sought)
    of_group: dict[Any, set[str]] = {}
    for group, finding in zip(alike, mine):
        of_group.setdefault(group, set()).update([finding] if finding else [])
    one = {group: next(iter(several)) for group, several in of_group.items() if len(several) == 1}
    told = [finding or one.get(group, "") for group, finding in zip(alike, mine)]
    return pd.Series(told, index=sought.index, dtype=object)


def group_failures_alike(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    """Of each row its backend, its op, and how it failed."""
    columns = rows[["backend", "op", *FailureManner._fields[:-1], "error"]].to_dict("records")
    return [(line["backend"], line["op"], *describe_failure_manner(line)) for line in columns]  # type: ignore[arg-type]


def add_reduced_column(rows: pd.DataFrame, entries: Sequence[KnownFailure]) -> pd.DataFrame:
    """Rows with the column `farm.plan.match_known.REDUCED` (ops of their finding; null for none), if these known failures ask
    for it."""
    results = rows.attrs.get("results")
    if not match_known.do_known_name_reduced(entries) or not results or rows.empty:
        return rows
    found = minimal.read_minimal_cases(results, sorted(set(rows["run_id"])))
    ops = {record["finding"]["id"]: record["finding"]["ops"] for record in found}
    mine = [ops.get(finding) for finding in find_finding_of_rows(found, rows).reindex(rows.index)]
    return rows.assign(**{match_known.REDUCED: pd.Series(mine, index=rows.index, dtype=object)})
