"""What a report concludes: the verdict, what is new, causes, what changed since the last run, who is best on common cells."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from rich.console import Console

from farm import lake
from farm.commands import reproduce, run
from farm.commands.report import main
from farm.exits import FOUND, OK
from farm.fitting import make_console
from farm.plan.config_schema import Gate
from farm.report import Report, causes, findings, ranking, since, stale, verdict
from farm.report.faces.markdown import write_markdown_report
from farm.report.faces.terminal import print_coverage, print_verdict
from farm.report.tables import overview
from farm.report.tables.gate import judge_run_gate
from farm.report.tables.view import make_view_cell
from tasks.model.row import YOUR_OWN
from tests.farm.test_report import RUN, frame, make_row, printed

#: One known failure that is met, by two rows; one of which nothing is seen; one about an op that did not run.
KNOWN = [
    {"op": "torch:add", "backend": "torch-cpu", "status": "wrong", "reason": "sums in 16 bits"},
    {"op": "sub", "backend": "torch-*", "reason": "refused until version 2"},
    {"op": "torch:other", "reason": "never run"},
]
REC: dict[str, Any] = RUN | {"config": {"name": "quick", "known_failures": KNOWN}, "planned": 7}


def planted() -> pd.DataFrame:
    """Two known failures of one cause, one that is new, one known failure that is mended, and three that are fine."""
    return frame(
        make_row("wrong", kind="numbers", error_units=40.0, limit=32.0),
        make_row("wrong", sample=1, kind="numbers", error_units=90.0, limit=32.0),
        make_row("crash", "torch:mul", kind="SIGSEGV", stage="run", error_type="SIGSEGV"),
        make_row("pass", "torch:sub"),
        make_row("pass", "torch:div"),
        make_row("imprecise", "torch:exp"),
        make_row("fallback", "torch:log"),
    )


def standings(rows: pd.DataFrame, record: dict[str, Any] = REC) -> dict[str, tuple[str, str]]:
    made = Report.of(rows, record).rows
    return {
        f"{op}/{sample}": (standing, cause)
        for op, sample, standing, cause in zip(made["op"], made["sample"], made["standing"], made["cause"])
    }


def test_every_row_is_new_known_stale_or_nothing_to_look_at() -> None:
    assert standings(planted()) == {
        "torch:add/0": ("known", "sums in 16 bits"),
        "torch:add/1": ("known", "sums in 16 bits"),
        "torch:mul/0": ("new", ""),
        "torch:sub/0": ("stale", "refused until version 2"),
        "torch:div/0": ("", ""),
        "torch:exp/0": ("new", ""),
        "torch:log/0": ("", ""),
    }
    # One failure of many that are named is enough for a known failure to be met; what was not judged tells nothing.
    rows = frame(make_row("error", "torch:sub"), make_row("pass", "torch:sub", sample=1))
    assert standings(rows)["torch:sub/1"] == ("", "")
    assert standings(frame(make_row("unsupported", "torch:sub")))["torch:sub/0"] == ("", "")
    # What today's suite has is covered in an older release's, and is not stale for being right there.
    rows = frame(make_row("wrong", "torch-1.3:add"), make_row("wrong", "torch-1.3:mul"))
    assert [x[0] for x in standings(rows).values()] == ["known", "new"]
    assert standings(frame(make_row("pass", "torch-1.3:add")))["torch-1.3:add/0"] == ("", "")


@pytest.mark.parametrize(
    "rows, record, sentence",
    (
        (planted(), REC, "1 new failure, 2 known; 1 new imprecise result"),
        (planted()[:2], REC | {"planned": 2}, "OK: 2 failures, all known"),
        (planted()[3:], REC | {"planned": 4}, "OK: no failures in 3 results; 1 new imprecise result"),
        (planted()[6:], REC | {"planned": 1}, "nothing was judged: fallback"),
        (planted()[:2], REC, "INCOMPLETE: 5 of 7 planned cases have no row yet. So far: 2 failures, all known. Resume with: farm run --resume r1"),
        (planted()[:2], REC | {"planned": None}, "INCOMPLETE: the run did not finish. So far: 2 failures, all known. Resume with: farm run --resume r1"),
        (
            frame(make_row("unavailable"), make_row(sample=1)),
            REC | {"planned": 2},
            "INCOMPLETE: 1 planned case was not run because its backend went away. So far: no failures in 1 result. Resume with: farm run --resume r1",
        ),
        (planted()[:2], {"run_id": "r1"}, "2 failures; the run's record does not say which of them are known"),
        (
            frame(make_row("invalid", "user:mine", kind="reference"), make_row()),
            REC | {"planned": 2},
            "no failures in 1 result; 1 sample of your own could not be judged: model, reference or inputs are broken",
        ),
        (
            frame(*(make_row("invalid", "user:mine", kind="reference", error="no such size", backend=b) for b in "ab")),
            REC | {"planned": 2},
            "nothing was judged: invalid: no such size",
        ),
        (
            frame(make_row(), *(make_row("invalid", "user:mine", kind="reference", backend=b) for b in "ab")),
            REC | {"planned": 3},
            "no failures in 1 result; 1 sample of your own could not be judged: model, reference or inputs are broken",
        ),
        (
            frame(
                make_row(op="user:z"),
                *(make_row("vacuous", f"user:{x}", check="double_backward", error="no torch", sample=s) for x in "abcde" for s in (0, 1)),
                make_row("unsupported", "user:f", check="backward", error="none"),
                make_row(op="user:f", backend="torch-cuda", check="backward"),
                make_row("unsupported", "torch:add", check="backward", error="of a suite, not asked for by name"),
            ),
            REC | {"planned": 14},
            "OK: no failures in 2 results; not judged: double_backward of a, b, c and 2 more (vacuous: no torch)",
        ),
    ),
)  # fmt: skip
def test_the_verdict_is_one_sentence(rows: pd.DataFrame, record: dict[str, Any], sentence: str) -> None:
    assert verdict(rows, record).sentence == sentence


def test_the_command_that_resumes_a_run_stands_last(capsys: pytest.CaptureFixture[str]) -> None:
    rows = frame(make_row("crash", "torch:mul"), make_row("unavailable"))
    said = verdict(rows, REC | {"planned": 2})
    print_verdict(said, make_console(), " (exit code 1)")
    assert capsys.readouterr().out.endswith("1 new failure (exit code 1). Resume with: farm run --resume r1\n")
    gate = judge_run_gate(Report.of(rows, REC | {"planned": 2, "name": "quick"}), Gate())
    assert "INCOMPLETE: 1 planned case was not run" in gate.sentence and "--resume" not in gate.sentence
    budget = {"cells": 3, "budget_s": 90}
    said = verdict(planted()[:2], REC | {"planned": 2, "left_out": budget})
    assert said.sentence == (
        "OK: 2 failures, all known; 3 cells left out by --budget 1m30s, not judged. Resume with: farm run --resume r1"
    )


def test_what_is_given_to_a_backend_and_cannot_be_used_counts_as_failing() -> None:
    lacks = {"available": False, "reason": "no device"}
    broken = {"available": False, "broken": True, "reason": "backend mine: class: e.py:3: ZeroDivisionError"}
    record = REC | {"planned": 2, "name": "quick", "inventory": {"backends": {"torch-cuda": lacks, "mine": broken}}}
    said = verdict(planted()[:2], record)
    assert said.has_findings and said.sentence == f"2 failures, all known; not judged: {broken['reason']}"
    assert judge_run_gate(Report.of(planted()[:2], record), Gate()).code == FOUND
    del record["inventory"]["backends"]["mine"]
    assert not verdict(planted()[:2], record).has_findings


def test_a_run_that_judged_nothing_is_no_success() -> None:
    fell_back, passed = planted()[6:], planted()[4:5]
    assert [verdict(rows, REC | {"planned": 1}).has_findings for rows in (fell_back, passed)] == [True, False]


def test_causes_are_what_is_new_and_then_the_commonest_with_the_worst_row_of_each() -> None:
    made = causes(Report.of(planted(), REC).rows)
    assert made[["standing", "reason", "backends", "statuses", "rows", "ops"]].values.tolist() == [
        ["new", "SIGSEGV, run: mul", "torch-cpu", "crash 1", 1, 1],
        ["known", "sums in 16 bits", "torch-cpu", "wrong 2", 2, 1],
    ]
    assert made["case_id"].tolist() == ["forward/torch:mul/float32/0", "forward/torch:add/float32/1"]
    assert made["reproduce"][0].endswith("'r1:forward/torch:mul/float32/0:torch-cpu' --child")


LONG = """Exception from src/core.cpp:105:
Check 'false' failed at src/frontends/report.cpp:{}:
FrontEnd API failed with OpConversionFailure:
While validating node '{}': Check 'rank > 0' failed at src/core/src/op/{}.cpp:24:
Input rank must be {}. But instead got: {}"""


def test_new_failures_that_are_alike_are_one_line_in_the_words_of_an_engineer() -> None:
    error = {"stage": "build", "error_type": "RuntimeError"}
    rows = frame(
        # Of one vendor's op the numbers are wrong, in two dtypes and on two backends; on another vendor's it is another
        # matter.
        make_row("wrong", "torch:neg", kind="numbers", vendor="Meta"),
        make_row("wrong", "torch:neg", kind="numbers", dtype="float16", variant="out", vendor="Meta"),
        make_row("wrong", "torch:neg", "inductor-cpu", kind="numbers", vendor="Meta")
        | {"max_ulp": 9.0, "limit": 4.0, "op_class": "exact"},
        make_row("wrong", "torch:neg", "ort-cpu", kind="numbers", vendor="Microsoft"),
        make_row("wrong", "torch:neg", sample=1, kind="shape", vendor="Meta"),
        # An error says the same of two ops; the third one's begins alike and says something else.
        make_row("error", "torch:topk", error=LONG.format(151, "TopK", "topk", "greater than 0", "f16"), **error),
        make_row("error", "torch:sort", error=LONG.format(7, "Sort-3", "sort", "greater than 4", "f16"), **error),
        make_row("error", "torch:gather", error=LONG.format(151, "Gather", "gather", "of i32 type", "f16"), **error),
    )
    made = causes(Report.of(rows, REC).rows)
    assert made[["reason", "rows", "backends", "dtypes"]].values.tolist() == [
        ["numbers: neg", 3, "torch-cpu, inductor-cpu", "float32, float16"],
        ["numbers: neg", 1, "ort-cpu", "float32"],
        ["shape: neg", 1, "torch-cpu", "float32"],
        ["build, RuntimeError: sort, topk", 2, "torch-cpu", "float32"],
        ["build, RuntimeError: gather", 1, "torch-cpu", "float32"],
    ]
    said = printed(rows, REC)
    assert "8 new failures: 5 groups of similar failures" in said and "torch:sort and 1 more op" in said
    assert "build; RuntimeError: Input rank must be greater than 4. But instead got: f16" in said
    assert "numbers; 9 ulps, limit 4" in said


def test_a_cause_is_said_and_where_it_begins_is_the_own_matter_of_a_case() -> None:
    def row(sample: int, cause: str) -> dict[str, Any]:
        return make_row("wrong", "user:moe", sample=sample, kind="numbers") | {"cause": cause}

    tail = "zero or NaN from element {} of all on"
    rows = frame(row(0, tail.format(96)), row(1, tail.format(384)), row(2, "scaled by 0.5"), row(3, "scaled by 2"))
    assert causes(Report.of(rows, RUN).rows)["rows"].tolist() == [2, 1, 1]
    said = printed(rows, RUN)
    assert "zero or NaN from element" in said and "scaled by 0.5; numbers" in said


def test_a_command_is_printed_once_and_a_reason_of_several_backends_too() -> None:
    broken: dict[str, Any] = {"catalog": "models", "licence": YOUR_OWN, "error": "no inputs are given"}
    rows = frame(
        *(make_row("invalid", "models:net", backend, **broken) for backend in ("torch-cpu", "inductor-cpu")),
        make_row("wrong", "models:other", catalog="models", kind="numbers", error_units=80.0, limit=32.0)
        | {"culprit": "node n (Conv)", "op_class": "model"},
    )
    said = printed(rows, RUN)
    commands = re.findall("(?:(reproduce): )?(farm reproduce .*)", said)
    listed = [command for last, command in commands if not last]
    assert listed == ["farm reproduce 'r1:forward/models:other/float32/0:torch-cpu'"]
    assert len({command for _, command in commands}) == len(commands) - 1 == 2, "what failed ends with its own"
    assert said.count("no inputs are given") == 1 and "inputs are broken: 1 reason" in said
    assert "Models that are not right" in said


def test_the_last_lines_have_the_command_of_their_first_one_wherever_it_stands_as_well() -> None:
    model = make_row("wrong", "models:other", catalog="models", kind="numbers", error_units=80.0, limit=32.0)
    model |= {"culprit": "node n (Conv)", "op_class": "model"}
    for others, line in (
        ([], "reproduce: "),
        ([make_row("wrong", "torch:add", kind="numbers", error_units=40.0, limit=32.0)], "reproduce the first: "),
    ):
        lines = printed(frame(model, *others), RUN, width=120).splitlines()
        head = next(k for k, one in enumerate(lines) if "similar failures" in one)
        assert lines[head + 2].split()[:2] == ["wrong", "models:other"], "the worst one is the model"
        assert lines[-1] == f"{line}farm reproduce 'r1:forward/models:other/float32/0:torch-cpu'"
        assert "Models that are not right" in "".join(lines[:head])


def test_own_samples_that_were_not_judged_say_how_to_see_all_and_leave_the_last_lines_to_failures() -> None:
    bad = [make_row("wrong", f"torch:op{n}", kind="numbers", max_ulp=9.0, limit=4.0) for n in range(6)]
    broken: dict[str, Any] = {"catalog": "models", "licence": YOUR_OWN}
    own = [make_row("invalid", f"models:net{n}", error=f"no {word}", **broken) for n, word in enumerate("abcde")]
    for rows in (own, [*own, *bad]):
        lines = printed(frame(*rows), RUN, width=80).splitlines()
        heads = [k for k, one in enumerate(lines) if one.startswith(("Your own samples", "6 failures:"))]
        assert len(heads) == 1 + (rows is not own) and len(lines) - heads[-1] <= 9
        told = " ".join(lines[heads[0] :])
        assert "are broken: 5 reasons, 4 shown" in told
        assert "all 5 cells with their commands: farm report --run r1 --new" in told
        assert told.count("reproduce the first: farm reproduce") == len(heads)


def test_no_column_is_lost_in_a_narrow_terminal() -> None:
    """As wide a table as has no room for an op's end and the beginning of what is wrong has several lines for each."""
    rows = frame(
        *(
            make_row("wrong", f"torch:nn.functional.long_name_{n}", backend, dtype=dtype, kind="numbers")
            for n in range(5)
            for backend in ("torch-2.9.1-of-another-environment", "inductor-cpu")
            for dtype in ("float8_e4m3fnuz", "float32")
        )
    )
    for width in range(40, 100):
        lines = printed(rows, RUN, width=width).splitlines()
        head = next(k for k, line in enumerate(lines) if line.startswith("20 failures:"))
        told = "\n".join(lines[head:]).partition("all 20 cells")[0]
        assert told.count("numbers") == 4 and all(f"name_{n}" in told for n in range(4)), width
        assert max(len(line) for line in told.splitlines()) <= width


def test_an_error_is_alike_whatever_its_op_is_called_and_however_long_it_is() -> None:
    rows = frame(
        *(
            make_row("error", f"torch:{op}", error_type="E", error=f"no {op} at address {k}")
            for k, op in enumerate(("add", "dr"))
        ),
        make_row("error", "torch:long", error_type="E", error="x" * 1_000_000),
    )
    made = causes(Report.of(rows, RUN).rows)
    assert made["rows"].tolist() == [2, 1]


def test_models_that_one_pass_of_an_optimiser_breaks_are_alike_and_the_culprit_is_said() -> None:
    def model(name: str, culprit: str) -> dict[str, Any]:
        return make_row("wrong", f"models:{name}", catalog="models", kind="flip", error_units=80.0, limit=32.0) | {
            "culprit": culprit,
            "op_class": "model",
        }

    rows = frame(
        model("a", "optimiser Fuse"),
        model("b", "optimiser Fuse"),
        model("a2", "node n (Conv)"),
        model("b2", "node n (Conv)"),
    )
    assert causes(Report.of(rows, RUN).rows)["rows"].tolist() == [2, 1, 1]
    assert "models:a and 1 more op" in (said := printed(rows, RUN))
    assert "culprit: optimiser Fuse; flip; 80 units, limit 32" in said


def test_one_reason_is_one_cause_on_whatever_backend_and_in_whatever_status() -> None:
    entry = {"op": "*", "reason": "no such kernel"}
    rows = frame(make_row("error"), make_row("crash", backend="b"), make_row("error", "torch:mul", backend="b"))
    made = causes(Report.of(rows, REC | {"config": {"known_failures": [entry]}}).rows)
    assert made[["reason", "rows", "ops", "statuses", "backends"]].values.tolist() == [
        ["no such kernel", 3, 2, "error 2 · crash 1", "b, torch-cpu"]
    ]


def test_a_config_that_lists_nothing_as_known_has_failures_and_none_is_called_new() -> None:
    rows, record = frame(make_row("wrong", kind="numbers"), make_row("imprecise", sample=1)), RUN | {"planned": 2}
    said = verdict(rows, record)
    assert said.sentence == "1 failure; the config lists none as known" and said.has_findings
    for text in (printed(rows, record), write_markdown_report(rows, record)):
        assert (
            "1 failure: 1 group of similar failures\n" in text
            and "new failure" not in text
            and "all 1 cell" not in text
        )


def test_what_is_imprecise_is_no_known_failure_and_keeps_its_cause() -> None:
    rows = frame(make_row("wrong"), make_row("imprecise", sample=1))
    assert standings(rows) == {"torch:add/0": ("known", "sums in 16 bits"), "torch:add/1": ("", "sums in 16 bits")}
    assert verdict(rows, REC | {"planned": 2}).sentence == "OK: 1 failure, all known"
    assert "Imprecise and not known" not in printed(rows, REC), "it has a cause"


@pytest.mark.parametrize("width", [80, 120])
def test_with_hundreds_of_new_failures_the_ranking_is_still_on_the_second_screen(width: int) -> None:
    rows = frame(
        *(make_row("wrong", f"torch:op{n}", "ort-cpu", vendor="Microsoft", kind="numbers") for n in range(300)),
        *(make_row("pass", f"torch:op{n}") for n in range(300)),
    )
    lines = printed(rows, REC | {"planned": 600}, width=width).splitlines()
    assert next(n for n, line in enumerate(lines) if "right on the 300 cells" in line) < 50
    assert sum("farm reproduce" in line for line in lines[:50]) == 1
    assert any("all 300 cells with their commands: farm report --run r1 --new" in line for line in lines[:50])


@pytest.mark.parametrize("groups", [1, 3, 30])
def test_what_failed_and_what_to_type_next_stand_in_the_last_ten_lines(
    groups: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    how: dict[str, Any] = {"kind": "numbers", "max_ulp": 4210.0, "limit": 4.0}
    cause = "the sum is rounded to the 16-bit dtype at every step, which nothing of the op asks for"
    bad = [
        make_row("wrong", f"torch:nn.functional.scaled_dot_product_{n}", backend, dtype=dtype, **how) | {"cause": cause}
        for n in range(groups)
        for backend in ("torch-cpu", "inductor-cpu")
        for dtype in ("float16", "bfloat16", "float32")
    ]
    known = [make_row("wrong", kind="numbers"), make_row("wrong", sample=1, kind="numbers")]
    path = lake_of(
        tmp_path,
        ("1-then", "quick", [*known, make_row("pass", "torch:div")]),
        ("2-now", "quick", [*known, *bad, make_row("pass", "torch:div")]),
    )
    assert main([str(path)]) == OK
    *_, last = [line for line in capsys.readouterr().out.split("\n\n") if line]
    lines = last.rstrip().splitlines()
    assert not [line for line in lines if len(line) > 80 and str(path) not in line]
    assert next(place for place, line in enumerate(reversed(lines), 1) if line.startswith("status ")) <= 10
    assert lines[0].startswith(f"{6 * groups} new failures: {groups} group")
    assert sum(line.startswith("wrong ") for line in lines) == min(groups, 4)
    assert "4210 ulps, limit 4" in last and "scaled_dot_product_0" in last
    assert f"all {6 * groups} cells with their commands: farm report --run 2-now --new" in last
    assert [line for line in lines if "farm reproduce '2-now:forward/torch:nn.functional.scaled_dot_product_0/" in line]
    assert lines[-1] == f"{6 * groups} new failures, 2 known"


def test_commands_that_wrap_on_a_terminal_take_the_place_of_groups(tmp_path: Path) -> None:
    results = f"/srv/validation/{'x' * 60}"
    rows = frame(*(make_row("wrong", f"torch:op{n}", error_units=9.0 + n, limit=4.0) for n in range(9)))
    rows.attrs["results"] = results
    shown = {}
    for terminal in (False, True):
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=terminal, color_system=None)
        print_coverage(rows, REC | {"planned": 9}, console=console)
        tail = out.getvalue().rstrip().split("\n\n")[-1].splitlines()
        shown[terminal] = sum(line.startswith("wrong ") for line in tail)
        if terminal:
            assert sum(-(-len(line) // 80) for line in tail) <= 10
    assert shown == {False: 4, True: 1}


@pytest.mark.parametrize(
    "fault, title",
    (("backend", "9 known failures"), ("suite", "9 known failures that are no backend's fault, counted in no rate")),
)
def test_of_many_known_causes_a_terminal_shows_a_line_each_of_the_commonest_and_how_to_see_all(
    fault: str, title: str
) -> None:
    long = " ".join(["a cause of many words"] * 20)
    known = [{"op": f"op{n}", "reason": f"{n}: {long}", "fault": fault} for n in range(9)]
    rows = frame(*(make_row("wrong", f"torch:op{n}") for n in range(9)))
    record = REC | {"planned": 9, "config": {"known_failures": known}}
    said = printed(rows, record, width=80)
    part = said[said.index(title) :].split("\n\n")[0].splitlines()
    assert f"{title}: 9 causes, 4 shown" in " ".join(" ".join(part).split())
    lines = [line for line in part[:7] if line.split()[2:4] == ["torch-cpu", "wrong"]]
    assert len(lines) == 4 and len(part) < 10
    assert all(fault == "backend" or line.split()[4] == fault for line in lines), "whose it is stands whole"
    assert f"every entry, and how it fared: farm known list --run {REC['run_id']}" in "\n".join(part)
    assert write_markdown_report(rows, record).count(long[:200]) >= 9


def test_what_is_new_in_a_cell_is_told_of_all_its_samples() -> None:
    rows = frame(make_row("crash"), make_row("wrong", sample=1), make_row(sample=2))
    made = findings(Report.of(rows, REC).rows, standing="new")
    assert made[["status", "samples", "planned"]].values.tolist() == [["crash", 1, 3]]


def test_a_known_failure_that_is_not_seen_is_named_with_what_is_seen_instead() -> None:
    made = stale(Report.of(planted(), REC).rows, REC)
    assert made[["op", "reason", "rows", "found"]].values.tolist() == [["sub", "refused until version 2", 1, "pass 1"]]


def test_the_markdown_says_the_verdict_first_then_what_is_new_causes_and_the_ranking_and_a_terminal_last() -> None:
    other = planted().assign(backend="ort-cpu", vendor="Microsoft", status="pass")
    rows = pd.concat([planted(), other], ignore_index=True)
    record = REC | {"planned": 14}
    order = ("1 new failure", "1 new failure: 1 group", "torch:mul", "2 known failures: 1 cause", "sums in 16 bits",
             "torch (PyTorch's own op samples): right on the 6 cells given to all 2 backends", "Coverage by vendor")  # fmt: skip
    shown, written = printed(rows, record), write_markdown_report(rows, record)
    for said in (shown, written):
        assert "1 known failure not seen" in said or "refused until version 2" in said
    places = [written.index(words) for words in order]
    assert places == sorted(places) and written.index("farm reproduce") < written.index("2 known failures")
    places = [shown.index(words) for words in order[:0:-1] if words not in ("torch:mul", "sums in 16 bits")]
    assert places == sorted(places) and shown.index("torch:mul") > shown.index("2 known failures")
    assert printed(rows, record).count("torch:add") == 1, "a known failure stands in its cause and nowhere else"


def test_a_figure_has_its_unit_and_its_limit() -> None:
    rows = frame(
        make_row("wrong", "torch:sigmoid", op_class="elementary", error_units=526.0, max_ulp=572.0, limit=8.0),
        make_row("wrong", "torch:softmax", op_class="normalisation", error_units=110.0, max_ulp=958.0, limit=4.0),
    )
    for said in (" ".join(text.split()) for text in (printed(rows, REC), write_markdown_report(rows, REC))):
        assert "572 ulps, limit 8" in said and "110 units, limit 4" in said and "958" not in said
    assert "ulps: units in the last place" in write_markdown_report(rows, REC) and "help units" in printed(rows, REC)


def test_a_fallback_is_counted_and_no_finding() -> None:
    said = printed(frame(make_row("fallback")), REC | {"planned": 1})
    assert "fallback 1" in said and "No findings" in said


def given(*outcomes: tuple[str, str, str], catalog: str = "torch") -> list[dict[str, Any]]:
    return [
        make_row(status, f"{catalog}:{op}", backend, vendor=backend.upper(), execution="emulated" * (backend == "c"))
        for op, backend, status in outcomes
    ]


def test_backends_are_ranked_on_the_cells_that_all_were_given() -> None:
    rows = given(
        # Three backends share three cells: of add c has half, of mul b has an error, sub falls back on c.
        ("add", "a", "pass"), ("add", "b", "pass"), ("add", "c", "imprecise"),
        ("mul", "a", "pass"), ("mul", "b", "error"), ("mul", "c", "wrong"),
        ("sub", "a", "pass"), ("sub", "b", "pass"), ("sub", "c", "fallback"),
        # Not compared: c was not given the one, and has nothing to say about the other.
        ("div", "a", "wrong"), ("div", "b", "wrong"),
        ("pow", "a", "wrong"), ("pow", "b", "pass"), ("pow", "c", "vacuous"),
    ) + given(("exp", "a", "crash"), catalog="critical")  # fmt: skip
    # A cell is right when all its samples are.
    rows += [make_row("pass" if name == "a" else "wrong", "torch:add", name, 1) for name in "abc"]
    record = REC | {"config": {"known_failures": [{"op": "mul", "backend": "b", "reason": "no mul"}]}}
    made = ranking(Report.of(frame(*rows), record).rows).set_index(["catalog", "backend"])
    columns = [
        "place",
        "backends",
        "given",
        "cells",
        "ran",
        "judged",
        "right",
        "imprecise",
        "failed",
        "known",
        "emulated",
    ]
    assert made.loc["torch", columns].T.to_dict("list") == {
        "a": [1, 3, 5, 3, 3, 3, 3, 0, 0, 0, False],
        "b": [2, 3, 5, 3, 2, 3, 1, 0, 2, 1, False],
        "c": [3, 3, 3, 3, 2, 2, 0, 0, 2, 0, True],
    }
    assert made.loc[("critical", "a"), ["place", "right", "cells"]].tolist() == [1, 0, 1]
    assert ranking(Report.of(frame(), REC).rows).empty


def test_two_backends_are_compared_on_what_both_were_given_however_little() -> None:
    rows = given(*((f"op{n}", "a", "pass") for n in range(9)), ("op0", "b", "wrong"))
    made = ranking(Report.of(frame(*rows), REC).rows)
    assert made[["backend", "place", "cells"]].values.tolist() == [["a", 1, 1], ["b", 2, 1]]


def test_a_cell_without_a_variant_is_a_cell_of_its_own() -> None:
    """A script's rows may lack it."""
    rows = given(*((f"op{n}", b, "wrong" if b == "b" and n else "pass") for n in range(3) for b in "ab"))
    made = Report.of(frame(*rows), REC).rows
    for missing in (made, made.assign(variant=None)):
        assert ranking(missing)[["backend", "cells", "right"]].values.tolist() == [["a", 3, 3], ["b", 3, 1]]


@pytest.mark.parametrize("status", ["vacuous", "unsupported"])
def test_where_nothing_is_common_or_valid_nobody_is_right(status: str) -> None:
    rows = [make_row(status), make_row(status, backend="b"), make_row(status, backend="c", sample=1)]
    made = ranking((report := Report.of(frame(*rows), REC)).rows)
    assert made["right"].tolist() == [0, 0, 0] and made["share"].isna().all()
    assert "right on the 0 cells given to all 3 backends" in printed(report, REC)


def test_a_backend_that_was_given_little_is_not_ranked_and_does_not_shrink_the_comparison() -> None:
    ops = [f"op{n}" for n in range(10)]
    rows = given(
        *((op, "a", "pass") for op in ops),
        *((op, "b", "wrong" if op == "op0" else "pass") for op in ops),
        *((op, "c", "pass") for op in ops[:8]),  # it narrows the comparison
        *((op, "d", "pass") for op in ops[:2]),
        *((op, "e", "unsupported") for op in ops),  # it was given them all
    )
    report = Report.of(frame(*rows), REC)
    made = ranking(report.rows).set_index("backend")
    assert made["place"].fillna(0).to_dict() == {"a": 1, "c": 1, "b": 3, "e": 4, "d": 0}
    assert made["cells"].to_dict() == {"a": 8, "c": 8, "b": 8, "e": 8, "d": 2} and made.at["d", "best"] == 2
    for said in (printed(report, REC), write_markdown_report(report, REC)):
        assert "right on the 8 cells given to all 4 backends" in said
        assert "c narrows the comparison most (8 of 10); without it 10 cells would be common to all" in said
        assert (
            "Not ranked: d, given 2 of 10 cells (fewer than half). On the 2 shared with the others, the best backend has 2"
            in said
        )


def lake_of(path: Path, *runs: tuple[str, str, list[dict[str, Any]]]) -> Path:
    """A lake of finished runs: id, config and rows of each."""
    for run_id, name, rows in runs:
        folder = path / f"run={run_id}"
        folder.mkdir(parents=True)
        made = [row | {"run_id": run_id, "digest": "same", "op_class": "exact"} for row in rows]
        pq.write_table(pa.Table.from_pylist(made, schema=lake.SCHEMA), folder / "part-0.parquet")
        record = REC | {"run_id": run_id, "name": name, "planned": len(rows), "finished_at": "2026-01-02"}
        (folder / "_run.json").write_text(json.dumps(record))
    return path


def test_what_changed_since_the_last_run_of_the_same_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    then = [
        make_row("pass"), make_row("wrong", "torch:mul"), make_row("pass", "torch:div"), make_row("pass", "torch:gone"),
        make_row("pass", "torch:exp"), make_row("wrong", backend="b"),
    ]  # fmt: skip
    now = [
        make_row("wrong"), make_row("pass", "torch:mul"), make_row("unsupported", "torch:div"),
        make_row("crash", "torch:exp"), make_row("wrong", backend="b"), make_row("wrong", "torch:log"),
    ]  # fmt: skip
    path = lake_of(
        tmp_path,
        ("1-then", "quick", then),
        ("2-narrowed", "quick", [make_row("wrong", "torch:elsewhere")]),
        ("3-other", "full", now),
        ("4-now", "quick", now),
    )
    (path / "run=3-other" / "stray").write_text("")
    report = Report.of(lake.read(path, "4-now"), lake.read_run(path, "4-now"))
    found = since(report)
    assert found and found.run_id == "1-then" and found.compared == 5 and found.known == 1
    assert found.counts == {"new": 2, "fixed": 1, "changed": 1}
    assert found.cells[["group", "change", "op", "backend", "standing"]].values.tolist() == [
        ["new", "regression", "torch:exp", "torch-cpu", "new"],
        ["new", "regression", "torch:add", "torch-cpu", "known"],
        ["changed", "lost coverage", "torch:div", "torch-cpu", ""],
        ["fixed", "fix", "torch:mul", "torch-cpu", ""],
    ]
    first = Report.of(lake.read(path, "1-then"), lake.read_run(path, "1-then"))
    assert since(first) is None, "nothing before it"
    assert main([str(path)]) == OK
    said = capsys.readouterr().out
    assert "Since 1-then, the last run of this config: 2 new (1 known), 1 fixed, 1 changed of 5 cells" in said
    end = "Since 1-then: 2 new (1 known), 1 fixed, 1 changed of 5 cells in both\n3 new failures, 1 known"
    assert said.strip().endswith(end)
    assert "2 new (1 known)" in (path / "run=4-now" / "_report" / "report.md").read_text()
    assert said.count("/_report/") == 1 and "report.html (" in said, "one line for what was written"
    assert main([str(path), "--files"]) == OK
    assert capsys.readouterr().out.count("/_report/") > 10


@pytest.mark.parametrize(("then", "said"), [("1.0.0+g11111111", True), ("1.0.0+g22222222", False), ("", False)])
def test_another_farm_that_judged_then_is_named(then: str, said: bool, tmp_path: Path) -> None:
    path = lake_of(
        tmp_path,
        ("1-then", "quick", [make_row("pass", farm_version=then)]),
        ("2-now", "quick", [make_row("wrong", farm_version="1.0.0+g22222222")]),
    )
    found = since(Report.of(lake.read(path, "2-now"), lake.read_run(path, "2-now")))
    assert found and found.sentence.endswith(
        "of 1 cell in both" + "; judged by farm 1.0.0+g11111111 then, 1.0.0+g22222222 now" * said
    )


def test_every_new_cell_is_shown_with_its_command_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = [make_row("wrong", f"torch:op{n}", kind="numbers") for n in range(30)]
    path = lake_of(tmp_path, ("1-a", "quick", [*new, make_row("wrong")]))
    assert main([str(path), "--new"]) == OK
    said = capsys.readouterr().out
    assert all(f"forward/torch:op{n}/float32/0:torch-cpu" in said for n in range(30)) and "torch:add" not in said
    assert "Failures that no known failure covers: 30 cells\n" in said
    assert said.strip().endswith("30 new failures, 1 known")
    assert not (path / "run=1-a" / "_report").exists(), "it only shows them"


def test_of_all_runs_what_any_knows_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lake_of(tmp_path, ("1-a", "quick", [make_row("wrong")]), ("2-b", "quick", [make_row("wrong", "torch:mul")]))
    assert main([str(path), "--run", "all"]) == OK
    assert "1 new failure, 1 known" in capsys.readouterr().out
    more = [make_row("wrong", "torch:mul"), make_row("wrong", "torch:div"), make_row("wrong")]
    path = lake_of(tmp_path / "newest", ("1-a", "quick", [make_row()]), ("2-b", "quick", more))
    assert main([str(path), "--run", "all"]) == OK  # the newest rows of all cases are of one run
    assert "with their commands: farm report --run all --new" in capsys.readouterr().out


def test_a_run_ends_with_its_verdict_and_a_known_failure_has_a_cause_everywhere(
    tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "k.py").write_text("def right(x): return 2 * x\ndef wrong(x): return 3 * x\n")
    kernel = {"name": "op", "kernel": "k.py:wrong", "reference": "k.py:right", "inputs": {"x": [8]}}
    config = {"catalogs": [{"name": "user", "samples": 2, "kernels": [kernel]}], "backends": ["torch-cpu"]}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(config))
    assert run.main([str(file), "--on", "inline", "--results", str(results)]) == FOUND
    said = capsys.readouterr().out
    assert said.strip().endswith("2 failures; the config lists none as known (exit code 1)")
    (key,) = set(re.findall(r"farm reproduce '([^']+)'", said))
    assert reproduce.main([key, "--results", str(results)]) == OK
    assert "new: no known failure of the run's config covers it" in capsys.readouterr().out

    file.write_text(yaml.safe_dump(config | {"known_failures": [{"op": "op", "reason": "thrice is not twice"}]}))
    assert run.main([str(file), "--on", "inline", "--results", str(results)]) == OK
    said = capsys.readouterr().out
    assert said.strip().endswith("OK: 2 failures, all known") and "thrice is not twice" in said
    assert len(re.findall(r"^Since [^ ]+: 0 new, 0 fixed, 0 changed of 1 cell in both$", said, re.MULTILINE)) == 1
    page = next(results.glob("run=*/_report/causes.csv"))
    assert pd.read_csv(page)["rows"].tolist() == [2]
    assert reproduce.main([key.replace(key.partition(":")[0], "last"), "--results", str(results)]) == OK
    assert re.search(r"^cause +thrice is not twice$", capsys.readouterr().out, re.MULTILINE)


def test_a_run_of_one_op_says_what_came_of_it_and_compares_nothing() -> None:
    rows = frame(
        make_row("pass", "models:net", weak=True),
        make_row("pass", "models:net", weak=True, sample=1),
        make_row("wrong", "models:net", backend="ort-cpu", kind="numbers", error_units=90.0, limit=32.0),
        make_row("unsupported", "models:net", backend="mlx-cpu", error="no kernel for it"),
    )
    run = RUN | {"not_planned": [{"text": "the check levels of net: it has one"}]}
    said = printed(rows, run, brief=True)
    line = "models:net: pass 2 (2 weak: no evidence) on torch-cpu; wrong 1 on ort-cpu; unsupported 1 (no kernel for it) on mlx-cpu"
    assert said.startswith(f"{line}\n"), "what is left out stands where the run began"
    assert "farm reproduce" in said and "90" in said
    left_out = ("Coverage by vendor", "right on the", "Terms:", "pass rate")
    assert not [words for words in left_out if words in said]
    assert not [words for words in left_out if words not in printed(rows, run)]


def test_each_op_is_told_the_worst_first_with_backends_that_did_alike_together() -> None:
    made = [
        make_row(status, op, backend=b) for b in ("a", "b") for op, status in (("user:f", "pass"), ("user:g", "wrong"))
    ]
    assert printed(frame(*made), RUN, brief=True).startswith("user:g: wrong 1 on a, b\nuser:f: pass 1 on a, b\n")
    said = printed(frame(make_row("pass", "user:f")), RUN, brief=True)
    assert said == "user:f: pass 1 on torch-cpu\n", "nothing of what is empty"


def test_what_nobody_could_judge_is_one_reason_whatever_the_vendor() -> None:
    rows = frame(
        *(make_row("invalid", "user:k", backend=b, vendor=b, error="bad size") for b in ("torch-cpu", "ort-cpu"))
    )
    said = printed(rows, RUN, brief=True)
    assert "1 reason" in said and said.count("bad size") == 1


def test_what_an_interpreter_s_passes_are_worth_is_said_of_one_kernel_too() -> None:
    rows = frame(make_row("pass", "user:k", execution="interpreted"))
    assert "no GPU or compiler has run these kernels" in printed(rows, RUN, brief=True)


@pytest.mark.parametrize(
    ("statuses", "shown"),
    [
        ([("pass", True), ("pass", True)], "–"),
        ([("pass", True), ("wrong", False)], "0 % (0/1)"),
        ([("pass", True), ("pass", False)], "50 % (1/2)"),
        ([("wrong", False), ("wrong", False)], "0 % (0/2)"),
    ],
)
def test_a_weak_cell_is_not_shown_as_one_that_is_not_right(statuses: list[tuple[str, bool]], shown: str) -> None:
    rows = [
        make_row(status, f"torch:op{n}", backend=backend, weak=weak)
        for backend in ("a", "b")
        for n, (status, weak) in enumerate(statuses)
    ]
    made = Report.of(frame(*rows), RUN)
    (told,) = (v for v in made.views if v.name == "ranking_torch")
    (column,) = (c for c in told.columns if getattr(c, "words", "") == "right")
    assert [make_view_cell(column, line).text for line in told.all_lines()] == [shown, shown]


def test_what_came_of_each_backend_has_those_of_one_code_as_well() -> None:
    rows = frame(
        *(make_row("pass", "torch:abs", backend, vendor="Meta") for backend in ("torch-cpu", "behind"))
    ).assign(code="torch")
    assert overview.list_op_outcomes(Report.of(rows, {})) == ["torch:abs: pass 1 on torch-cpu, behind"]
