"""Every case with all its backends side by side, as the page shows it: who stands outside, and what changed from whom to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from farm.report.tables.agreement import (
    GROUP_NAMES,
    NO_RESULT,
    REFERENCE,
    UNKNOWN,
    describe_agreeing_group,
    describe_case_agreement,
    explain_row_outside,
    find_outlier_backends,
    get_row_units,
    group_agreeing_rows,
    name_row_units,
)
from farm.report.tables.changes import CELL, CHANGES, find_change_codes
from farm.report.tables.coverage import list_frame_lines

#: No row, or nothing known.
NONE = "."
#: Characters for groups and for distinct outputs: one each.
_MARKS = [c for c in map(chr, range(0x31, 0x2B0)) if c.isalnum() and c != "r"]
_GROUP_MARKS = [c for c in _MARKS if c.isupper()] + [c for c in _MARKS if not c.isupper()]
_MARK_OF = {REFERENCE: "r", NO_RESULT: NONE, UNKNOWN: "?"} | dict(zip(GROUP_NAMES, _GROUP_MARKS, strict=False))
#: Pairs of outcomes compared at once.
_PAIRS = 400_000


@dataclass(frozen=True)
class ReportSides:
    """Cases and what became of them on every backend.

    cases: one line per case_id: label, check, dtype, cell (the cells of `farm.report.diff` by number), and texts with a
    character for each backend, in their order, "." where it has no row: status (its sign), group (r: agrees with the
    reference; else with whom, see ``agrees``), bytes (equal for the very same output), outlier ("1"); change: a
    character for each pair of outcomes that the case has (first × second), a place in `CHANGES`; said: who agrees with
    whom, in sentences, one a line (both are "" where no case has two outcomes); unit: of its figures. outcomes: all of
    them, case after case: units, limit, why (what puts it outside, in a few words). place: (run_id, case_id) → place of
    the case.
    """

    cases: pd.DataFrame
    outcomes: pd.DataFrame
    place: dict[tuple[str, str], int]
    agrees: dict[str, str]


def set_side_by_side(
    rows: pd.DataFrame, labels: Sequence[str], names: Sequence[str], signs: dict[str, str]
) -> ReportSides:
    """The `ReportSides` of `distinct` rows. ``labels``, ``names``: ops and backends in their order; ``signs``: by status."""
    place = {name: k for k, name in enumerate(names)}
    rows = rows[rows["backend"].isin(place)]
    one = rows["run_id"].nunique() <= 1
    key = pd.Series("", index=rows.index) if one else rows["run_id"]  # backends of several runs stand side by side
    newest = rows.assign(
        agrees=group_agreeing_rows(rows.assign(run_id="")),
        units=get_row_units(rows),
        column=rows["backend"].map(place),
        run=key,
    )
    newest = newest.sort_values("run", kind="stable").drop_duplicates(["case_id", "backend"], keep="last")
    newest = newest.sort_values(["case_id", "column"], kind="stable").reset_index(drop=True)
    codes, cases = pd.factorize(newest["case_id"])
    newest["outlier"] = find_outlier_backends(newest["agrees"], codes)
    digests = pd.Series(pd.factorize(newest["output_digest"].where(newest["output_digest"] != ""))[0])
    rank = digests.where(digests >= 0).groupby(codes).rank("dense").fillna(0).astype(int)
    at = codes * len(names) + newest["column"].to_numpy(dtype="int64")

    def texts(values: list[str]) -> list[str]:
        grid = np.full(len(cases) * len(names), NONE, dtype="U1")
        grid[at] = values
        return ["".join(line) for line in grid.reshape(len(cases), len(names))] if len(names) else []

    about = newest.drop_duplicates("case_id").reset_index(drop=True)
    several = len(newest) > len(cases)  # where no case has two outcomes there is nothing to compare
    where = {label: k for k, label in enumerate(labels)}
    made = pd.DataFrame(
        {
            "label": about["label"].map(where),
            "check": about["check"],
            "dtype": about["dtype"],
            "cell": about.groupby(CELL, sort=False).ngroup(),
            "status": texts([signs[s] for s in newest["status"]]),
            "group": texts([_MARK_OF.get(g, "?") for g in newest["agrees"]]),
            "bytes": texts([NONE if k == 0 else _MARKS[min(k, len(_MARKS)) - 1] for k in rank]),
            "outlier": texts(["1" if out else NONE for out in newest["outlier"]]),
            "change": list(_find_status_changes(newest, codes)) if several else "",
            "said": list(_render_side_verdicts(newest, codes, rank)) if several else "",
            "unit": about["op_class"].map(name_row_units),
        }
    )
    known = pd.Index(cases).get_indexer(rows["case_id"]).tolist()
    occurring = {_MARK_OF.get(g, "?"): describe_agreeing_group(g) for g in dict.fromkeys(newest["agrees"])}
    return ReportSides(
        made,
        newest[["units", "limit"]].assign(why=[explain_row_outside(line) for line in list_frame_lines(newest)]),
        dict(zip(zip(rows["run_id"], rows["case_id"], strict=True), known, strict=True)),
        occurring,
    )


def _find_status_changes(newest: pd.DataFrame, codes: np.ndarray) -> Iterator[str]:
    """Per case the change from each of its outcomes to each, a character for a pair. Rows stand in order of their
    case."""
    sizes = np.bincount(codes) if len(codes) else np.zeros(0, dtype="int64")
    begin = np.concatenate([[0], np.cumsum(sizes)])
    case = 0
    while case < len(sizes):  # as many cases at once as have about _PAIRS pairs
        upto = case + max(1, int(np.searchsorted(np.cumsum(sizes[case:] ** 2), _PAIRS)))
        some = newest.iloc[begin[case] : begin[upto]]
        size = sizes[codes[begin[case] : begin[upto]]]
        left = np.repeat(np.arange(len(some)), size)
        nth = np.arange(len(left)) - np.repeat(np.cumsum(size) - size, size)
        first = begin[codes[begin[case] : begin[upto]]] - begin[case]
        found = find_change_codes(some, left, np.repeat(first, size) + nth)
        text = "".join(map(str, range(len(CHANGES))))
        marks = np.array(list(text))[found]
        ends = np.cumsum(sizes[case:upto] ** 2)
        yield from ("".join(part) for part in np.split(marks, ends[:-1]))
        case = upto


def _render_side_verdicts(newest: pd.DataFrame, codes: np.ndarray, rank: pd.Series) -> Iterator[str]:
    columns = ["backend", "vendor", "status", "kind", "units", "limit", "agrees", "digest"]
    shares = rank[rank > 0].groupby([pd.Series(codes), rank]).transform("size").reindex(newest.index, fill_value=1) > 1
    lines = list_frame_lines(newest[columns].assign(same_bytes=shares))
    ends = np.flatnonzero(np.diff(codes, append=-1)) + 1
    for begin, end in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        yield "\n".join(describe_case_agreement(lines[begin:end]))
