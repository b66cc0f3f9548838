"""What a run says while it goes on: at once, then what changed, with the time left; and how much is planned."""

from __future__ import annotations

import io
import itertools
import re
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from farm.commands.run import main
from farm.exits import OK
from farm.plan.matrix import Matrix
from farm.work import durations, progress, work_left
from farm.work.run_counts import BackendCount, RunCounts
from farm.work.run_groups import RunGroups
from farm.work.state import JobFlight, JobFlights, RunPlan
from farm.work.work_kinds import find_work_kinds
from tasks.backends import BackendSpec
from tasks.model import RACE_S, Group

CONFIG = """
name: mine
catalogs: [{name: torch, ops: [abs, add], samples: 2}]
dtypes: [float32, float64]
backends: [torch-cpu, torch-npu]
"""


class Clock:
    """Seconds since a run began, as progress sees them."""

    def __init__(self) -> None:
        self.s = 0.0

    def monotonic(self) -> float:
        return self.s


def test_who_is_waited_for_is_said_until_all_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    log, terminal = io.StringIO(), io.StringIO()
    awaited = [
        progress.AwaitedJob(Console(file=log, width=80)),
        progress.AwaitedJob(Console(file=terminal, width=80, force_terminal=True)),
    ]
    for clock.s, names in ((0.0, {"b", "a", "c"}), (11.0, {"a", "b"}), (12.0, {"b"})):
        for one in awaited:
            one(names)
    for one in awaited:
        one.close()
    assert log.getvalue() == "waiting for the answer of a, b\n"
    assert "waiting for the answer of" in terminal.getvalue()


class Said:
    """A run under way, and what its progress prints into a log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, timed_ms: tuple[float, float] | None = None) -> None:
        self.clock, self.out = Clock(), io.StringIO()
        monkeypatch.setattr(progress, "time", self.clock)
        monkeypatch.setattr(work_left, "time", self.clock)
        self.counts = {"torch-cpu": BackendCount(), "tvm-cpu": BackendCount()}
        self.asked = np.array([600.0, 400.0])
        untimed = self.asked * (timed_ms is None)
        work = np.stack([self.asked, untimed, self.asked * (timed_ms or (0.0, 0.0))], axis=1)
        self.to_come = work[:, None]
        kinds = find_work_kinds([Group("torch:abs", "", "float32", 1)], RACE_S)
        run_counts = SimpleNamespace(
            counts=self.counts,
            to_do=np.zeros((2, 1, 3)),
            did=np.zeros((2, 1, 3)),
            slot_s=Counter(),
            start_s=lambda b: 0.0,
            starts=lambda b: 1,
        )
        self.stored = 0
        run_groups = SimpleNamespace(
            left={"prepare": 40, "export": 0},
            to_prepare=np.array([40]),
            prepared=np.array([0]),
            to_come=self.to_come.copy(),
            exports_to_come=0,
            exported=0,
            count_stored_cases=lambda: self.stored,
        )
        pool = SimpleNamespace(backends=(0, 1), devices=2, main=True)
        offers = {name: SimpleNamespace(joint=False, awaited=False, available=True) for name in self.counts}
        backends = [SimpleNamespace(name=name) for name in offers]
        matrix = SimpleNamespace(backends=backends)
        plan = SimpleNamespace(offers=offers, matrix=matrix, offer=lambda b: offers[backends[b].name], kinds=kinds)
        self.run: Any = SimpleNamespace(
            started=0.0,
            slower=1.0,
            run_counts=run_counts,
            run_groups=run_groups,
            placement=SimpleNamespace(pools=lambda: [pool]),
            plan=plan,
            notices=[],
            come=[],
            flights=JobFlights(),
        )
        self.progress = progress.RunProgress(Console(file=self.out, width=200))

    def prepare(self) -> None:
        """All groups are prepared, in no time."""
        groups, counts = self.run.run_groups, self.run.run_counts
        groups.left["prepare"], groups.to_prepare = 0, np.array([0])
        counts.to_do += groups.to_come
        groups.to_come[:] = 0.0
        for count, cases in zip(self.counts.values(), self.asked.tolist(), strict=True):
            count.planned = int(cases)

    def take(self, backend: str, cases: int, seconds: float) -> None:
        """So many cases of a backend took a slot so many seconds."""
        b = list(self.counts).index(backend)
        self.run.run_counts.did[b] += self.to_come[b] * (cases / self.asked[b])
        self.run.run_counts.slot_s[b, 0] += seconds
        self.counts[backend].done += cases

    def at(self, seconds: float, **came: dict[str, int]) -> str:
        """What is printed at a time, with so many rows by status come from torch_cpu or tvm_cpu."""
        self.clock.s = seconds
        for name, statuses in came.items():
            count = self.counts[name.replace("_", "-")]
            count.status = dict(Counter(count.status) + Counter(statuses))
            count.done += sum(statuses.values())
        self.out.seek(0)
        self.out.truncate()
        self.progress(self.run)
        return self.out.getvalue()

    def told(self) -> float:
        """Seconds left."""
        return work_left.estimate_run_left(self.run)[0]


def test_a_log_has_a_line_at_once_and_then_what_changed_at_most_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(monkeypatch)
    assert "0:00  0 of 1000 cases done, 40 sets of inputs and references to prepare" in said.at(0.0)
    said.prepare()
    said.counts["torch-cpu"].planned = 500
    assert said.at(6.0) == ""
    assert "since the last line: pass 10" in said.at(
        12.0, torch_cpu={"pass": 10}
    )  # the first numbers, as soon as they are there
    assert said.at(30.0, torch_cpu={"pass": 10}) == ""
    line = said.at(73.0, torch_cpu={"pass": 70, "wrong": 3}, tvm_cpu={"wrong": 2, "unsupported": 5})
    assert line.startswith("1:13  100 of 900 cases done")
    assert (
        "since the last line: pass 80, wrong 5 (torch-cpu 3, tvm-cpu 2), unsupported 5" in line
        and line.count("\n") == 1
    )
    assert said.at(140.0) == ""  # nothing is new
    assert "since the last line: crash 1 (tvm-cpu 1)" in said.at(210.0, tvm_cpu={"crash": 1})


def test_what_earlier_runs_have_exported_is_hardly_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    new, known = Said(monkeypatch), Said(monkeypatch, timed_ms=(10.0, 10.0))
    before = [said.told() for said in (new, known)]
    for said in (new, known):
        said.run.run_groups.left["export"] = 100
    grown = [said.told() - was for said, was in zip((new, known), before, strict=True)]
    assert grown[0] > 10 * grown[1] > 0


@pytest.mark.parametrize("terminal", [True, False])
def test_a_run_that_a_function_began_is_shown_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    said, out = Said(monkeypatch), io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress.show_run_progress() as tell:
        said.clock.s = 0.5
        tell(said.run)
        assert out.getvalue() == ""  # most are over by then
        said.clock.s = 5.0
        tell(said.run)
        assert ("0:05  0 of 1000 cases done" in out.getvalue()) is terminal


def test_a_resumed_run_begins_with_what_is_in_the_lake(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(monkeypatch)
    said.stored = 525
    assert said.at(0.0).startswith("0:00  525 of 1000 cases done, 40 sets")


def test_where_nothing_comes_a_log_says_every_few_minutes_what_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(monkeypatch)
    said.run.plan.matrix.groups = [SimpleNamespace(label=n, dtype="float32") for n in ("abs", "exp")]
    said.run.plan.name = lambda b: "tvm-cpu"
    said.run.flights[1] = JobFlight(SimpleNamespace(prepare=True, kind="prepare"), groups=[0, 1], done={0}, begun=True)  # type: ignore[arg-type]
    batch = SimpleNamespace(prepare=(), kind="batch")
    said.run.flights[2] = JobFlight(batch, backend=0, cases=[(0, 0, 0)], heard=100.0, begun=True)  # type: ignore[arg-type]
    said.run.flights[3] = JobFlight(batch, backend=0, cases=[(0, 1, 0)])  # type: ignore[arg-type]
    said.at(0.0)
    said.at(12.0, torch_cpu={"pass": 10})
    assert said.at(150.0) == ""
    assert said.at(240.0).endswith("; running: prepare exp float32 for 4 min, tvm-cpu abs float32 for 2 min\n")
    assert said.at(330.0) == ""
    assert "running: " in said.at(430.0)
    said.run.flights.clear()
    assert "; nothing is running" in said.at(620.0)


def test_the_time_left_is_there_from_the_first_line(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Said(monkeypatch)
    assert "at least 8 s left" in alone.at(0.0)  # 1000 cases of 10 ms and 40 sets of 31 ms on two slots, and the report
    alone.prepare()
    alone.take("torch-cpu", 100, 20.0)
    assert work_left.estimate_run_left(alone.run)[1] == "at least", (
        "what the cases of a backend take that has run none is a guess"
    )
    alone.take("tvm-cpu", 30, 3.0)
    assert work_left.estimate_run_left(alone.run)[1] == "about"
    said = Said(monkeypatch, (10.0, 1000.0))
    assert "about" in said.at(0.0) and said.told() == pytest.approx(206, abs=2)
    said.prepare()
    said.take("torch-cpu", 600, 6.0)
    assert said.told() == pytest.approx(203, abs=2), "the quick backend's cases are no measure of the slow one's"
    said.take("tvm-cpu", 200, 400.0)
    assert said.told() == pytest.approx(200 * 2 / 2 + work_left.END_S, rel=0.15), "each took twice what it took before"


def test_where_others_are_at_work_a_guess_is_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(monkeypatch)
    alone_s, said.run.slower = said.told(), 2.5
    assert said.told() == pytest.approx(2.5 * alone_s)


def test_what_is_awaited_counts_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Said(monkeypatch, (10.0, 1000.0))
    all_s = told.told()
    (pool,) = told.run.placement.pools()
    pool.backends = (0,)
    told.run.plan.offers["tvm-cpu"].awaited = True
    assert told.told() == all_s


def test_what_is_at_work_is_done_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(monkeypatch, (10.0, 1000.0))
    said.prepare()
    said.take("torch-cpu", 600, 6.0)
    said.take("tvm-cpu", 399, 399.0)
    job = SimpleNamespace(kind="batch", prepare=())
    said.run.flights[1] = JobFlight(  # type: ignore[arg-type]
        job,
        backend=1,
        cases=[(0, 0, 0)],
        work=np.array([[1.0, 0.0, 1000.0]]),
        kinds=np.array([0]),
        begun=True,
        heard=10.0,
        counted=10.0,
    )
    told = []
    for seconds in (10.0, 10.8):
        said.clock.s = seconds
        told.append(said.told() - work_left.END_S)
    assert told == [pytest.approx(1.0, rel=0.1), pytest.approx(0.2, rel=0.1)]


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (99, "99 s"), (150, "2 min"), (7800, "2 h 10 min")])
def test_a_duration_is_words(seconds: float, text: str) -> None:
    assert durations.format_duration(seconds) == text


# --- a run of long cases ----------------------------------------------------------------------------------------


class LongRun:
    """A run on two slots of groups whose preparing and cases take what they are said to take (seconds), without a word
    of earlier runs: preparing first, then the backends in their order."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, groups: list[Group], wanted: dict[str, tuple[bool, np.ndarray]]
    ) -> None:
        self.clock = Clock()
        monkeypatch.setattr(work_left, "time", self.clock)
        specs = [BackendSpec.parse(name) for name in wanted]
        offers: Any = {
            name: SimpleNamespace(
                joint=joint, awaited=False, available=True, forms=("torch",), info=SimpleNamespace(start_s=0.5)
            )
            for name, (joint, _) in wanted.items()
        }
        matrix = Matrix(groups, specs, np.stack([samples for _, samples in wanted.values()], axis=1))
        executor: Any = SimpleNamespace(ship=False)
        request: Any = SimpleNamespace(config=SimpleNamespace(race_s=RACE_S))
        self.plan = RunPlan(request, matrix, executor, offers)
        pool = SimpleNamespace(backends=range(len(wanted)), devices=2, main=True)
        self.run: Any = SimpleNamespace(
            plan=self.plan,
            slower=1.0,
            run_counts=RunCounts(self.plan),
            run_groups=RunGroups(self.plan, [True] * len(wanted), {}),
            placement=SimpleNamespace(pools=lambda: [pool]),
            flights=JobFlights(),
        )

    def tell(self, prepare_s: float, case_s: dict[str, Callable[[Group], float]]) -> list[tuple[float, float]]:
        """(seconds since the start, seconds that are told to be left) of every second, to the end."""
        jobs: list[tuple[int, int, float]] = [(-1, g, prepare_s) for g in range(len(self.plan.matrix.groups))]
        for b, seconds in enumerate(case_s.values()):
            jobs += [
                (b, g, seconds(group))
                for g, group in enumerate(self.plan.matrix.groups)
                for _ in range(self.plan.matrix.wanted[g, b])
            ]
        told, ends = [], dict[int, tuple[float, int, int]]()
        waiting = deque(jobs)
        numbers = itertools.count()
        while waiting or ends:
            while waiting and len(ends) < 2:
                b, g, seconds = waiting.popleft()
                number, kinds = next(numbers), self.plan.kinds.of[[g]]
                work = self.plan.work_of([g], np.array([[1]]), b)[0] if b >= 0 else np.zeros((len(self.plan.kinds), 3))
                self.run.flights[number] = JobFlight(
                    SimpleNamespace(kind="prepare" if b < 0 else "batch", prepare=b < 0),  # type: ignore[arg-type]
                    backend=b,
                    cases=[] if b < 0 else [(g, b, 0)],  # type: ignore[list-item]
                    groups=[g] if b < 0 else [],
                    heard=self.clock.s,
                    counted=self.clock.s,
                    begun=True,
                    work=work,
                    kinds=kinds,
                )
                ends[number] = self.clock.s + seconds, b, g
            next_s = min(end for end, _, _ in ends.values())
            while self.clock.s < next_s:
                told.append((self.clock.s, work_left.estimate_run_left(self.run)[0]))
                self.clock.s = min(next_s, self.clock.s + 1.0)
            for number in [n for n, (end, _, _) in ends.items() if end <= self.clock.s]:
                _, b, g = ends.pop(number)
                self.end(number, b, g)
        return told

    def end(self, number: int, b: int, g: int) -> None:
        flight, counts = self.run.flights.pop(number), self.run.run_counts
        flight.heard = self.clock.s
        counts.spend_slot(flight, flight.kind)
        if b < 0:
            self.run.run_groups.end_preparing(g)
            counts.to_do += self.plan.work_of([g], self.plan.matrix.wanted[[g]])
            for x, samples in enumerate(self.plan.matrix.wanted[g].tolist()):
                counts.count_planned(x, samples, 0)
        else:
            counts.did[b] += flight.work
            counts.count_rows(b, 1, {"pass": 1}, 0.0)


@pytest.mark.parametrize("prepare_s", [5.0, 9.0, 15.0])
@pytest.mark.parametrize("compiled_s", [25.0, 38.0, 60.0])
def test_the_time_left_of_long_cases_is_within_a_factor_of_two(
    monkeypatch: pytest.MonkeyPatch, compiled_s: float, prepare_s: float
) -> None:
    """As configs/training.yaml is, cold: a backend that compiles has the last twelve cases, and most of the time."""
    groups = [Group(f"training:{n}", "", "float32", 1, check="train") for n in range(29)]
    some = np.array([1] * 12 + [0] * 17, np.int32)
    backends = {"torch-cpu": (False, some * 0 + 1), "optax-cpu": (False, some), "inductor-cpu": (True, some)}
    took = {"torch-cpu": lambda g: 0.7, "optax-cpu": lambda g: 3.5, "inductor-cpu": lambda g: compiled_s}
    run = LongRun(monkeypatch, groups, backends)
    told = run.tell(prepare_s, took)
    end_s = run.clock.s + work_left.END_S
    shares = {round(at): round(left / (end_s - at), 2) for at, left in told if at >= 10.0}
    assert shares and not {at: x for at, x in shares.items() if not 0.5 <= x <= 2.0}


def test_a_check_that_calls_what_it_has_built_often_is_worth_calls_and_not_compilations() -> None:
    groups = [Group("critical:sum", "", "float32", 1, check=check) for check in ("arithmetic", "forward")]
    kinds = find_work_kinds([*groups, Group("training:gpt", "", "float32", 1, check="train")], RACE_S)
    assert kinds.of.tolist() == [1, 0, 2] and kinds.run(joint=False).tolist() == [1.0, 10.0, 50.0]
    assert kinds.run(joint=True).tolist() == pytest.approx([1.0, 1.0 + 9 * 10 / 800, 50.0])
    assert kinds.prepare.tolist() == [1.0, 1.0, 300.0]


def test_a_slow_few_are_not_hidden_among_a_quick_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one backend, each of a few cases takes four times what was guessed: the first of them tells, not the mean."""
    quick = [Group(f"torch:{n}", "", "float32", 1) for n in range(300)]
    slow = [Group(f"training:{n}", "", "float32", 1, check="train") for n in range(20)]
    run = LongRun(monkeypatch, quick + slow, {"torch-cpu": (False, np.ones(320, np.int32))})
    assert run.plan.kinds.eager.tolist() == [1.0, 50.0] and run.plan.kinds.count(range(320)).tolist() == [300, 20]
    told = run.tell(0.05, {"torch-cpu": lambda g: 2.0 if g.op.startswith("training") else 0.01})
    end_s = run.clock.s + work_left.END_S
    late = [left / (end_s - at) for at, left in told if at > end_s - work_left.END_S - 15.0]
    assert late and all(0.5 <= x <= 2.0 for x in late), late


def test_the_races_of_a_leaderboard_are_not_taken_for_cases_of_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty submissions: most cases are over in a minute, and the races take nine more."""
    groups = [
        Group(f"user:{name}{n}", "", "float32", 1, check=name)
        for name, count in (("forward", 720), ("audit", 30), ("speedup", 90))
        for n in range(count)
    ]
    run = LongRun(monkeypatch, groups, {"torch-cpu": (False, np.ones(len(groups), np.int32))})
    assert run.plan.kinds.count(range(len(groups))).tolist() == [720, 30, 90]
    took = {"forward": 0.07, "audit": 0.5, "speedup": 6.0}
    told = run.tell(0.02, {"torch-cpu": lambda g: took[g.check]})
    end_s = run.clock.s + work_left.END_S
    shares = {round(at): round(left / (end_s - at), 2) for at, left in told if at >= 10.0}
    assert shares and not {at: x for at, x in shares.items() if not 0.5 <= x <= 2.0}


# --- a run ------------------------------------------------------------------------------------------------------


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path / "c.yaml"


def test_a_run_says_at_once_what_it_is_and_knows_how_long_the_last_one_took(
    config: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(config), "--on", "inline", "--results", str(results)]
    assert main(arguments) == OK
    said = capsys.readouterr().out
    assert said.startswith("mine: ops of torch on 2 backends")
    meaning = "a cell is an op in a dtype on a backend, under one check, with one case per input"
    assert meaning not in said, "a run of few ops"
    assert re.search(r"^0:00  0 of 8 cases done, .*left$", said, re.M)
    assert re.search(r"^\d+:\d\d  6 of 6 cases done; since the last line: pass 6", said, re.M)
    assert main([*arguments, "--dry-run"]) == OK
    said = capsys.readouterr().out
    assert re.match(r"about \d+ s, estimated from earlier runs of 4 of these cells", said.splitlines()[-1]), said
    assert said.count(meaning) == 1
    assert main(arguments) == OK
    assert re.search(r"^0:00  0 of 8 cases done, .*about \d+ s left$", capsys.readouterr().out, re.M)


def test_a_dry_run_on_a_terminal_is_a_short_table_with_the_sum_last(
    config: Path, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main([str(config), "--on", "inline", "--dry-run", "--results", str(results)]) == OK
    said = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out)
    assert "torch:abs" not in said
    assert re.search(r"torch-cpu +4 +8", said)
    assert said.splitlines()[-1].startswith("8 cells planned, 4 on available backends, 0 skipped")
    assert "--dry-run > " in said
