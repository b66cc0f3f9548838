"""A row of a heat map: how far each step is from the right one, against what is allowed, and where the fault is."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from markupsafe import Markup, escape

from farm.report.words import format_report_number

#: Pixels of a square.
SIDE = 16
#: Decades beyond the bound at which a square has its full colour.
DECADES = 4.0
#: Of a square that is within the bound, or just beyond it.
FAINTEST = 0.12


def draw_heat_row(values: Sequence[tuple[float, str]], bound: float | None, marked: Collection[int]) -> Markup:
    """A square for each value, which says its words: the good colour up to the bound, the other beyond it, stronger the
    further off. marked: the squares with the fault's place."""
    limit = bound if bound and math.isfinite(bound) else 1.0
    squares = []
    for k, (value, words) in enumerate(values):
        beyond = not value <= limit
        share = min(1.0, value / limit) * 0.6 if not beyond else _count_heat_decades(value, limit) / DECADES
        kind = "over" if beyond else "within"
        ring = " marked" if k in marked else ""
        at = f'x="{k * SIDE + 1}" y="1" width="{SIDE - 2}" height="{SIDE - 2}"'
        title = f"<title>{escape(words)}: {format_report_number(value)}</title>"
        squares.append(
            f'<rect class="{kind}{ring}" {at} fill-opacity="{max(FAINTEST, min(1.0, share)):.2f}">{title}</rect>'
        )
    wide = len(values) * SIDE
    told = escape(", ".join(format_report_number(value) for value, _ in values))
    head = f'<svg class="heat" viewBox="0 0 {wide} {SIDE}" style="width:{wide}px" role="img" aria-label="{told}">'
    return Markup(head + "".join(squares) + "</svg>")  # what comes from elsewhere is escaped


def _count_heat_decades(value: float, limit: float) -> float:
    return math.log10(value / limit) if math.isfinite(value) else DECADES
