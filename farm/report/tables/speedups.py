"""How many times as fast as its baseline each backend is, of what the check speedup found right."""

from __future__ import annotations

import pandas as pd

from farm.report.tables.view import Line, Report, View, ViewCell, ViewColumn, view
from farm.report.words import DASH, format_report_number
from tasks.checks.speedup import Speedup
from tasks.model import Status, flags

#: Column of a ratio → the clock that it is of.
_CLOCKS = {"speedup": "wall time", "speedup_cpu": "CPU time"}
_ENDS = [f"{clock}{end}" for clock in (*_CLOCKS, "cold_speedup") for end in ("", "_low", "_high")]
_TOLD = ["op", "variant", "dtype", "sample", "backend", "baseline", *_ENDS, "call_ms", "roofline", "roofline_of"]


def list_speedup_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per sample and backend that the check speedup found right; of `distinct` rows.

    Columns: op, variant, dtype, sample, backend, baseline, call_ms, roofline, roofline_of; speedup, speedup_cpu and
    cold_speedup with the ends of their intervals, NaN where the null arm differed from itself; says: "faster" or
    "slower" if an interval lies beyond 1 (and not one on either side), "no difference" if none does, "unsure" without
    any.
    """
    rows = rows[(rows["check"] == Speedup.name) & (rows["status"] == Status.PASS.value)]
    older = [flags.parse_row_flags(said).get("baseline", "") for said in rows["flags"]]  # of older lakes
    found = rows.assign(baseline=rows["baseline"].where(rows["baseline"].fillna("") != "", older))[_TOLD]
    faster = (found[[f"{clock}_low" for clock in _CLOCKS]] > 1).any(axis=1)
    slower = (found[[f"{clock}_high" for clock in _CLOCKS]] < 1).any(axis=1)
    unsure = found[list(_CLOCKS)].isna().all(axis=1) | (faster & slower)
    says = pd.Series("no difference", found.index, dtype=object)
    found = found.assign(says=says.mask(faster, "faster").mask(slower, "slower").mask(unsure, "unsure"))
    return found.sort_values(["op", "variant", "dtype", "sample", "backend"], kind="stable").reset_index(drop=True)


def _format_speedup_interval(line: Line, clock: str) -> ViewCell | str:
    value = line[clock]
    if pd.isna(value):
        return DASH
    return ViewCell(
        format_report_number(value),
        small=f"{format_report_number(line[f'{clock}_low'])} – {format_report_number(line[f'{clock}_high'])}",
    )


def _make_roofline_cell(line: Line) -> ViewCell | str:
    value = line["roofline"]
    return DASH if pd.isna(value) else ViewCell(f"{100 * value:.3g} %", small=str(line["roofline_of"]))


def _describe_speedup_result(line: Line) -> str:
    """What the intervals say, with the clocks whose intervals say it."""
    end, beyond = {"faster": ("low", 1), "slower": ("high", -1)}.get(line["says"], ("", 0))
    clocks = [name for clock, name in _CLOCKS.items() if beyond and beyond * (line[f"{clock}_{end}"] - 1) > 0]
    return line["says"] + f" by {' and '.join(clocks)}" * bool(clocks)


@view(66, only=lambda report: Speedup.name in report.values("check"))
def view_speedups(report: Report) -> View | None:
    """Every timed sample with its intervals."""
    found = list_speedup_lines(report.rows)
    if found.empty:
        return None
    return View(
        "speedups",
        "Speedup over the baseline, right results only",
        found,
        (
            *("op", "dtype", "backend", "baseline"),
            ViewColumn("speedup, wall time", lambda line: _format_speedup_interval(line, "speedup"), right=True),
            ViewColumn(
                "cold caches, wall time", lambda line: _format_speedup_interval(line, "cold_speedup"), right=True
            ),
            ViewColumn("speedup, CPU time", lambda line: _format_speedup_interval(line, "speedup_cpu"), right=True),
            ViewColumn("ms, wall time", lambda line: format_report_number(line["call_ms"]), right=True),
            ViewColumn("of the roofline", _make_roofline_cell, right=True),
            ViewColumn("result", _describe_speedup_result),
        ),
        unit="samples",
        counted=True,
        notes=(
            "Below: 99.9 % confidence intervals. Unsure: the baseline, timed against itself in the same rounds, was not as "
            "fast as itself. A timed call has its inputs ready; that of a kernel of your own ends when the device has finished, any other "
            "reads its outputs back. Cold: the caches were emptied before each call.",
        ),
    )
