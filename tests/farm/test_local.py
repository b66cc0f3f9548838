"""Runs without Ray: which plans they are for, what they show and keep while they go on, how their lanes share jobs."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from farm import lake
from farm.commands import run as command
from farm.fleet.child_process import Limits
from farm.plan import request as requests
from farm.plan.matrix import Matrix
from farm.work import executor_registry, lanes, launch, local, ray_or_local, row_writer, supervisor
from farm.work.claims import DeviceClaim
from farm.work.job import Job
from farm.work.lanes import JobLine, LaneCapacity
from farm.work.launch import LaunchedRun, ready_run_plan
from farm.work.local import InlineExecutor
from farm.work.run_state import RunState
from tasks import relay
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.model import Group
from tasks.wire import Place
from tests.conftest import here
from tests.conftest import launch as farm_run

OPS, SAMPLES = 4, 3


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FARM_LOAD_OPS", str(OPS))
    path = tmp_path / "load.yaml"
    catalog = {"name": "load", "dtypes": ["float32"], "samples": SAMPLES}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["null-cpu"]}))
    return path


def plan(groups: int, backend: str = "null-cpu", samples: int = 1) -> Matrix:
    made = [Group(f"load:op{i}", "", "float32", samples, 0) for i in range(groups)]
    return Matrix(made, [BackendSpec.parse(backend)], np.full((groups, 1), samples, dtype=np.int32))


@pytest.mark.parametrize(
    ("matrix", "small"),
    [
        (plan(1), True),
        (plan(1600), True),  # ONNX's node suite on one backend
        (plan(1600, samples=20), False),
        (plan(100, "inductor-cpu"), True),
        (plan(300, "inductor-cpu"), False),  # a compiler takes its time
    ],
)
def test_a_plan_is_small_by_its_estimated_work(config: Path, matrix: Matrix, small: bool) -> None:
    assert (
        ray_or_local.is_plan_small(requests.make_run_request(str(config), lake.open_lake("r")).config, matrix) is small
    )


def test_a_start_of_ray_is_not_taken_out_of_a_small_budget(config: Path) -> None:
    asked = requests.make_run_request(str(config), lake.open_lake("r")).config
    large = plan(1600, samples=20)
    assert ray_or_local.is_plan_small(asked, large, 60.0) and not ray_or_local.is_plan_small(asked, large, 600.0)


@pytest.mark.parametrize(("race_s", "small"), [(0.5, True), (8.0, False)])
def test_races_are_small_work_where_they_are_short(config: Path, race_s: float, small: bool) -> None:
    asked = requests.make_run_request(str(config), lake.open_lake("r")).config.model_copy(update={"race_s": race_s})
    made = [Group(f"load:op{i}", "", "float32", 1, 0, check="speedup") for i in range(30)]
    matrix = Matrix(made, [BackendSpec.parse("null-cpu")], np.ones((30, 1), np.int32))
    assert ray_or_local.is_plan_small(asked, matrix) is small


def test_nodes_by_label_are_rays(config: Path) -> None:
    asked = requests.make_run_request(str(config), lake.open_lake("r")).config
    labelled = asked.backends[0].model_copy(update={"labels": {"rack": "a*"}})
    assert not ray_or_local.is_plan_small(asked.model_copy(update={"backends": [labelled]}), plan(1))


@pytest.mark.parametrize(
    ("how", "more", "groups", "expected"),
    [
        ("auto", {}, 1, "ChildProcesses"),
        ("auto", {}, 10_000, "Cluster"),
        ("auto", {"address": "auto"}, 1, "Cluster"),
        ("auto", {"dry": True}, 10_000, "ChildProcesses"),
        ("ray", {}, 1, "Cluster"),
        ("ray", {"dry": True}, 1, "Cluster"),
        ("processes", {}, 10_000, "ChildProcesses"),
        ("inline", {}, 10_000, "InlineExecutor"),
    ],
)
def test_where_a_run_goes(
    config: Path, monkeypatch: pytest.MonkeyPatch, how: str, more: dict[str, Any], groups: int, expected: str
) -> None:
    class Cluster(InlineExecutor):
        takes_address = True

    monkeypatch.setattr("farm.work.ray_cluster.RayCluster", Cluster)
    asked = requests.make_run_request(str(config), lake.open_lake("r"), how=how, **more)
    kind = executor_registry.find_asked_executor(asked.how, asked.address)
    made = launch._start_executor(asked, kind, plan(groups), launch._make_executor_setup(asked))
    assert type(made).__name__ == expected


@pytest.mark.parametrize(("quota", "cpus"), [(math.inf, None), (0.5, 1), (1.0, 1)])
def test_the_quota_of_a_container_bounds_the_cpus(
    quota: float, cpus: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "read_cpu_quota", lambda: quota)
    assert relay.count_usable_processors() == (cpus or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("how", ["inline", "processes"])
def test_one_process_lists_one_catalog_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, results: Path, how: str
) -> None:
    """Two threads that import torch at once see half of it."""
    path = tmp_path / "two.yaml"
    names = ("load", "gemm")
    path.write_text(yaml.safe_dump({"catalogs": [{"name": x, "samples": 1} for x in names], "backends": ["null-cpu"]}))
    beside, met, whole = threading.Event(), list[bool](), launch.catalog_lists.list_catalog_entries

    def meet(name: str, *given: Any) -> Any:
        if name == names[0]:
            met.append(beside.wait(1.0 if how == "inline" else 60.0))
        beside.set()
        return whole(name, *given)

    monkeypatch.setattr(launch.catalog_lists, "list_catalog_entries", meet)
    with ready_run_plan(requests.make_run_request(str(path), lake.open_lake(str(results)), how=how, dry=True)):
        assert met == [how != "inline"]


def test_a_small_run_says_where_it_runs(config: Path, results: Path) -> None:
    done = farm_run(config, "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()[1]  # after what it is
    assert "small" in said and "--on ray" in said
    assert lake.read_run(results, lake.run_ids(results)[0])["inventory"]["nodes"][0]["id"] == "local"


@pytest.mark.parametrize("how", ["inline", "processes"])
def test_rows_and_figures_come_while_a_job_goes_on(
    config: Path, results: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    for module, name in ((row_writer, "FLUSH_S"), (supervisor, "CHUNK_S")):
        monkeypatch.setattr(module, name, 0.0)
    seen: list[tuple[int, int]] = []  # rows on disk and cases done, whenever progress is shown

    def progress(run: RunState) -> None:
        seen.append((lake.read_table(results).num_rows, run.run_counts.counts["null-cpu"].done))

    where = lake.open_lake(str(results))
    with ready_run_plan(requests.make_run_request(str(config), where, how=how, cpus=1)) as made:
        run = LaunchedRun(made)
        run.begin()
        run.dispatch(progress)
        rows, missing = run.finish()
    assert not missing and len(rows) == OPS * SAMPLES
    between = {pair for pair in seen if 0 < pair[0] < OPS * SAMPLES}
    assert len(between) > 1 and all(0 < done <= OPS * SAMPLES for _, done in between)


def test_inline_begins_a_backend_once_and_ends_it(
    config: Path, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose start says nothing of that of a process."""
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    told: list[str] = []
    for name in ("start", "close"):
        whole = getattr(Backend, name)
        monkeypatch.setattr(Backend, name, lambda self, call=whole, name=name: told.append(name) or call(self))
    with ready_run_plan(requests.make_run_request(str(config), lake.open_lake(str(results)), how="inline")) as made:
        run = LaunchedRun(made)
        run.begin()
        run.dispatch(lambda state: None)
        rows, _ = run.finish()
        assert told == ["start"] and set(rows["status"]) == {"pass"} and set(rows["policy"]) == {made.request.policy.id}
    assert told == ["start", "close"] and not [*(tmp_path / "cache").glob("probes/*")]


@pytest.mark.parametrize("how", ["inline", "processes"])
def test_what_the_end_needs_is_imported_where_no_kernel_is_timed(
    config: Path, results: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    began = threading.Event()
    monkeypatch.setattr(command, "_load_report", began.set)
    monkeypatch.setattr(command, "IDLE_S", 0.0)
    assert here(config, "--results", results, "--on", how).returncode == 0
    assert began.is_set() == (how == "processes")


def test_inline_asks_who_runs_nothing_in_a_process_of_its_own(
    config: Path, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runtime that dies as it is imported must not end the run with it."""
    monkeypatch.setenv("FARM_CACHE", str(tmp_path / "cache"))
    catalog = {"name": "load", "dtypes": ["float32"], "samples": 1, "backends": ["null-cpu"]}
    config.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["null-cpu", "broken-exit"]}))
    where, begun = lake.open_lake(str(results)), list[str]()
    whole = local.DirectChild
    monkeypatch.setattr(local, "DirectChild", lambda: begun.append("here") or whole())
    for dry in (False, True):
        begun.clear()
        with ready_run_plan(requests.make_run_request(str(config), where, how="inline", dry=dry, fresh=True)) as made:
            assert made.offers["null-cpu"].available and "exit code 4" in made.offers["broken-exit"].reason
            assert len(begun) == (not dry)


# --- lanes
# --------------------------------------------------------------------------------------------------------------


class FakeChildren:
    """What a lane knows of its children: for which jobs they were started."""

    def __init__(self) -> None:
        self.of: list[str] = []

    def has(self, job: Job) -> bool:
        return job.name in self.of

    def get(self, job: Job) -> None:
        self.of.append(job.name)

    def forget(self, job: Job) -> None: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


def job(name: str) -> Job:
    return Job(name=name, cache="", limits=Limits(), backend=BackendSpec(name, name, "cpu"), env={})


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes a line of two lanes whose jobs do ``work``; the jobs that each lane's children are of."""
    made: list[JobLine] = []

    def make(work: Callable[[Job], None]) -> tuple[JobLine, Any, list[FakeChildren]]:
        children = [FakeChildren(), FakeChildren()]
        left = iter(children)
        monkeypatch.setattr(lanes, "ChildPool", lambda: next(left))

        def run(job: Job, own: FakeChildren) -> Any:
            own.get(job)
            work(job)
            yield job.name

        monkeypatch.setattr(lanes, "run_supervised_job_items", run)
        came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        made.append(JobLine([LaneCapacity(2.0)], came))
        return made[-1], came, children

    yield make
    for one in made:
        one.close(5)


def until_idle(line: JobLine) -> None:
    def busy() -> bool:
        with line._changed:  # else a lane may just have taken a job, and not yet be at it
            return bool(line._waiting or line._expected) or not all(x.idle and not x.starting for x in line._lanes)

    end = time.monotonic() + 30
    while busy():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_job_goes_where_its_child_is(line: Any) -> None:
    made, came, children = line(lambda job: None)
    for handle, name in enumerate(["a", "b", "a", "b", "a"], 1):
        made.put(handle, job(name))
        until_idle(made)
    of = [set(one.of) for one in children]
    assert of in ([{"a"}, {"b"}], [{"b"}, {"a"}], [{"a", "b"}, set()], [set(), {"a", "b"}])
    ends = [came.get() for _ in range(5 * 3)]
    assert [handle for handle, message in ends if message is None] == [1, 2, 3, 4, 5]


def test_an_idle_lane_starts_the_child_of_what_is_expected(line: Any) -> None:
    made, _, children = line(lambda job: None)
    made.expect(job("a"))
    until_idle(made)
    assert sorted(len(one.of) for one in children) == [0, 1]
    made.put(1, job("a"))
    until_idle(made)
    assert sorted(len(one.of) for one in children) == [0, 2]  # by the lane that had started it


def test_a_job_that_raises_ends_with_it(line: Any) -> None:
    def fail(job: Job) -> None:
        raise ValueError("no such thing")

    made, came, _ = line(fail)
    made.put(1, job("a"))
    until_idle(made)
    assert [type(message).__name__ for _, message in (came.get(), came.get())] == ["Begun", "ValueError"]


def test_a_job_that_waits_can_be_called_back() -> None:
    executor = local.ChildProcesses(1)
    executor._lines["CPU"] = JobLine([LaneCapacity(0.0)], executor._came)
    handle = executor.submit(job("a"), None, DeviceClaim())
    executor.cancel(handle)
    assert list(executor.poll(1.0)) == [(handle, None)]
    executor.close()


# --- devices and their shares
# ---------------------------------------------------------------------------------------------


def drained(came: Any) -> list[tuple[int, Any]]:
    """What has come so far."""
    found = []
    with contextlib.suppress(queue.Empty):
        while True:
            found.append(came.get_nowait())
    return found


@pytest.mark.parametrize(("share", "most"), [(1.0, 2), (0.5, 4), (1 / 3, 6)])
def test_as_many_jobs_run_at_once_as_the_devices_have_shares(
    monkeypatch: pytest.MonkeyPatch, share: float, most: int
) -> None:
    gate, running = threading.Event(), list[str]()

    def run(job: Job, own: FakeChildren) -> Any:
        running.append(job.device)
        gate.wait(30)
        yield job.name

    monkeypatch.setattr(lanes, "ChildPool", FakeChildren)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    made = JobLine([LaneCapacity(1.0, Place("local", n), {"VISIBLE": n}) for n in "01"], came)
    try:
        for handle in range(1, 9):
            made.put(handle, job(f"job {handle}"), DeviceClaim(share))
        end = time.monotonic() + 30
        while len(running) < most:
            assert time.monotonic() < end
            time.sleep(0.01)
        time.sleep(0.1)
        assert sorted(running) == sorted("01" * (most // 2))
        gate.set()
        until_idle(made)
        assert sorted(handle for handle, message in drained(came) if message is None) == list(range(1, 9))
        assert all(abs(c.free - 1.0) < 1e-6 for c in made._capacities)
    finally:
        gate.set()
        made.close(5)


def test_a_job_of_several_devices_has_them_at_the_same_time_and_is_not_passed_over_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock, busy, order = threading.Lock(), set[str](), list[str]()
    of = job

    def run(job: Job, own: FakeChildren) -> Any:
        mine = set(job.device.split(","))
        with lock:
            assert not mine & busy
            busy.update(mine)
            order.append(job.name)
        if job.name == "single" and len(order) < 60:  # there is always another one
            made.put(len(order) + 100, of("single"))
        time.sleep(0.005)
        with lock:
            busy.difference_update(mine)
        yield job.device

    monkeypatch.setattr(lanes, "ChildPool", FakeChildren)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    made = JobLine([LaneCapacity(1.0, Place("local", str(n))) for n in range(5)], came)
    made.join(4, lambda numbers, parts: LaneCapacity(0.0, Place("local", ",".join(map(str, numbers))), {}, parts))
    try:
        for handle in range(1, 9):
            made.put(handle, job("single"))
        made.put(9, job("gang"), DeviceClaim(devices=4))
        until_idle(made)
        found = drained(came)
        assert not [message for _, message in found if isinstance(message, BaseException)]
        assert [message for handle, message in found if handle == 9][1:] == ["0,1,2,3", None]
        assert order.index("gang") < 50
        assert all(abs(c.free - 1.0) < 1e-6 for c in made._capacities)
    finally:
        made.close(5)


def test_a_device_that_is_to_be_avoided_is_given_no_job_and_a_job_without_a_device_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def run(job: Job, own: FakeChildren) -> Any:
        seen.append(job.device)
        yield job.name

    monkeypatch.setattr(lanes, "ChildPool", FakeChildren)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    first, second = Place("local", "0"), Place("local", "1")
    made = JobLine([LaneCapacity(1.0, first), LaneCapacity(1.0, second)], came)
    try:
        for handle in range(1, 5):
            made.put(handle, replace(job("a"), avoid=(first,)))
        until_idle(made)
        assert seen == ["1"] * 4
        made.put(5, replace(job("a"), avoid=(first, second)))
        last = [message for handle, message in drained(came) if handle == 5]
        assert [type(message).__name__ for message in last] == ["Unplaced"]
    finally:
        made.close(5)


def test_a_job_that_needs_a_whole_device_is_not_passed_over_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    of = job

    def run(job: Job, own: FakeChildren) -> Any:
        order.append(job.name)
        if job.name == "small" and len(order) < 60:  # there is always another one
            made.put(len(order) + 100, of("small"), DeviceClaim(0.25))
        time.sleep(0.005)
        yield job.name

    monkeypatch.setattr(lanes, "ChildPool", FakeChildren)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    made = JobLine([LaneCapacity(1.0)], came)
    try:
        for handle in range(1, 9):
            made.put(handle, job("small"), DeviceClaim(0.25))
        made.put(9, job("whole"), DeviceClaim())
        until_idle(made)
        assert order.index("whole") < 20 and len(order) >= 60
    finally:
        made.close(5)


def test_a_child_that_is_started_ahead_holds_up_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    begins, goes_on = threading.Event(), threading.Event()

    class Slow(FakeChildren):
        def get(self, job: Job) -> None:
            if job.name == "slow":
                begins.set()
                assert goes_on.wait(30)
            super().get(job)

    def run(job: Job, own: FakeChildren) -> Any:
        yield job.name

    monkeypatch.setattr(lanes, "ChildPool", Slow)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    made = JobLine([LaneCapacity(2.0)], came)
    try:
        made.expect(job("slow"))
        assert begins.wait(30)
        made.put(1, job("other"))
        assert [came.get(timeout=30)[0] for _ in range(3)] == [1, 1, 1]  # begun, done, at its end
        assert not goes_on.is_set() and len(made._lanes) == 2
        made.put(2, job("slow"))  # waits for the child that is being started
        assert len(made._lanes) == 2
        goes_on.set()
        assert [came.get(timeout=30)[0] for _ in range(3)] == [2, 2, 2]
    finally:
        goes_on.set()
        made.close(5)


def test_a_child_that_cannot_be_started_ahead_costs_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    class Full(FakeChildren):
        def get(self, job: Job) -> None:
            tried.append(job.name)
            if job.name == "full":
                raise OSError("no space left on device")
            super().get(job)

        def forget(self, job: Job) -> None: ...

    def run(job: Job, own: FakeChildren) -> Any:
        yield job.name

    monkeypatch.setattr(lanes, "ChildPool", Full)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    made = JobLine([LaneCapacity(2.0)], came)
    try:
        for name in ("full", "roomy"):
            made.expect(job(name))
            until_idle(made)
        assert tried == ["full", "roomy"]  # of the first, its first job is to say why
        for handle in (1, 2):
            made.put(handle, job("full"))
        until_idle(made)
        assert sorted(handle for handle, message in drained(came) if message is None) == [1, 2]
    finally:
        made.close(5)


def test_a_job_waits_for_its_child_and_leaves_the_free_lane_to_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    begins, goes_on, first_ends = threading.Event(), threading.Event(), threading.Event()

    class Slow(FakeChildren):
        def get(self, job: Job) -> None:
            if job.name == "slow":
                begins.set()
                assert goes_on.wait(30)
            super().get(job)

    def run(job: Job, own: FakeChildren) -> Any:
        own.get(job)
        assert job.name != "first" or first_ends.wait(30)
        yield job.name

    monkeypatch.setattr(lanes, "ChildPool", Slow)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    made = JobLine([LaneCapacity(3.0)], came)

    def find_ended(messages: int = 3) -> int:
        """The job that has begun, yielded and ended next."""
        (ended,) = {came.get(timeout=10)[0] for _ in range(messages)}
        return ended

    try:
        made.put(1, job("first"))
        assert find_ended(1) == 1
        made.expect(job("slow"))
        assert begins.wait(30)
        first_ends.set()
        assert find_ended(2) == 1
        assert [lane.starting is None for lane in made._lanes] == [True, False]
        with made._changed:  # both are there before a lane looks
            made.put(2, job("slow"))
            made.put(3, job("other"))
        assert find_ended() == 3 and len(made._lanes) == 2
        goes_on.set()
        assert find_ended() == 2 and len(made._lanes) == 2
    finally:
        first_ends.set()
        goes_on.set()
        made.close(5)


def test_a_job_does_not_wait_for_a_lane_that_starts_another_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though that one has a child of its own kind too."""
    begins, goes_on = threading.Event(), threading.Event()

    class Slow(FakeChildren):
        def get(self, job: Job) -> None:
            if job.name == "slow":
                begins.set()
                assert goes_on.wait(30)
            super().get(job)

    def run(job: Job, own: FakeChildren) -> Any:
        own.get(job)
        yield job.name

    monkeypatch.setattr(lanes, "ChildPool", Slow)
    monkeypatch.setattr(lanes, "run_supervised_job_items", run)
    came: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    made = JobLine([LaneCapacity(2.0)], came)
    try:
        made.put(1, job("quick"))
        until_idle(made)
        made.expect(job("slow"))
        assert begins.wait(30)
        made.put(2, job("quick"))
        assert [came.get(timeout=10)[0] for _ in range(6)] == [1, 1, 1, 2, 2, 2]
    finally:
        goes_on.set()
        made.close(5)
