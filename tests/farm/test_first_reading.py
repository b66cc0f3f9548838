"""A report read for the first time: every number is said in one way, whose a failure is, and what can be typed."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from farm.commands.report import main
from farm.exits import OK
from farm.plan import match_known
from farm.plan.known_failure import KnownFailure
from farm.program import _find_farm_program
from farm.report import Report, by_vendor, causes, coverage, ranking, stale, unique, verdict
from farm.report.faces.markdown import write_markdown_report
from farm.report.faces.page import render_page_of_run
from farm.report.tables import first_views
from farm.report.tables.overview import describe_best_backends, list_backend_coverage
from farm.reproduction.show_case import _find_known_cause
from tests.farm.test_conclusion import REC, given, lake_of
from tests.farm.test_page import Shown
from tests.farm.test_report import RUN, frame, make_row, printed


def recorded(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A run's record with these known failures."""
    return RUN | {"config": {"name": "quick", "known_failures": list(entries), **more}}


def test_what_is_imprecise_and_not_known_is_said_in_one_way_everywhere_and_fails_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [make_row("wrong"), make_row("imprecise", "torch:exp"), make_row("pass", "torch:mul")]
    path = lake_of(tmp_path, ("1-a", "quick", rows))
    sentence = "OK: 1 failure, all known; 1 new imprecise result"
    assert main([str(path)]) == OK
    said = capsys.readouterr().out
    assert said.strip().endswith(sentence)
    for text in (said, (path / "run=1-a/_report/report.md").read_text()):
        assert sentence in text and "Imprecise and not known (fails no run): 1 cell" in text
    new = pd.read_csv(path / "run=1-a/_report/new.csv")
    assert new[["status", "op"]].values.tolist() == [["imprecise", "torch:exp"]]
    assert main([str(path), "--new"]) == OK
    said = capsys.readouterr().out
    assert "No new failures." in said and "torch:exp" in said and said.strip().endswith(sentence)
    page = Shown.of(frame(*rows), REC | {"planned": 3})
    assert [one["text"] for one in page.look("standing", ".chip")][:1] == ["1new"]
    assert not verdict(frame(*rows), REC | {"planned": 3}).has_findings


def test_where_nothing_is_listed_as_known_what_is_imprecise_is_not_called_new() -> None:
    rows, record = frame(make_row("imprecise"), make_row(sample=1)), RUN | {"planned": 2}
    assert verdict(rows, record).sentence == "OK: no failures in 2 results"
    assert "Imprecise: 1 cell" in (said := printed(rows, record)) and "new" not in said


#: The suite expects the wrong thing of add; whose mul is was not settled; div is the backend's own.
FAULTS = (
    {"op": "torch:add", "fault": "suite", "reason": "the suite rounds twice"},
    {"op": "torch:mul", "fault": "open", "reason": "two readings"},
    {"op": "torch:div", "reason": "1/0 is 0"},
)


def faulty() -> pd.DataFrame:
    return frame(
        *(make_row("wrong", f"torch:{op}", backend="a", vendor="A") for op in ("add", "mul", "div")),
        make_row("pass", "torch:sub", backend="a", vendor="A"),
        *(make_row("pass", f"torch:{op}", backend="b", vendor="B") for op in ("add", "mul", "div", "sub")),
    )


def test_a_failure_that_is_not_the_backends_counts_against_nobody() -> None:
    rows = Report.of(faulty(), recorded(*FAULTS)).rows
    lines = coverage(rows, by="backend")
    assert lines.loc["a", ["valid", "judged", "passed", "failed", "apart"]].tolist() == [2, 2, 1, 1, 2]
    assert lines.loc["b", ["valid", "judged", "passed", "failed", "apart"]].tolist() == [4, 4, 4, 0, 0]
    told = causes(rows).set_index("reason")["fault"].to_dict()
    assert told == {"1/0 is 0": "backend", "two readings": "open", "the suite rounds twice": "suite"}
    assert unique(rows)[["op", "alone"]].values.tolist() == [["torch:div", "A"]]
    # The same failures of a config that does not say whose they are count.
    plain = [{name: text for name, text in entry.items() if name != "fault"} for entry in FAULTS]
    assert coverage(Report.of(faulty(), recorded(*plain)).rows, by="backend").loc["a", "failed"] == 3


def test_a_case_with_such_a_failure_is_ranked_for_nobody_and_its_cause_stands_apart() -> None:
    report = Report.of(faulty(), recorded(*FAULTS))
    made = ranking(report.rows).set_index("backend")
    assert made[["right", "failed", "cells", "apart"]].T.to_dict("list") == {"b": [2, 0, 2, 2], "a": [1, 1, 2, 2]}
    shown, written = printed(report, report.run), write_markdown_report(report, report.run)
    for said in (shown, written):
        assert "1 known failure: 1 cause" in said and "2 known failures that are no backend's fault" in said
        assert "Left out for all: 2 cells" in said and "not settled" in said and "the suite's" in said
    assert written.index("1/0 is 0") < written.index("the suite rounds twice")
    assert shown.index("1/0 is 0") > shown.index("the suite rounds twice"), "a terminal shows the end"


def test_reproduce_says_whose_a_known_failure_is() -> None:
    entry = KnownFailure(op="torch:add", fault="suite", reason="rounds twice")
    case: Any = SimpleNamespace(row=make_row("wrong"), config=SimpleNamespace(known_failures=[entry]))
    assert _find_known_cause(case) == "rounds twice (the suite's: what it expects is wrong)"


def test_whose_a_known_failure_is_is_one_of_four_and_an_older_record_says_the_backends() -> None:
    assert KnownFailure(op="x", reason="r").fault == "backend"
    (entry,) = match_known.parse_known_entries({"config": {"known_failures": [{"op": "x", "reason": "r"}]}}) or []
    assert entry.fault == "backend"
    with pytest.raises(ValueError, match="suite"):
        KnownFailure.model_validate({"op": "x", "reason": "r", "fault": "nobody"})


def test_a_ranking_counts_every_cell_once_and_no_weak_pass_as_right() -> None:
    ops = ("add", "mul", "sub", "div", "exp")
    rows = given(*((op, "a", "pass") for op in ops)) + given(
        ("add", "b", "imprecise"), ("mul", "b", "wrong"), ("sub", "b", "unsupported"), ("div", "b", "fallback")
    )
    rows += [make_row("pass", "torch:exp", "b", vendor="B", weak=True)]
    rows[4]["weak"] = True  # of exp: a constant would have passed
    report = Report.of(frame(*rows), REC)
    columns = ["right", "imprecise", "weak", "failed", "fallback", "unsupported"]
    made = ranking(report.rows).set_index("backend")[columns]
    assert made.T.to_dict("list") == {"a": [4, 0, 1, 0, 0, 0], "b": [1, 1, 1, 1, 1, 1]}
    assert (made.drop(columns="imprecise").sum(axis=1) == 5).all()
    head = next(line for line in printed(report, REC).splitlines() if "imprecise" in line and "right" in line)
    assert all(words in head for words in columns)


def test_of_many_samples_one_that_is_no_evidence_does_not_make_a_cell_weak() -> None:
    rows = [make_row("pass", backend=name, sample=n, weak=n == 0) for name in "ab" for n in range(2)]
    assert ranking(Report.of(frame(*rows), REC).rows)[["right", "weak"]].values.tolist() == [[1, 0], [1, 0]]


#: A mode and a version of a backend, beside it.
MODES = [
    {"name": "npu", "like": "", "packages": [], "python": ""},
    {"name": "npu-soc69", "like": "npu", "packages": [], "python": "", "options": {"soc_model": 69}},
    {"name": "npu@1", "like": "npu", "packages": ["npu==1"], "python": ""},
]


def test_backends_that_run_the_same_code_are_counted_once_in_sums() -> None:
    rows = [make_row("wrong", backend=name, vendor="Q") for name in ("npu", "npu-soc69", "npu@1")]
    rows += [make_row("pass", "torch:mul", name, vendor="Q") for name in ("npu", "npu@1")]
    rows += [make_row("error", "torch:mul", "npu-soc69", vendor="Q")]
    report = Report.of(frame(*rows), recorded({"op": "*", "reason": "rounds"}, backends=MODES))
    assert report.causes[["rows", "cases"]].values.tolist() == [[4, 2]], "a case of a vendor is one case of a cause"
    lines = {line["backend"]: (line["planned"], line["failed"]) for line in list_backend_coverage(report)}
    assert lines["npu-soc69"] == (2, 2) and lines[""] == (4, 3), "the mode is counted with the backend, by its worst"
    assert by_vendor(report.rows).loc[("Q", "float32"), ["planned", "failed"]].tolist() == [4, 3]
    assert "2    1  npu" not in printed(report, report.run)
    assert coverage(report.rows, by="backend")["planned"].tolist() == [2, 2, 2]


def test_a_known_failure_is_stale_only_where_all_that_it_names_passes_and_one_number_says_so() -> None:
    entries = (
        {"op": "torch:add", "status": "error", "reason": "mended"},
        {"op": "torch:mul", "status": "error", "reason": "fails otherwise now"},
        {"op": "torch:sub*", "status": "error", "reason": "mended beside another one"},
        {"op": "torch:sub", "status": "wrong", "dtype": "float16", "reason": "the other one"},
    )
    rows = frame(
        *(make_row("pass", sample=n) for n in range(3)),
        make_row("pass", "torch:mul"),
        make_row("wrong", "torch:mul", sample=1),
        make_row("pass", "torch:sub"),
        make_row("wrong", "torch:sub", dtype="float16"),
    )
    report = Report.of(rows, recorded(*entries))
    found = stale(report.rows, report.run)
    assert found[["reason", "rows", "found"]].values.tolist() == [
        ["mended", 3, "pass 3"],
        ["mended beside another one", 1, "pass 1"],
    ]
    assert (report.rows["standing"] == "stale").sum() == found["rows"].sum() == 4
    said = "2 known failures not seen (their 4 rows passed)"
    assert said in printed(report, report.run) and said in write_markdown_report(report, report.run)
    chips = [one["text"] for one in Shown.of(rows, report.run).look("standing", ".chip")]
    assert "4stale" in chips


def test_one_sentence_names_the_best_backend_of_every_vendor_for_what_current_models_need() -> None:
    outcomes = {"a": ("pass", "pass"), "a2": ("wrong", "pass"), "b": ("pass", "wrong")}
    rows = [
        make_row(status, f"critical:{op}", name, vendor=name[0].upper())
        for name, statuses in outcomes.items()
        for op, status in zip(("add", "mul"), statuses)
    ]
    sentence = "Best backend per vendor, catalog critical (what current models need), right of the 2 cells given to all: a (A) 2, b (B) 1"
    report = Report.of(frame(*rows), REC)
    for said in (printed(report, REC), write_markdown_report(report, REC)):
        assert sentence in said
    assert describe_best_backends(Report.of(frame(*rows[:2]), REC)) == "", "one vendor is no comparison"


LONG = "seen: " + " ".join(f"word{n}" for n in range(45))


def test_words_and_units_have_a_page_named_before_the_first_table_and_a_cut_cause_the_command_that_has_it_whole() -> (
    None
):
    rows = frame(make_row("wrong"), make_row("wrong", "torch:mul", kind="numbers", error_units=90.0, limit=32.0))
    record = recorded({"op": "torch:add", "reason": LONG})
    report = Report.of(rows, record)
    for width in (80, 180):
        _explained(" ".join(printed(report, record, width).split()))
    assert LONG in " ".join(printed(report, record, 180).split())


def _explained(said: str) -> None:
    for words in ("farm help terms", "farm help units"):
        assert said.index(words) < said.index("1 new failure: 1 group")
        assert said.count(words) == 1
    assert said.index("was confirmed with the runtime's own API") < said.index("seen: word0")
    assert all(f"word{n}" in said for n in range(45)) or ("word3" in said and "farm known list --run r1" in said)


def test_commands_are_as_they_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    own = tmp_path / "venv" / "bin" / "farm"
    own.touch(0o755)
    prefix = own.parent.parent
    assert _find_farm_program(str(own.parent), tmp_path, prefix) == "farm"
    assert _find_farm_program("/nowhere", tmp_path, prefix) == "venv/bin/farm"
    assert _find_farm_program("/nowhere", tmp_path / "elsewhere", prefix) == str(own)
    assert _find_farm_program("/nowhere", tmp_path, tmp_path) == "farm", "no other name is known"
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(Path(sys.prefix).parent)
    name = f"{Path(sys.prefix).name}/bin/farm reproduce 'r1:"
    said = render_page_of_run(frame(make_row("crash")), RUN)
    assert f'<code class="cmd">{name.replace(chr(39), "&#39;")}' in said
    assert re.search(r"\.cmd \{[^}]*white-space:pre;[^}]*user-select:all;", said), (
        "one piece, however narrow the page is"
    )
    assert name in printed(frame(make_row("crash")), RUN, width=80)


def test_the_first_command_is_one_whose_environment_is_there_or_says_that_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = frame(*(make_row("wrong", f"torch:op{n}", "tvm-cpu", vendor="Apache") for n in range(3)), make_row("wrong"))
    record = recorded({"op": "*", "backend": "tvm-cpu", "reason": "often"}, {"op": "*", "reason": "here"})
    monkeypatch.setenv("FARM_CACHE", "/nowhere")

    def shown(some: pd.DataFrame) -> tuple[str, str]:
        causes = first_views.view_known_causes(Report.of(some, record))
        (_, every), (words, command) = causes.see
        assert every == "farm known list --run r1"
        return words, command.rpartition(":")[2]

    assert shown(rows) == ("reproduce one", "torch-cpu'")
    built = "reproduce one (builds tvm-cpu's environment first, a minute or more)"
    assert shown(rows[:3]) == (built, "tvm-cpu'")
    monkeypatch.setattr(first_views, "_has_backend_environment", lambda report, backend: True)
    assert shown(rows) == ("reproduce one", "tvm-cpu'")


def test_where_something_is_missing_the_report_says_who_tells_what_installs_it() -> None:
    report = Report.of(frame(make_row()), RUN)
    for said in (printed(report, RUN), write_markdown_report(report, RUN), render_page_of_run(report, RUN)):
        assert "farm doctor" in said
    record = RUN | {"inventory": {"backends": {"torch-cpu": {"vendor": "Meta", "available": True}}}}
    assert "farm doctor" not in printed(frame(make_row()), record)


def test_paper_has_what_to_conclude_first_and_no_table_of_a_hundred_pages() -> None:
    wrong = [make_row("wrong", op=f"torch:op{n}") for n in range(203)]
    page = Shown.of(frame(*wrong, *(make_row(op=f"torch:right{n}") for n in range(7))))
    page.engine.eval('window.fire("beforeprint")')
    assert len(page.look("grid", ".op")) == 200
    said = page.engine.eval('document.getElementById("shown").textContent')
    assert said.startswith("Not printed: 3 more ops (filter the matrix") and said.endswith(", 7 ops without a failure.")
