"""Distinct defects over a lake: minimal cases that are one finding in one line, and what failed and has no minimal case yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from farm.lake import minimal
from farm.lake.key import RowKey
from farm.plan import match_known
from farm.plan.known_failure import KnownFailure
from farm.program import write_results_option
from farm.report.tables.causes import count_with_noun
from farm.report.tables.coverage import JUDGED_STATUSES, rank_status_column
from farm.report.tables.failures_alike import SOUGHT, find_finding_of_rows, group_failures_alike
from farm.report.tables.history import sort_version_texts
from farm.report.tables.view import (
    Line,
    Report,
    View,
    ViewColumn,
    build_number_column,
    make_status_column,
    make_text_column,
    view,
)
from farm.report.words import format_report_number
from tasks.model import Status
from tasks.model.failing import FailureManner
from tasks.model.kind import OF_NUMBERS

#: Whose a finding is: its backend's, or one of WHOSE.
BACKENDS, REFERENCES, GONE = "backend", "reference", "gone"
WHOSE = {
    **match_known.WHOSE,
    REFERENCES: "not settled: by the reference of its parts it is right",
    GONE: "it passes now, in a later run with this version of the runtime or a newer one",
}
#: Columns of `list_defect_lines`.
_TOLD = [
    *("finding", "backend", "ops", "status", "kind", "what", "words", "flaky", "nodes", "elements", "cases", "rows"),
    "passes",
    "link",
    *(
        "first",
        "last",
        "versions",
        "right",
        "alike",
        "fault",
        "known",
        "script",
        "folder",
        "run_id",
        "case_id",
        "command",
    ),
]


def list_defect_lines(found: Iterable[Mapping[str, Any]], rows: pd.DataFrame, runs: Mapping[str, Any]) -> pd.DataFrame:
    """One line per finding, what crashes first, those that are not the backend's last.

    found: records of minimal cases (`farm.lake.minimal`); rows: of the lake, of all the runs that are to be told of;
    runs: their records, by id. what: attributes that are not the default, and modes; words: the masked error; nodes,
    elements, case_id, run_id, folder: of the smallest minimal case; cases: minimal cases of the finding, and rows: rows
    of the lake that are of it (`find_finding_of_rows`); first, last: runs of these; versions: of the runtime; right: backends
    that got these cases right, and alike: that failed in the same status; passes: the later run in which its minimal
    cases pass (`_find_passing_run`); known, link: the reason of the known failure that covers it, and where that is
    reported; fault: whose it is (a key of WHOSE, or BACKENDS).
    """
    results, found = str(rows.attrs.get("results", "results")), list(found)
    of = find_finding_of_rows(found, rows)
    by_finding: dict[str, list[Mapping[str, Any]]] = {}
    for record in found:
        by_finding.setdefault(record["finding"]["id"], []).append(record)
    lines = [
        _make_defect_line(several, rows, rows.loc[of.index[of == finding]], runs, results)
        for finding, several in by_finding.items()
    ]
    made = pd.DataFrame(lines, columns=_TOLD)
    if made.empty:
        return made
    order = made["status"].map(lambda name: Status(name).facts.severity)
    made = made.assign(rank=order, apart=made["fault"] != BACKENDS)
    return made.sort_values(["apart", "rank", "backend", "ops"], kind="stable")[_TOLD].reset_index(drop=True)


def _make_defect_line(
    several: list[Mapping[str, Any]], rows: pd.DataFrame, mine: pd.DataFrame, runs: Mapping[str, Any], results: str
) -> dict[str, Any]:
    best = min(several, key=lambda x: (x["flaky"], *(x.get(name, [0, 1 << 40])[1] for name in ("nodes", "elements"))))
    finding = best["finding"]
    cases = {x["case_id"] for x in several}
    of_cases = rows[rows["case_id"].isin(cases)]
    seen = sorted(set(mine["run_id"])) or sorted({x["run_id"] for x in several})
    others = of_cases[of_cases["backend"] != finding["backend"]]
    given = [f"{name}={value}" for name, value in finding["attributes"].items()]
    key = RowKey.of(best)
    by_chance = best["flaky"] or finding.get("after")  # it passes where it is run after others
    passes = "" if by_chance else _find_passing_run(finding["backend"], several, mine, of_cases)
    entries = _find_covering_failures(mine.assign(**{match_known.REDUCED: [finding["ops"]] * len(mine)}), runs)
    # As a whole it fails, and made of its parts it does not: the two references differ, or the two ways of running it
    # do. Of what died, raised, is flaky or broke a promise over all inputs one run of the parts says nothing.
    numbers = finding["kind"] in (*OF_NUMBERS, "nonfinite") and not best["flaky"]
    apart = numbers and all(x.get("by_parts") == Status.PASS.value for x in several)
    return {
        **{name: finding[name] for name in ("backend", "status", "kind", "words")},
        "finding": finding["id"],
        "ops": " + ".join(finding["ops"]),
        "what": ", ".join([*given, *finding["modes"], *(["after another case"] if finding.get("after") else [])]),
        "flaky": best["flaky"],
        "nodes": best.get("nodes", [None, None])[1],
        "elements": best.get("elements", [None, None])[1],
        "cases": len(several),
        "rows": len(mine),
        "first": seen[0],
        "last": seen[-1],
        "versions": ", ".join(sorted({*mine["runtime_version"], *(x["runtime_version"] for x in several)})),
        "right": ", ".join(sorted(set(others[others["status"] == Status.PASS.value]["backend"]))),
        "alike": ", ".join(sorted(set(others[others["status"] == finding["status"]]["backend"]))),
        "passes": passes,
        "fault": (GONE if passes else "")
        or _infer_defect_fault(entries, len(mine))
        or (REFERENCES if apart and not entries else BACKENDS),
        "known": entries[-1].reason if entries else "",
        "link": entries[-1].link if entries else "",
        "script": bool({"run.py", "script.py"} & {*best.get("files", ())}),
        **{name: best[name] for name in ("folder", "run_id", "case_id")},
        "command": f"farm minimise '{key}'{write_results_option(results)}",
    }


def _find_passing_run(
    backend: str, several: Sequence[Mapping[str, Any]], mine: pd.DataFrame, of_cases: pd.DataFrame
) -> str:
    """The run in which the minimal cases of a finding were last judged, if that is after the last run in which it
    failed, and they all pass there, on the same inputs and device and with that version of the runtime or a newer one;
    "" else. A run's id begins with its date."""
    last = max(mine["run_id"], default="")
    before = max(map(sort_version_texts, mine["runtime_version"]), default=sort_version_texts(""))
    later = of_cases[
        (of_cases["backend"] == backend) & of_cases["status"].isin(JUDGED_STATUSES) & (of_cases["run_id"] > last)
    ].sort_values("run_id", kind="stable")
    newest = {case_id: rows.iloc[-1] for case_id, rows in later.groupby("case_id", sort=False)}
    digests = dict(zip(mine["case_id"], mine["digest"])) if "digest" in mine else {}
    for record in several:
        row = newest.get(record["case_id"])
        if row is None or row["status"] != Status.PASS or sort_version_texts(row["runtime_version"]) < before:
            return ""
        if row["device"] not in set(mine["device"]):  # another one may take other kernels
            return ""
        if row.get("digest") != digests.get(record["case_id"], row.get("digest")):
            return ""
    return str(max(row["run_id"] for row in newest.values()))


def _find_covering_failures(mine: pd.DataFrame, runs: Mapping[str, Any]) -> list[KnownFailure]:
    """The known failures that cover rows, one for each row that is covered, by the record of their run."""
    found = []
    for run_id, some in mine.groupby("run_id", sort=False):
        entries = match_known.parse_known_entries(runs.get(str(run_id)) or {}) or []
        found += [entries[int(place)] for place in match_known.match_known_to_rows(some, entries).entry if place >= 0]
    return found


def _infer_defect_fault(entries: Sequence[KnownFailure], rows: int) -> str:
    """Whose a finding is that known failures cover in all its rows, if nobody says that it is the backend's; ""
    else."""
    faults = {entry.fault for entry in entries}
    return "" if len(entries) < rows or not faults or BACKENDS in faults else sorted(faults)[0]


def list_rows_without_minimal(found: Iterable[Mapping[str, Any]], rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that are of no finding yet (`find_finding_of_rows`): one line per backend, op and manner of failing, the worst
    first, with the number of ``rows`` and the key of the one with the fewest elements: run_id, case_id."""
    of = find_finding_of_rows(found, rows)
    left = rows.loc[of.index[of == ""]]
    left = left.sort_values("numel", kind="stable") if "numel" in left else left
    columns = ["backend", "op", *FailureManner._fields]
    left = left[["run_id", "case_id"]].join(pd.DataFrame(group_failures_alike(left), columns=columns, index=left.index))
    sums = left.groupby(columns, sort=False).agg(
        rows=("case_id", "size"), run_id=("run_id", "first"), case_id=("case_id", "first")
    )
    made = sums.reset_index()
    return made.assign(rank=rank_status_column(made["status"])).sort_values("rank", kind="stable").drop(columns="rank")


def sort_defects_by_worth(left: pd.DataFrame, rows: pd.DataFrame, runs: Mapping[str, Any]) -> pd.DataFrame:
    """The lines of `list_rows_without_minimal` as it pays to make them small: what failed and no known failure covers, then one
    group of each known cause, then what is merely imprecise, then the rest; in each of these backend by backend in
    turn, the worst of each first, but what does not end last: each step of making it smaller takes its deadline."""
    key = ["run_id", "case_id", "backend"]
    reasons: dict[tuple[str, ...], str] = {}
    for run_id, some in rows.merge(left[key]).groupby("run_id"):
        entries = match_known.parse_known_entries(runs.get(str(run_id)) or {}) or []
        places = match_known.match_known_to_rows(some, entries).entry
        told = [str(entries[place].reason) if place >= 0 else "" for place in places]
        reasons.update(zip(some[key].itertuples(index=False, name=None), told))
    known_as = [reasons.get(line, "") for line in left[key].itertuples(index=False, name=None)]
    made = left.assign(known_as=known_as, slow=left["status"] == Status.TIMEOUT.value).sort_values(
        "slow", kind="stable"
    )
    again = made.duplicated(["backend", "known_as"])
    imprecise = made["status"] == Status.IMPRECISE.value
    made["class"] = (made["known_as"] != "").astype(int) * (1 + 2 * again)
    made.loc[imprecise & (made["class"] < 3), "class"] = 2
    made["turn"] = made.groupby(["class", "backend"]).cumcount()
    return made.sort_values(["class", "turn"], kind="stable").drop(columns=["class", "turn", "slow"])


def describe_defect_counts(table: pd.DataFrame, left: pd.DataFrame) -> str:
    """How the rows that failed or are imprecise are divided. table: of `list_defect_lines`; left: of `list_rows_without_minimal`."""
    done, rest = int(table["rows"].sum()), int(left["rows"].sum())
    return (
        f"{done + rest:,} rows failed or are imprecise: {done:,} belong to {count_with_noun(len(table), 'finding')} with a minimal case; "
        f"{rest:,} in {count_with_noun(len(left), 'group')} (same backend, op and manner of failing) have none yet"
    )


def _describe_defect(line: Line) -> str:
    return " ".join(filter(None, [line["kind"], line["what"], line["words"][:160]])) or line["status"]


def _describe_whose_defect(line: Line) -> str:
    return "" if line["fault"] == BACKENDS else WHOSE[line["fault"]] + f" ({line['passes']})" * bool(line["passes"])


COLUMNS = (
    make_status_column(),
    make_text_column("backend"),
    make_text_column("ops"),
    ViewColumn("what", _describe_defect, foreign=True),
    ViewColumn(
        "nodes, elements",
        lambda line: f"{format_report_number(line['nodes'])}, {format_report_number(line['elements'])}",
        right=True,
    ),
    build_number_column("rows"),
    make_text_column("right", "right on", length=60),
    make_text_column("versions"),
    ViewColumn("whose", _describe_whose_defect),
    make_text_column("known", length=80),
    make_text_column("finding", "id"),
)


def view_defects(frame: pd.DataFrame, left: pd.DataFrame, most: int = 0) -> View:
    """The table of `list_defect_lines`; left: of `list_rows_without_minimal`."""
    return View(
        "defects", "Distinct defects, each with a minimal case", frame, COLUMNS, unit="findings", counted=True, turns="backend",
        notes=("A finding is a backend, the ops, status, kind and error of the reduced case, its attributes and modes.",),
        lead=[f"{describe_defect_counts(frame, left)}."],
        command="command", most=most,
    )  # fmt: skip


@view(68, only=lambda report: not report.values("status").isdisjoint(SOUGHT))
def view_found_defects(report: Report) -> View | None:
    """Findings of the report's runs that have a minimal case."""
    results = str(report.rows.attrs.get("results", ""))
    if not results:
        return None
    found = minimal.read_minimal_cases(results, sorted(set(report.rows["run_id"])))
    if not found:
        return None
    table = list_defect_lines(found, report.rows, {str(report.run.get("run_id")): report.run})
    return view_defects(table, list_rows_without_minimal(found, report.rows))
