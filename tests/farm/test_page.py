"""The page's script, run by a JavaScript engine: what it shows is what the tables say, under every filter."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode

import pandas as pd
import pytest
import quickjs

from farm.report import case, coverage, diff, verdict
from farm.report.faces.page import render_page_of_run
from farm.report.tables.coverage import keep_distinct_rows, list_frame_lines, table_cell_matrix
from farm.report.words import format_percent, format_report_number
from tasks.model import Status
from tests.farm.test_report import RUN, Page, frame, make_row
from tests.farm.test_vendor_view import outcome

DOM = (Path(__file__).parent / "dom.js").read_text()


class Shown:
    """A page as its script drew it."""

    def __init__(self, html: str) -> None:
        page = Page(html)
        (script,) = re.findall(r"<script>(.*)</script>\n</body>", html, re.DOTALL)
        named = [attributes for _, attributes in page.elements if "id" in attributes]
        self.engine = quickjs.Context()
        self.engine.eval(DOM)
        self.engine.eval(f"boot({json.dumps(named)}, {json.dumps(json.dumps(page.data))})")
        self.engine.eval(script)
        self.backends = [one["name"] for one in page.data["backends"]]

    @classmethod
    def of(cls, rows: pd.DataFrame, run: dict[str, Any] = RUN) -> Shown:
        return cls(render_page_of_run(rows, run))

    def look(self, where: str, selector: str) -> list[dict[str, Any]]:
        return json.loads(self.engine.eval(f"look({json.dumps(where)}, {json.dumps(selector)})"))

    def lines(self, where: str, tag: str) -> list[dict[str, Any]]:
        return json.loads(self.engine.eval(f"lines({json.dumps(where)}, {json.dumps(tag)})"))

    def put(self, where: str, value: str) -> None:
        self.engine.eval(f"input({json.dumps(where)}, {json.dumps(value)})")

    def visit(self, **state: str) -> None:
        self.engine.eval(f"visit({json.dumps('#' + urlencode(state))})")

    def press(self, where: str, *keys: str) -> None:
        self.engine.eval(f"press({json.dumps(where)}, ...{json.dumps(keys)})")

    def focus(self) -> str:
        return self.engine.eval("document.activeElement.attributes.id")

    def pair(self, a: str, b: str) -> list[dict[str, Any]]:
        """The lines of what changed, without their head."""
        self.put("a", str(self.backends.index(a)))
        self.put("b", str(self.backends.index(b)))
        return self.lines("changes", "tr")[1:]


def many() -> pd.DataFrame:
    """Every status on both sides of a change, kinds, other inputs, growing errors, weak samples, dtypes and checks."""
    rows, statuses = [], [status.value for status in Status]
    for i, first in enumerate(statuses):
        for k, second in enumerate(statuses):
            op = f"torch:op{i:02}_{k:02}"
            more = {"op": op, "dtype": ("float32", "float16")[k % 2], "sample": k}
            rows.append(outcome("a-1", first, errors=1.0, **more))
            rows.append(outcome("b-1", second, errors=1.0 + 3 * (k % 3), kind="shape" if k == 2 else "", **more))
    for sample, (first, second) in enumerate([(0.5, 0.9), (0.5, 12.0), (12.0, 0.5), (3.0, 13.0)]):
        rows.append(outcome("a-1", errors=first, op="torch:grows", sample=sample))
        rows.append(outcome("b-1", errors=second, op="torch:grows", sample=sample))
    for kind in ("numbers", "nonfinite"):
        rows.append(outcome("a-1", "wrong", op=f"torch:{kind}", kind="numbers"))
        rows.append(outcome("b-1", "wrong", op=f"torch:{kind}", kind=kind))
        rows.append(outcome("c-1", op=f"torch:{kind}"))
    rows.append(outcome("a-1", op="torch:inputs"))
    rows.append(outcome("b-1", "wrong", op="torch:inputs") | {"digest": "other"})
    rows += [make_row(op="torch:weak", backend="c-1", sample=k, weak=k < 3, vendor="c") for k in range(4)]
    rows += [make_row(op="torch:weak", backend="b-1", sample=k, weak=True, vendor="b") for k in range(4)]
    rows.append(make_row(op="torch:one", backend="c-1", vendor="c", check="backward"))
    return frame(*rows)


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    return many()


@pytest.fixture(scope="module")
def html(rows: pd.DataFrame) -> str:
    return render_page_of_run(rows, RUN)


@pytest.fixture
def page(html: str) -> Shown:
    """The same page, opened anew."""
    return Shown(html)


def test_every_square_is_that_of_the_matrix(rows: pd.DataFrame, page: Shown) -> None:
    squares = [one for one in page.look("grid", ".sq") if not {"none", "gone"} & set(one["class"].split())]
    expected = {}
    for (label, backend), line in zip((table := table_cell_matrix(rows)).index, list_frame_lines(table), strict=True):
        judged = f"{line['passed']} of {line['judged']} judged passed" if line["judged"] else "none judged"
        expected[f"{label} on {backend}"] = (
            f"{line['worst']}, {judged}, {line['judged']} of {line['valid']} valid judged"
            + ", weakly tested" * line["weakly_tested"],
            bool(line["weakly_tested"]),
        )
    shown = {one["title"].partition(": ")[0]: one for one in squares}
    assert {
        name: (one["title"].partition(": ")[2].partition(";")[0], "weak" in one["class"].split())
        for name, one in shown.items()
    } == expected
    assert all(Status(text.partition(",")[0]).facts.sign in shown[name]["text"] for name, (text, _) in expected.items())


@pytest.mark.parametrize(
    "filters", [{}, {"dtype": "float16"}, {"check": "backward"}, {"vendor": "b"}, {"dtype": "float32", "q": "op01"}]
)
def test_rates_under_a_filter_are_those_of_coverage(rows: pd.DataFrame, page: Shown, filters: dict[str, str]) -> None:
    for name, value in filters.items():
        page.put(name, value)
    left = keep_distinct_rows(rows)
    for name, value in filters.items():
        left = left[left["label"].str.contains(value)] if name == "q" else left[left[name] == value]
    table = coverage(left)
    expected = {
        str(backend): f"pass rate {format_percent(line['passed'], line['judged'])}, coverage "
        f"{format_percent(line['judged'], line['valid'])}"
        for backend, line in zip(table.index, list_frame_lines(table), strict=True)
    }
    shown = {one["title"].split()[1]: one["title"].partition(": ")[2] for one in page.look("grid", ".col")}
    assert {name: shown[name].partition(";")[0] for name in expected} == expected


@pytest.mark.parametrize(("a", "b"), [("a-1", "b-1"), ("b-1", "a-1"), ("a-1", "c-1"), ("c-1", "b-1")])
def test_what_changed_is_what_the_diff_says(rows: pd.DataFrame, page: Shown, a: str, b: str) -> None:
    table = diff(rows, a, b)
    changed = list_frame_lines(table[table["change"] != "same"])
    assert [line["cells"] for line in page.pair(a, b)] == [
        [
            line["change"],
            line["op"],
            line["dtype"],
            f"{line['changed']}/{line['samples']}",
            *(f"{Status(line[f'status_{side}']).facts.sign} {line[f'status_{side}']}" for side in "ab"),
            *(format_report_number(line[f"units_{side}"]) for side in "ab"),
        ]
        for line in changed
    ]
    said = page.engine.eval('document.getElementById("changed").textContent')
    for name, count in table.attrs["counts"].items():
        assert f"{name} {count} cells ({table.attrs['samples'][name]} samples)" in said
    assert f"{table.attrs['only_a']} only on the first, {table.attrs['only_b']} only on the second" in said
    assert format_percent(table.attrs["same_bytes"], table.attrs["with_bytes"]) in said


@pytest.mark.parametrize("op", ["torch:nonfinite", "torch:op02_02", "torch:op04_05", "torch:grows"])
def test_a_sample_names_the_outlier_and_its_command(rows: pd.DataFrame, page: Shown, op: str) -> None:
    backend = "b-1"
    page.visit(sel=f"{op}|{backend}")
    (shown,) = (one for one in page.look("panel", ".sample")[:1])
    commands = [one["text"] for one in page.look("panel", ".cmd")]
    sample, dtype = re.search(r"sample (\d+)", shown["text"]), re.search(r"float\d+", shown["text"])
    assert sample is not None and dtype is not None
    table = case(rows, f"forward/{op}/{dtype[0]}/{sample[1]}")
    said = [one["text"] for one in page.lines("panel", "p")]
    assert said[said.index(table.attrs["verdict"][0]) :][: len(table.attrs["verdict"])] == table.attrs["verdict"]
    sides = {line["cells"][0][:3]: line for line in page.lines("panel", "tr")[1:]}
    assert next(iter(sides)) == backend, "one's own row stands first"
    for line in list_frame_lines(table):
        assert ("outlier" in sides[line["backend"]]["class"]) == line["outlier"]
        assert sides[line["backend"]]["cells"][2:4] == [
            format_report_number(line["units"]),
            format_report_number(line["limit"]),
        ]
    assert commands == [table.set_index("backend").at[backend, "reproduce"]]


def test_the_page_writes_numbers_as_the_tables_do() -> None:
    numbers = (0.0, 0.5, 1234.0, 12345.678, 123456.0, 1.23456e-9, 0.00012345, 99999.5, 1e300, 3.14159, 1 / 3, 999.96)
    twice = (2245.4867, 1.2349987, 1.2350013, 999.4996, 99999.4996)  # rounded twice they end otherwise
    told = {f"torch:of_{k}": float(f"{value:.9g}") for k, value in enumerate([*numbers, *twice])}
    page = Shown.of(frame(*(outcome("a-1", "wrong", op=op, errors=900.0, max_diff=x) for op, x in told.items())))
    for op, value in told.items():
        page.visit(sel=f"{op}|a-1")
        names, values = ([one["text"] for one in page.lines("panel", tag)] for tag in ("dt", "dd"))
        assert values[names.index("max diff")] == format_report_number(value)


def test_a_status_filter_hides_ops_and_leaves_the_rates_of_the_head(rows: pd.DataFrame, page: Shown) -> None:
    before = [one["title"] for one in page.look("grid", ".col")]
    page.visit(status="crash")
    assert [one["title"] for one in page.look("grid", ".col")] == before
    ops = page.look("grid", ".op")
    assert (
        0 < len(ops) < keep_distinct_rows(rows)["label"].nunique()
        and "rates: all" in page.look("grid", ".corner")[0]["text"]
    )


def test_links_lead_somewhere_and_escape_goes_back(page: Shown) -> None:
    page.visit(sel="torch:nonfinite|b-1")
    links = {one["text"]: one["href"] for one in page.lines("panel", "a")}
    assert parse_qs(links["a-1"].lstrip("#"))["sel"] == ["torch:nonfinite|a-1"]
    page.engine.eval(
        '[...document.getElementById("panel").all()].find((one) => one.textContent === "a-1" && one.tag === "a").fire("click")'
    )
    assert page.lines("panel", "p")[0]["text"] == "on a-1 (a)" and page.focus() == "panel"
    page.engine.eval('root.fire("keydown", { key: "Escape" })')
    assert page.lines("panel", "p") == [] and page.focus() == "grid"
    page.pair("a-1", "b-1")
    links = [one["href"] for one in page.lines("changes", "a")]
    assert links and all("sel=" in link for link in links)


def test_the_keyboard_reaches_squares_and_the_head_and_few_stops_come_before(page: Shown) -> None:
    page.press("grid", "ArrowDown", "ArrowRight", "Enter")
    assert page.lines("panel", "p")[0]["text"] == "on b-1 (b)"
    page.press("grid", "Home", "PageUp", "ArrowUp", "Enter")  # the head: Enter sorts by the backend
    assert page.look("grid", ".sorted")[0]["text"].startswith("a-1")
    assert {one["tabindex"] for one in page.lines("grid", "button")} == {"-1"}
    assert [one["tabindex"] for one in page.look("status", ".chip")].count("0") == 1


def test_on_paper_stands_every_op_that_fails_and_how_many_do_not(page: Shown) -> None:
    page.engine.eval('document.getElementById("grid").clientHeight = 300')
    page.visit(q="op")
    some = len(page.look("grid", ".op"))
    page.engine.eval('window.fire("beforeprint")')
    failing = len(page.look("grid", ".op"))
    shown = 'document.getElementById("shown").textContent'
    right = sum(not (a.failed or b.failed) for a in Status for b in Status)
    assert failing == len(Status) ** 2 - right
    assert f"Not printed: {right} ops without a failure." == page.engine.eval(shown)
    page.engine.eval('window.fire("afterprint")')
    assert some == len(page.look("grid", ".op")) < failing
    assert page.engine.eval(shown) == ""


def test_every_figure_has_its_unit_and_limit_and_what_the_classic_tolerance_says() -> None:
    far = outcome("a-1", "imprecise", errors=320.0, kind="numbers", numel=2000, mismatched=0, classic=True)
    near = outcome("b-1", "wrong", errors=64.0, kind="numbers", numel=2000, mismatched=1500, classic=False)
    both = [far, near | {"limit": 4.0, "compute_precision": "float16"}]
    page = Shown.of(
        frame(*both, outcome("c-1", "wrong", op="torch:exp") | {"op_class": "elementary", "max_ulp": 9.0, "limit": 4.0})
    )
    page.visit(sel="torch:add|a-1")
    assert "320 units, limit 32" in page.look("panel", ".sample")[0]["text"]
    first, second = (line["cells"] for line in page.lines("panel", "tr")[1:])
    assert first[1].endswith("10 × the limit; 0 of 2,000 elements outside the classic tolerance")
    assert second[1].endswith(
        "16 × the limit; 1,500 of 2,000 elements outside the classic tolerance; in units of float16, as the backend declares"
    )
    assert (first[2:4], second[2:4]) == (["320", "32"], ["64", "4"])
    page.visit(sel="torch:exp|c-1")
    assert "9 ulps, limit 4" in page.look("panel", ".sample")[0]["text"]
    assert [one["text"] for one in page.lines("panel", "th")][2] == "error, ulps"


def test_the_error_stands_before_the_others_and_the_figures() -> None:
    page = Shown.of(frame(make_row("error", error="it broke", error_type="E"), make_row(backend="b-1")))
    page.visit(sel="torch:add|torch-cpu")
    (text,) = (one["text"] for one in page.look("panel", ".sample"))
    assert (
        text.index("it broke")
        < text.index("reproduce")
        < text.index("agrees with the reference")
        < text.index("runtime")
    )


KNOWN = [
    {"op": "torch:a", "backend": "a-1", "status": "wrong", "reason": "it adds in float16"},
    {"op": "torch:c", "backend": "a-1", "status": "crash", "reason": "it divides by zero"},
]


@pytest.fixture(scope="module")
def judged_html() -> str:
    failed = [outcome("a-1", "wrong", op=f"torch:{name}", errors=90.0) for name in "ab"]
    passed = [outcome("b-1", op=f"torch:{name}") for name in "abcd"] + [outcome("a-1", op="torch:c")]
    return render_page_of_run(frame(*failed, *passed), RUN | {"config": {"name": "quick", "known_failures": KNOWN}})


@pytest.fixture
def judged(judged_html: str) -> Shown:
    """A known failure, a new one, a stale one, on two backends that pass elsewhere."""
    return Shown(judged_html)


@pytest.mark.parametrize(
    ("asked", "ops", "squares"),
    [
        ({"standing": "new"}, ["torch:b"], ["torch:b on a-1"]),
        ({"standing": "known"}, ["torch:a"], ["torch:a on a-1"]),
        ({"standing": "stale"}, ["torch:c"], ["torch:c on a-1"]),
        ({"standing": "new,known"}, ["torch:a", "torch:b"], ["torch:a on a-1", "torch:b on a-1"]),
        ({"cause": "it adds in float16"}, ["torch:a"], ["torch:a on a-1"]),
        ({"standing": "known", "status": "pass"}, [], []),
    ],
)
def test_what_is_new_known_or_stale_and_a_cause_can_be_asked_for(
    judged: Shown, asked: dict[str, str], ops: list[str], squares: list[str]
) -> None:
    judged.visit(**asked)
    assert [one["text"] for one in judged.look("grid", ".op") if "probe" not in one["class"]] == ops
    left = [one for one in judged.look("grid", ".sq") if not {"faded", "none", "gone"} & set(one["class"].split())]
    assert [one["title"].partition(": ")[0] for one in left] == squares
    assert [one["text"] for one in judged.look("standing", ".chip")] == ["1new", "1known", "1stale"]


def test_a_square_and_its_panel_say_the_cause_and_lead_to_where_else_it_is(judged: Shown) -> None:
    titles = {one["title"].partition(": ")[0]: one for one in judged.look("grid", ".sq")}
    assert titles["torch:a on a-1"]["title"].endswith("; known: it adds in float16")
    assert titles["torch:b on a-1"]["title"].endswith("; NEW: no known failure covers it")
    assert titles["torch:c on a-1"]["title"].endswith("; stale: passed, although known to fail: it divides by zero")
    assert {name for name, one in titles.items() if "new" in one["class"].split()} == {"torch:b on a-1"}
    judged.visit(sel="torch:a|a-1")
    assert judged.look("panel", ".sample")[0]["text"].startswith("W KNOWN")
    (link,) = [one["href"] for one in judged.lines("panel", "a") if one["text"] == "where else"]
    assert parse_qs(link.lstrip("#")) == {"cause": ["it adds in float16"]}


def test_where_nothing_is_listed_as_known_the_page_calls_nothing_new() -> None:
    rows = frame(outcome("a-1", "wrong", op="torch:a", errors=90.0), outcome("b-1", op="torch:a"))
    page = Shown.of(rows, RUN | {"config": {"name": "mine"}})
    assert page.look("standing", ".chip") == []
    assert not [one for one in page.look("grid", ".sq") if "new" in one["class"].split()]
    page.visit(sel="torch:a|a-1")
    assert "NEW" not in page.look("panel", ".sample")[0]["text"]
    html = render_page_of_run(rows, RUN | {"planned": 2, "finished_at": "2026-01-01"})
    assert "1 failure; the config lists none as known" in html and ">new</td>" not in html


def test_the_page_counts_as_known_what_the_verdict_does() -> None:
    failed = [outcome("a-1", "wrong", op="torch:a", sample=k, errors=90.0) for k in range(3)]
    rows = frame(*failed, outcome("a-1", "imprecise", op="torch:a", sample=3), outcome("b-1", "wrong", op="torch:b"))
    record = RUN | {"config": {"name": "quick", "known_failures": KNOWN}}
    said, page = verdict(rows, record), Shown.of(rows, record)
    assert (said.new, said.failures - said.new) == (1, 3)
    assert [one["text"] for one in page.look("standing", ".chip")] == ["1new", "3known", "0stale"]
    page.visit(sel="torch:a|a-1")
    assert "known: it adds in float16" in [one["text"] for one in page.look("panel", ".stands")][-1]


def test_the_page_says_first_what_to_conclude_then_the_matrix_then_the_rest() -> None:
    failed = [outcome("a-1", "wrong", op=f"torch:{name}", errors=90.0) for name in "ab"]
    rows = frame(*failed, outcome("b-1", op="torch:a"), outcome("b-1", op="torch:b"))
    gone = {"vendor": "v", "available": False, "reason": "no driver", "installs": [["apt-get install", "a-driver"]]}
    record = {"config": {"name": "quick", "known_failures": KNOWN}, "inventory": {"backends": {"x-vulkan": gone}}}
    record |= {"planned": len(rows), "finished_at": "2026-01-01T01:00:00Z"}
    html = render_page_of_run(rows, RUN | record)
    places = [
        *('class="verdict new">1 new failure, 1 known', "2026-01-01 00:00:00 UTC"),
        *('id="view-new"', "farm reproduce"),
        *(
            'id="view-causes"',
            '<a class="go" href="#cause=it+adds+in+float16">it adds in float16</a>',
            'id="view-ranking_torch"',
        ),
        *("100 % (2/2) <meter", "Unavailable: 1 of 1 backends", "no driver", "apt-get install a-driver", 'id="grid"'),
        *('id="more"', 'id="view-coverage"'),
    ]
    found = [html.find(text) for text in places]
    assert -1 not in found and found == sorted(found), dict(zip(places, found, strict=True))
    assert 'href="#sel=torch%3Aa%7Ca-1"' in html, "an example of a cause leads to its square"
    fine = render_page_of_run(frame(make_row()), RUN | {"planned": 1})
    assert 'class="verdict ok">OK: no failures in 1 result' in fine


def test_behind_a_square_of_all_inputs_is_their_picture_one_line_per_backend() -> None:
    rows = frame(
        outcome("a-1", op="torch:erf", distribution="exhaustive", profile="aabz"),
        outcome("b-1", op="torch:erf", distribution="exhaustive", profile="ddda"),
        outcome("c-1", op="torch:erf", distribution="exhaustive"),
        outcome("a-1", op="torch:mm"),
    )
    shown = Shown.of(rows)
    shown.visit(sel="torch:erf|a-1")
    lines = shown.lines("panel", "polyline")
    assert [line["class"] for line in lines] == ["p1", "p0"]  # the square's own comes last, on top
    assert "a-1" in json.dumps(shown.look("panel", ".keys")) and "c-1" not in json.dumps(shown.look("panel", ".keys"))
    shown.visit(sel="torch:mm|a-1")
    assert shown.lines("panel", "polyline") == []
