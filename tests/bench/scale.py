"""A run of many slots on a simulated clock: the driver's own code is real and its CPU time counts; supervisors, Ray and waiting are not."""

from __future__ import annotations

import contextlib
import heapq
import json
import pickle
import re
import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from farm import lake
from farm.fleet import inventory
from farm.fleet.inventory import BackendOffer
from farm.lake import Origin
from farm.lake.origin_columns import SCHEMA
from farm.lake.store import list_lake_parts as parts_of
from farm.lake.store import make_row_batch
from farm.plan.config import BackendConfig, CatalogConfig, Config
from farm.plan.matrix import Matrix
from farm.plan.request import RunRequest
from farm.work.claims import DeviceClaim
from farm.work.dispatcher import Dispatcher
from farm.work.executor import Executor
from farm.work.job import Job
from farm.work.run_state import RunState
from farm.work.state import RunPlan
from farm.work.supervisor import CHUNK_ROWS, CHUNK_S
from tasks import wire
from tasks.judge import policy_files
from tasks.model import BackendInfo, Group, RuntimeInfo, Status
from tasks.model.row import Row
from tests.bench.record import Result
from tests.bench.running import Size, environment, run

#: Until a task of Ray's begins.
LATENCY_S = 5e-3
#: Bytes of a task and of an item, as a driver of 1,000 slots has them; tasks, and items of each, by which Ray is
#: measured.
TASK_BYTES, ITEM_BYTES, TASKS, ITEMS = 60_000, 300_000, 100, 11
#: Of a simulated group's preparing.
PREPARE_S = 1e-3
#: Calls by which the price of asking for CPU time is measured.
CALLS = 2000


@dataclass(frozen=True)
class RayCosts:
    """What Ray takes of the driver's thread, in seconds: for a task, its begin and its end with it, for an item of a
    stream, and for each stream that is waited for. As measured with Ray 2.60 on two busy cores, where nobody
    measures."""

    task_s: float = 0.7e-3
    item_s: float = 0.3e-3
    wait_s: float = 2e-6


def ray_costs() -> RayCosts:
    """Measured on a Ray of this machine, in a loop like the driver's."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    made = ray.remote(max_retries=0, num_returns="streaming")(_items)
    _tasks_s(ray, made, 1)
    one, many = _tasks_s(ray, made, 1), _tasks_s(ray, made, ITEMS)
    ray.shutdown()
    item_s = max(many[0] - one[0], 0.0) / (ITEMS - 1)
    return RayCosts(max(one[0] - item_s, 0.0), item_s, many[1])


def _items(job: bytes, count: int) -> Iterator[bytes]:
    for _ in range(count):
        yield bytes(ITEM_BYTES)


def _tasks_s(ray: Any, made: Any, items: int) -> tuple[float, float]:
    """(CPU seconds of this thread for a task with its items, for each stream of a wait)."""
    begin, waited_s, waits = time.thread_time(), 0.0, 0
    running = {made.options(name="op +9/backend").remote(bytes(TASK_BYTES), items): None for _ in range(TASKS)}
    while running:
        at = time.thread_time()
        ready, _ = ray.wait(list(running), num_returns=len(running), timeout=0, fetch_local=False)
        if not ready:
            ready, _ = ray.wait(list(running), num_returns=1, timeout=0.2, fetch_local=False)
        waited_s, waits = waited_s + time.thread_time() - at, waits + len(running)
        for stream in ready:
            try:
                ray.get(next(stream))
            except StopIteration:
                del running[stream]
    return (time.thread_time() - begin - waited_s) / TASKS, waited_s / waits


class Clock:
    """Seconds of a run: the CPU time of this thread, what it waited for, and none of what is simulated. Asking for CPU
    time is a call of the system's, tens of microseconds where that is itself simulated: it is asked for once a message,
    and not counted."""

    def __init__(self) -> None:
        begin = time.thread_time()
        for _ in range(CALLS):
            time.thread_time()
        self._call_s = (time.thread_time() - begin) / CALLS
        self._aside, self._now = time.thread_time() - 1000.0, 1000.0
        self.spent_s = 0.0  # CPU time of the driver

    def now(self) -> float:
        return self._now

    def look(self) -> None:
        """Take in what the driver has done since the last look."""
        self._aside += self._call_s
        now = time.thread_time() - self._aside
        self.spent_s += max(now - self._now, 0.0)
        self._now = max(now, self._now)

    def jump(self, seconds: float) -> None:
        self._aside -= seconds
        self._now += seconds

    @contextlib.contextmanager
    def simulated(self) -> Iterator[None]:
        self.look()
        try:
            yield
        finally:
            self._aside = time.thread_time() - self._now


@dataclass
class _Told:
    """Messages of a job that are on their way: when they come, and what makes them."""

    handle: int
    job: Job
    first: int = 0
    cases: int = 0


class Slots(Executor):
    """An `Executor` of so many slots; case_s: seconds of the cases, drawn from in turn."""

    def __init__(self, clock: Clock, slots: int, case_s: np.ndarray, ray: RayCosts) -> None:
        self.clock, self.case_s, self.ray, self.running = clock, case_s, ray, 0
        self.nodes = [inventory.describe_this_node(slots)]
        self.free = [0.0] * slots
        self.coming: list[tuple[float, int, _Told | None, int]] = []  # when, order, messages or an end, of which job
        self.busy_s = self.last = self.first = 0.0
        self.bytes = self.tasks = self.items = self.most_bytes = 0
        self._next = self._order = self._drawn = 0
        self._rows: dict[str, pa.RecordBatch] = {}

    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        return len(self.free)

    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        with self.clock.simulated():
            self._next += 1
            self.tasks += 1
            sent = pickle.dumps(job)
            self.bytes, self.most_bytes = self.bytes + len(sent), max(self.most_bytes, len(sent))
            self._begin(job, max(heapq.heappop(self.free), self.clock.now() + self.ray.task_s + LATENCY_S))
        self.clock.jump(self.ray.task_s)
        self.running += 1
        return self._next

    def _begin(self, job: Job, at: float) -> None:
        """A slot does a job from a moment on."""
        count = len(job.prepare) or sum(len(item.positions) for item in job.run)
        if job.prepare:
            took = np.full(count, PREPARE_S)
        else:
            took = self.case_s[np.arange(self._drawn, self._drawn + count) % len(self.case_s)]
            self._drawn += count
        self.first = self.first or at
        self._put(at, _Told(self._next, job, -1))
        ends, every_s = at + np.cumsum(took), job.chunk_s or CHUNK_S
        places: list[int] = np.searchsorted(ends, np.arange(at + every_s, ends[-1], every_s)).tolist() if count else []
        begin = 0
        for end in sorted({*(p + 1 for p in places if p < count), count}):
            for low in range(begin, end, CHUNK_ROWS):
                self._put(
                    float(ends[min(low + CHUNK_ROWS, end) - 1]), _Told(self._next, job, low, min(CHUNK_ROWS, end - low))
                )
            begin = end
        done = float(ends[-1]) if count else at
        self._put(done, None)
        self.busy_s += done - at
        self.last = max(self.last, done)
        heapq.heappush(self.free, done)

    def _put(self, at: float, told: _Told | None) -> None:
        self._order += 1
        heapq.heappush(self.coming, (at, self._order, told, self._next))

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        self.clock.look()
        self.clock.jump(self.running * self.ray.wait_s)
        now = self.clock.now()
        if not self.coming or self.coming[0][0] > now + timeout_s:
            self.clock.jump(timeout_s)
            return
        self.clock.jump(max(self.coming[0][0] - now, 0.0))
        while self.coming and self.coming[0][0] <= self.clock.now():
            _, _, told, handle = heapq.heappop(self.coming)
            if told is not None and told.first >= 0:
                self.clock.jump(self.ray.item_s)
                self.items += 1
            if told is None:
                self.running -= 1
                yield handle, None
                self.clock.look()
                continue
            with self.clock.simulated():
                sent = pickle.dumps(self._messages(told))
                self.bytes += len(sent)
            for message in pickle.loads(sent):  # as Ray's driver does
                yield handle, message
            self.clock.look()

    def _messages(self, told: _Told) -> list[Any]:
        job = told.job
        if told.first < 0:
            return [wire.Begun(wire.Place("local", ""))]
        numbers = range(told.first, told.first + told.cases)
        if job.prepare:
            return [wire.Prepared(n, "0" * 40, "", tuple(range(job.prepare[n].group.samples))) for n in numbers]
        cases = [(item.group, position) for item in job.run for position in item.positions][told.first :][: told.cases]
        stream = self._batch(job, cases).serialize().to_pybytes()
        return [wire.Rows(stream, tuple(numbers), {"pass": told.cases}, (0.5 * told.cases, 4.5 * told.cases))]

    def _batch(self, job: Job, cases: Sequence[tuple[Group, int]]) -> pa.RecordBatch:
        """Rows as they are, but for figures that are drawn."""
        assert job.backend is not None
        count, name = len(cases), job.backend.name
        if name not in self._rows:
            measured = {
                "numel": 1,
                "status": Status.PASS.value,
                "weak": False,
                "policy": "none",
                "started_at": time.time(),
            }
            one = Row.of({"op": "", "dtype": "", "sample": 0, "catalog": "load", **measured})
            self._rows[name] = make_row_batch(
                [one], Origin.of(job.run_id, name, BackendInfo(vendor="simulated"), "simulated")
            )
        drawn = np.random.default_rng(self._order)
        made = {
            "case_id": pa.array([group.case_id(position) for group, position in cases]),
            "op": pa.array([group.op for group, _ in cases]),
            "dtype": pa.array([group.dtype for group, _ in cases]),
            "sample": pa.array([position for _, position in cases], SCHEMA.field("sample").type),
        }
        made |= {
            k: pa.array(drawn.random(count))
            for k in ("error_units", "max_diff", "max_rel", "rmse", "run_ms", "build_ms")
        }
        template = self._rows[name]
        columns = [made.get(f.name, None) if f.name in made else pa.repeat(template[f.name][0], count) for f in SCHEMA]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def cancel(self, handle: int) -> None:
        raise AssertionError("nothing is silent here")

    def close(self) -> None:
        pass


def simulate(
    folder: Path, slots: int, groups: int, backends: int, samples: int, case_s: np.ndarray, ray: RayCosts
) -> dict[str, float]:
    """A run of groups × backends × samples cases on so many slots; figures by name."""
    names = [BackendConfig(name=f"null-{i:02d}", like="null-cpu") for i in range(backends)]
    config = Config(catalogs=[CatalogConfig(name="load", samples=samples)], backends=names)
    specs = [b.spec() for b in config.backends]
    all_groups = [Group(f"load:op{g:06d}", "", "float32", samples) for g in range(groups)]
    matrix = Matrix(all_groups, specs, np.full((groups, backends), samples, np.int32))
    clock = Clock()
    cluster = Slots(clock, slots, case_s, ray)
    answers: dict[str, inventory.Answers] = {
        cluster.nodes[0]["id"]: {s.name: BackendInfo(RuntimeInfo("", "d"), start_s=0.1) for s in specs}
    }
    request = RunRequest(
        config, policy_files.load_policy("error_units"), lake.open_lake(folder / "lake"), folder / "cache"
    )
    offers = inventory.join_node_offers(specs, cluster.nodes, answers)
    real = time.monotonic
    time.monotonic = clock.now  # type: ignore[assignment]
    try:
        started = clock.now()
        state = RunState(RunPlan(request, matrix, cluster, offers, "r"))
        Dispatcher(state).run()
    finally:
        time.monotonic = real
    assert not list(state.missing())
    parts = parts_of(request.lake, "r")
    took_s = cluster.last - started
    return {
        "cases": float(groups * backends * samples),
        "slots": float(slots),
        "busy %": 100 * cluster.busy_s / (slots * took_s),
        "run s": took_s,
        "ideal s": cluster.busy_s / slots,
        "driver CPU s": clock.spent_s,
        "peak GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20),
        "tasks": float(cluster.tasks),
        "items": float(cluster.items),
        "object store MiB": cluster.bytes / (1 << 20),
        "largest task MiB": cluster.most_bytes / (1 << 20),
        "files": float(len(parts)),
        "lake MiB": sum(Path(p).stat().st_size for p in parts) / (1 << 20),
        "rows": float(lake.read_table(request.lake, "r", ["run_id"]).num_rows),
    }


def scale(folder: Path, size: Size) -> Result:
    """Runs of as many cases of 5 ms on as many slots as the size says, each in a process of its own."""
    figures: dict[str, float] = {}
    ray = ray_costs() if size["measured"] else RayCosts()
    figures |= {f"Ray, {name}": value for name, value in vars(ray).items()}
    said = [
        f"Ray takes {ray.task_s * 1e3:.2f} ms of the driver for a task, {ray.item_s * 1e3:.2f} ms for an item, "
        f"{ray.wait_s * 1e6:.1f} µs for a stream that is waited for"
    ]
    for slots, groups in size["slots"].items():
        numbers = map(str, (slots, groups, size["backends"], size["samples"], size["case_ms"]))
        place = folder / str(slots)
        command = [sys.executable, "-m", "tests.bench.scale", str(place), *numbers, *map(str, vars(ray).values())]
        _, _, out = run(command, environment(folder / "cache"))
        one = json.loads(re.findall(r"^MEASURED (.*)$", out, re.M)[-1])
        figures |= {f"{slots} slots, {name}": value for name, value in one.items()}
        said.append(
            f"{one['cases']:.0f} cases on {slots} slots: {one['busy %']:.1f} % busy, {one['driver CPU s']:.0f} s of the driver's CPU, "
            f"{one['peak GiB']:.2f} GiB, {one['files']:.0f} files, {one['object store MiB']:.0f} MiB through the object store"
        )
    return Result(figures, f"{'; '.join(said)} (bounds: 97 % of 64 slots, 95 % of 1,000, 2 GiB)")


if __name__ == "__main__":
    where, *given = sys.argv[1:]
    slots, groups, backends, samples = map(int, given[:4])
    Path(where).mkdir(parents=True, exist_ok=True)
    costs = RayCosts(*map(float, given[5:]))
    found = simulate(Path(where), slots, groups, backends, samples, np.array([float(given[4]) / 1e3]), costs)
    print("MEASURED " + json.dumps(found))
