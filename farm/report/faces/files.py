"""Report as files: CSV of every table, Markdown, and the HTML page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from farm.report.faces.page import render
from farm.report.tables.coverage import (
    FINDING_STATUSES,
    built,
    cell_matrix,
    coverage,
    disagreements,
    distinct,
    findings,
    records,
    status_table,
    vendor_by_dtype,
    worst_matrix,
)
from farm.report.tables.gradients import two_oracles
from farm.report.tables.overview import backend_lines, headline, how_much, status_counts
from farm.report.tables.vendors import by_vendor, unique
from farm.report.words import DASH, number, percent, plain
from tasks import checks


def write(rows: pd.DataFrame, run: Mapping[str, Any], out_dir: str | Path, by: str = "backend") -> dict[str, Path]:
    """Write all files of a report into ``out_dir`` (made if missing) and return their paths by what they hold.

    ``rows``: lake rows; ``run``: the run's ``_run.json`` as a dict; ``by``: one more coverage table, by this column.
    """
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    rows = distinct(rows)
    inventory = run.get("inventory") or {}
    csv: dict[str, tuple[pd.DataFrame, bool]] = {
        "coverage": (coverage(rows, by=("vendor", "backend"), inventory=inventory), True),
        "squares": (cell_matrix(rows), True),
        "matrix": (worst_matrix(rows, inventory), True),
        "vendor_by_dtype": (by_vendor(rows), True),
        "status": (status_table(rows), True),
        "findings": (harmless(findings(rows, limit=None)), False),
        "oracles": (harmless(disagreements(rows)), False),
        "vendor_by_op_class": (by_vendor(rows, "op_class"), True),
        "only_one_or_everybody": (unique(rows), False),
    }
    if len(made := built(rows)):
        csv["built"] = (made, True)
    if rows.check.isin(checks.where(gradient=True)).any():
        csv["gradients"] = (two_oracles(rows), False)
    if by != "backend":
        csv[f"coverage_by_{by}"] = (coverage(rows, by=by), True)
    paths = {}
    for name, (table, index) in csv.items():
        paths[name] = out / f"{name}.csv"
        with paths[name].open("w", encoding="utf-8", errors="replace", newline="") as stream:
            table.to_csv(stream, index=index, lineterminator="\n")
    for name, path, text in (
        ("markdown", out / "report.md", markdown(rows, run)),
        ("html", out / "report.html", render(rows, run)),
    ):
        path.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        paths[name] = path
    return paths


def harmless(table: pd.DataFrame, name: str = "error") -> pd.DataFrame:
    """Error texts (the column ``name``) as a spreadsheet may open them: none begins like a formula."""
    text = table[name].astype(str)
    return table.assign(**{name: text.mask(text.str.match(r"[=+\-@\t\r]"), "'" + text)})


def _code(value: Any, length: int = 0) -> str:
    # Inside a code span Markdown and HTML are literal; only the span's and the table's own signs are not.
    text = plain(value, length).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else DASH


def _table(head: list[str], lines: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(line)} |" for line in lines), ""]


def markdown(rows: pd.DataFrame, run: Mapping[str, Any], limit: int = 50) -> str:
    """The report as Markdown: coverage by backend, by vendor and dtype, unavailable backends, findings."""
    rows = distinct(rows)
    first, *rest = headline(rows, run)
    text = [f"# {_code(first)}", "", *(f"{line}  " for line in rest), "", "## Coverage by vendor and backend", ""]
    lines = []
    for line in backend_lines(rows, run):
        device = ", ".join(part for part in (line["device"], line["runtime_version"]) if part)
        head = [_code(line["vendor"]), _code(line["backend"]) if line["backend"] else "**all**", _code(device)]
        if line["missing"]:
            lines.append([*head, DASH, DASH, f"unavailable: {_code(line['reason'])}", DASH])
        else:
            lines.append([*head, *_rates(line), status_counts(line), str(int(line["weak_cells"]))])
    columns = ["coverage (judged/valid)", "pass rate (passed/judged)", "counts by status", "weakly tested cells"]
    text += _table(["vendor", "backend", "device, version", *columns], lines)
    made = built(rows)
    if len(made):
        text += ["## Built, not run: no evidence of numbers", ""]
        text += _table(
            ["vendor", "backend", "built (built/built and failed)", "refused", "failed"],
            [
                [
                    _code(line["vendor"]),
                    _code(line["backend"]),
                    percent(line["built"], line["built"] + line["failed"]),
                    str(line["refused"]),
                    str(line["failed"]),
                ]
                for line in records(made.reset_index())
            ],
        )
    text += ["## Coverage by vendor and dtype", ""]
    by_dtype = vendor_by_dtype(rows)
    text += _table(
        ["vendor", "dtype", *columns],
        [
            [_code(vendor), _code(dtype), *_rates(line), status_counts(line), str(int(line["weak_cells"]))]
            for (vendor, dtype), line in zip(by_dtype.index, records(by_dtype), strict=True)
        ],
    )
    found = findings(rows, limit=None, statuses=FINDING_STATUSES)
    text += [f"## Findings: {min(limit, len(found))} of {len(found)} cells, the worst first", ""]
    text += _table(
        ["status", "op", "dtype", "backend", "samples", "what", "reproduce"],
        [
            [
                line["status"],
                _code(f"{line['op']}.{line['variant']}" if line["variant"] else line["op"]),
                _code(line["dtype"]),
                _code(line["backend"]),
                f"{line['samples']}/{line['planned']}",
                _code(how_much(line), 200),
                _code(line["reproduce"]),
            ]
            for line in records(found.head(limit))
        ],
    )
    differ = disagreements(rows)
    if len(differ):
        text += [f"## Oracles disagree: {len(differ)} ops and dtypes, nobody is blamed", ""]
        text += _table(
            ["op", "dtype", "oracles", "apart", "result from the first", "from the second", "backends", "reproduce"],
            [
                [
                    _code(f"{line['op']}.{line['variant']}" if line["variant"] else line["op"]),
                    _code(line["dtype"]),
                    _code(f"{line['oracle']} and {line['second_oracle']}"),
                    number(line["oracles_units"]),
                    number(line["units"]),
                    number(line["second_units"]),
                    _code(line["backends"]),
                    _code(line["reproduce"]),
                ]
                for line in records(differ.head(limit))
            ],
        )
    return "\n".join(text)


def _rates(line: Mapping[str, Any]) -> list[str]:
    return [percent(line["judged"], line["valid"]), percent(line["passed"], line["judged"])]
