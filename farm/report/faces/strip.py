"""What happened night after night, as pictures: a strip of outcomes, bars of failures, a badge."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

#: Pixels of a strip, of a chart, and of what is written below one.
WIDE, TALL = 240, 14
CHART_WIDE, CHART_TALL, BELOW, LEFT = 640, 110, 18, 44
#: Colours of a badge by tone, on which white can be read.
BADGE = {"ok": "#12674a", "new": "#a3290b", "": "#59636e"}


def strip(outcomes: Sequence[tuple[str, int, str]]) -> Markup:
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


def bars(nights: Sequence[tuple[str, int, int]]) -> Markup:
    """A bar for each night, as (words, failures, new ones of them): the new ones stand out."""
    top = max((failed for _, failed, _ in nights), default=0) or 1
    wide = (CHART_WIDE - LEFT) / max(len(nights), 1)
    parts = [f'<text x="{LEFT - 6}" y="12" text-anchor="end">{top}</text>']
    parts.append(f'<text x="{LEFT - 6}" y="{CHART_TALL}" text-anchor="end">0</text>')
    parts.append(f'<line x1="{LEFT}" y1="{CHART_TALL}" x2="{CHART_WIDE}" y2="{CHART_TALL}"/>')
    for at, (words, failed, new) in enumerate(nights):
        x, high, over = LEFT + at * wide, CHART_TALL * failed / top, CHART_TALL * new / top
        size = f'x="{x:.1f}" width="{max(wide * 0.85, 0.8):.1f}"'
        parts.append(
            f'<rect {size} y="{CHART_TALL - high:.1f}" height="{high:.1f}"><title>{escape(words)}</title></rect>'
        )
        if new:
            over = max(over, 2.0)  # one among thousands is seen
            parts.append(f'<rect class="over" {size} y="{CHART_TALL - over:.1f}" height="{over:.1f}"/>')
    if nights:
        low = CHART_TALL + BELOW - 3
        parts.append(f'<text x="{LEFT}" y="{low}">{escape(nights[0][0][:10])}</text>')
        parts.append(f'<text x="{CHART_WIDE}" y="{low}" text-anchor="end">{escape(nights[-1][0][:10])}</text>')
    told = escape(nights[-1][0]) if nights else "nothing"
    head = f'<svg class="curve bars" viewBox="0 0 {CHART_WIDE} {CHART_TALL + BELOW}" role="img" aria-label="{told}">'
    return Markup(head + "".join(parts) + "</svg>")


def badge(left: str, right: str, tone: str) -> str:
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
