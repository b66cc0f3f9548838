"""Many runs, each summed up once: the outcome of every op on every backend, night after night, and what changed.

A summary holds squares (an op on a backend) and causes, not rows, so that a year of runs fits into memory.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from farm.report.tables.agreement import units
from farm.report.tables.causes import NEW
from farm.report.tables.changes import CHANGES, change_codes
from farm.report.tables.coverage import SEVERITY, cell_matrix, severity
from farm.report.tables.view import Report
from tasks.model import Status

#: What a square is called by, what is counted of it, and what is kept of a cause.
SQUARE, COUNTS = ["label", "backend"], ["planned", "valid", "judged", "passed", "failed"]
CAUSE = ["reason", "standing", "rows", "cases", "ops", "backends", "status", "reproduce"]


@dataclass(frozen=True, eq=False)
class Night:
    """One run. facts: run_id, name (of its config), started_at, results, rows, verdict, tone, new; squares: a line for each, with
    `SQUARE`, vendor, code, op_class, worst (status), units (the worst), `COUNTS`, new (failures that no known failure covers)."""

    facts: Mapping[str, Any]
    squares: pd.DataFrame
    causes: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def day(self) -> str:
        return str(self.facts["started_at"] or self.facts["run_id"])[:10]


def night(rows: pd.DataFrame, run: Mapping[str, Any]) -> Night:
    """The summary of the rows of one run; ``run``: its record, or what is known of it."""
    report = Report.of(rows, run)
    made, said = report.rows, report.verdict
    squares = cell_matrix(made)[["worst", *COUNTS]]
    by = made.assign(units=units(made), new=made["standing"] == NEW).groupby(SQUARE, sort=False)
    more = by.agg(
        vendor=("vendor", "first"),
        code=("code", "first"),
        op_class=("op_class", "first"),
        units=("units", "max"),
        new=("new", "sum"),
    )
    facts = {
        "run_id": str(run.get("run_id") or ""),
        "name": str(run.get("name") or ""),
        "started_at": str(run.get("started_at") or began(str(run.get("run_id") or ""))),
        "results": str(rows.attrs.get("results") or "results"),
        "rows": len(made),
        "verdict": said.sentence,
        "tone": said.tone,
        "new": int(said.new),
    }
    causes = report.causes[CAUSE].astype({"rows": int, "cases": int}).astype(str).to_dict("records")
    return Night(facts, squares.join(more).reset_index(), causes)  # type: ignore[arg-type]


def began(run_id: str) -> str:
    """When a run began, as its id says, in ISO form; "" where it does not."""
    try:
        return datetime.datetime.strptime(f"{run_id[:15]} +0000", "%Y%m%d-%H%M%S %z").isoformat()
    except ValueError:
        return ""


@dataclass(frozen=True, eq=False)
class Trends:
    """Nights in the order of their start. worst: places in `SEVERITY`, a line for each square, a column for each night, -1 where
    a night has none of it; squares: the newest line of each, in the same order."""

    nights: Sequence[Night]
    squares: pd.DataFrame
    worst: np.ndarray

    @classmethod
    def of(cls, nights: Sequence[Night]) -> Trends:
        nights = sorted(nights, key=lambda one: (one.facts["started_at"], one.facts["run_id"]))
        every = pd.concat([n.squares.assign(night=at) for at, n in enumerate(nights)], ignore_index=True)
        newest = every.drop_duplicates(SQUARE, keep="last").sort_values(SQUARE, ignore_index=True)
        line = pd.MultiIndex.from_frame(newest[SQUARE]).get_indexer(pd.MultiIndex.from_frame(every[SQUARE]))
        worst = np.full((len(newest), len(nights)), -1, dtype="int8")
        worst[line, every["night"]] = every["worst"].map({name: k for k, name in enumerate(SEVERITY)})
        return cls(nights, newest, worst)

    def series(self, line: int) -> list[tuple[int, str]]:
        """(night, status) of a square, the oldest first."""
        return [(at, SEVERITY[code]) for at, code in enumerate(self.worst[line].tolist()) if code >= 0]

    def once(self) -> pd.DataFrame:
        """The newest squares for sums over backends: of those that run one ``code`` (modes of a runtime), the worst of an op."""
        worst = severity(self.squares["worst"]).sort_values(kind="stable").index
        return self.squares.loc[worst].drop_duplicates(["label", "vendor", "code"])

    def sums(self, by: str) -> pd.DataFrame:
        """`COUNTS` and new of every night by a column of the squares: index (night, value)."""
        return pd.concat({at: n.squares.groupby(by)[[*COUNTS, "new"]].sum() for at, n in enumerate(self.nights)})


def changed(nights: Sequence[Night]) -> pd.DataFrame:
    """The squares that changed from a night to the next of the same config, by the words of `farm.report.diff`, the newest and
    worst first: night (its place), change, `SQUARE`, before, after (statuses)."""
    last: dict[str, Night] = {}
    found = [pd.DataFrame(columns=["night", "change", *SQUARE, "before", "after"])]
    for at, one in enumerate(nights):
        earlier, last[one.facts["name"]] = last.get(one.facts["name"]), one
        if earlier is None:
            continue
        both = earlier.squares.merge(one.squares, on=SQUARE, suffixes=("_a", "_b"))
        sides = [
            pd.DataFrame({"status": both[f"worst_{x}"], "units": both[f"units_{x}"], "kind": "", "digest": ""})
            for x in "ab"
        ]
        place = np.arange(len(both))
        codes = change_codes(pd.concat(sides, ignore_index=True), place, len(both) + place)
        made = both[SQUARE].assign(night=at, rank=codes, before=both["worst_a"], after=both["worst_b"])
        found.append(made[codes != CHANGES.index("same")])
    every = pd.concat(found, ignore_index=True)
    every["change"] = every["rank"].map(dict(enumerate(CHANGES))) if len(every) else ""
    every = every.sort_values(["night", "rank"], ascending=[False, True], kind="stable") if len(every) else every
    return every.reset_index(drop=True)


def since(series: Sequence[tuple[int, str]]) -> int:
    """The night since which the outcome is what it is now."""
    at = len(series) - 1
    while at and series[at - 1][1] == series[-1][1]:
        at -= 1
    return series[at][0]


def failures(series: Sequence[tuple[int, str]]) -> tuple[int, int, int]:
    """(nights that failed; turns from right to failed; those that were right again the night after) of a square: one that turns
    often, or for a night, is flaky."""
    bad = [Status(status).failed for _, status in series]
    turns = [k for k in range(1, len(bad)) if bad[k] and not bad[k - 1]]
    return sum(bad), len(turns), sum(k + 1 < len(bad) and not bad[k + 1] for k in turns)
