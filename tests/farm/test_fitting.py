"""Tables on a narrow terminal: nothing is cropped, at any width and from any command that prints one."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.text import Text

from farm.fitting import TableHead, fit_table
from farm.report import print_coverage
from tests.farm.test_report import frame, make_row

HEADS = [
    TableHead("vendor"),
    TableHead("backend"),
    TableHead("pass rate (passed/judged)", right=True),
    TableHead("counts by status"),
]
LINES = [
    (["tiny corp", "ort-qnn-soc69", "87.8 % (665/757)", "crash 4 · timeout 1 · wrong 73 · unsupported 237"], ""),
    (["Meta", "executorch-xnnpack", "–", "–"], "bold"),
]


def printed(what: object, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(what)
    return out.getvalue()


@pytest.mark.parametrize("width", [24, 40, 60, 80, 100, 120, 200])
def test_no_width_crops_a_table(width: int) -> None:
    made = fit_table("Coverage", HEADS, [([Text(c) for c in cells], style) for cells, style in LINES], width)
    said = printed(made, width)
    assert max(map(len, said.splitlines())) <= width
    whole = re.sub(r"\s+", "", said)
    for cells, _ in LINES if width > 60 else LINES[:1]:
        for part in " ".join(cells).split():
            assert part in whole
    assert "–" in whole if width >= 80 else True


def test_a_short_table_stands_side_by_side_and_a_long_one_has_its_long_columns_below() -> None:
    short = fit_table("t", HEADS[:2], [([Text("Meta"), Text("torch-cpu")], "")], 80)
    assert "Meta    torch-cpu" in printed(short, 80)
    many = [([Text(f"{n}" * 30) for n in range(6)], "")]
    said = printed(fit_table("t", [TableHead(f"column {n}", right=True) for n in range(6)], many, 80), 80)
    assert "    column 4: " + "4" * 30 in said.splitlines()


def test_a_cell_of_two_lines_is_whole_where_it_stands_in_one() -> None:
    heads = [TableHead("status"), TableHead("how far"), TableHead("backend"), TableHead("what", right=True)]
    cells = [Text("wrong"), Text("31 units, limit 32\nwith 16 flips of 16"), Text("ort-cpu"), Text("y" * 70)]
    said = printed(fit_table("t", heads, [(cells, "")] * 9, 80), 80)
    assert said.count("units, limit 32 with 16 flips of 16  ort-cpu") == 9


def test_the_lower_of_the_two_forms_is_taken() -> None:
    heads = [TableHead("backend"), TableHead("dtype"), TableHead("what")]
    lines = [([Text("openvino-cpu"), Text("float32, float16, bfloat16"), Text("why " * 50)], "") for _ in range(9)]
    heights = {width: printed(fit_table("t", heads, lines, width), width).count("\n") for width in (80, 120, 250)}
    assert heights[80] <= 2 + 9 * 4 and heights[120] <= 5 + 9 * 3, heights
    assert "what: why" in printed(fit_table("t", heads, lines, 80), 80)
    assert "what: why" not in printed(fit_table("t", heads, lines, 250), 250)


def test_a_column_that_stays_is_beside_the_first_though_it_is_the_widest() -> None:
    heads = [TableHead("verdict"), TableHead("name", stays=True), TableHead("audit"), TableHead("n", right=True)]
    lines = [([Text("pass"), Text("n" * 40), Text("a " * 60), Text("1")], "") for _ in range(9)]
    said = printed(fit_table("t", heads, lines, 80), 80)
    assert said.count(f"pass     {'n' * 40}  1") == said.count("    audit: a a") == 9, said


def test_no_table_has_a_frame() -> None:
    lines = [([Text(c) for c in cells], style) for cells, style in LINES]
    for width in (60, 100, 200):
        assert not set(printed(fit_table("t", HEADS, lines, width), width)) & set("│┃━─┏┓└┘|")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_report_at_80_columns_has_its_counts(width: int) -> None:
    rows = frame(
        *(make_row(s, backend="executorch-xnnpack", sample=n) for n, s in enumerate(("wrong", "pass", "unsupported")))
    )
    console = Console(file=(out := io.StringIO()), width=width, highlight=False)
    print_coverage(rows, {"run_id": "r"}, console=console)
    said = re.sub(r"\s+", " ", out.getvalue())
    assert all(part in said for part in ("wrong 1", "unsupported 1", "pass 1"))
