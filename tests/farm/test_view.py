"""A view that somebody adds is in every face of a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from farm.report import Report, View, write
from farm.report.tables import view
from tests.farm.test_report import RUN, frame, make_row, printed


@pytest.fixture(autouse=True, scope="module")
def every_view() -> None:
    """Registered before a test puts others in their place: what a report imports meanwhile would be lost with them."""
    view.import_tables()


def test_a_view_that_is_registered_is_in_every_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowest(report: Report) -> View:
        return View("slowest", "The slowest samples", report.rows.nlargest(3, "run_ms")[["op", "status", "run_ms"]])

    monkeypatch.setattr(view, "_MAKERS", dict(view._MAKERS))
    view.view(99)(slowest)
    rows = frame(make_row(run_ms=12.5), make_row("wrong", op="torch:slow<b>", run_ms=900.0))
    paths = write(rows, RUN, tmp_path)
    shown = [printed(rows, RUN), *(paths[name].read_text() for name in ("markdown", "html", "slowest"))]
    assert all("torch:slow" in text and "900" in text and "12.5" in text for text in shown)
    assert all("The slowest samples" in text for text in shown[:3]) and "<b>" not in shown[2]


def test_a_view_that_fails_is_named_and_takes_nothing_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: Report) -> View:
        raise KeyError("no such column")

    def broken_on_its_way(report: Report) -> Iterator[View]:
        yield sound(report)
        raise KeyError("no such column")

    def sound(report: Report) -> View:
        return View("sound", "A table", report.rows)

    for failing in (broken, broken_on_its_way):
        monkeypatch.setattr(view, "_MAKERS", {"a": (0, bool, failing), "b": (1, bool, sound)})
        with pytest.warns(view.ViewWarning, match=f"{failing.__name__} failed: KeyError: 'no such column'"):
            assert [made.name for made in Report(frame(make_row())).views] == ["sound"]


def test_a_view_is_asked_of_reports_that_have_something_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def opsets(report: Report) -> None:
        asked.append(",".join(sorted(report.values("check"))))

    monkeypatch.setattr(view, "_MAKERS", {})
    view.view(1, only=lambda report: "opsets" in report.values("check"))(opsets)
    for checks in (["forward"], ["forward", "opsets"]):
        _ = Report(frame(*(make_row(check=check) for check in checks))).views
    assert asked == ["forward,opsets"]


@pytest.mark.parametrize(
    ("unit", "one"),
    [
        ("cells", "cell"),
        ("known failures", "known failure"),
        ("groups of similar failures", "group of similar failures"),
        ("ops and dtypes, a pass is no evidence", "op and dtype, a pass is no evidence"),
        ("ops, dtypes and backends, which pass", "op, dtype and backend, which pass"),
    ],
)
def test_one_line_is_counted_as_one(unit: str, one: str) -> None:
    rows = pd.DataFrame({"op": ["a", "b"]})
    assert View("v", "Shown", rows, unit=unit, counted=True).title(9) == f"Shown: 2 {unit}"
    assert View("v", "Shown", rows[:1], unit=unit, counted=True).title(9) == f"Shown: 1 {one}"


def test_a_view_needs_its_place() -> None:
    with pytest.raises(TypeError, match=r"write @view\(PLACE\)"):
        view.view(lambda report: None)  # type: ignore[arg-type]


def test_columns_of_the_frame_are_named_and_made_by_what_they_hold() -> None:
    made_of = pd.DataFrame(
        {"op": ["torch:add"], "variant": ["out"], "backend": ["a"], "samples": [3], "status": ["wrong"]}
    )
    made = View("v", "V", made_of, ("op", ("backend", "where"), "samples", "status")).columns_for("terminal")
    assert [(column.words, column.right, column.foreign) for column in made] == [
        ("op", False, True),
        ("where", False, True),
        ("samples", True, False),
        ("status", False, False),
    ]
    (line,) = View("v", "V", made_of).all_lines()
    cells = [view.make_view_cell(column, line) for column in made]
    assert [one.text for one in cells] == ["torch:add.out", "a", "3", "wrong"]
    assert cells[0].square == "torch:add.out|a" and cells[3].status == "wrong"
