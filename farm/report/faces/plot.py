"""One picture of a backend: how far every op is from its reference, the findings marked."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from farm.report.tables.coverage import keep_distinct_rows
from tasks.model import BY_SEVERITY, MEASURED, OpClass, Status

#: Ops measured in ulps; all others in error units.
IN_ULPS = (OpClass.EXACT.value, OpClass.ELEMENTARY.value)
#: What is off by nothing, or by infinity (a misplaced NaN), is drawn at the edge of the picture.
LEAST, MOST = 2.0**-6, 2.0**26
#: What the numbers decided, the best first; each in its colour.
COLOURS = {status.value: status.facts.ink for status in reversed(BY_SEVERITY) if status in MEASURED}
NAMED = 14


def table_plot_distances(rows: pd.DataFrame, backend: str) -> pd.DataFrame:
    """The worst judged row of every op on ``backend``, nearest first: label, distance, measure, limit, status.

    distance: ulps (exact and elementary ops) or error units, infinite for a misplaced NaN or Inf. Raises ValueError
    when the backend has no such row.
    """
    rows = keep_distinct_rows(rows)
    rows = rows[(rows["backend"] == backend) & rows["status"].isin(COLOURS)]
    in_ulps = rows["op_class"].isin(IN_ULPS)
    rows = rows.assign(
        distance=rows["max_ulp"].where(in_ulps, rows["error_units"]),
        measure=in_ulps.map({True: "ulps", False: "units"}),
    )
    rows["distance"] = rows["distance"].where(rows["kind"] != "nonfinite", math.inf)
    rows = rows[rows["distance"].notna()]
    if rows.empty:
        raise ValueError(f"no judged row of backend {backend!r} has error units or ulps")
    rank = rows["status"].map({name: place for place, name in enumerate(COLOURS)})
    rows = rows.assign(rank=rank).sort_values(["rank", "distance"], kind="stable").drop_duplicates("label", keep="last")
    return rows.sort_values("distance", kind="stable")[["label", "dtype", "distance", "measure", "limit", "status"]]


def draw_plot(rows: pd.DataFrame, backend: str, out: Path) -> Path:
    """Draw `table_plot_distances` as a picture (PNG, SVG or PDF by the suffix of ``out``). Raises ValueError and OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    table = table_plot_distances(rows, backend).reset_index(drop=True)
    table["height"] = table["distance"].clip(LEAST, MOST)
    figure = Figure(figsize=(10, 4.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for status, colour in COLOURS.items():
        for measure, marker in (("units", "o"), ("ulps", "d")):
            part = table[(table["status"] == status) & (table["measure"] == measure)]
            size = 9 if status == Status.PASS else 26
            label = f"{status}, {'ulps' if measure == 'ulps' else 'error units'} ({len(part)})"
            if len(part):
                axes.scatter(part.index, part["height"], s=size, c=colour, marker=marker, label=label, linewidths=0)
    # Names of the worst, from right to left, each a line lower than its neighbour so that they stay apart.
    for number, (place, line) in enumerate(
        table[table["status"] == Status.WRONG.value].iloc[::-1].head(NAMED).iterrows()
    ):
        axes.annotate(
            f"{line['label'].partition(':')[2]} {line['dtype']}",
            (place, line["height"]),
            fontsize=7,
            color=COLOURS[Status.WRONG.value],
            xytext=(0.56, 0.97 - 0.045 * number),
            textcoords="axes fraction",
            ha="right",
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "#c9ccd1"},
        )
    axes.set_yscale("log", base=2)
    axes.set_ylim(LEAST / 2, MOST * 2)
    axes.set_xlabel(f"{len(table)} ops, worst sample each")
    axes.set_ylabel("distance from the reference")
    axes.set_title(f"{backend}: ulps for exact and elementary ops, error units for all others", fontsize=10)
    axes.grid(axis="y", lw=0.3)
    axes.legend(loc="upper left", fontsize=7, frameon=False)
    figure.savefig(out)
    return out
