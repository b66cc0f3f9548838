"""How many times as fast as the eager arm each backend is, of what the check speedup found right."""

from __future__ import annotations

import pandas as pd

from farm.report.tables.view import Column, Report, View, op, text, view
from farm.report.words import DASH, number
from tasks.checks.speedup import Speedup
from tasks.model import Status

_TOLD = [
    "op",
    "variant",
    "dtype",
    "sample",
    "backend",
    "baseline",
    "speedup",
    "speedup_low",
    "speedup_high",
    "speedup_cpu",
]


def speedups(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per sample and backend that the check speedup found right; of `distinct` rows.

    Columns: op, variant, dtype, sample, backend; baseline: its eager arm; speedup, with the ends of its interval, NaN where the
    null arm differed from itself; speedup_cpu; says: "faster", "slower", "no difference" or "unsure".
    """
    rows = rows[(rows["check"] == Speedup.name) & (rows["status"] == Status.PASS.value)]
    found = rows.assign(baseline=rows["flags"].str.extract(r"baseline=(\S+)", expand=False).fillna(""))[_TOLD]
    unsure, faster, slower = found["speedup"].isna(), found["speedup_low"] > 1, found["speedup_high"] < 1
    says = pd.Series("no difference", found.index, dtype=object)
    found = found.assign(says=says.mask(faster, "faster").mask(slower, "slower").mask(unsure, "unsure"))
    return found.sort_values(["op", "variant", "dtype", "sample", "backend"], kind="stable").reset_index(drop=True)


@view(66)
def speedup_view(report: Report) -> View | None:
    found = speedups(report.rows)
    if found.empty:
        return None
    return View(
        "speedups",
        "Speed against the eager arm, of what is right",
        found,
        (
            op(),
            text("dtype"),
            text("backend"),
            text("baseline", "eager arm"),
            Column("times as fast", lambda line: number(line["speedup"]), right=True),
            Column(
                "interval (99.9 %)",
                lambda line: (
                    f"{number(line['speedup_low'])} – {number(line['speedup_high'])}"
                    if line["says"] != "unsure"
                    else DASH
                ),
                right=True,
            ),
            Column("by CPU time", lambda line: number(line["speedup_cpu"]), right=True),
            Column("it is", lambda line: line["says"]),
        ),
        unit="samples",
        counted=True,
        notes=(
            "Unsure: the eager arm, timed against itself in the same rounds, was not as fast as itself. A call is timed with its "
            "inputs at hand, outputs read back.",
        ),
    )
