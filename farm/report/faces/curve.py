"""A row of numbers as a picture: an SVG for the page, a row of blocks for the terminal. Both on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from markupsafe import Markup

from farm.report.words import format_report_number

#: What is no more than this, or was not measured, is drawn as nothing.
LEAST = 0.25
#: Columns of a terminal; pixels of a page.
BLOCKS, WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 36, 600, 128, 36, 24, 10, 20
_SIGNS = " ▁▂▃▄▅▆▇█"


def draw_curve_blocks(values: Sequence[float]) -> str:
    """At most BLOCKS characters, the largest of its numbers each."""
    top = _find_curve_top(values, 0.0)
    return "".join(
        _SIGNS[math.ceil(_measure_curve_height(x, top) * (len(_SIGNS) - 1))]
        for _, x in _find_curve_peaks(values, BLOCKS)
    )


def draw_curve_svg(values: Sequence[float], bound: float | None) -> Markup:
    """A bar for each number, or the largest of its neighbours where they are many, and a line at ``bound``; what lies
    beyond it is marked, and says its place and value."""
    limit = math.inf if bound is None or math.isnan(bound) else bound
    end, high, top = WIDTH - RIGHT, HEIGHT - BOTTOM, _find_curve_top(values, limit)
    bars = _find_curve_peaks(values, end - LEFT)
    wide = (end - LEFT) / max(len(bars), 1)

    def y(value: float) -> float:
        return TOP + (high - TOP) * (1 - _measure_curve_height(value, top))

    parts = [_draw_curve_scale(top, y), f'<line x1="{LEFT}" y1="{high}" x2="{end}" y2="{high}"/>']
    for at, (place, value) in enumerate(bars):
        if not _measure_curve_height(value, top):
            continue
        size = f'y="{y(value):.1f}" width="{max(wide * 0.8, 1):.1f}" height="{high - y(value):.1f}"'
        over = (
            f'class="over"><title>node {place + 1}: {format_report_number(value)} units</title>'
            if value > limit
            else ">"
        )
        parts.append(f'<rect x="{LEFT + at * wide:.1f}" {size} {over}</rect>')
    if limit < math.inf:
        parts.append(f'<line class="bound" x1="{LEFT}" y1="{y(limit):.1f}" x2="{end}" y2="{y(limit):.1f}"/>')
        parts.append(f'<text x="{end + 4}" y="{y(limit) + 4:.1f}">{format_report_number(limit)}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 3}">node 1</text>')
    parts.append(f'<text x="{end}" y="{HEIGHT - 3}" text-anchor="end">node {len(values)}</text>')
    judged = [x for x in values if not math.isnan(x)]
    worst = f"{format_report_number(max(judged))} units at most" if judged else "no node was judged"
    head = f'<svg class="curve" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{worst}">'
    return Markup(head + "".join(parts) + "</svg>")  # numbers alone: nothing in it comes from elsewhere


def _draw_curve_scale(top: float, y: Callable[[float], float]) -> str:
    """Powers of a hundred up to the top."""
    found, power = [], 1.0
    while power <= top:
        at = f"{y(power) + 4:.1f}"
        words = f"{power:.0e}".replace("e+0", "e") if power > 100 else f"{power:g}"
        found.append(f'<text x="{LEFT - 4}" y="{at}" text-anchor="end">{words}</text>')
        power *= 100
    return "".join(found)


def _find_curve_peaks(values: Sequence[float], most: int) -> list[tuple[int, float]]:
    """(place, value) of the largest number of each of at most so many runs; NaN where a run has none."""
    many = min(len(values), most)
    ends = [k * len(values) // many for k in range(many + 1)] if many else []
    return [max(enumerate(values[a:b], a), key=lambda one: (one[1] == one[1], one[1])) for a, b in pairwise(ends)]


def _find_curve_top(values: Sequence[float], bound: float) -> float:
    """The highest number that is drawn: twice the largest finite one, no less than the bound allows to be seen."""
    largest = max((x for x in values if math.isfinite(x)), default=1.0)
    return 2 * max(largest, bound if bound < math.inf else 1.0, 1.0)


def _measure_curve_height(value: float, top: float) -> float:
    """Share of the picture's height, 0 to 1."""
    if math.isnan(value) or value <= LEAST:
        return 0.0
    return min(math.log(value / LEAST) / math.log(top / LEAST), 1.0)
