"""What a run of limited time does, by what earlier runs tell; and what it says of the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm import lake
from farm.commands.gate import main as gate
from farm.commands.run import main
from farm.exits import INCOMPLETE, OK
from farm.plan.matrix import Matrix
from farm.work import budget
from farm.work.claims import ONE
from farm.work.durations import DurationEstimate
from farm.work.earlier_runs import LearnedFromRuns
from farm.work.work_kinds import find_work_kinds
from tasks.backends import BackendSpec
from tasks.model import RACE_S, BackendInfo, Group, RuntimeInfo

CONFIG = """
name: mine
catalogs: [{name: torch, ops: [abs, add, sum], samples: 2}]
dtypes: [float32, float64]
backends: [torch-cpu, torch-npu]
gate: {coverage: [{at_least: 0.5}]}
"""
OPS, DTYPES, BACKENDS = 4, 3, 2


@pytest.fixture
def plan() -> Any:
    """Cells of four ops in three dtypes on two backends, one sample each, on one slot."""
    groups = [Group(f"torch:{op}", "", dtype, 1) for op in "abcd" for dtype in ("float32", "float16", "bfloat16")]
    specs = [BackendSpec.parse(name) for name in ("torch-cpu", "ort-cpu")]
    offer = SimpleNamespace(
        available=True, awaited=False, joint=False, forms=["torch"], resource="CPU",
        info=BackendInfo(RuntimeInfo("2", "")),
    )  # fmt: skip
    return SimpleNamespace(
        matrix=Matrix(groups, specs, np.ones((OPS * DTYPES, BACKENDS), np.int32)),
        backends=specs,
        offer=lambda b: offer,
        executor=SimpleNamespace(slots=lambda offer, claim: 1),
        claim=lambda b: ONE,
        kinds=find_work_kinds(groups, RACE_S),
    )


def known(plan: Any, ms: float = 1000.0) -> LearnedFromRuns:
    """Every cell has been run, on the version that is there now, and passed."""
    nothing = LearnedFromRuns.nothing(plan.matrix.wanted.shape)
    return replace(nothing, ms=np.full_like(nothing.ms, ms),
                   version=nothing.version * 0, versions=("2",))  # fmt: skip


def cells(choice: budget.BudgetChoice) -> list[tuple[int, int]]:
    return list(zip(choice.groups[choice.taken].tolist(), choice.backends[choice.taken].tolist()))


def test_failures_come_first_then_new_and_changed_ones_then_the_weakly_tested_the_cheap_before_the_dear(
    plan: Any,
) -> None:
    told = known(plan)
    told.finding[5, 0], told.ms[5, 0] = 0, 4000.0  # of one op and backend, failed in the same way
    told.finding[4, 0] = 0
    told.version[7, 1] = -1  # nobody said it: no change
    told.ms[9, 1] = np.nan  # new
    told = replace(told, versions=("2", "1"))
    told.version[2, 0], told.ms[2, 0] = 1, 900.0  # of another version
    told.weak[11, 1] = True
    told.ms[0, 0] = 500.0
    told.unasked[:4, 1] = True
    choice = budget.select_cells_within_budget(plan, told, 1e6)
    first = list(zip(choice.groups.tolist(), choice.backends.tolist()))
    assert first[:6] == [(4, 0), (5, 0), (2, 0), (9, 1), (11, 1), (0, 0)]
    assert sorted(first[-4:]) == [(g, 1) for g in range(4)] and choice.taken.all()
    assert choice.order()[:5] == [4, 5, 2, 9, 11]


def test_as_many_cells_are_chosen_as_the_time_is_enough_for(plan: Any) -> None:
    told = known(plan)
    few = cells(budget.select_cells_within_budget(plan, told, 7.0 / budget.SHARE))
    assert len(few) == 5  # of a second each, and two starts of half a second
    many = cells(budget.select_cells_within_budget(plan, told, 12.0 / budget.SHARE))
    assert many[: len(few)] == few and DurationEstimate(plan, told).total_s == pytest.approx(25.4, rel=0.01)


def test_without_an_earlier_run_each_op_and_backend_comes_once_before_any_comes_twice(plan: Any) -> None:
    nothing = LearnedFromRuns.nothing(plan.matrix.wanted.shape)
    choice = budget.select_cells_within_budget(plan, nothing, 1e6)
    first = {(plan.matrix.groups[g].op, b) for g, b in list(zip(choice.groups, choice.backends))[: OPS * BACKENDS]}
    assert len(first) == OPS * BACKENDS


def test_without_an_earlier_run_the_first_sample_of_each_cell_comes_before_any_second(plan: Any) -> None:
    """As sums are read at ten shapes: time for a third of all samples is one of each cell, not all of a third."""
    plan.matrix = replace(plan.matrix, wanted=plan.matrix.wanted * 10)
    nothing = LearnedFromRuns.nothing(plan.matrix.wanted.shape)
    all_s = DurationEstimate(plan, nothing).total_s
    wanted = plan.matrix.wanted
    chosen = budget.select_cells_within_budget(plan, nothing, all_s / budget.SHARE).select_samples(wanted)
    assert (chosen == wanted).all()
    some = budget.select_cells_within_budget(plan, nothing, (all_s - 0.5) / budget.SHARE).select_samples(wanted)
    assert some.min() == 1 and some.sum() < wanted.sum()
    told = known(plan)
    assert set(budget.select_cells_within_budget(plan, told, 100.0).select_samples(wanted).flat) == {0, 10}, (
        "what was run before is run whole"
    )


@pytest.mark.parametrize(("race_s", "enough"), [(0.5, 60), (8.0, 5)])
def test_a_race_takes_the_time_that_the_config_gives_it(plan: Any, race_s: float, enough: int) -> None:
    """Also where its op's ordinary cases were timed by an earlier run: they are not what a race takes."""
    groups = [Group(f"user:{n}", "", "float32", 1, check=check) for check in ("forward", "speedup") for n in range(100)]
    plan.matrix = Matrix(groups, plan.matrix.backends[:1], np.ones((200, 1), np.int32))
    plan.kinds = find_work_kinds(groups, race_s)
    nothing = LearnedFromRuns.nothing(plan.matrix.wanted.shape)
    timed = replace(nothing, ms=np.where(np.arange(200)[:, None] < 100, 10.0, np.nan))
    for told in (nothing, timed):
        seconds = DurationEstimate(plan, told).cells_s[:, 0]
        assert seconds[:100] == pytest.approx(0.01) and seconds[100:] == pytest.approx(race_s, rel=0.05)
    chosen = cells(budget.select_cells_within_budget(plan, nothing, 45.0 / budget.SHARE))
    races = sum(g >= 100 for g, _ in chosen)
    assert enough <= races <= 1.5 * enough


def test_what_nobody_has_run_comes_in_the_order_of_the_configs_catalogs(plan: Any) -> None:
    """What was run before comes by what it told, wherever the config has it."""
    last_first = [3 - g // DTYPES for g in range(OPS * DTYPES)]
    plan.matrix = replace(plan.matrix, places=last_first)
    choice = budget.select_cells_within_budget(plan, LearnedFromRuns.nothing(plan.matrix.wanted.shape), 1e6)
    assert [plan.matrix.groups[g].op for g in choice.groups[:: DTYPES * BACKENDS]] == [
        "torch:d",
        "torch:c",
        "torch:b",
        "torch:a",
    ]
    told = known(plan)
    assert budget.select_cells_within_budget(plan, told, 1e6).groups.tolist() == sorted(
        [*range(OPS * DTYPES)] * BACKENDS
    )
    assert plan.matrix.reorder_groups([9, 0]).places == [0, 3]


def test_what_nobody_has_run_takes_what_its_op_and_dtype_took_on_that_backend_else_the_backend_else_a_guess(
    plan: Any,
) -> None:
    told = known(plan)
    told.ms[:, 0] = np.nan
    worth = np.ones((OPS * DTYPES, BACKENDS))
    assert (told.estimate_times(plan.matrix, [10.0, 10.0], worth)[:, 0] == 10.0).all()
    assert (told.estimate_times(plan.matrix, [10.0, 10.0], worth * 50)[:, 0] == 500.0).all()
    told.ms[0, 0], told.ms[1, 0] = 100.0, 300.0
    worth[3:6] = 50.0
    filled = told.estimate_times(plan.matrix, [10.0, 10.0], worth)
    assert filled[:7, 0].tolist() == [100.0, 300.0, 200.0, 10000.0, 10000.0, 10000.0, 200.0]


def runs(folder: Path) -> tuple[int, dict[str, Any]]:
    """(rows, record) of the one run of a lake."""
    (run_id,) = lake.run_ids(folder)
    return lake.read(folder, run_id).shape[0], lake.read_run(folder, run_id)


def test_what_a_budget_leaves_out_is_said_counted_by_the_gate_and_run_by_resume(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    arguments = ["--on", "inline", "--results", str(results)]
    monkeypatch.setattr("farm.work.durations.GROUP_MS", 9e5)  # time for two of six groups
    expected: list[Any] = []
    monkeypatch.setattr("farm.work.launch.expect_first_jobs", expected.append)
    assert main([str(tmp_path / "c.yaml"), *arguments, "--budget", "40m"]) == INCOMPLETE
    assert [plan.matrix.count_cells() for plan in expected] == [2], (
        "children are started for what the budget has chosen"
    )
    said = capsys.readouterr().out
    assert "10 of the config's 12 left out by --budget or unavailable" in said
    assert "4 cells left out by --budget 40m, not judged, and 2 judged in part" in said and "gate NOT PROVED" in said
    rows, record = runs(results)
    assert record["planned"] == rows == 2 and (record["left_out"]["cells"], record["left_out"]["partly"]) == (4, 2)
    assert sum(n for of in record["left_out"]["cases"].values() for n in of.values()) == 10
    part = {"catalog": "torch", "check": "forward", "distribution": "own", "cells": 6, "left": 4}
    assert record["left_out"]["parts"] == [part] and "What the budget reached" in said and "33.3 % (2/6)" in said
    assert gate(["--results", str(results)]) == INCOMPLETE
    told = " ".join(capsys.readouterr().out.split())
    assert "coverage at least 0.5: it is 16.7 % (2/12)" in told and "a complete run" in told
    assert main([*arguments, "--resume", "last", "--budget", "1m"]) == 2
    assert "--budget" in capsys.readouterr().err
    assert main([*arguments, "--resume", "last"]) == OK
    rows, record = runs(results)
    assert record["planned"] == rows == 10 and not record.get("left_out")
    assert "left out" not in capsys.readouterr().out.splitlines()[-1]


def test_what_is_not_done_when_the_time_is_up_is_left_out(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG)
    from farm.plan.request import RunRequest

    looks = iter([1e6] * 3)  # time enough when cells are chosen, none when they are to be run
    monkeypatch.setattr(RunRequest, "left_s", property(lambda self: self.budget_s and next(looks, 0.0)))
    chosen: Callable[..., Any] = budget.apply_budget
    monkeypatch.setattr("farm.commands.run.apply_budget", lambda plan: (chosen(plan), [*looks])[0])
    assert (
        main([str(tmp_path / "c.yaml"), "--on", "inline", "--results", str(results), "--budget", "10m"]) == INCOMPLETE
    )
    rows, record = runs(results)
    assert rows == record["planned"] == 0 and record["left_out"]["cells"] == 6
    assert main(["--on", "inline", "--results", str(results), "--resume", "last"]) == OK
    assert runs(results)[0] == 10


@pytest.mark.parametrize("backends", ["torch-cpu, torch-npu", "torch-cpu, torch-cuda, ort-cuda"])
@pytest.mark.parametrize("how", ["--dry-run", "--budget=20s", ""])
def test_the_second_day_is_as_the_first(
    how: str, backends: str, tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.yaml").write_text(CONFIG.replace("torch-cpu, torch-npu", backends))
    arguments = [str(tmp_path / "c.yaml"), "--on", "processes", "--cpus", "1", "--results", str(results)]
    assert main([*arguments, "--ops", "abs"]) == OK  # yesterday, with a device that is not here
    capsys.readouterr()
    assert main([*arguments, *filter(None, [how])]) == OK
    said = capsys.readouterr()
    assert "error" not in said.err and ("unavailable" in said.out)
    assert len(lake.run_ids(results)) == (1 if how == "--dry-run" else 2)


@pytest.mark.parametrize(("text", "seconds"), [("10m", 600), ("90s", 90), ("90", 90), ("1h30m", 5400)])
def test_a_time_is_hours_minutes_and_seconds(text: str, seconds: int) -> None:
    from farm.plan.request import parse_budget_seconds

    assert parse_budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0m", "-3m", "1.5h"])
def test_what_is_no_time_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs/quick.yaml", "--dry-run", f"--budget={text}"]) == 2
    assert "a time is written as 10m, 90s or 1h30m" in capsys.readouterr().err
