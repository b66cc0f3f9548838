"""The speedup check: ratios with a null arm, and outputs that are held against the eager arm's on inputs that change."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm import lake
from farm.report.tables.coverage import keep_distinct_rows
from farm.report.tables.speedups import list_speedup_lines, view_speedups
from farm.report.tables.view import Report, make_view_cell
from tasks.arrays.varied import vary_input_arrays, vary_inputs_by_digest
from tasks.backends.base import Backend
from tasks.checks import paired_timing
from tasks.checks.speedup import BASELINE, PROGRAM, Speedup, SpeedupRace, _make_race_columns, find_hidden_time
from tasks.judge.error_metrics import Metrics
from tasks.judging import Judgement, choose_worst_step
from tasks.model import Form, Misbehaviour, Status, Timed, Unsupported, Vacuous
from tasks.run_queue import RunQueueClock, subtract_run_queue_seconds
from tests.conftest import here
from tests.farm.test_report import frame, make_row

X = np.random.default_rng(0).uniform(-2, 2, (4, 15)).astype(np.float32)


class Clock:
    """A clock that stands still but for what is told to take time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: Callable[[], float], result: Any = None) -> Callable[[], Callable[[], Timed]]:
        def run() -> Timed:
            self.now += (taken := seconds())
            return Timed([result], taken)

        return lambda: run


def raced(**seconds: Callable[[], float]) -> paired_timing.RaceTimes:
    clock = Clock()
    arms = {name: clock.takes(what, name) for name, what in seconds.items()}
    return paired_timing.race_arms(lambda turn: arms, lambda turn, found: None, budget_s=1e9, clock=clock)


def test_the_ratio_of_an_arm_that_takes_half_the_time_is_two_and_its_interval_holds_it() -> None:
    noise = np.random.default_rng(0)
    taken = raced(eager=lambda: noise.lognormal(0, 0.1), program=lambda: noise.lognormal(0, 0.1) / 2)
    for clock in ("wall", "seen"):
        times = taken.seconds(clock)
        found = paired_timing.compute_speed_ratio(times["eager"], times["program"])
        assert found is not None and found.low < 2 < found.high
    assert taken.seconds("device") == {}, "no device, no times of one"
    assert found is not None and found.low < 2 < found.high and found.low > 1.5 and found.certain
    assert paired_timing.FEWEST <= taken.rounds <= paired_timing.MOST


def test_an_arm_against_itself_says_nothing_though_the_machine_is_loaded() -> None:
    noise = np.random.default_rng(1)
    for _ in range(20):
        times = noise.lognormal(0, 1.0, (2, 41)) * (1 + 9 * (noise.random((2, 41)) < 0.2))
        found = paired_timing.compute_speed_ratio(*times)
        assert found is not None and not found.certain


def test_a_call_takes_no_less_than_the_judges_clock_surely_saw() -> None:
    """The way there and back takes 1 ± 0.3; a call that takes 10 and says less is believed by that noise alone."""
    noise = np.random.default_rng(2)
    for said, real, least, longest in (
        (10.0, 10.0, 9.99, 10.3),
        (5.2, 10.0, 9.5, 10.3),
        (0.1, 10.0, 9.5, 10.3),
        (0.01, 0.01, 0.0, 0.6),
    ):
        way = 1 + 0.3 * noise.random((2, 41))
        told = {PROGRAM: [said] * 41, BASELINE: [10.0] * 41}
        seen = {PROGRAM: list(real + way[0]), BASELINE: list(10 + way[1])}
        surely, most = find_hidden_time(told, (seen,), PROGRAM)
        hidden = most - surely
        assert least <= said + surely <= longest and 0 <= hidden < 0.6
        assert (hidden > said + surely) is (said == real == 0.01), "what is as short as the noise, nobody vouches for"


def race_on_a_busy_machine(program: float, baseline: float, claimed: float | None = None) -> SpeedupRace:
    """A race of calls that sleep so many seconds, of whose CPU time there is next to none, and wait up to a hundred for
    a processor. claimed: seconds that the program says that it waited, beside those that it did."""
    clock, noise, waited = Clock(), np.random.default_rng(5), [0.0]

    def make(name: str, real: float) -> Callable[[], Callable[[], Timed]]:
        def run() -> Timed:
            waits, more = 100 * noise.random(), (claimed or 0.0) if name == PROGRAM else 0.0
            clock.now += waits + real + 0.01 * noise.random()
            waited[0] += waits
            return Timed([], waits + real, 1e-6, spent_s=1e-6, waited_s=waits + more)

        return lambda: run

    arms = {name: make(name, program if name == PROGRAM else baseline) for name in (PROGRAM, BASELINE, "null")}
    taken = paired_timing.race_arms(
        lambda turn: arms, lambda turn, found: None, 0, 1e9, clock, queued=lambda: waited[0]
    )
    race = SpeedupRace(list, given=eager, arrays=[X])
    believed = _make_race_columns(race, taken, False)
    assert race.columns["call_ms"] == pytest.approx(1e3 * float(np.median(believed[PROGRAM])))
    return race


def test_what_a_call_waits_for_a_processor_is_not_its_time() -> None:
    """A tenth is seen beside waits that are a hundred times as long, and nothing where there is nothing."""
    tenth, same = (race_on_a_busy_machine(x, 1.0).columns for x in (1.1, 1.0))
    assert (
        tenth["speedup_low"] <= 1 / 1.1 <= tenth["speedup_high"] < 0.95
        and same["speedup_low"] <= 1 <= same["speedup_high"]
    )
    assert tenth["time_doubt"] == same["time_doubt"] == ""


def test_nobody_waits_longer_than_the_system_says() -> None:
    columns = race_on_a_busy_machine(1.1, 1.0, claimed=1.0).columns
    assert columns["speedup_low"] <= 1 / 1.1 <= columns["speedup_high"] < 0.95


def test_a_call_takes_its_cpu_time_though_its_own_threads_kept_it_waiting() -> None:
    running = {(9.0, 8.0): 8.0, (9.0, 0.5): 1.0, (1.0, 20.0): 10.0, (None, 8.0): None, (9.0, None): None}
    for (waited_s, cpu_s), found in running.items():
        assert paired_timing._find_running_seconds(Timed([], 10.0, cpu_s, waited_s=waited_s), 9.5) == found
    assert paired_timing._find_running_seconds(Timed([], 10.0, 0.5, waited_s=9.0, calls=2), 4.0) == 8.0, (
        "the system counted less"
    )


def test_the_system_counts_what_a_thread_waits_for_a_processor() -> None:
    """Three that want to run share as many processors as there are less than three."""
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    before, own = os.sched_getaffinity(0), RunQueueClock()
    try:
        if own.read() is None:
            pytest.skip("this system does not count it")
        os.sched_setaffinity(0, {min(before)})
        time.sleep(0.2)
        begin, wall, cpu = own.read(), time.perf_counter(), time.thread_time()
        while time.thread_time() < cpu + 0.1:
            pass
        waited, wall, cpu = (
            subtract_run_queue_seconds(own.read(), begin),
            time.perf_counter() - wall,
            time.thread_time() - cpu,
        )
        assert waited is not None and wall - waited == pytest.approx(cpu, rel=0.2) and waited > 0.05
        time.sleep(0.05)
        assert RunQueueClock(others[0].pid).read()
    finally:
        os.sched_setaffinity(0, before)
        for one in others:
            one.kill()
            one.wait()


def columns(program: float, baseline: float, told: float, way: float = 100e-6, spent: bool = True) -> dict[str, Any]:
    """Columns of a race of calls that take so many seconds and of which the program's process tells another number; the
    way there and back takes ``way``, or up to twice as long, of which a hundredth is CPU time."""
    noise, rounds = np.random.default_rng(3), 41
    calls: dict[str, list[Timed]] = {}
    seen: dict[str, list[float]] = {}
    for arm, real in ((PROGRAM, program), (BASELINE, baseline), ("null", baseline)):
        said = told if arm == PROGRAM else real
        ways = way * (1 + noise.random(rounds))
        jitter = real * 0.1 * noise.random(rounds)
        calls[arm] = [
            Timed((), said + x, said + x, spent_s=real + x + 0.01 * w if spent else None) for x, w in zip(jitter, ways)
        ]
        seen[arm] = list(real + jitter + ways)
    race = SpeedupRace(list, given=eager, arrays=[X])
    _make_race_columns(race, paired_timing.RaceTimes(calls, seen, seen), False)
    return race.columns


def test_no_call_is_believed_more_than_the_clocks_of_the_judge_bear_out() -> None:
    honest, liar = columns(50e-6, 100e-6, 50e-6), columns(50e-6, 100e-6, 1e-6)
    assert honest["time_doubt"] == "" and honest["speedup_low"] < 2 < honest["speedup_high"]
    assert liar["speedup"] < 1.1 * honest["speedup"], "what it hides is added"
    short, lies = columns(2e-6, 4e-6, 2e-6), columns(2e-6, 4e-6, 0.02e-6)
    assert short["time_doubt"] == "" and short["speedup_low"] < 2 < short["speedup_high"]
    assert lies["speedup"] < 1.5 * short["speedup"], "it gains what nobody can see"


def test_on_a_busy_machine_the_system_s_count_of_cpu_time_bears_a_time_out() -> None:
    way = 2e-3
    assert columns(50e-6, 100e-6, 50e-6, way)["time_doubt"] == ""
    honest, liar = (columns(50e-6, 100e-6, told, way, spent=False) for told in (50e-6, 1e-6))
    assert honest["time_doubt"] == liar["time_doubt"] == "unseen"
    assert liar["speedup"] == pytest.approx(honest["speedup"]) and honest["speedup"] < 1.5 < honest["speedup_high"]


def test_cpu_time_by_the_judge_s_own_clock_is_believed_as_it_is() -> None:
    """Nobody counts it a second time: of runs in this process nothing is hidden."""
    own = columns(50e-6, 100e-6, 50e-6, spent=False)
    assert own["speedup_cpu_low"] < 2 < own["speedup_cpu_high"] and own["speedup_cpu"] == pytest.approx(2, rel=0.2)


def test_too_few_rounds_are_refused_and_a_clock_that_stands_still_says_nothing() -> None:
    with pytest.raises(ValueError, match="10 rounds are too few"):
        paired_timing.compute_speed_ratio([1.0] * 10, [1.0] * 10)
    assert paired_timing.compute_speed_ratio([1.0] * 11, [0.0] * 11) is None
    assert paired_timing.compute_speed_ratio([2.0] * 11, [1.0] * 11) == paired_timing.SpeedRatio(2, 2, 2)


def test_arms_run_in_random_order_once_a_round_each_made_ready_just_before() -> None:
    ran: list[str] = []

    def ready(name: str, turn: int) -> Callable[[], Callable[[], Timed]]:
        def make() -> Callable[[], Timed]:
            ran.append(f"ready {name}")
            return lambda: Timed([ran.append(name)], 1.0)

        return make

    paired_timing.race_arms(
        lambda turn: {name: ready(name, turn) for name in "abc"}, lambda turn, found: None, budget_s=0
    )
    runs = ran[1::2]
    assert [x.removeprefix("ready ") for x in ran[::2]] == runs
    rounds = [tuple(runs[k : k + 3]) for k in range(0, len(runs), 3)]
    assert len(rounds) == paired_timing.FEWEST + 1 and all(sorted(one) == list("abc") for one in rounds)
    assert len(set(rounds)) > 2


def eager(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
    return lambda: [np.exp(arrays[0]), arrays[0].argmax(axis=1)]


def outcome(program: Callable[[list[Any]], Callable[[], list[Any]]], **more: Any) -> SpeedupRace:
    """A race of a program against `eager`, run as the check runs it."""
    race = SpeedupRace(lambda: eager([X])(), given=program, eager=more.pop("eager", eager), arrays=[X], **more)
    first, last = Speedup().stages(race, Form("torch", "x:exp", "float32", [X]))
    assert first.name == "the first run" and last.name == "the last run"
    assert all(np.allclose(a, b, 1e-2) for a, b in zip(first.outputs, last.outputs))
    return race


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired_timing, "MOST", paired_timing.FEWEST)


def test_a_sound_program_passes_and_its_row_has_the_interval_or_says_why_not() -> None:
    race = outcome(eager)
    assert "speedup_null=" in race.flags and f"rounds={paired_timing.FEWEST}" in race.flags
    for clock in ("speedup", "speedup_cpu"):
        told = race.columns.get(f"{clock}_low", 0) <= race.columns.get(clock, 0) <= race.columns.get(f"{clock}_high", 0)
        assert told and f"{clock}_null=" in race.flags


def test_a_kept_tensor_is_wrong() -> None:
    kept = eager([X])()
    with pytest.raises(Misbehaviour, match="computes nothing") as found:
        outcome(lambda arrays: lambda: kept, alike=False)
    assert found.value.kind == "kept"


def test_tensors_kept_for_the_inputs_of_the_case_are_wrong() -> None:
    """It computes on the inputs that are judged, and returns what it has for any other."""
    kept = itertools.cycle([eager([X])(), eager([-X])()])

    def cheating(arrays: list[Any]) -> Callable[[], list[Any]]:
        return eager(arrays) if np.array_equal(arrays[0], X) else lambda: next(kept)

    with pytest.raises(Misbehaviour, match="another result than its baseline") as found:
        outcome(cheating)
    assert found.value.kind == "other inputs"


def test_the_timed_call_that_is_farthest_from_its_baseline_is_judged() -> None:
    """A kernel leaves out less than half of the rows in one of the timed calls, another one is a little off in all."""

    def judge(outputs: Any, arrays: Any = (X,)) -> Judgement:
        off = not np.allclose(outputs[0], np.exp(arrays[0]), 1e-3)
        return Judgement(Metrics(), Status.WRONG if off else Status.PASS, "numbers" if off else "")

    def run(often: int, factor: float) -> SpeedupRace:
        calls = itertools.count()

        def program(arrays: list[Any]) -> Callable[[], list[Any]]:
            def compute() -> list[Any]:
                (y, index), own = eager(arrays)(), np.array_equal(arrays[0], X)
                y[: len(y) // 4] *= 1 if own or next(calls) % often else factor
                return [y, index]

            return compute

        race = SpeedupRace(lambda: eager([X])(), given=program, eager=eager, arrays=[X])
        list(Speedup().stages(race, Form("torch", "x:exp", "float32", [X], judge=judge)))
        return race

    with pytest.raises(Misbehaviour, match="a call that was timed is wrong") as found:
        run(paired_timing.FEWEST - 1, 0.0)
    assert found.value.kind == "other inputs"
    assert "judged=2" in run(1, 1 + 1e-5).flags


def test_a_call_that_loses_digits_when_it_is_timed_makes_the_case_imprecise() -> None:
    """A kernel rounds to half precision in the timed calls alone, another one does not."""

    def judge(outputs: Any, arrays: Any = (X,)) -> Judgement:
        off = not np.allclose(outputs[0], np.exp(arrays[0]), 1e-5)
        return Judgement(Metrics(error_units=4096.0 * off), Status.IMPRECISE if off else Status.PASS, "numbers" * off)

    def seen(own: Any) -> list[Any]:
        def program(arrays: list[Any]) -> Callable[[], list[Any]]:
            round_to = np.float32 if np.array_equal(arrays[0], X) else own
            return lambda: [x.astype(round_to).astype(x.dtype) for x in eager(arrays)()]

        race = SpeedupRace(lambda: eager([X])(), given=program, eager=eager, arrays=[X])
        return list(Speedup().stages(race, Form("torch", "x:exp", "float32", [X], judge=judge)))

    names = ["the first run", "a call that was timed", "the last run"]
    assert [x.name for x in seen(np.float32)] == [names[0], names[2]]
    steps = seen(np.float16)
    assert [x.name for x in steps] == names
    right = Judgement(Metrics(), Status.PASS, "")
    found = choose_worst_step(steps, [x.ruled or right for x in steps])
    assert found.status is Status.IMPRECISE and found.columns["culprit"] == names[1]


def test_what_rounds_coarser_is_not_another_result() -> None:
    outcome(lambda arrays: lambda: [np.exp(arrays[0].astype(np.float16)), arrays[0].argmax(axis=1)])


def test_an_op_whose_output_does_not_depend_on_its_inputs_cannot_be_told_from_a_kept_tensor() -> None:
    def shape(arrays: list[Any]) -> Callable[[], list[Any]]:
        return lambda: [np.zeros_like(arrays[0])]

    race = SpeedupRace(shape([X]), given=shape, eager=shape, arrays=[X])
    with pytest.raises(Vacuous, match="do not depend on its inputs"):
        list(Speedup().stages(race, Form("torch", "x:zeros_like", "float32", [X])))


def test_inputs_differ_from_round_to_round_and_stay_valid() -> None:
    index, mask = np.arange(12), np.arange(12) < 3
    seen = [vary_input_arrays([X, index, mask], turn, True) for turn in range(20)]
    assert len({x.tobytes() for x, _, _ in seen}) == 20
    for x, moved, hidden in seen:
        assert x.dtype == X.dtype and np.abs(x).max() <= 2 and sorted(moved) == list(range(12)) and hidden.sum() == 3
    for some in (seen[1][0], vary_inputs_by_digest([X], "5" * 64, True)[0]):
        factors = np.sort(some, axis=None) / np.sort(X, axis=None)
        assert factors.min() < 0.9 * factors.max(), (
            "the order of the numbers is another one, not the same times a factor"
        )
    still = vary_input_arrays([X, index], 3, False)
    assert np.array_equal(still[1], index) and np.allclose(still[0] / X, still[0].flat[0] / X.flat[0])


def test_a_runtime_that_takes_its_inputs_once_is_not_timed() -> None:
    class Once(Backend):
        def build(self, form: Form) -> Any:
            return SpeedupRace(lambda: [])

    with pytest.raises(Unsupported, match="takes a program's inputs only once"):
        Speedup().build(Once("once-cpu", "cpu", {}), Form("onnx", "x", "float32", [X]))


def test_rows_of_a_run_name_their_eager_arm_and_the_report_shows_them(tmp_path: Path, results: Path) -> None:
    pytest.importorskip("torch")
    config = tmp_path / "c.yaml"
    config.write_text(
        "dtypes: [float32]\nchecks: [speedup]\ncatalogs: [{name: critical, ops: [softmax], samples: 1}]\n"
        "backends: [torch-cpu, ort-cpu]\nrace_s: 1\n"
    )
    done = here(config, "--on", "inline", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert set(rows["status"]) == {"pass"} and set(rows["check"]) == {"speedup"}
    table = list_speedup_lines(keep_distinct_rows(rows)).set_index("backend")
    assert set(table["baseline"]) == {"torch-cpu"}
    assert (table["speedup_low"] <= table["speedup_high"]).where(table["says"] != "unsure", True).all()
    assert set(rows["baseline"]) == {"torch-cpu"}
    assert "Speedup over the baseline" in done.stdout


@pytest.mark.parametrize(
    ("intervals", "says"),
    [
        ({"speedup": (2, 1.5, 3)}, "faster"),
        ({"speedup": (0.5, 0.4, 0.9)}, "slower"),
        ({"speedup": (1.2, 0.8, 1.9)}, "no difference"),
        ({"speedup": (1.2, 0.8, 1.9), "speedup_cpu": (1.2, 1.1, 1.3)}, "faster"),
        ({"speedup": (2, 1.5, 3), "speedup_cpu": (0.5, 0.4, 0.9)}, "unsure"),
        ({}, "unsure"),
    ],
)
def test_what_is_said_needs_an_interval_beyond_one(intervals: dict[str, tuple[float, ...]], says: str) -> None:
    ends = {f"{clock}{end}": x for clock, found in intervals.items() for end, x in zip(("", "_low", "_high"), found)}
    rows = frame(make_row(check="speedup", baseline="torch-cpu", flags="rounds=11", **ends), make_row(op="torch:mul"))
    (line,) = list_speedup_lines(keep_distinct_rows(rows)).to_dict("records")
    assert (line["says"], line["baseline"]) == (says, "torch-cpu")


@pytest.mark.parametrize(
    ("intervals", "said"),
    [
        ({"speedup": (0.98, 0.9, 1.1), "speedup_cpu": (1.2, 1.1, 1.3)}, "faster by CPU time"),
        ({"speedup": (2, 1.5, 3), "speedup_cpu": (1.2, 1.1, 1.3)}, "faster by wall time and CPU time"),
        ({"speedup": (0.5, 0.4, 0.9)}, "slower by wall time"),
        ({"speedup": (1.2, 0.8, 1.9)}, "no difference"),
    ],
)
def test_the_table_names_the_clock_of_every_time(intervals: dict[str, tuple[float, ...]], said: str) -> None:
    ends = {f"{clock}{end}": x for clock, found in intervals.items() for end, x in zip(("", "_low", "_high"), found)}
    view = view_speedups(Report.of(frame(make_row(check="speedup", baseline="torch-cpu", call_ms=1.5, **ends)), {}))
    assert view is not None
    shown = {
        column.words: make_view_cell(column, line).text
        for line in view.all_lines()
        for column in view.columns_for("terminal")
    }
    assert shown["result"] == said
    assert {"speedup, wall time", "speedup, CPU time", "ms, wall time"} <= set(shown)


def test_rows_of_older_lakes_name_their_baseline_in_the_flags() -> None:
    rows = frame(make_row(check="speedup", flags="baseline=torch-cpu rounds=11"))
    assert list(list_speedup_lines(keep_distinct_rows(rows))["baseline"]) == ["torch-cpu"]


def test_what_lies_in_the_gaps_of_a_tensor_stays_there() -> None:
    """A tensor of 33 elements in the storage of 65: the others are not to be read, and no element is any of them."""
    stored = np.full(65, np.nan, np.float32)
    stored[::2] = np.arange(1, 34)
    for turn in range(20):
        made, alone = (vary_input_arrays([x], turn, moved=True)[0] for x in (stored, stored[::2].copy()))
        assert np.isnan(made[1::2]).all()
        assert (made[::2] == alone).all(), "they vary as without gaps"
    (next_one,) = vary_inputs_by_digest([stored], "f" * 64, True)
    assert np.isnan(next_one[1::2]).all() and (next_one[::2] != stored[::2]).any()
