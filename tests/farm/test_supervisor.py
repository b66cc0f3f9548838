"""What a supervisor keeps of its children: as many as memory allows, their cost told once."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from farm.fleet.child_process import ChildDeath, ChildProcess, Limits
from farm.lake import read_row_stream
from farm.work import child_pool
from farm.work.child_pool import ChildPool, PooledChildren
from farm.work.job import Job
from farm.work.supervisor import run_supervised_job_items
from tasks import wire
from tasks.backends import BackendSpec
from tasks.model import BackendInfo, Group
from tasks.prepare.cases import prepare_group
from tasks.relay import StarvedTime


class FakeChild:
    """A child of a certain size that is closed or not."""

    answering = False

    def __init__(self, number: int, size: int) -> None:
        self.process, self.size, self.closed, self.used = types.SimpleNamespace(pid=number), size, False, 0.0

    def resident(self) -> int:
        return self.size

    def alive(self) -> bool:
        return not self.closed

    def cpu_s(self) -> float:
        return self.used

    def close(self) -> None:
        self.closed = True


def job(name: str, limits: Limits) -> Job:
    return Job(name=name, cache="", limits=limits, backend=BackendSpec(name, name, "cpu"), env={})


def test_a_device_that_one_process_may_open_is_not_kept_by_a_child_that_waits(pool: Any) -> None:
    limits = Limits()
    for number, (vendor, closed) in enumerate((("gaudi", True), ("nvidia", False), ("", False))):
        child = FakeChild(number, 40)
        pool.add(job(str(number), limits), child, wire.Ready(BackendInfo(device_vendor=vendor)))
        pool.recycle(job(str(number), limits))
        assert child.closed is closed, vendor


@pytest.fixture
def pool() -> Any:
    return ChildPool()


def test_what_a_job_that_was_given_up_leaves_in_a_pipe_is_no_row_of_the_next_one(
    pool: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_LOAD_OPS", "2")
    monkeypatch.setattr("farm.work.supervisor.CHUNK_S", 0.0)

    def of(op: str) -> Job:
        group = Group(op, "", "float32", 50)
        item = wire.ToRun(group, str(prepare_group(group, cache)[1].pack.path), tuple(range(50)), "")
        return replace(
            job("null-cpu", Limits()),
            backend=BackendSpec.parse("null-cpu", "null-cpu", {}),
            cache=str(cache),
            run=(item,),
        )

    first = run_supervised_job_items(of("load:op000000"), pool)
    while not isinstance(next(first), wire.Rows):
        pass
    first.close()  # as an error of whoever reads it would
    rows = [m for m in run_supervised_job_items(of("load:op000001"), pool) if isinstance(m, wire.Rows)]
    told = [op for m in rows for batch in read_row_stream(m.stream) for op in batch.column("op").to_pylist()]
    assert told == ["load:op000001"] * 50
    pool.close()


def test_the_children_of_a_worker_are_bounded_together(pool: Any) -> None:
    limits = Limits(recycle_bytes=100, pool_bytes=100)
    children = [FakeChild(i, 40) for i in range(4)]
    for child in children:
        pool.add(job(str(child.process.pid), limits), child, wire.Ready())
    assert pool.get(job("3", limits))[0] is children[3]
    assert [c.closed for c in children] == [True, False, False, False]  # the least recently used first, never its own
    children[3].size = 141
    pool.recycle(job("3", limits))
    assert [c.closed for c in children] == [True, False, False, True]


def test_a_child_is_ended_for_what_it_has_grown_by_not_for_the_libraries_of_its_runtime(pool: Any) -> None:
    limits, child = Limits(), FakeChild(1, 2_100 << 20)
    pool.add(job("1", limits), child, wire.Ready())
    for size, ended in ((2_200, False), (4_100, False), (4_200, True)):
        child.size = size << 20
        pool.recycle(job("1", limits))
        assert child.closed is ended


def test_a_child_that_spins_while_it_waits_is_ended(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = Limits()
    quiet, busy = FakeChild(1, 1), FakeChild(2, 1)
    for child in (quiet, busy):
        pool.add(job(str(child.process.pid), limits), child, wire.Ready())
    monkeypatch.setattr(child_pool.time, "sleep", lambda s: setattr(busy, "used", busy.used + s))
    for name in ("1", "2"):
        pool.recycle(job(name, limits))
    assert (quiet.closed, busy.closed) == (False, True)


class Nursery(PooledChildren):
    """Children that die of one death after another, and then do all there is; ``bad``: samples that are left out
    then."""

    def __init__(self, deaths: list[ChildDeath]) -> None:
        self.deaths, self.bad = deaths, 0

    def get(self, job: Job) -> Any:
        return self, wire.Ready()

    def call(self, command: wire.Prepare) -> Iterator[Any]:
        if self.deaths:
            yield self.deaths.pop(0)
            return
        self.bad = sum(len(item.bad) for item in command.items)
        yield from (wire.Prepared(n, "", "", ()) for n in range(len(command.items)))
        yield wire.Finished()


@pytest.mark.parametrize(("times", "in_flight", "bad"), [(2, 1, 0), (3, 1, 1), (3, -1, 0)])
def test_sigkills_of_a_preparer_are_a_samples_own_only_if_it_repeats_them(times: int, in_flight: int, bad: int) -> None:
    group = Group("planted:none", "", "float32", 2)
    work = Job(name="", cache="", limits=Limits(), prepare=(wire.ToPrepare(group), wire.ToPrepare(group)), env={})
    children = Nursery([ChildDeath("crash", "SIGKILL", "died", in_flight, "load", 1, 0)] * times)
    said = list(run_supervised_job_items(work, children))
    # Without work in flight: the dispatcher is to hand the work out again.
    assert [type(message) for message in said[:-1]] == ([wire.Prepared] * 2 if in_flight >= 0 else [wire.Gone])
    assert not any(isinstance(message, wire.Failed) for message in said)
    assert children.bad == bad


def test_what_children_cost_is_told_once_also_of_those_that_ended(pool: Any) -> None:
    limits = Limits()
    child = FakeChild(7, 1)
    pool.add(job("a", limits), child, wire.Ready())
    child.used = 2.0
    assert pool.take_costs().cpu_s == 2.0
    assert pool.take_costs().cpu_s == 0.0
    child.used = 5.0
    pool.forget(job("a", limits))
    assert child.closed
    assert pool.take_costs().cpu_s == 3.0


def test_a_child_process_has_cost_something() -> None:
    child = ChildProcess(sys.executable, Limits())
    assert child.ask(wire.Hello(), deadline_s=120) == wire.Ready()
    used = child.cpu_s()
    child.close()
    assert used > 0
    assert child.cpu_s() == used  # what it was when it could still be asked


def write_thread(proc: Path, number: int, state: str, ran_s: float, process: int = 7) -> None:
    folder = proc / str(process) / "task" / str(number)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"{int(ran_s * 1e9)} 0 3\n")
    (folder / "stat").write_text(f"{number} (a (b) c) {state} 1 7 7 0\n")


def test_time_in_which_the_machine_did_not_let_it_run_is_no_cases(tmp_path: Path) -> None:
    thread = functools.partial(write_thread, tmp_path)

    def disk(waited_us: int) -> None:
        (tmp_path / "pressure").mkdir(exist_ok=True)
        (tmp_path / "pressure" / "io").write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={waited_us}\nfull avg10=0\n"
        )

    clock = iter(range(100))
    kept = StarvedTime(7, tmp_path)
    processors = mock.patch("os.sched_getaffinity", lambda pid: {0, 1})
    with processors, mock.patch("time.monotonic", lambda: float(next(clock))):  # one second from look to look
        assert kept.s(1.0) == 0.0  # a kernel that does not tell
        thread(7, "R", 3.0)
        assert kept.s(2.0) == 0.0  # before this case
        thread(7, "R", 3.25)
        thread(8, "S", 0.0)
        assert kept.s(2.0) == 0.75
        thread(7, "R", 4.25)
        assert kept.s(2.0) == 0.75  # it ran
        thread(8, "R", 0.5)
        thread(7, "R", 4.5)
        assert kept.s(2.0) == 1.5  # the one that lost most, not the sum
        thread(7, "S", 4.5)
        thread(8, "D", 0.5)
        assert kept.s(2.0) == 1.5  # asleep, and in a driver's call
        disk(10)
        assert kept.s(2.0) == 2.5
        assert kept.s(2.0) == 2.5  # nobody waits for the disk any more
        assert kept.s(3.0) == 0.0  # the next case
        thread(8, "S", 0.5)
        # A compiler that it waits for, somebody else's, and what the compiler has started in a session of its own.
        for process, parent, session in ((20, 1, 7), (30, 1, 30), (40, 20, 40)):
            thread(process, "R", 0.0, process)
            (tmp_path / str(process) / "stat").write_text(f"{process} (cc1plus) R {parent} {process} {session} 0\n")
        assert kept.s(3.0) == 0.0
        thread(20, "R", 0.25, 20)
        thread(40, "R", 1.0, 40)
        assert kept.s(3.0) == 0.75
        thread(20, "R", 1.25, 20)
        thread(40, "R", 1.5, 40)
        assert kept.s(3.0) == 1.25


@pytest.mark.parametrize(
    ("spinning", "ran_s", "processors", "quota", "lost_s"),
    [
        (40, 0.05, {0, 1}, math.inf, 0.0),  # they share both processors
        (40, 0.025, {0}, math.inf, 0.0),  # one, as they asked for
        (40, 0.0125, {0, 1, 2, 3}, 0.5, 0.0),  # what their container may use
        (1, 0.05, {0, 1}, math.inf, 0.95),  # others have the rest
        (3, 0.05, {0, 1}, math.inf, 0.95),  # a few compilers among others
        (1, 0.05, {0, 1, 2, 3}, 2.0, 0.95),  # others of its container
        (40, 0.03, {0, 1}, math.inf, 0.8),  # of its own spinning and others' no more than others took
    ],
)
def test_what_its_own_processes_take_from_one_another_is_its_own_doing(
    tmp_path: Path, spinning: int, ran_s: float, processors: set[int], quota: float, lost_s: float
) -> None:
    """A kernel that waits for ever on processes of its own that spin has its deadline and no more."""
    clock = iter(range(100))
    with (
        mock.patch("time.monotonic", lambda: float(next(clock))),
        mock.patch("os.sched_getaffinity", lambda pid: processors),
        mock.patch("tasks.relay.read_cpu_quota", lambda: quota),
    ):
        kept = StarvedTime(7, tmp_path)
        for seconds in (0.0, ran_s):
            write_thread(tmp_path, 7, "S", 0.0)
            for number in range(100, 100 + spinning):
                write_thread(tmp_path, number, "R", seconds, number)
                (tmp_path / str(number) / "stat").write_text(f"{number} (spin) R 7 {number} {number} 0\n")
            found = kept.s(1.0)
    assert found == pytest.approx(lost_s)


#: Prepares and exports, and tells what was imported when the first sample was begun.
PREPARING = """
import subprocess
import sys
from pathlib import Path
from tasks.model import Group
from tasks.prepare.cases import prepare_group
from tasks.prepare.forms import export_prepared_forms
def told(*names):
    return lambda sample: print(all(name in sys.modules for name in names), flush=True)
op_db = "torch.testing._internal.common_methods_invocations"
cache = Path(sys.argv[1])
prepare_group(Group("onnx:Abs", "abs", "float32", 1), cache, started=told("onnx.backend.test.case.node"))
prepare_group(Group("critical:softmax", "", "float32", 1), cache, started=told("torch"))
made = prepare_group(Group("torch:abs", "", "float32", 1), cache, started=told(op_db))[1]
export_prepared_forms(Path(made.pack.path), cache, "onnx", 1, {}, told("torch.onnx._internal.exporter._registration"))
"""


def test_what_samples_are_made_with_is_imported_before_one_is_in_flight(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PREPARING, str(tmp_path)], capture_output=True, text=True)
    assert set(done.stdout.split()) == {"True"} and done.stdout.count("True") >= 4, done.stdout + done.stderr
