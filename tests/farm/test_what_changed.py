"""What changed between two runs: a report, a page, a site, a history, a gate's files and a diff say the same of the same pair."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from farm import lake
from farm.__main__ import main
from farm.report import causes, summaries
from farm.report.tables.changes import KINDS, ChangeCounts, compare_cells_of_sides, diff
from farm.report.tables.history import describe_last_history_step, list_outcome_spans
from farm.report.tables.history import load_history_rows as load_history_rows
from farm.report.tables.view import Report
from farm.reproduction.find_case import ReproduceError, find_key_by_seed
from tasks.catalogs.user import fuzzed_samples
from tasks.model import FUZZ
from tests.farm.test_gate import DAYS, made, on
from tests.farm.test_report import frame, make_row

#: (status before, status after), "" for no row, of each sample of each op.
OPS = {
    "broken": [("pass", "wrong"), ("pass", "pass")],
    "hidden": [("wrong", "wrong"), ("pass", "wrong"), ("wrong", "pass")],  # its worst sample is as it was
    "new": [("unsupported", "crash")],
    "fixed": [("error", "pass"), ("pass", "pass")],
    "otherwise": [("wrong", "error")],
    "lost": [("pass", "unsupported")],
    "precise": [("imprecise", "pass")],
    "same": [("wrong", "wrong")],
    "added": [("", "wrong")],
}
COUNTS = ChangeCounts(new=3, fixed=1, changed=3, cells=8)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> str:
    rows = [
        on(day, status, f"torch:{op}", sample=sample)
        for op, samples in OPS.items()
        for sample, pair in enumerate(samples)
        for day, status in enumerate(pair)
        if status
    ]
    # On a second backend nothing changes but the inputs.
    rows += [on(day, status, backend="b-cpu", digest=status) for day, status in enumerate(("pass", "wrong"))]
    return made(tmp_path_factory.mktemp("two"), *rows, known_failures=[])


def test_every_face_counts_the_same(results: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = ChangeCounts(COUNTS.new, COUNTS.fixed, COUNTS.changed + 1, COUNTS.cells + 1)
    words = counts.sentence()
    assert words == "3 new, 1 fixed, 4 changed of 9 cells in both"

    def said(*command: str) -> str:
        assert main([*command]) in (0, 1), command
        return " ".join(capsys.readouterr().out.split())

    assert words in said("report", results, "--out", str(tmp_path / "report"))
    assert words in (tmp_path / "report" / "report.md").read_text()
    assert words in (tmp_path / "report" / "report.html").read_text()
    assert f"Since the run before {DAYS[1]}: {words}" in said("report", "history", "--results", results)
    said("report", "site", str(tmp_path / "site"), results)
    front = (tmp_path / "site" / "index.html").read_text()
    assert words in front and "Changes that stayed: 8 cells" in front
    assert "What changed from run to run: 7 cells" in next((tmp_path / "site" / "backend").glob("ort-*")).read_text()
    files = {name: tmp_path / name for name in ("junit", "markdown")}
    said("gate", "--results", results, *(x for name, file in files.items() for x in (f"--{name}", str(file))))
    assert words in files["markdown"].read_text()
    told = {one.get("name"): one.get("value") for one in ET.parse(files["junit"]).iter("property")}
    changed = {name: value for name, value in told.items() if not name.startswith("run.")}
    assert changed == {"since": DAYS[0], "known": "0", **{name: str(value) for name, value in vars(counts).items()}}


def test_the_diff_of_two_runs_is_what_changed_since_the_last(results: str) -> None:
    rows = lake.read(results)
    table = diff(rows, f"{DAYS[0]}:ort-cpu", f"{DAYS[1]}:ort-cpu")
    assert ChangeCounts.of(table) == COUNTS and table.attrs["only_b"] == 1
    found = dict(zip(table["op"], table["change"]))
    assert found["torch:hidden"] == "regression" and found["torch:same"] == "same"
    kept = summaries.read_run_summary(lake.open_lake(results), DAYS[1])
    if kept is not None:  # from a site that was made of this lake
        told = {one["label"]: one["change"] for one in kept.changes if one["backend"] == "ort-cpu"}
        assert told == {op: change for op, change in found.items() if change != "same"}


def test_a_diff_takes_runs_by_id_or_by_their_place_and_says_how_they_are_named(results: str) -> None:
    def said(*sides: str, code: int = 1) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assert main(["report", "--results", results, "--diff", *sides]) == code
        return out.getvalue()

    assert f"{DAYS[0]} → {DAYS[1]}: 13 samples" in said(*DAYS[:2])
    both = diff(lake.read(results), *DAYS[:2]).set_index(["op", "backend"])["change"]
    assert both["torch:new", "ort-cpu"] == "new failure" and set(both.index.levels[1]) == {"b-cpu", "ort-cpu"}
    assert "regression" in said(f"{DAYS[0]}:ort-cpu", f"{DAYS[1]}:ort-cpu")
    newest, before = lake.run_ids(results)[:-3:-1]
    assert f"{before} → {newest}: " in said("previous", "last")
    assert f"{before}:ort-cpu → {newest}:ort-cpu: " in " ".join(said("previous:ort-cpu", "last:ort-cpu").split())
    mixed = said(DAYS[0], "ort-cpu", code=2)
    assert f"{DAYS[0]} is a run, ort-cpu is not one" in mixed and f"{newest} (last), {before} (previous)" in mixed
    unknown = said("nobody", "ort-cpu", code=2)
    assert "no rows of backend 'nobody'" in unknown and f"{newest} (last)" in unknown


def test_a_run_without_rows_yet_is_no_side_of_a_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was called a backend that has no rows."""
    results = made(tmp_path, on(0), on(1), on(2))
    (Path(results) / f"run={DAYS[2]}" / "part-0.parquet").unlink()
    for a, b in (("previous", "last"), ("last", "previous"), ("last:ort-cpu", "ort-cpu"), (DAYS[2], DAYS[0])):
        assert main(["report", "--results", results, "--diff", a, b]) == 2
        said = capsys.readouterr().err
        assert f"run {DAYS[2]} has no rows yet" in said and f"{DAYS[1]} (previous)" in said
    assert main(["report", "--results", results, "--diff", *DAYS[:2]]) == 0


def test_the_word_for_the_run_before_names_it_wherever_a_run_is_asked_for(tmp_path: Path) -> None:
    """A seed alone too, which the first run has, and the last one has not."""
    seed = fuzzed_samples.derive_kernel_case_seed(7, 0)
    first, last = DAYS[:2]
    made_of: dict[str, Any] = {"distribution": FUZZ, "seed": 7, "case_id": "forward/torch:add/float32/0"}
    results = made(tmp_path, on(0, "wrong", **made_of), on(1, op="torch:mul"))
    out = io.StringIO()
    for line in (
        f"report --results {results} --run previous --case previous:{made_of['case_id']}:ort-cpu",
        f"report --results {results} --run {first} --case previous:{made_of['case_id']}:ort-cpu",
        f"report findings --results {results} --run previous",
    ):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            assert main(line.split()) == 0, out.getvalue()
    opened = lake.open_lake(results)
    assert find_key_by_seed(seed, opened, run="previous").run_id == first
    with pytest.raises(ReproduceError, match=f"no case of the seed {seed} in run {last}"):
        find_key_by_seed(seed, opened, run=last)


def test_what_is_compared_is_a_row_with_the_one_before_it_of_its_case_and_backend() -> None:
    sides = [
        frame(*(make_row(status, backend=backend, digest="d", run_id=run) for backend, status in some))
        for run, some in (
            ("r1", (("a", "pass"), ("b", "wrong"), ("gone", "pass"))),
            ("r2", (("b", "pass"), ("a", "wrong"), ("came", "pass"))),
        )
    ]
    table = compare_cells_of_sides(*sides)
    assert table[["backend_b", "change"]].values.tolist() == [["a", "regression"], ["b", "fix"]]
    assert (table.attrs["only_a"], table.attrs["only_b"]) == (1, 1)
    assert compare_cells_of_sides(*(side[:0] for side in sides)).empty


def test_a_history_goes_along_builds_in_the_order_in_which_they_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A commit's digest has no version in it: fff… may be older than 000…, and two of them may have run in one
    night."""
    of = {"torch fff0001": "pass", "torch 9990002": "wrong", "torch 0000003": "pass"}
    rows = [on(day, status, build=build) for day, (build, status) in enumerate(of.items())]
    rows += [on(3, "wrong", build="torch 0000003", op="torch:mul")]
    results = made(tmp_path, *rows)
    told = list_outcome_spans(load_history_rows(results, ["add"], along="build"), "build")
    assert told[["first", "ended", "change", "then_change"]].values.tolist() == [
        ["torch fff0001", "torch 9990002", "", "regression"],
        ["torch 9990002", "torch 0000003", "regression", "fix"],
        ["torch 0000003", "", "fix", ""],
    ]
    assert main(["report", "history", "--along", "build", "--results", results]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Since the build before the newest: 0 new, 1 fixed, 0 changed of 1 cell in both" in said
    assert "fixed in torch 0000003" in said
    assert describe_last_history_step(load_history_rows(results, ["mul"], along="build"), "build") == ""


def test_of_the_checks_that_fail_alike_the_one_that_says_where_is_named() -> None:
    """Whichever has the larger error; another op's place is no better than this one's end."""
    where: dict[str, Any] = {"check": "steps", "culprit": "step 8", "error": "first wrong at step 8 of 10"}
    rows = frame(
        make_row("wrong", "user:cache", kind="numbers", error_units=5e6),
        make_row("wrong", "user:cache", kind="numbers", error_units=4e6, case_id="steps/user:cache/float32/0", **where),
        make_row("wrong", "user:other", kind="numbers", error_units=9.0),
    )
    found = causes(Report.of(rows, {"config": {}}).rows)
    assert found[["op", "case_id", "culprit"]].values.tolist() == [
        ["user:cache", "steps/user:cache/float32/0", "step 8"],
        ["user:other", "forward/user:other/float32/0", ""],
    ]


def test_the_kinds_of_change_are_one_table() -> None:
    assert [name for name, one in KINDS.items() if one.closes] == ["regression", "new failure", "lost coverage"]
    assert {one.group for one in KINDS.values()} == {"new", "fixed", "changed", ""}
