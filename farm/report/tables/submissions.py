"""A leaderboard: one line for each submission of a run of a folder of them, the worst first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from textwrap import shorten
from typing import Any

import pandas as pd

from farm.program import name_farm_program, write_results_option
from farm.report.tables.agreement import explain_row_outside
from farm.report.tables.causes import sort_worst_first
from farm.report.tables.coverage import JUDGED_STATUSES, PASSED_STATUSES, rank_status_column
from farm.report.tables.view import (
    Line,
    Report,
    View,
    ViewCell,
    ViewColumn,
    build_number_column,
    make_text_column,
    view,
)
from farm.report.words import DASH, format_report_number
from tasks.confine import LACKS
from tasks.model import Status
from tasks.model.flags import parse_row_flags
from tasks.model.kind import KIND_BASELINE

#: Columns of `list_leaderboard_lines` and what each says; keys of the JSON file.
TOLD = {
    "submission": "its name",
    "task": "the op",
    "status": "of its worst case: see [Statuses](statuses.md)",
    "kind": "of the same case",
    "passed": "cases that are right",
    "judged": "cases",
    "audit": "the patterns that the check `audit` found, `clean` for none, empty where it was not asked",
    "run_ms": "median time of the right calls, in ms",
    "speedup": "over the baseline, the median of its cases; all that an `unseen` time may hide counts",
    "speedup_low": "lower end of its interval",
    "speedup_high": "upper end of its interval",
    "baseline": "what it was timed against",
    "time_doubt": "why its time is not believed, empty if it is",
    "roofline": "the largest share of the roofline, of 1",
    "why": "the reason of the worst case",
    "case_id": "that case",
}
#: Of these the columns of text, "" where nothing is said.
_TEXT = ("task", "kind", "audit", "baseline", "time_doubt", "why", "case_id")
#: The check that looks for a cheat, and what its column says of one that was not found.
AUDIT, CLEAN = "audit", "clean"
#: Characters of a reason in a table.
WHY = 300


def list_submitted_backends(run: Mapping[str, Any]) -> list[str]:
    """The backends of a run that are submissions."""
    return [str(b["name"]) for b in (run.get("config") or {}).get("backends") or () if b.get("kernel")]


def list_leaderboard_lines(rows: pd.DataFrame, run: Mapping[str, Any]) -> pd.DataFrame:
    """One line per submission, the worst first, of those that are right the fastest first; of `distinct` rows.

    Columns: `TOLD`. A submission that was refused is an error without cases.
    """
    lines = []
    for name in list_submitted_backends(run):
        own = rows[rows["backend"] == name]
        lines.append({"submission": name, **(summarise_submission(own) if len(own) else {"status": Status.LOST.value})})
    for one in run.get("refused") or ():
        lines.append({"submission": one["name"], "status": Status.ERROR.value, "kind": "refused", "why": one["why"]})
    made = pd.DataFrame(lines, columns=list(TOLD))
    numbers = {name: pd.to_numeric(made[name]) for name in ("passed", "judged", "speedup")}
    share = (numbers["passed"] / numbers["judged"]).fillna(0.0)
    texts = {name: made[name].fillna("") for name in _TEXT}
    # Of what is wrong that which is right most rarely, of what is right the fastest.
    size = share.mask(made["status"].isin(PASSED_STATUSES), -numbers["speedup"].fillna(0.0))
    made = made.assign(rank=rank_status_column(made["status"]), size=size, **texts)
    return made.sort_values(["rank", "size", "submission"], kind="stable")[list(TOLD)].reset_index(drop=True)


def summarise_submission(own: pd.DataFrame) -> dict[str, Any]:
    """The line of `list_leaderboard_lines` that a submission's `distinct` rows make."""
    told = own[~own["status"].isin([Status.UNSUPPORTED.value, Status.VACUOUS.value])]
    worst = sort_worst_first(told if len(told) else own).iloc[0]
    right = own[own["status"].isin(PASSED_STATUSES)]
    made = {name: right[name].median() for name in ("speedup", "speedup_low", "speedup_high")}
    untimed = own[own["kind"] == KIND_BASELINE]  # which is the task's fault, and said all the same
    explained = [worst] if not Status(worst["status"]).passed else [row for _, row in untimed.iterrows()]
    return made | {
        "task": ", ".join(sorted(own["op"].str.partition(":")[2].unique())),
        "status": worst["status"],
        "kind": worst["kind"],
        "passed": len(right),
        "judged": int(own["status"].isin(JUDGED_STATUSES).sum()),
        "audit": _describe_submission_audit(own[own["check"] == AUDIT]),
        "run_ms": right.loc[right["check"] == "forward", "run_ms"].median(),
        **{name: _join_check_texts(right, name) for name in ("baseline", "time_doubt")},
        "roofline": pd.to_numeric(own["roofline"]).max() if "roofline" in own else None,
        "why": _explain_submission_row(explained[0].to_dict()) if explained else "",
        "case_id": worst["case_id"],
    }


def _join_check_texts(rows: pd.DataFrame, name: str) -> str:
    """The texts of a column that a check may have, each once."""
    return ", ".join(sorted({str(x) for x in rows[name] if x and x == x})) if name in rows else ""


def _explain_submission_row(row: Mapping[Any, Any]) -> str:
    """Why a case did not pass, in a line."""
    units = row["error_units"] if row["error_units"] == row["error_units"] else row["max_ulp"]
    return " ".join(str(row["error"] or row["cause"] or explain_row_outside({**row, "units": units})).split())


def _describe_submission_audit(rows: pd.DataFrame) -> str:
    if not rows["status"].isin(JUDGED_STATUSES).any():
        return ""
    found = rows[~rows["status"].isin(PASSED_STATUSES) & rows["status"].isin(JUDGED_STATUSES)]
    return ", ".join(dict.fromkeys(k or s for k, s in zip(found["kind"], found["status"]))) or CLEAN


def _describe_submission_lacks(rows: pd.DataFrame) -> tuple[str, ...]:
    """What the machine could not deny to the submissions."""
    told = {
        name
        for text in rows["flags"].dropna().unique()
        for name in parse_row_flags(text).get("unconfined", "").split(",")
    }
    lacks = [f"{name} ({text})" for name, text in LACKS.items() if name in told]
    return (f"Not denied to the submissions on this machine: {'; '.join(lacks)}.",) if lacks else ()


def _format_submission_verdict(line: Line) -> ViewCell:
    kind = str(line["kind"])
    return ViewCell(f"{line['status']}{f' ({kind})' * bool(kind)}", status=str(line["status"]))


def _format_submission_speedup(line: Line) -> ViewCell | str:
    value = line["speedup"]
    if pd.isna(value):
        return DASH
    return ViewCell(
        format_report_number(value),
        small=f"{format_report_number(line['speedup_low'])} – {format_report_number(line['speedup_high'])}",
    )


def _make_passed_cell(line: Line) -> str:
    return DASH if pd.isna(line["judged"]) else f"{line['passed']:.0f} of {line['judged']:.0f}"


@view(1, only=lambda report: list_submitted_backends(report.run))
def view_leaderboard(report: Report) -> View:
    """The leaderboard of a run of submissions."""
    found = list_leaderboard_lines(report.rows, report.run)
    columns: list[ViewColumn | str | tuple[str, str]] = [
        ViewColumn("verdict", _format_submission_verdict),
        replace(make_text_column("submission"), stays=True),
    ]
    columns += ["task"] * (found["task"].replace("", pd.NA).nunique() > 1)
    columns.append(ViewColumn("right", _make_passed_cell, right=True))
    columns += ["audit"] * bool((found["audit"] != "").any())
    columns.append(build_number_column("run_ms", "ms"))
    if found["speedup"].notna().any():
        columns.append(ViewColumn("speedup", _format_submission_speedup, right=True))
    if (found["time_doubt"] != "").any():
        columns.append(("time_doubt", "doubt"))
    if found["roofline"].notna().any():
        columns.append(
            ViewColumn(
                "roofline", lambda line: DASH if pd.isna(line["roofline"]) else f"{line['roofline']:.0%}", right=True
            )
        )
    columns.append(
        ViewColumn("why", lambda line: shorten(str(line["why"]), WHY, placeholder=" …") or DASH, foreign=True)
    )
    again = f"{name_farm_program()} report --run {report.run.get('run_id')}{write_results_option(str(report.run.get('results') or 'results'))}"
    return View(
        "submissions",
        "Submissions, the worst first",
        found,
        tuple(columns),
        unit="submissions",
        counted=True,
        open=True,
        most=len(found),
        notes=_describe_submission_lacks(report.rows),
        see=(("every case", again),),
    )
