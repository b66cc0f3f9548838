"""The pictures of "The arithmetic of a device", drawn from passports of a lake: python docs/_pictures.py RESULTS [ONE OTHER]

RESULTS has the passports of the backends that shall be on the first (`farm fingerprint … --ops matmul --dtypes
float32`). ONE and OTHER are two releases of a runtime, as `farm fingerprint --diff` names them. The float8 accumulator
is read of the emulated unit, whose bytes are those of the recorded card (`python -m tests.devices.products`).
"""

from __future__ import annotations

import csv
import random
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from farm.report.tables.passports import select_newest_readings, table_passport_readings
from tasks.matrix_units.accumulators import UnitAccumulator
from tasks.matrix_units.table import find_matrix_unit
from tasks.model.dtypes import get_numpy_dtype
from tasks.passport import DeviceSum, SumTerms
from tasks.passport.reveal_tree import reveal_sum_tree
from tasks.passport.sum_trees import (
    Tree,
    decode_tree,
    draw_tree_lines,
    list_tree_leaves,
    list_tree_nodes,
    list_tree_terms,
)

HERE = Path(__file__).resolve().parent
RECORDED = HERE.parent / "tests" / "devices" / "h200-2026-11-26" / "products.csv"
#: Colours: text, what is less important, lines of trees, what is lost, the ground.
INK, GREY, LINE, LOST, GROUND = "#1b1f24", "#6a737d", "#1f5fa8", "#c23b22", "#ffffff"
#: The float8 product: its dtype, summed elements, and after how many cuBLAS adds to float32.
FLOAT8, LONG = "float8_e4m3fn", 256


def write(name: str, width: int, height: int, title: str, about: str, parts: Iterable[str]) -> None:
    """A picture with a heading and a line below it."""
    head = text(24, 36, title, 20, weight=600) + text(24, 58, about, 13, GREY)
    words = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{escape(title)}" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif"><rect width="{width}" height="{height}" fill="{GROUND}"/>{head}{"".join(parts)}</svg>\n'
    )
    (HERE / name).write_text(words)
    print(HERE / name)


def text(
    x: float, y: float, words: str, size: int = 13, fill: str = INK, weight: int = 400, anchor: str = "start"
) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" fill="{fill}" text-anchor="{anchor}">{escape(words)}</text>'


def draw(tree: Tree, x: float, y: float, width: float, height: float, stroke: str = LINE) -> str:
    """A tree with its top left corner at a place: parts side by side, and under each term a mark that is the darker the
    earlier the term lies in memory."""
    leaves = list_tree_leaves(tree)
    wide = width / len(leaves)
    lines = f'<path d="{draw_tree_lines(tree, width, height, leaves)}" fill="none" stroke="{stroke}" shape-rendering="crispEdges"/>'
    marks = [
        f'<rect x="{k * wide:.1f}" y="{height - 4:.1f}" width="{wide:.1f}" height="7" fill="{shade(leaf / len(leaves))}"/>'
        for k, leaf in enumerate(leaves)
    ]
    return f'<g transform="translate({x:.0f} {y:.0f})">{lines}{"".join(marks)}</g>'


def shade(share: float) -> str:
    """From dark to light."""
    dark, light = (38, 25, 96), (250, 214, 120)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(dark, light))


def power(exponent: int) -> str:
    """A power of two in words."""
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def wrap(words: str, most: int) -> list[str]:
    """Lines of at most so many characters."""
    lines = [""]
    for word in words.split(" "):
        if lines[-1] and len(lines[-1]) + 1 + len(word) > most:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def describe_adder(line: Any) -> str:
    """What the steps of a reading add in."""
    if line.bits is None or line.bits != line.bits:
        return "steps not read"
    what = line.accumulator or f"{int(line.bits)} bits"
    return what + (", FMA" if line.fused else "") + (", flushes" if line.flushes_inputs or line.flushes_results else "")


def draw_backends(readings: pd.DataFrame, shapes: Sequence[tuple[int, int]] = ((8, 64), (1, 64), (8, 256))) -> None:
    """Each distinct tree of a matmul once, with the backends that add so."""
    mine = readings[
        (readings["op"] == "critical:matmul") & (readings["dtype"] == "float32") & (readings["where"] == "first")
    ]
    mine = mine[mine["tree"].notna() & ~mine["backend"].str.contains("@")]  # today's releases alone
    parts, y, card, gap, tall = [], 84, 352, 16, 118
    for rows, terms in shapes:
        here = mine[(mine["rows"] == rows) & (mine["terms"] == terms)]
        parts.append(text(24, y + 8, f"{rows} row{'s' * (rows > 1)}, {terms} terms", 15, weight=600))
        y += 20
        groups = sorted(here.groupby("tree", sort=False), key=lambda pair: -len(pair[1]))
        for at in range(0, len(groups), 3):
            deepest = 0
            for column, (parents, some) in enumerate(groups[at : at + 3]):
                x = 24 + column * (card + gap)
                by_adder: dict[str, list[str]] = {}
                for line in some.itertuples():
                    by_adder.setdefault(describe_adder(line), []).append(str(line.backend))
                whose = [row for adder, names in by_adder.items() for row in wrap(f"{adder}: {', '.join(names)}", 54)]
                parts.append(draw(decode_tree(parents), x, y + 6, card, tall))
                parts.append(text(x, y + tall + 24, str(some["kind"].iloc[0]), 13, weight=600))
                parts += [text(x, y + tall + 42 + 16 * k, row, 12, GREY) for k, row in enumerate(whose)]
                deepest = max(deepest, len(whose))
            y += tall + 60 + 16 * deepest
    what = "A line across is an addition. Marks: terms as they lie in memory, dark to light. Read from outside; each gives 50 or more unseen results to the bit."
    write("trees_matmul.svg", 1136, y, f"One matmul on {mine['backend'].nunique()} backends", what, parts)


def draw_releases(readings: pd.DataFrame, one: str, other: str, most: int = 4) -> None:
    """Sums of which two releases of a runtime have other trees."""
    key = ["op", "dtype", "part", "sample", "where"]
    both = readings[readings["backend"] == one].merge(
        readings[readings["backend"] == other], on=key, suffixes=("_one", "_other")
    )
    read = both[both["tree_one"].notna() & both["tree_other"].notna() & (both["where"] == "first")]
    changed = read[read["tree_one"] != read["tree_other"]]
    same = len(read) - len(changed)
    rank = changed.assign(far=(changed["terms_one"] - 64).abs() + (changed["rows_one"] == 1) * 0.5).sort_values(
        "far", kind="stable"
    )
    shown = rank.drop_duplicates(["op", "part"])[:most]
    versions = {name: readings["runtime_version"][readings["backend"] == name].iloc[0] for name in (one, other)}
    heads = [f"{name.partition('@')[0]} {version}" for name, version in versions.items()]
    parts, y = [text(x, 92, head, 15, weight=600) for x, head in zip((24, 580), heads)], 108
    for line in shown.itertuples():
        what = f"{line.op.partition(':')[2]}{f' ({line.part})' * bool(line.part)}, {line.dtype}, {line.rows_one:.0f}×{line.terms_one}"
        parts.append(text(24, y + 16, what, 14, weight=600))
        for x, end in ((24, "one"), (580, "other")):
            parts.append(draw(decode_tree(getattr(line, f"tree_{end}")), x, y + 26, 532, 120))
            parts.append(text(x, y + 164, getattr(line, f"kind_{end}"), 12, GREY))
        y += 186
    what = f"{len(changed)} of {len(read)} sums that both were asked are added in another order; {same} as before. No test of results sees it."
    write("trees_releases.svg", 1136, y + 8, "What changed between two releases", what, parts)


def draw_float8() -> None:
    """The accumulator of Hopper's float8 products: the tree of one output, the bits of a step, and what the card's rows
    were off by."""
    unit = find_matrix_unit("hopper", FLOAT8)
    assert unit is not None
    accumulate, kind, places = UnitAccumulator(FLOAT8, (FLOAT8,), unit), get_numpy_dtype(FLOAT8), tuple(range(LONG))

    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        return [accumulate.product(*(np.asarray(x, np.float64) for x in arrays)).astype(np.float32)]

    ones = [np.ones((1, LONG), kind), np.ones((LONG, 1), kind)]
    tree, _ = reveal_sum_tree(
        DeviceSum(run, ones, SumTerms(0, (0, places), (1, places), fill=(1.0, 1.0)), FLOAT8), random.Random(0)
    )
    parts = [text(24, 96, f"{LONG} products of one output", 15, weight=600), draw(tree, 24, 108, 1088, 150)]
    step = max(len(node) - 1 for node in list_tree_nodes(tree))
    halves = [len(list_tree_terms(x)) for x in tree] if isinstance(tree, tuple) else []
    said = f"Each step takes {step} products at once and the sum so far, in 14 bits. After {halves[0]} products that sum goes over to a float32 sum: the last line across."
    parts.append(text(24, 280, said, 12, GREY))
    parts += draw_window(24, 316) + draw_recorded(640, 316)
    what = "H200, float8 e4m3, cuBLAS as torch._scaled_mm calls it. The tree was read of the emulated unit, which gives the card's 30 recorded rows to the byte."
    write("float8_accumulator.svg", 1136, 640, "The float8 accumulator of the recorded card", what, parts)


def draw_window(x: float, y: float) -> list[str]:
    """Which bits of a product are kept beside a largest one of 2¹⁶, in a step and in float32."""
    parts = [text(x, y, "What a step keeps beside a product of 2¹⁶", 15, weight=600)]
    wide, top = 19, 16
    for row, (name, bits) in enumerate((("float8 step, H200", 14), ("float32 sum", 24))):
        at = y + 40 + row * 58
        parts.append(text(x, at - 8, name, 12, GREY))
        for k in range(25):
            kept = k < bits
            parts.append(
                f'<rect x="{x + k * wide}" y="{at}" width="{wide - 2}" height="22" fill="{LINE if kept else GROUND}" stroke="{LINE if kept else LOST}" stroke-width="1"/>'
            )
    for k in range(0, 25, 4):
        parts.append(text(x + k * wide + wide / 2, y + 136, power(top - k), 11, GREY, anchor="middle"))
    said = (
        "Products are aligned to the largest and cut off, not rounded: 2³ stays, 2² is gone,",
        "whatever its sign, so the error leans to zero. Two products of 2² are gone as well.",
    )
    return parts + [text(x, y + 164 + 18 * k, words, 12, GREY) for k, words in enumerate(said)]


def draw_recorded(x: float, y: float) -> list[str]:
    """Recorded error units of the card's rows with a float32 result, by the number of products."""
    with RECORDED.open() as file:
        rows = [
            r
            for r in csv.DictReader(file)
            if r["op"] == "gemm:scaled_mm" and r["variant"] == "float32" and r["dtype"] == FLOAT8
        ]
    parts = [text(x, y, "What that costs: its recorded rows with float32 results", 15, weight=600)]
    left, bottom, tall, wide = x + 56, y + 236, 200, 400
    counts = sorted({int(r["shapes"].split(" ")[0].split("x")[1]) for r in rows})
    for value in (0, 1000, 2000, 3000):
        at = bottom - value / 3000 * tall
        parts.append(
            f'<path d="M{left} {at:.0f}h{wide}" stroke="#d8dee4"/>'
            + text(left - 8, at + 4, str(value), 11, GREY, anchor="end")
        )
    for k, count in enumerate(counts):
        middle = left + (k + 0.5) * wide / len(counts)
        mine = sorted(float(r["error_units"]) for r in rows if int(r["shapes"].split(" ")[0].split("x")[1]) == count)
        parts += [
            f'<circle cx="{middle + (j - len(mine) / 2) * 10:.0f}" cy="{bottom - e / 3000 * tall:.0f}" r="4" fill="{LOST}" fill-opacity="0.75"/>'
            for j, e in enumerate(mine)
        ]
        parts.append(text(middle, bottom + 20, f"{count} products", 12, GREY, anchor="middle"))
    parts.append(text(left, bottom + 44, "error units: 1 is what rounding to float32 explains", 12, GREY))
    return parts


def main(arguments: Sequence[str]) -> None:
    results, *releases = arguments
    readings = select_newest_readings(table_passport_readings(results))
    draw_backends(readings)
    if len(releases) == 2:
        draw_releases(readings, *releases)
    draw_float8()


if __name__ == "__main__":
    main(sys.argv[1:])
