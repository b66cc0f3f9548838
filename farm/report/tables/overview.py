"""What a report says first: which run this is, whether it is complete, and a line for every backend."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from farm.commandline import clean_line
from farm.fleet.detect_vendors import explain_no_device_of
from farm.program import name_farm_program
from farm.report.once import once
from farm.report.tables.agreement import format_row_units, name_row_units
from farm.report.tables.causes import NEW, count_with_noun
from farm.report.tables.coverage import (
    CELL,
    JUDGED_STATUSES,
    NO_REASON,
    SEVERITY,
    count_built_rows,
    count_rows_once,
    coverage,
    find_blameless_rows,
    find_column_values,
    keep_distinct_rows,
    list_frame_lines,
    list_inventory_backends,
    rank_status_column,
    sort_backend_names,
    status_table,
    table_cell_matrix,
    table_unavailable_backends,
    table_worst_matrix,
)
from farm.report.tables.view import Line, Report, View, ViewCell, ViewColumn, make_rate_column, view
from farm.report.words import DASH, format_percent, format_report_number
from tasks import catalogs, checks
from tasks.arrays.layouts import CONTIGUOUS
from tasks.backends.needs import write_install_line
from tasks.model import Status
from tasks.model.errors import shorten_error_gist
from tasks.model.kind import OF_NUMBERS
from tasks.model.row import EMULATED, INTERPRETED, UNVERIFIED

#: Why statuses and rates do not add up.
_APART = "Failures that are no backend's fault count by status, but in no rate."
#: The catalog of what current models need.
_NEEDED = "critical"


def describe_finding_size(line: Mapping[str, Any], brief: bool = False) -> str:
    """One line on what is wrong with a finding: the structure of an input that it takes, culprit, cause (of a known
    failure it has a place of its own), kind, stage (not of what ran to its end), how far off in what is judged and its
    limit, error.

    Figures where it is the numbers that are wrong: of a shape, or of NaN and Inf out of place, the error tells. brief:
    what tells most comes first, the error or how far off, and of the figures no more.
    """
    error = ": ".join(text for text in (line["error_type"], shorten_error_gist(line["error"])) if text)
    words = [line["only"]] if line.get("only") else []
    words += [f"culprit: {line['culprit']}"] * bool(line["culprit"])
    if line.get("cause") and line.get("standing") in (None, NEW):
        words.append(clean_line(line["cause"]))
    told = ("kind",) if line.get("status") == Status.WRONG.value else ("kind", "stage")
    words += [str(line[name]) for name in told if line[name] and line[name] != error.partition(":")[0]]
    far, figures = [], []
    if line["kind"] in ("", *OF_NUMBERS):
        units = line["max_ulp" if name_row_units(line["op_class"]) == "ulps" else "error_units"]
        far = [format_row_units(units, line["op_class"], line["limit"])] * math.isfinite(units)
        if not pd.isna(line["beyond"]):  # the worst says more than a difference
            figures.append(
                f"{line['beyond']:,.0f} of {line['numel']:,.0f} elements beyond the limit, worst {clean_line(line['worst'])}"
            )
        else:
            if format_report_number(line["max_diff"]) != DASH:
                figures.append(f"{format_report_number(line['max_diff'])} max diff")
            if line["numel"] > 0 and not pd.isna(line["mismatched"]):
                figures.append(f"{int(line['mismatched'])}/{int(line['numel'])} mismatched")
    raised = [error] * bool(error)
    return "; ".join([*(raised or far), *words] if brief else [*words, *far, *figures, *raised]) or DASH


@once
def describe_best_backends(report: Report) -> str:
    """One sentence on the best backend of every vendor for what current models need; "" where that cannot be said."""
    if len(report.values("vendor")) < 2:
        return ""
    ranked = report.ranking[(report.ranking["catalog"] == _NEEDED) & report.ranking["place"].notna()]
    first = list_frame_lines(ranked.drop_duplicates("vendor"))
    if len(first) < 2:
        return ""
    of = f"catalog {_NEEDED} ({catalogs.ABOUT[_NEEDED]}), right of the {count_with_noun(first[0]['cells'], 'cell')} given to all"
    named = ", ".join(
        f"{clean_line(line['backend'])} ({clean_line(line['vendor'])}) {line['right']:,}" for line in first
    )
    return f"Best backend per vendor, {of}: {named}"


#: Statuses whose reason no table of failures has.
_UNTOLD = (Status.UNSUPPORTED.value, Status.FALLBACK.value, Status.VACUOUS.value)


def list_op_outcomes(report: Report) -> list[str]:
    """What came of each op, a line each, the worst first, of backends alike together: all that a run of a few ops has to
    say beside what failed."""
    rows = keep_distinct_rows(report.rows)
    lines = sorted(
        (rank_status_column(some["status"]).min(), _describe_op_outcomes(str(op), some))
        for op, some in rows.groupby("op", observed=True, sort=False)
    )
    return [line for _, line in lines]


def _describe_op_outcomes(op: str, rows: pd.DataFrame) -> str:
    def describe_status(status: str, some: pd.DataFrame) -> str:
        weak = int(some["weak"].sum()) if status == Status.PASS.value else 0
        why = next(filter(None, some["error"]), "") if status in _UNTOLD else ""
        return (
            f"{status} {len(some)}"
            + f" ({weak} weak: no evidence)" * bool(weak)
            + f" ({clean_line(why, 200)})" * bool(why)
        )

    alike: dict[str, list[str]] = {}
    for backend, some in rows.groupby("backend", sort=False, observed=True):
        came = ", ".join(describe_status(s, some[some["status"] == s]) for s in SEVERITY if (some["status"] == s).any())
        alike.setdefault(came, []).append(clean_line(backend))
    return f"{clean_line(op)}: " + "; ".join(f"{came} on {', '.join(backends)}" for came, backends in alike.items())


@once
def count_report_rows(report: Report) -> dict[str, int]:
    """How much a run is of, by the words of the glossary: rows, their cells, and of the rows those that failed and
    those of them that no known failure covers. Every face has its numbers from here."""
    cells = report.rows.groupby(CELL, observed=True, sort=False).ngroups
    said = report.verdict
    return {"rows": len(report.rows), "cells": cells, "failures": said.failures, "new": said.new}


def describe_run_name(report: Report) -> str:
    """Which run this is, and how many rows it has."""
    run = report.run
    name = f" ({run['name']})" if run.get("name") else ""
    which = count_with_noun(run["runs"], "run") if "runs" in run else f"Run {run.get('run_id') or DASH}"
    count = count_report_rows(report)
    return f"{which}{name}: {count_with_noun(count['rows'], 'row')} of {count_with_noun(count['cells'], 'cell')}"


def list_headline_lines(report: Report) -> list[str]:
    """Lines that say which run this is, what to conclude of it, and what is to be kept in mind."""
    return [
        describe_run_name(report),
        report.verdict.sentence,
        *list_quarantine_lines(report),
        *list_run_remarks(report),
    ]


def list_quarantine_lines(report: Report) -> list[str]:
    """A line for each device that was quarantined."""
    found = report.run.get("quarantined") or ()
    return [_describe_quarantined_device(record) for record in found if isinstance(record, Mapping)]


@once
def list_run_remarks(report: Report, brief: bool = False) -> list[str]:
    """What is to be kept in mind of a run; of a ``brief`` one, what came of each backend's rows, and what their passes
    are worth."""
    rows, run, lines = report.rows, report.run, list[str]()
    if skipped := run.get("skipped_files"):
        lines.append(
            f"{count_with_noun(skipped, 'file')} of the lake could not be read; {'its' if skipped == 1 else 'their'} rows are not counted."
        )
    if brief:  # what is left out stands where the run began
        return [*lines, *list_op_outcomes(report), *list_pass_caveats(rows)]
    lines += [f"Left out: {line['text']}" for line in run.get("not_planned") or () if isinstance(line, Mapping)]
    (total,) = list_frame_lines(coverage(count_rows_once(rows), by=()))
    lines.append(
        f"Coverage {format_percent(total['judged'], total['valid'])}, "
        f"pass rate {format_percent(total['passed'], total['judged'])}, "
        f"imprecise {format_percent(total[Status.IMPRECISE.value], total['judged'])}, "
        f"weakly tested cells {int(total['weak_cells'])} ({int(total['weak'])} weak passes: no evidence)"
    )
    if _NEEDED in report.values("catalog"):
        lines += filter(None, [describe_best_backends(report)])
    return lines


def _describe_quarantined_device(record: Mapping[str, Any]) -> str:
    what = (
        f"device {record['device']} of {record.get('node')}"
        if record.get("device")
        else str(record.get("node") or DASH)
    )
    names = ", ".join(map(str, record.get("backends") or ())) or record.get("scope") or DASH
    again = f"; {record['failures']} of its failures rerun elsewhere" if record.get("failures") else ""
    return clean_line(f"QUARANTINED: {what} for {names}: {record.get('why') or DASH}{again}")


@once
def list_backend_coverage(report: Report) -> list[dict[str, Any]]:
    """One dict per backend, in the order of a report: its coverage, vendor, device (after "emulated" where none was
    used, after "interpreted" where an interpreter ran kernels), runtime_version, oldest (`Offer.oldest`), available,
    reason, emulated, interpreted.

    By vendor the backends that are there, then, if they are several, their sum (``backend`` is ""); after all vendors
    what is unavailable (``missing`` is True: no rows and no node that offers it).
    """
    rows, inventory = report.rows, report.inventory
    said = list_inventory_backends(inventory)
    seen = {}
    for name in ("device", "runtime_version"):
        pairs = rows.loc[rows[name] != "", ["backend", name]].drop_duplicates().sort_values(name)
        seen[name] = {str(backend): ", ".join(texts.head(3)) for backend, texts in pairs.groupby("backend")[name]}
    table = coverage(rows, by=("vendor", "backend"), inventory=inventory).reset_index()
    table["missing"] = ~table["available"] & (table["planned"] == 0)
    by_vendor = coverage(count_rows_once(rows), by="vendor")
    totals = dict(zip(by_vendor.index, list_frame_lines(by_vendor), strict=True))
    lines: list[dict[str, Any]] = []
    for vendor, group in table.groupby("vendor", sort=True):
        keys = [sort_backend_names("", name) for name in group["backend"]]
        group = group.iloc[sorted(range(len(keys)), key=keys.__getitem__)]
        lines.extend(list_frame_lines(group[~group["missing"]]))
        if (~group["missing"]).sum() > 1 and vendor in totals:
            extra = {"vendor": vendor, "backend": "", "available": True, "missing": False, "reason": ""}
            lines.append({**totals[vendor], **extra})
        lines.extend(list_frame_lines(group[group["missing"]]))
    emulated = set(rows.loc[rows["execution"] == EMULATED, "backend"])
    interpreted = set(rows.loc[rows["execution"] == INTERPRETED, "backend"])
    for line in lines:
        what = said.get(line["backend"], {})
        line["emulated"] = line["backend"] in emulated
        line["oldest"] = str(what.get("oldest") or "")
        for name in ("device", "runtime_version"):
            line[name] = seen[name].get(line["backend"]) or str(what.get(name) or "")
        if line["emulated"] and not line["device"].startswith("emulated"):
            line["device"] = f"emulated {line['device']}".strip()
        line["interpreted"] = line["backend"] in interpreted
        if line["interpreted"]:
            line["device"] = f"{INTERPRETED}, {line['device']}"
        if line["missing"]:
            line["reason"] = line["reason"] or NO_REASON
    return sorted(lines, key=lambda line: bool(line["missing"]))


def _join_missing_backends(lines: list[dict[str, Any]], inventory: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines, those of backends that are missing for the same reason as one."""
    said = list_inventory_backends(inventory)
    absent = {name: str(of.get("absent") or "") for name, of in said.items()}
    nowhere = explain_no_device_of(absent.get(line["backend"], "") for line in lines if line["missing"])
    kept: list[dict[str, Any]] = []
    alike: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["missing"]:
            reason = nowhere if nowhere and absent.get(line["backend"]) else line["reason"]
            first = alike.setdefault(reason, line | {"reason": reason, "backends": [], "vendors": {}})
            first["backends"].append(line["backend"])
            first["vendors"][line["vendor"]] = None
        else:
            kept.append(line)
    for reason, first in alike.items():
        names = first["backends"]
        first["backend"] = f"{len(names)} backends" if reason == nowhere else ", ".join(names)
        first["vendor"] = (
            ", ".join(first["vendors"]) if len(first["vendors"]) < 3 else f"{len(first['vendors'])} vendors"
        )
    return kept + sorted(alike.values(), key=lambda line: line["reason"] == nowhere)


def make_rate_columns() -> list[ViewColumn]:
    """Coverage and pass rate with their denominators, of a line with judged, valid and passed; every table names them
    so."""
    return [
        make_rate_column("judged", lambda line: line["valid"], "coverage (judged/valid)"),
        make_rate_column("passed", lambda line: line["judged"], "pass rate (passed/judged)"),
    ]


def _make_status_columns(rows: pd.DataFrame) -> list[ViewColumn]:
    """Counts by those statuses that occur: in one column, or in the page, where there is room, in one each."""

    def together(line: Line) -> ViewCell:
        """Passes with how many of them are no evidence: "pass 97 (5 weak)"."""
        weak = {Status.PASS.value: f" ({int(line['weak'])} weak)"} if line["weak"] else {}
        parts = tuple((f"{name} {int(line[name])}{weak.get(name, '')}", name) for name in SEVERITY if line[name])
        return ViewCell(" · ".join(part for part, _ in parts) or DASH, parts=parts)

    def either(make: Any) -> Any:
        return lambda line: (
            ViewCell(f"unavailable: {clean_line(line['reason'])}", rest=True) if line.get("missing") else make(line)
        )

    return [
        ViewColumn("counts by status", either(together), faces=("terminal", "markdown")),
        *(
            ViewColumn(
                name,
                either(lambda line, name=name: ViewCell(str(line[name]))),
                right=True,
                status=name,
                faces=("page",),
            )
            for name in SEVERITY
            if (rows["status"] == name).any()
        ),
        ViewColumn("weak passes", either(lambda line: ViewCell(str(line["weak"]))), right=True, faces=("page",)),
        ViewColumn(
            "weakly tested cells", lambda line: DASH if line.get("missing") else str(line["weak_cells"]), right=True
        ),
    ]


def _describe_interpreted_rows(rows: pd.DataFrame) -> list[str]:
    """A sentence on the rows of kernels that an interpreter ran, and what their passes are worth."""
    some = rows[(rows["execution"] == INTERPRETED) & rows["status"].isin(JUDGED_STATUSES)]
    if some.empty:
        return []
    passed = int((some["status"] == Status.PASS.value).sum())
    return [
        f"{INTERPRETED}: {count_with_noun(len(some), 'row')} ({passed} passed) of {', '.join(sorted(set(some['backend'])))} ran in Triton's interpreter on "
        "the CPU; races and bounds were looked for, and no GPU or compiler has run these kernels."
    ]


def _describe_unverified_rows(rows: pd.DataFrame) -> list[str]:
    """A sentence on the rows of which nothing says that they ran on the device."""
    count = int(((rows["execution"] == UNVERIFIED) & rows["status"].isin(JUDGED_STATUSES)).sum())
    if not count:
        return []
    return [
        f"{count_with_noun(count, 'row')} whose device is unverified: kernels that copy arrays to the device themselves, counted as judged."
    ]


def _describe_unused_precision(rows: pd.DataFrame) -> list[str]:
    """A sentence on the rows whose backend was allowed to compute in less than the dtype, and did not."""
    some = rows[rows["unused_permission"] != ""]
    precisions, backends = (", ".join(sorted(set(some[x]))) for x in ("unused_permission", "backend"))
    return [
        f"{precisions} allowed and not used: {count_with_noun(len(some), 'row')} of {backends}; a note, no failure."
    ]


def _describe_laid_out_rows(rows: pd.DataFrame) -> list[str]:
    """Sentences on the rows whose inputs were not contiguous: those that refused them, those of forms without
    strides."""
    told, plain_ones = [], rows["layout"].str.startswith(CONTIGUOUS)
    refused = rows[rows["refused_layout"] != ""]
    if not refused.empty:
        several = sorted(set(refused["op"].str.partition(":")[2]))
        ops = ", ".join(several[:4]) + (f" and {len(several) - 4} more" if len(several) > 4 else "")
        told.append(
            f"{count_with_noun(len(refused), 'row')} of {ops} refused inputs that are not contiguous (the column refused_layout says what was raised) "
            "and had contiguous ones instead: no failure; a kernel that means to says layouts: [contiguous]."
        )
    if plain_ones.any():
        backends = ", ".join(sorted(set(rows.loc[plain_ones, "backend"])))
        told.append(
            f"{count_with_noun(int(plain_ones.sum()), 'row')} of {backends} had contiguous inputs: what they run has no strides."
        )
    return told


def list_pass_caveats(rows: pd.DataFrame) -> list[str]:
    """Sentences on what passes are worth: of kernels that an interpreter ran, of inputs that lay otherwise than they
    were to lie …"""
    execution = find_column_values(rows, "execution")
    told = _describe_unverified_rows(rows) if UNVERIFIED in execution else []
    told += _describe_interpreted_rows(rows) if INTERPRETED in execution else []
    told += _describe_unused_precision(rows) if any(find_column_values(rows, "unused_permission")) else []
    laid_out = any(find_column_values(rows, "layout")) or any(find_column_values(rows, "refused_layout"))
    return told + (_describe_laid_out_rows(rows) if laid_out else [])


@view(
    8, only=lambda report: not all(said.get("available") for said in list_inventory_backends(report.inventory).values())
)
def view_missing_backends(report: Report) -> View | None:
    """The backends that no node offers, why, and one line that installs what a package of the system brings."""
    said = list_inventory_backends(report.inventory)
    missing = table_unavailable_backends(report.inventory).reset_index()
    missing = missing[~missing["backend"].isin(report.rows["backend"])]
    if missing.empty:
        return None
    line = write_install_line(tuple(pair) for name in missing["backend"] for pair in said[name].get("installs") or ())
    return View(
        "not_here",
        f"Unavailable: {len(missing)} of {len(said)} backends",
        missing,
        ("backend", "vendor", ("reason", "why")),
        see=[
            *[("to enable more of them", line)] * bool(line),
            ("what each one lacks", f"{name_farm_program()} doctor"),
        ],
        open=True,
        faces=("page",),  # elsewhere the coverage is in sight, which says it too
    )


@view(9, only=lambda report: report.run.get("left_out"))
def build_reached_view(report: Report) -> View | None:
    """How far a budget has come in each part of the config."""
    told = report.run["left_out"]
    parts = told.get("parts") if isinstance(told, Mapping) else None
    if not parts:
        return None
    frame = pd.DataFrame(parts).assign(reached=lambda x: x["cells"] - x["left"])
    return View(
        "reached",
        "What the budget reached, in the config's order",
        frame,
        (
            "catalog",
            "check",
            ("distribution", "inputs"),
            make_rate_column("reached", lambda line: line["cells"], "cells reached"),
        ),
        open=True,
        most=10_000,
    )


@view(10)
def view_backend_coverage(report: Report) -> Iterator[View]:
    """Coverage per vendor and backend; an unavailable backend is a grey line without numbers."""
    rows, lines = report.rows, list_backend_coverage(report)

    absent, last = any(line["missing"] for line in lines), ""
    shown = _join_missing_backends(lines, report.inventory) if absent else lines
    where = list[str]()
    for line in shown:  # said once for the modes of a runtime
        said = ", ".join(word for word in (line["device"], line["runtime_version"]) if word)
        where.append("as above" if said and said == last else said)
        last = said or last
    shown = [{**line, "where": told} for line, told in zip(shown, where, strict=True)]

    yield View(
        "coverage",
        "Coverage by vendor and backend",
        coverage(rows, by=("vendor", "backend"), inventory=report.inventory),
        (
            "vendor",
            ViewColumn("backend", lambda line: clean_line(line["backend"]) or "all", foreign=True),
            ViewColumn("device, version", lambda line: clean_line(line["where"]) or DASH, foreign=True),
            ViewColumn(
                "works from", lambda line: clean_line(line.get("oldest", "")) or DASH, faces=("markdown", "page")
            ),
            *make_rate_columns(),
            *_make_status_columns(rows),
        ),
        lines=shown,
        style=lambda line: "grey" if line["missing"] else "" if line["backend"] else "sum",
        empty="No backends.",
        notes=[*[_APART] * bool(find_blameless_rows(rows).any()), *list_pass_caveats(rows)],
        see=[("what is missing, and how to install it", f"{name_farm_program()} doctor")] * absent,
        index=True,
        most=10_000,
        compares=True,
    )
    for name, caption, frame in (
        ("squares", "Every square of the matrix", table_cell_matrix(rows)),
        ("matrix", "Worst status, op by backend", table_worst_matrix(rows, report.inventory)),
        ("status", "Rows by status", status_table(rows)),
    ):
        yield View(name, caption, frame, index=True, faces=("csv",))


@view(20, only=lambda report: not report.values("check").isdisjoint(checks.list_checks_where(runs=False)))
def view_only_built(report: Report) -> View:
    """What was built and not run."""
    return View(
        "built",
        "Built, not run: no evidence of numbers",
        count_built_rows(report.rows),
        (
            *("vendor", "backend"),
            make_rate_column("built", lambda line: line["built"] + line["failed"], "built (built/built + failed)"),
            *("refused", "failed"),
        ),
        index=True,
        open=True,
        most=10_000,
    )


@view(30, only=lambda report: report.by != "backend")
def view_coverage_by_column(report: Report) -> View:
    """Coverage per value of one more column, those with the most failures first."""
    frame = coverage(count_rows_once(report.rows), by=report.by)
    worst_first = frame.sort_values(["failed", "planned"], ascending=False, kind="stable")
    return View(
        f"coverage_by_{report.by}",
        f"Coverage by {report.by}",
        frame,
        (report.by, *make_rate_columns(), *_make_status_columns(report.rows)),
        lines=list_frame_lines(worst_first.reset_index()),
        unit="values",
        counted=True,
        index=True,
        most=50,
        faces=("terminal", "csv"),
    )
