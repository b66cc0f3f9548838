"""What happened run after run, as pictures: a strip of outcomes, bars of failures, a badge."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from farm.report.words import DASH

#: Pixels of a strip and of a sparkline.
WIDE, TALL, SPARK_WIDE = 240, 14, 96
#: Pixels of a chart: what is drawn, what is written above, below and left of it, its widest bar, and half of a letter
#: where a screen is small.
CHART_WIDE, CHART_TALL, TOP, BELOW, LEFT, WIDEST, HALF = 640, 120, 30, 46, 44, 18, 4.7
#: Colours of a badge by tone, on which white can be read.
BADGE = {"ok": "#12674a", "new": "#a3290b", "": "#59636e"}


def draw_outcome_strip(outcomes: Sequence[tuple[str, int, str]]) -> Markup:
    """Equal outcomes in a row as one block; each says its words."""
    every = sum(many for _, many, _ in outcomes)
    parts, at = [], 0
    for status, many, words in outcomes:
        x, wide = WIDE * at / every, WIDE * many / every
        block = f'<rect class="s-{escape(status)}" x="{x:.1f}" width="{max(wide - 0.4, 0.8):.1f}" height="{TALL}">'
        parts.append(f"{block}<title>{escape(words)}</title></rect>")
        at += many
    told = escape("; ".join(words for _, _, words in outcomes[-3:]))
    head = f'<svg class="strip" viewBox="0 0 {WIDE} {TALL}" preserveAspectRatio="none" role="img" aria-label="{told}">'
    return Markup(head + "".join(parts) + "</svg>")  # what comes from elsewhere is escaped


class StripBar(NamedTuple):
    """A run in a chart: when it began, as it stands below the axis; what it is called; its failures and the new ones of
    them."""

    when: str
    words: str
    failures: int
    new: int


def draw_failure_bars(runs: Sequence[StripBar], title: str) -> Markup:
    """A bar for each run, whose new failures stand out, between axes with ticks; ``title``: what is counted."""
    low, step = TOP + CHART_TALL, _choose_axis_step(max((one.failures for one in runs), default=0))
    top = step * max(1, math.ceil(max((one.failures for one in runs), default=0) / step))
    parts = [f'<text class="title" x="0" y="14">{escape(title)}</text>']
    for value in range(0, top + 1, step):
        y = low - CHART_TALL * value / top
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{CHART_WIDE}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,}</text>')
    slot = (CHART_WIDE - LEFT) / max(len(runs), 1)
    wide = max(min(slot * 0.85, WIDEST), 0.8)
    named = set(_choose_axis_ticks(len(runs)))
    for at, one in enumerate(runs):
        middle = LEFT + (at + 0.5) * slot
        size = f'x="{middle - wide / 2:.1f}" width="{wide:.1f}"'
        # A run without failures is a stroke on the axis: it was there.
        high = max(CHART_TALL * one.failures / top, 1.0)
        parts.append(f"<g><title>{escape(one.words)}</title>")
        parts.append(f'<rect {size} y="{low - high:.1f}" height="{high:.1f}"/>')
        if one.new:
            over = max(CHART_TALL * one.new / top, 2.0)  # one among thousands is seen
            parts.append(f'<rect class="over" {size} y="{low - over:.1f}" height="{over:.1f}"/>')
        parts.append("</g>")
        if at in named:
            parts.append(f'<line x1="{middle:.1f}" y1="{low}" x2="{middle:.1f}" y2="{low + 4}"/>')
            half = HALF * len(one.when)
            place = min(max(middle, half), CHART_WIDE - half)
            parts.append(f'<text x="{place:.1f}" y="{low + 18}" text-anchor="middle">{escape(one.when)}</text>')
    parts.append(
        f'<text class="title" x="{CHART_WIDE}" y="{low + 40}" text-anchor="end">runs by their start (UTC)</text>'
    )
    told = escape(runs[-1].words) if runs else "nothing"
    head = f'<svg class="curve bars" viewBox="0 0 {CHART_WIDE} {low + BELOW}" role="img" aria-label="{escape(title)}; newest: {told}">'
    return Markup(head + "".join(parts) + "</svg>")  # what comes from elsewhere is escaped


def _choose_axis_step(most: int) -> int:
    """Between the ticks of an axis of counts: 1, 2 or 5 and zeros, so that there are at most five."""
    sizes = (digit * 10**power for power in range(20) for digit in (1, 2, 5))
    return next(one for one in sizes if most <= 4 * one)


def _choose_axis_ticks(many: int) -> list[int]:
    """The first, the last and the one in the middle, where there are as many."""
    return sorted({0, (many - 1) // 2, many - 1} if many > 2 else set(range(many)))


def draw_sparkline(counts: Sequence[int]) -> Markup:
    """Counts in their order as a small row of bars beside a text; -1 is a gap."""
    top, wide = max(*counts, 1), SPARK_WIDE / max(len(counts), 12)
    lines = "".join(
        f"M{(at + 0.5) * wide:.1f},{TALL}v-{max(TALL * one / top, 1):.1f}" for at, one in enumerate(counts) if one >= 0
    )
    said = ", ".join(str(one) if one >= 0 else DASH for one in counts[-12:])
    told = f"by run, oldest first: {said}"
    head = f'<svg class="spark" viewBox="0 0 {SPARK_WIDE} {TALL}" role="img" aria-label="{told}"><title>{told}</title>'
    return Markup(f'{head}<path stroke-width="{wide * 0.8:.1f}" d="{lines}"/></svg>')  # numbers alone


def draw_badge(left: str, right: str, tone: str) -> str:
    """A picture of two words, to be shown on other pages."""
    first, second = (round(len(text) * 6.6 + 14) for text in (left, right))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{first + second}" height="20" role="img" '
        f'aria-label="{escape(left)}: {escape(right)}"><rect width="{first}" height="20" fill="#363d45"/>'
        f'<rect x="{first}" width="{second}" height="20" fill="{BADGE[tone]}"/>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="{first / 2}" y="14">{escape(left)}</text>'
        f'<text x="{first + second / 2}" y="14">{escape(right)}</text></g></svg>\n'
    )
