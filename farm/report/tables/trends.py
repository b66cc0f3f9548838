"""Many runs, each summed up once: the outcome of every op on every backend, run after run, and what changed.

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

from farm.report.runs import find_early_runs, read_run_start
from farm.report.tables.causes import HOW, NEW
from farm.report.tables.coverage import (
    FAILED_STATUSES,
    RANK,
    SEVERITY,
    count_rows_once,
    coverage,
    list_frame_lines,
    rank_status_column,
    table_cell_matrix,
)
from farm.report.tables.gate import GATES, judge_run_gate, read_gate_of_run
from farm.report.tables.overview import count_report_rows
from farm.report.tables.since_last_run import compare_since_run, since
from farm.report.tables.view import Report
from tasks.model import Refusal, Status, label_op

#: What a square is called by, what is counted of it, and what is kept of a cause and of a cell that changed.
SQUARE, COUNTS = ["label", "backend"], ["planned", "valid", "judged", "passed", "failed"]
#: What is summed over squares.
SUMMED = [*COUNTS, "failures", "new"]
CHANGED = ["change", *SQUARE, "check", "dtype", "status_a", "status_b"]
CAUSE = [
    *("reason", "standing", "fault", "rows", "cases", "ops", "all_ops", "labels", "backends", "dtypes"),
    *("label", "op", "dtype", "backend", "status", "run_id", "case_id", "only", "cause", *HOW),
]
#: Characters of an error that are kept.
_ERROR = 2_000


@dataclass(frozen=True, eq=False)
class RunSummary:
    """One run. facts: run_id, name (of its config), started_at, results, rows, cells, failures, new (`count_report_rows`; new
    is 0 where the config lists no known failures), listed (whether it lists any), early_s (of `early`, 0 for none),
    farm (its version and commit), planned, valid, judged, passed (of `coverage`, of all backends, as the report says
    them), verdict (its sentence), tone, versions and devices (by backend), gate (a value of `GATES`, "" without one),
    gate_said, since (the run_id of the run that it is compared with, "" for none), changed (the counts of that in
    words); squares: a line for each, with `SQUARE`, vendor, code, op_class, worst (status), `COUNTS`, failures (rows
    that failed, whosever fault), new (of these, those that no known failure covers; 0 where none is listed); causes: a
    line with `CAUSE` for each; changes: a line with `CHANGED` for each cell that changed since the last run of the
    config, the worst first."""

    facts: Mapping[str, Any]
    squares: pd.DataFrame
    causes: Sequence[Mapping[str, Any]] = field(default_factory=list)
    changes: Sequence[Mapping[str, Any]] = field(default_factory=list)

    @property
    def began(self) -> str:
        """When it began, to the minute: "2026-11-28 00:15"."""
        return str(self.facts["started_at"] or self.facts["run_id"])[:16].replace("T", " ")


def summarise_run_rows(
    rows: pd.DataFrame, run: Mapping[str, Any], earlier: tuple[pd.DataFrame, Mapping[str, Any]] | None = None
) -> RunSummary:
    """The summary of the rows of one run; ``run``: its record, or what is known of it; earlier: rows and record of the
    run that it is compared with (default: the last of its config in its lake)."""
    report = Report.of(rows, run)
    made, said = report.rows, report.verdict
    squares = table_cell_matrix(made)[["worst", *COUNTS]]
    failed = made["status"].isin(FAILED_STATUSES)
    new = failed & (made["standing"] == NEW) & said.listed
    by = made.assign(failures=failed, new=new).groupby(SQUARE, sort=False)
    more = by.agg(
        vendor=("vendor", "first"),
        code=("code", "first"),
        op_class=("op_class", "first"),
        failures=("failures", "sum"),
        new=("new", "sum"),
    )
    (total,) = list_frame_lines(coverage(count_rows_once(made), by=()))
    changed = compare_since_run(*earlier, made) if earlier else since(report)
    facts = {
        "run_id": str(run.get("run_id") or ""),
        "name": str(run.get("name") or ""),
        "started_at": str(run.get("started_at") or read_run_start(str(run.get("run_id") or ""))),
        "results": str(rows.attrs.get("results") or "results"),
        **count_report_rows(report),
        "early_s": max(find_early_runs(made).dt.total_seconds(), default=0.0) if "started_at" in made else 0.0,
        "verdict": said.sentence,
        "tone": said.tone,
        **{name: int(total[name]) for name in ("planned", "valid", "judged", "passed")},
        "new": said.new if said.listed else 0,
        "listed": said.listed,
        "farm": next(filter(None, made["farm_version"]), ""),
        "versions": _first_by_backend(made, "runtime_version"),
        "devices": _first_by_backend(made, "device"),
        "since": changed.run_id if changed else "",
        "changed": changed.sums.sentence(changed.known) if changed else "",
        **_state_run_gate(report),
    }
    cells = changed.cells if changed else pd.DataFrame(columns=[*CHANGED, "op", "variant"])
    cells = cells.assign(label=_label_trend_ops(cells))[CHANGED]
    causes = list_frame_lines(
        report.causes.assign(label=_label_trend_ops(report.causes), error=report.causes["error"].str[:_ERROR])[CAUSE]
    )
    return RunSummary(facts, squares.join(more).reset_index(), causes, list_frame_lines(cells))


def _label_trend_ops(table: pd.DataFrame) -> list[str]:
    return [label_op(*pair) for pair in zip(table["op"], table["variant"])]


def _first_by_backend(rows: pd.DataFrame, name: str) -> dict[str, str]:
    """The first text of a column for each backend that has one."""
    return rows[rows[name] != ""].groupby("backend")[name].first().dropna().to_dict()  # type: ignore[return-value]


def _state_run_gate(report: Report) -> dict[str, str]:
    try:
        gate = read_gate_of_run(report.run)
    except Refusal:  # of another version of the farm, which `farm gate` says
        gate = None
    if gate is None:
        return {"gate": "", "gate_said": ""}
    found = judge_run_gate(report, gate)
    return {"gate": GATES[found.code], "gate_said": found.sentence}


class OutcomeStretch(NamedTuple):
    """Runs in a row with one outcome: its first and its last place, and how many of them it has."""

    outcome: str
    first: int
    last: int
    runs: int


def list_outcome_stretches(series: Iterable[tuple[int, str]]) -> list[OutcomeStretch]:
    """Those of (run, outcome), the oldest first."""
    grouped = [(outcome, [at for at, _ in some]) for outcome, some in groupby(series, key=itemgetter(1))]
    return [OutcomeStretch(outcome, places[0], places[-1], len(places)) for outcome, places in grouped]


@dataclass(frozen=True, eq=False)
class RunTrends:
    """Runs in the order of their start. worst: places in `SEVERITY`, a line for each square, a column for each run, -1
    where a run has none of it; squares: the newest line of each, in the same order."""

    runs: Sequence[RunSummary]
    squares: pd.DataFrame
    worst: np.ndarray

    @classmethod
    def of(cls, runs: Sequence[RunSummary]) -> RunTrends:
        runs = sorted(runs, key=lambda one: (one.facts["started_at"], one.facts["run_id"]))
        # Numbers of squares, not their names: a year of runs has millions.
        names: dict[str, dict[str, int]] = {name: {} for name in SQUARE}
        keys = [
            functools.reduce(_pack_summary_pair, (_number_summary_texts(n.squares[x], names[x]) for x in SQUARE))
            for n in runs
        ]
        found, line = np.unique(np.concatenate(keys), return_inverse=True)
        place = np.concatenate([np.arange(len(key)) for key in keys])
        of_run = np.repeat(np.arange(len(runs)), [len(key) for key in keys])
        newest = np.zeros(len(found), dtype="int64")
        np.maximum.at(newest, line, np.arange(len(line)))
        some = [n.squares.iloc[place[newest[of_run[newest] == at]]] for at, n in enumerate(runs)]
        texts = {x: str for x in (*SQUARE, "vendor", "code", "op_class", "worst")}
        made = pd.concat([one.astype(texts) for one in some], ignore_index=True)
        made["key"] = np.concatenate([found[of_run[newest] == at] for at in range(len(runs))])
        made = made.sort_values(SQUARE, ignore_index=True)
        order = np.empty(len(found), dtype="int64")
        order[np.searchsorted(found, made.pop("key"))] = np.arange(len(found))
        ranks = dict(RANK)
        worst = np.full((len(found), len(runs)), -1, dtype="int8")
        worst[order[line], of_run] = np.concatenate([_number_summary_texts(n.squares["worst"], ranks) for n in runs])
        return cls(runs, made, worst)

    def series(self, line: int) -> list[OutcomeStretch]:
        """The outcomes of a square, the oldest first."""
        at = np.flatnonzero(self.worst[line] >= 0)
        codes = self.worst[line, at]
        begins = np.flatnonzero(np.diff(codes, prepend=-1))
        ends = np.append(begins[1:], len(at))
        told = zip(codes[begins].tolist(), at[begins].tolist(), at[ends - 1].tolist(), (ends - begins).tolist())
        return [OutcomeStretch(SEVERITY[code], *places) for code, *places in told]

    @functools.cached_property
    def dates(self) -> list[str]:
        """When each run began: its day, or, where two began on one day, the minute."""
        began = [one.began for one in self.runs]
        days = [one[:10] for one in began]
        return days if len(set(days)) == len(days) else began

    def once(self) -> pd.DataFrame:
        """The newest squares for sums over backends: of those that run one ``code`` (modes of a runtime), the worst of
        an op."""
        worst = rank_status_column(self.squares["worst"]).sort_values(kind="stable").index
        return self.squares.loc[worst].drop_duplicates(["label", "vendor", "code"])

    def sums(self, by: str) -> pd.DataFrame:
        """`SUMMED` of every run by a column of the squares: index (run, value)."""
        return pd.concat({at: n.squares.groupby(by)[SUMMED].sum() for at, n in enumerate(self.runs)})


def _number_summary_texts(column: pd.Series, places: dict[str, int]) -> np.ndarray:
    """Texts as their places, which are given to those that have none."""
    told = column.astype("category").cat
    return np.array([places.setdefault(name, len(places)) for name in told.categories])[told.codes]


def _pack_summary_pair(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first.astype("int64") << 32) + second


def find_trend_changes(trends: RunTrends) -> pd.DataFrame:
    """The cells that changed from a run to the next of the same config (`farm.report.tables.since_last_run`), the newest and
    worst first: run (its place), earlier (that of the one before, -1 where it is not among the runs), and `CHANGED`."""
    place = {one.facts["run_id"]: at for at, one in enumerate(trends.runs)}
    found = [
        {"run": at, "earlier": place.get(one.facts["since"], -1), **line}
        for at, one in reversed([*enumerate(trends.runs)])
        for line in one.changes
    ]
    return pd.DataFrame(found, columns=["run", "earlier", *CHANGED])


def count_failing_runs(series: Sequence[OutcomeStretch]) -> tuple[int, int, int]:
    """(runs that failed; turns from right to failed; those that were right again in the next run) of a square: one that
    turns often, or for one run, is flaky."""
    bad = [Status(one.outcome).failed for one in series]
    turns = [k for k in range(1, len(bad)) if bad[k] and not bad[k - 1]]
    gone = [k for k in turns if series[k].runs == 1 and k + 1 < len(bad) and not bad[k + 1]]
    return sum(one.runs for one, failed in zip(series, bad, strict=True) if failed), len(turns), len(gone)
