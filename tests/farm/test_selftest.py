"""python -m farm.selftest: what counts as caught, and a slice of the zoo from end to end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from farm import lake
from farm.commands import selftest
from farm.options.selftest import RESULTS
from farm.policies.selftest import count_caught_faults
from tasks import zoo
from tasks.model.row import Row


def planted(kind: str) -> dict[str, zoo.Fault]:
    name, fault = next((n, f) for n, f in zoo.faults().items() if f.kind == kind)
    return {name: fault}


@pytest.mark.parametrize(
    ("kind", "statuses", "caught", "imprecise"),
    [
        ("sign", [{"pass", "wrong"}], 1, 0),
        ("sign", [{"crash"}], 1, 0),
        ("sign", [{"timeout", "pass"}], 1, 0),
        ("sign", [{"wrong"}, {"wrong", "pass"}], 1, 0),
        ("sign", [{"wrong"}, {"pass"}], 0, 0),  # it shows in one dtype alone
        ("sign", [{"imprecise"}], 0, 0),
        ("sign", [{"pass"}], 0, 0),
        ("sign", [{"invalid", "unsupported"}], 0, 0),
        ("sign", [], 0, 0),
        ("cancellation", [{"imprecise", "pass"}], 0, 1),
        ("cancellation", [{"imprecise", "wrong"}], 1, 0),
        ("cancellation", [{"imprecise"}, {"wrong"}], 1, 0),
        ("cancellation", [{"imprecise"}, {"pass"}], 0, 0),
        ("cancellation", [{"pass"}], 0, 0),
    ],
)
def test_what_counts_as_caught(kind: str, statuses: list[set[str]], caught: int, imprecise: int) -> None:
    faults = planted(kind)
    ((name, fault),) = faults.items()
    by_dtype = dict(zip(("float32", "float16"), statuses))
    made = count_caught_faults({name: by_dtype, fault.twin: {"float32": {"pass"}}}, faults)
    assert (len(made.caught), len(made.imprecise), len(made.escaped)) == (caught, imprecise, 1 - caught - imprecise)
    assert made.detected == caught + imprecise
    assert not made.alarms


@pytest.mark.parametrize("statuses", [{"pass", "wrong"}, {"imprecise"}, {"invalid"}, {"vacuous"}, set()])
def test_a_twin_that_does_not_pass_everywhere_is_a_false_alarm(statuses: set[str]) -> None:
    faults = planted("sign")
    ((name, fault),) = faults.items()
    beside = statuses - {"vacuous"} or {"error"}
    for twin in ({"float32": statuses}, {"float32": {"pass"}, "float16": beside}):
        assert count_caught_faults({name: {"float32": {"wrong"}}, fault.twin: twin}, faults).alarms == [fault.twin]


def test_an_empty_input_among_others_says_nothing_of_a_twin() -> None:
    faults = planted("sign")
    ((name, fault),) = faults.items()
    assert not count_caught_faults(
        {name: {"float32": {"wrong"}}, fault.twin: {"float32": {"pass", "vacuous"}}}, faults
    ).alarms


def test_a_slice_of_the_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    results = str(tmp_path / "res")
    # A steep point, a gradient, and what no number shows: in child processes, like any run.
    globs = ["--ops", "steep_round", "--ops", "square_gradient", "--ops", "relu_copy"]
    assert selftest.main([*globs, "--results", results]) == selftest.ALL_CAUGHT
    said = capsys.readouterr().out
    assert re.search(r"error_units-\d+: 100 % \(6/6\) of the faults caught; 0 % \(0/3\) of the twins blamed", said)
    assert "escaped" not in said and "false alarm" not in said
    # Under a policy that lets numbers pass, the same faults escape, and are shown with their command.
    lenient = {
        "name": "lenient",
        "version": 1,
        "rule": "absolute",
        "bound": 1e30,
        "reason": "planted: no number is wrong",
    }
    (tmp_path / "lenient.json").write_text(json.dumps(lenient))
    given = ["--ops", "axpy", "--policy", str(tmp_path / "lenient.json"), "--results", results, "--on", "inline"]
    assert selftest.main(given) == selftest.MISSED
    said = capsys.readouterr().out
    assert "escaped: axpy--no_scale (missing scale, of axpy)" in said
    assert re.search(r"error_units-\d+: 100 % \(6/6\)", said)
    assert "farm reproduce '" in said and f"--results {results}" in said


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--ops", "softmacks"], "did you mean softmax"),
        (["--policy", "clasic"], "known policies"),
        (["--results", "/dev/null/x"], "error: "),
    ],
)
def test_bad_input(given: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(given) == selftest.BAD_INPUT
    assert says in capsys.readouterr().err


def test_the_default_lake_is_not_among_the_users_runs(tmp_path: Path) -> None:
    for folder, run in ((tmp_path, "mine"), (tmp_path / Path(RESULTS).name, "zoo")):
        opened = lake.open_lake(folder)
        only = Row(op=run, dtype="float32", sample=0, status="pass", started_at=0.0)
        lake.append_part(opened, run, [lake.make_row_batch([only], lake.Origin(run_id=run))])
        lake.write_run_record(opened, run, {"run_id": run})
    assert Path(RESULTS).parent == Path("results")
    assert lake.run_ids(tmp_path) == ["mine"]
    assert set(pd.read_parquet(tmp_path)["op"]) == {"mine"}
