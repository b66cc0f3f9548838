"""Many runs, each summed up once: the outcome of every op on every backend, night after night, and what changed.

A summary holds squares (an op on a backend) and causes, not rows, so that a year of runs fits into memory.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from farm.plan.model import ConfigError
from farm.report.runs import began, early
from farm.report.tables.causes import NEW
from farm.report.tables.coverage import SEVERITY, cell_matrix, records, severity
from farm.report.tables.gate import GATES, gate_of, judge_gate
from farm.report.tables.overview import count_run
from farm.report.tables.since import since, since_run
from farm.report.tables.view import Report
from tasks.model import Status, label_of

#: What a square is called by, what is counted of it, and what is kept of a cause and of a cell that changed.
SQUARE, COUNTS = ["label", "backend"], ["planned", "valid", "judged", "passed", "failed"]
CHANGED = ["change", *SQUARE, "check", "dtype", "status_a", "status_b"]
CAUSE = ["reason", "standing", "rows", "cases", "ops", "backends", "status", "reproduce"]


@dataclass(frozen=True, eq=False)
class Night:
    """One run. facts: run_id, name (of its config), started_at, results, rows, cells, failures, new (`count_run`), early_s (of `early`, 0 for none), verdict, tone, versions (of runtimes, by backend),
    gate (a value of `GATES`, "" without one), gate_said, since (the run_id of the run that it is compared with, "" for none), changed (the counts of
    that in words); squares: a line for each, with `SQUARE`, vendor, code, op_class, worst (status), `COUNTS`, new (failures that no known failure covers); changes: a line with `CHANGED` for
    each cell that changed since the last run of the config, the worst first."""

    facts: Mapping[str, Any]
    squares: pd.DataFrame
    causes: Sequence[Mapping[str, Any]] = field(default_factory=list)
    changes: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def day(self) -> str:
        return str(self.facts["started_at"] or self.facts["run_id"])[:10]


def night(
    rows: pd.DataFrame, run: Mapping[str, Any], earlier: tuple[pd.DataFrame, Mapping[str, Any]] | None = None
) -> Night:
    """The summary of the rows of one run; ``run``: its record, or what is known of it; earlier: rows and record of the run that it is compared
    with (default: the last of its config in its lake)."""
    report = Report.of(rows, run)
    made, said = report.rows, report.verdict
    squares = cell_matrix(made)[["worst", *COUNTS]]
    by = made.assign(new=made["standing"] == NEW).groupby(SQUARE, sort=False)
    more = by.agg(
        vendor=("vendor", "first"), code=("code", "first"), op_class=("op_class", "first"), new=("new", "sum")
    )
    changed = since_run(*earlier, made) if earlier else since(report)
    facts = {
        "run_id": str(run.get("run_id") or ""),
        "name": str(run.get("name") or ""),
        "started_at": str(run.get("started_at") or began(str(run.get("run_id") or ""))),
        "results": str(rows.attrs.get("results") or "results"),
        **count_run(report),
        "early_s": max(early(made).dt.total_seconds(), default=0.0) if "started_at" in made else 0.0,
        "verdict": said.sentence,
        "tone": said.tone,
        "versions": made[made["runtime_version"] != ""]
        .groupby("backend")["runtime_version"]
        .first()
        .dropna()
        .to_dict(),
        "since": changed.run_id if changed else "",
        "changed": changed.sums.sentence(changed.known) if changed else "",
        **_gate(report),
    }
    cells = changed.cells if changed else pd.DataFrame(columns=[*CHANGED, "op", "variant"])
    cells = cells.assign(label=[label_of(*pair) for pair in zip(cells["op"], cells["variant"])])[CHANGED]
    causes = report.causes[CAUSE].astype({"rows": int, "cases": int}).astype(str).to_dict("records")
    return Night(facts, squares.join(more).reset_index(), causes, records(cells))  # type: ignore[arg-type]


def _gate(report: Report) -> dict[str, str]:
    try:
        gate = gate_of(report.run)
    except ConfigError:  # of another version of the farm, which `farm gate` says
        gate = None
    if gate is None:
        return {"gate": "", "gate_said": ""}
    found = judge_gate(report, gate)
    return {"gate": GATES[found.code], "gate_said": found.sentence}


class Stretch(NamedTuple):
    """Nights in a row with one outcome: its first and its last place, and how many of them it has."""

    outcome: str
    first: int
    last: int
    nights: int


def stretches(series: Iterable[tuple[int, str]]) -> list[Stretch]:
    """Those of (night, outcome), the oldest first."""
    grouped = [(outcome, [at for at, _ in some]) for outcome, some in groupby(series, key=itemgetter(1))]
    return [Stretch(outcome, places[0], places[-1], len(places)) for outcome, places in grouped]


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
        # Numbers of squares, not their names: a year of nights has millions.
        names: dict[str, dict[str, int]] = {name: {} for name in SQUARE}
        keys = [functools.reduce(_pack_pair, (_numbers(n.squares[x], names[x]) for x in SQUARE)) for n in nights]
        found, line = np.unique(np.concatenate(keys), return_inverse=True)
        place = np.concatenate([np.arange(len(key)) for key in keys])
        night = np.repeat(np.arange(len(nights)), [len(key) for key in keys])
        newest = np.zeros(len(found), dtype="int64")
        np.maximum.at(newest, line, np.arange(len(line)))
        some = [n.squares.iloc[place[newest[night[newest] == at]]] for at, n in enumerate(nights)]
        texts = {x: str for x in (*SQUARE, "vendor", "code", "op_class", "worst")}
        made = pd.concat([one.astype(texts) for one in some], ignore_index=True)
        made["key"] = np.concatenate([found[night[newest] == at] for at in range(len(nights))])
        made = made.sort_values(SQUARE, ignore_index=True)
        order = np.empty(len(found), dtype="int64")
        order[np.searchsorted(found, made.pop("key"))] = np.arange(len(found))
        ranks = {name: k for k, name in enumerate(SEVERITY)}
        worst = np.full((len(found), len(nights)), -1, dtype="int8")
        worst[order[line], night] = np.concatenate([_numbers(n.squares["worst"], ranks) for n in nights])
        return cls(nights, made, worst)

    def series(self, line: int) -> list[Stretch]:
        """The outcomes of a square, the oldest first."""
        at = np.flatnonzero(self.worst[line] >= 0)
        codes = self.worst[line, at]
        begins = np.flatnonzero(np.diff(codes, prepend=-1))
        ends = np.append(begins[1:], len(at))
        told = zip(codes[begins].tolist(), at[begins].tolist(), at[ends - 1].tolist(), (ends - begins).tolist())
        return [Stretch(SEVERITY[code], *places) for code, *places in told]

    def once(self) -> pd.DataFrame:
        """The newest squares for sums over backends: of those that run one ``code`` (modes of a runtime), the worst of an op."""
        worst = severity(self.squares["worst"]).sort_values(kind="stable").index
        return self.squares.loc[worst].drop_duplicates(["label", "vendor", "code"])

    def sums(self, by: str) -> pd.DataFrame:
        """`COUNTS` and new of every night by a column of the squares: index (night, value)."""
        return pd.concat({at: n.squares.groupby(by)[[*COUNTS, "new"]].sum() for at, n in enumerate(self.nights)})


def _numbers(column: pd.Series, places: dict[str, int]) -> np.ndarray:
    """Texts as their places, which are given to those that have none."""
    told = column.astype("category").cat
    return np.array([places.setdefault(name, len(places)) for name in told.categories])[told.codes]


def _pack_pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first.astype("int64") << 32) + second


def find_changes(trends: Trends) -> pd.DataFrame:
    """The cells that changed from a run to the next of the same config (`farm.report.tables.since`), the newest and worst first: night (its
    place), earlier (that of the one before, -1 where it is not among the nights), and `CHANGED`."""
    place = {one.facts["run_id"]: at for at, one in enumerate(trends.nights)}
    found = [
        {"night": at, "earlier": place.get(one.facts["since"], -1), **line}
        for at, one in reversed([*enumerate(trends.nights)])
        for line in one.changes
    ]
    return pd.DataFrame(found, columns=["night", "earlier", *CHANGED])


def failures(series: Sequence[Stretch]) -> tuple[int, int, int]:
    """(nights that failed; turns from right to failed; those that were right again the night after) of a square: one that turns
    often, or for a night, is flaky."""
    bad = [Status(one.outcome).failed for one in series]
    turns = [k for k in range(1, len(bad)) if bad[k] and not bad[k - 1]]
    gone = [k for k in turns if series[k].nights == 1 and k + 1 < len(bad) and not bad[k + 1]]
    return sum(one.nights for one, failed in zip(series, bad, strict=True) if failed), len(turns), len(gone)
