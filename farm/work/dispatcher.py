"""Keeps the slots full: prepares, exports, batches; counts every case, requeues lost ones, writes the lake."""

from __future__ import annotations

import datetime
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farm import lake as lakes
from farm.fleet.child_process import Limits
from farm.fleet.health import Case, Failure, Health, Place
from farm.fleet.inventory import Offer
from farm.fleet.probing import WORDS, Support
from farm.plan.config import Config
from farm.plan.matrix import Matrix
from farm.work.executors import Executor, Unplaced
from farm.work.supervisor import Job
from tasks import catalogs, checks
from tasks.judge.verdict import Policy
from tasks.model import Status
from tasks.model.row import Row
from tasks.prepare.cases import PreparedGroup, pack_path
from tasks.runner import sample_columns

#: Seconds between two parts of the lake, and rows that make one at once.
FLUSH_S, FLUSH_ROWS = 2.0, 50_000
#: Work of one batch: aimed at, at least, and at most (seconds; cases).
BATCH_S, BATCH_MIN_S, BATCH_MIN, BATCH_MAX = 8.0, 1.0, 200, 10_000
#: A batch is worth this many times the start of its child, where other backends have work for the slot as well; seconds
#: of a start that nobody has measured.
START_SHARE, START_S = 8.0, 0.5
#: Groups of one preparing job: as many as take about this many seconds, within these bounds; of an exporting job.
PREPARE_S, PREPARE_MIN, PREPARE_MAX, EXPORT_GROUPS = 2.0, 64, 1024, 16
#: Losses of a supervisor after which the case in flight is recorded as their cause.
LOSSES = 3
#: Seconds without a word, beyond the deadline, after which a supervisor is given up.
SILENCE_S = 120.0

#: Most cases of one second opinion.
OPINION_CASES = 4
#: Where a job runs that names no node: in this process or a child of it.
HERE = Place("local", "")


@dataclass
class Flight:
    """A job under way. cases: of a batch, by number in it; groups: of a preparing or exporting job.

    pool, load: which slots it takes, and how much of a device; among: ids of the nodes it may go to; place: where it
    runs; moved: it was called back, and its cases count no loss; gone: why its backend's device is not there any more;
    opinion: of a second opinion, the device in question and, by number, what became of its cases there.
    """

    job: Job
    backend: int = -1
    cases: list[tuple[int, int]] = field(default_factory=list)  # (group, place)
    groups: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    heard: float = 0.0
    first: float = 0.0  # when its first result came
    begun: bool = False  # a queued job may be silent for as long as others hold the slots
    began: float = 0.0  # when; when it was handed over, as long as it has not
    patience_s: float = 0.0
    pool: str = ""
    load: float = 1.0
    among: tuple[str, ...] = ()
    place: Place = HERE
    moved: bool = False
    gone: str = ""
    opinion: tuple[Place, list[tuple[str, str]]] | None = None


@dataclass(frozen=True)
class Pool:
    """Devices that some backends share, because the same nodes offer them. devices: how many; main: all nodes' CPUs."""

    name: str
    backends: tuple[int, ...]
    devices: int
    main: bool = False


@dataclass
class Count:
    """Progress of one backend. planned grows as groups are prepared (an op may have fewer samples than asked)."""

    planned: int = 0
    done: int = 0
    busy_ms: float = 0.0
    status: dict[str, int] = field(default_factory=dict)


class Dispatcher:
    """Runs a matrix to its end. One use: construct, `run`, read `counts`.

    ``done`` maps (group, backend) to the sample indices that are already in the lake (a resumed run); ``had``: the
    backends that were available when the run began.
    """

    def __init__(
        self,
        matrix: Matrix,
        config: Config,
        executor: Executor,
        offers: dict[str, Offer],
        lake: lakes.Lake,
        run_id: str,
        cache: Path,
        policy: Policy,
        done: dict[tuple[int, int], set[int]] | None = None,
        had: Collection[str] = (),
        progress: Callable[[Dispatcher], None] = lambda d: None,
        fresh: bool = False,
    ) -> None:
        self.matrix, self.config, self.executor, self.offers = matrix, config, executor, offers
        self.lake, self.run_id, self.cache, self.progress = lake, run_id, cache, progress
        self.done = done or {}
        self.specs = matrix.backends
        self.settings = {b.name: b for b in config.backends}
        self.available = [offers[s.name].available for s in self.specs]
        self.counts = {s.name: Count() for s in self.specs}
        self.started = time.monotonic()
        self.keys: dict[int, str] = {}
        self.samples: dict[int, list[int]] = {}  # group → indices of its prepared samples, in order
        self.forms: dict[int, str] = {}
        self.parcels: dict[int, dict[str, Any]] = {}  # group → files a node may lack, as Ray references
        self.losses: dict[tuple[int, int, int], int] = {}  # by group, backend (−1: none), place
        self.flights: dict[int, Flight] = {}
        # A backend that was there when the run began and is gone now: its cases become rows that say so.
        self.gone = [not there and s.name in (had or ()) for s, there in zip(self.specs, self.available)]
        wanted = matrix.wanted * np.array([a or g for a, g in zip(self.available, self.gone)], dtype=np.int32)
        self.wanted = wanted
        self.unprepared: deque[int] = deque(np.flatnonzero(wanted.any(axis=1)).tolist())
        self.left_to_prepare = len(self.unprepared)
        self.unexported: deque[int] = deque()
        self.alone: dict[str, deque[int]] = {"prepare": deque(), "export": deque()}  # suspects of a loss
        self.left_to_export = 0
        self.ready: list[deque[tuple[int, list[int]]]] = [deque() for _ in self.specs]
        self.isolated: list[deque[tuple[int, int]]] = [deque() for _ in self.specs]
        self.queued = [0] * len(self.specs)  # cases in ready
        self.started_batches = [0] * len(self.specs)
        self.group_ms = PREPARE_S * 1e3 / PREPARE_MIN  # time to prepare a group: little once it is in the cache
        self._export_for = self._exporting_backends()
        self._exporting_all = {b for many in self._export_for.values() for b in many}
        self._label_left: dict[str, int] = {}
        if any(o.joint for o in offers.values()):
            for g in self.unprepared:
                label = matrix.groups[g].unit
                self._label_left[label] = self._label_left.get(label, 0) + 1
        self._waiting: dict[tuple[str, int], list[tuple[int, list[int]]]] = {}
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._flushed = time.monotonic()
        self.policy = policy
        self.health = Health()
        self.notices: list[str] = []  # what happened to nodes and devices, for whoever watches
        self.spent: dict[str, dict[str, float]] = {}  # backend or kind of job → CPU seconds, starts, … of its children
        self.again: dict[Case, Failure] = {}  # failed on a device that is sick: to be run elsewhere
        self._doubts: list[deque[tuple[Case, Place, str, str]]] = [deque() for _ in self.specs]
        self._held: dict[int, int | None] = {}  # job that holds a device nobody is to be given → until which one begins
        self._told: set[tuple[int, int]] = set()  # (group, backend) that have rows because the backend is gone
        self._vanished: dict[int, float] = {}  # backend without a node → since when
        self._stuck = 0.0
        self._pools: list[Pool] = []
        self._of_nodes: dict[int, list[str]] = {}  # per backend, what `_nodes` found
        self.support = self._supports(fresh)

    def _supports(self, fresh: bool) -> dict[int, Support]:
        """What backends have said before; of one host each, since the nodes of several may have other versions."""
        found = {}
        for b, spec in enumerate(self.specs):
            offer = self.offers[spec.name]
            if offer.available and set(offer.nodes) == {socket.gethostname()}:
                found[b] = Support.load(spec, offer.info, self.cache)
                if fresh:
                    found[b].forget()
        return found

    def _content(self, g: int, b: int) -> str:
        """Content key of what a backend is given of a group: of the exported form, where it takes one."""
        form = self.forms.get(g) if b in self._export_for.get(self.matrix.groups[g].catalog, ()) else None
        return f"{self.matrix.groups[g].check}/{Path(form).stem if form else self.keys[g]}"

    def _exporting_backends(self) -> dict[str, list[int]]:
        """Per catalog with exported forms, the backends that take none of its own."""
        found: dict[str, list[int]] = {}
        for name in {g.catalog for g in self.matrix.groups}:
            catalog = catalogs.get(name)
            for b, spec in enumerate(self.specs):
                forms = self.offers[spec.name].forms
                if not set(forms) & set(catalog.forms) and set(forms) & set(catalog.exports):
                    found.setdefault(name, []).append(b)
        return found

    # --- the loop ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every planned case has its row. Raises OSError when the lake cannot be written to.

        Whatever ends it, rows that have arrived are flushed first if they can be.
        """
        try:
            while True:
                self._fill()
                if not self.flights and not self._waits():
                    break
                for handle, message in self.executor.poll(0.2):
                    self._handle(handle, message)
                if self.flights:
                    self._stuck = 0.0
                else:
                    time.sleep(0.1)  # for a node to come
                self._give_up_silent()
                self._look_at_nodes()
                self._flush_if_due()
                self.progress(self)
        finally:
            self.flush()
            self.progress(self)
            for support in self.support.values():
                support.save()

    def _waits(self) -> bool:
        """Whether there is work for which a node may still come. Raises OSError when there is none for preparing."""
        if any(self.queued[b] or self.isolated[b] for b in self._vanished):
            return True
        if not self.left_to_prepare and not self.left_to_export:
            return False
        now = time.monotonic()
        self._stuck = self._stuck or now
        if now - self._stuck > self.config.node_wait_s:
            raise OSError("no node with a CPU is left to prepare cases on")
        return self.executor.slots(None, 1.0) == 0

    def _handle(self, handle: int, message: Any) -> None:
        flight = self.flights.get(handle)
        if flight is None:  # it held a device, and was called back
            if not isinstance(message, dict):
                self._held.pop(handle, None)
            return
        flight.heard = time.monotonic()
        if isinstance(message, dict):
            self._heard(handle, flight, message)
            return
        del self.flights[handle]
        self._release(handle)
        # A stream can end early without an error: what was not heard of is done again.
        left = [n for n in range(len(flight.cases) or len(flight.groups)) if n not in flight.done]
        if flight.gone:
            self._place_gone(flight, left)
        elif left and (flight.moved or isinstance(message, Unplaced)):
            self._requeue(flight, left)
        elif left and flight.opinion is None:
            self._lost(flight, left, str(message) if message is not None else "its stream ended early")

    def _heard(self, handle: int, flight: Flight, message: dict[str, Any]) -> None:
        if "begun" in message:
            flight.begun, flight.began, flight.place = True, time.monotonic(), Place(message["node"], message["device"])
            self._release(handle)
        elif "avoided" in message:
            self._avoided(handle, flight, Place(message["node"], message["device"]))
        elif "spent" in message:
            who = self.specs[flight.backend].name if flight.backend >= 0 else f"({flight.job.kind})"
            total = self.spent.setdefault(who, {})
            for name, value in message["spent"].items():
                total[name] = total.get(name, 0.0) + value
        elif "gone" in message:
            flight.gone = message["gone"]
        elif "stop" in message:
            raise OSError(f"the cache of prepared cases: {message['stop']}")
        elif flight.opinion is not None:
            self._opinions_arrived(flight, message)
        elif flight.job.kind == "batch":
            self._rows_arrived(flight, message)
        else:
            self._group_arrived(flight, message)

    def _give_up_silent(self) -> None:
        now = time.monotonic()
        for handle, flight in self.flights.items():
            if flight.begun and now - flight.heard > flight.patience_s:
                flight.heard = now
                self.executor.cancel(handle)

    # --- filling the slots ------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Submit until every pool has about two jobs per device under way."""
        loads: dict[str, float] = {}
        for flying in self.flights.values():
            loads[flying.pool] = loads.get(flying.pool, 0.0) + flying.load
        self._pools = self._pools or self._make_pools()
        for pool in self._pools:
            load = loads.get(pool.name, 0.0)
            while load < 2 * pool.devices - 1e-9:
                # A device that has nothing to do takes whatever there is.
                flight = self._from_main(pool) if pool.main else self._batch_for(pool, small=load < pool.devices)
                if flight is None:
                    break
                flight.pool = pool.name
                if self._submit(flight):
                    load += flight.load

    def _from_main(self, pool: Pool) -> Flight | None:
        """The next job of the CPUs, which also prepare and export."""
        # Preparing has half of the places, so that judged numbers come early; the rest if nothing else is ready.
        preparing = sum(1 for f in self.flights.values() if f.job.kind == "prepare")
        flight = self._preparing() if preparing < pool.devices else None
        # The quick backends before the exporter, the compilers last: most of the matrix is there early.
        flight = flight or self._batch_for(pool, joint=False) or self._exporting()
        return flight or self._batch_for(pool) or self._preparing() or self._batch_for(pool, small=True)

    def _make_pools(self) -> list[Pool]:
        """Backends by the devices they share: those of one kind on the same nodes."""
        shared: dict[tuple[str, tuple[str, ...]], list[int]] = {}
        cpus = tuple(sorted(n["id"] for n in self.executor.nodes if n["resources"].get("CPU")))
        for b, spec in enumerate(self.specs):
            offer = self.offers[spec.name]
            if self.available[b] and (nodes := tuple(sorted(self._nodes(b)))):
                kind = "CPU" if offer.resource == "CPU" else f"{offer.resource}/{offer.device_vendor}"
                shared.setdefault((kind, nodes), []).append(b)
        main = Pool("CPU", tuple(shared.pop(("CPU", cpus), ())), self.executor.slots(None, 1.0), main=True)
        return [
            main,
            *(
                Pool(f"{kind} on {' '.join(nodes)}", tuple(bs), self._devices(bs[0]))
                for (kind, nodes), bs in shared.items()
            ),
        ]

    def _scopes(self, b: int) -> tuple[str, ...]:
        """What a device may be sick for, as far as a backend is concerned (`farm.fleet.health`)."""
        offer = self.offers[self.specs[b].name]
        return (offer.name, offer.device_vendor) if offer.device_vendor else (offer.name,)

    def _healthy(self, b: int, node: str) -> int:
        """How many devices of a node a backend may be given."""
        offer = self.offers[self.specs[b].name]
        if node not in offer.places:
            return 0
        sick = self.health.sick_on(self._scopes(b), node)
        return 0 if "" in sick else max(offer.devices[node] - len(sick), 0)

    def _nodes(self, b: int) -> list[str]:
        """Ids of the nodes that a backend may go to."""
        if b not in self._of_nodes:
            self._of_nodes[b] = [n for n in self.offers[self.specs[b].name].node_ids if self._healthy(b, n)]
        return self._of_nodes[b]

    def _changed(self) -> None:
        """Nodes or devices came, went or fell sick: what is known of who can go where holds no more."""
        self._pools, self._of_nodes = [], {}

    def _devices(self, b: int) -> int:
        return sum(self._healthy(b, n) for n in self._nodes(b))

    def _submit(self, flight: Flight) -> bool:
        """Hand a job to the executor; False if no node is left that may do it."""
        offer: Offer | None = None
        fraction, avoid = 1.0, set[Place]()
        among = [n["id"] for n in self.executor.nodes if n["resources"].get("CPU")]
        if flight.backend >= 0:
            b = flight.backend
            offer, fraction = self.offers[self.specs[b].name], self.settings[self.specs[b].name].fraction
            among = self._nodes(b)
            if flight.opinion is not None:
                elsewhere = self._elsewhere(b, flight.opinion[0])
                if elsewhere is None:
                    return False
                among, avoid = elsewhere
            avoid |= {p for scope in self._scopes(b) for p in self.health.sick.get(scope, ()) if p.node in among}
        flight.job = replace(flight.job, avoid=tuple((p.node, p.device) for p in avoid))
        flight.load = fraction
        flight.heard = flight.began = time.monotonic()
        steps = len(flight.cases) if offer is not None and offer.joint else 1
        for g in flight.groups:  # a group is one message, whatever number of samples
            steps = max(steps, self.matrix.groups[g].samples)
        flight.patience_s = SILENCE_S + self.config.deadline_s * (steps + 2)
        handle = self.executor.submit(flight.job, offer, fraction, among)
        flight.among = tuple(self.executor.nodes_of(handle)) or tuple(among)
        self.flights[handle] = flight
        return True

    def _limits(self, b: int) -> Limits:
        memory = self.settings[self.specs[b].name].memory_gib if b >= 0 else 6.0
        return Limits(self.config.deadline_s, int(memory * (1 << 30)))

    def _queue(self, kind: str) -> deque[int]:
        return self.unprepared if kind == "prepare" else self.unexported

    def _next_groups(self, kind: str, most: int) -> list[int]:
        """Groups of the next job of a kind: the suspect of a loss alone, else up to ``most`` of the queue."""
        if self.alone[kind]:
            return [self.alone[kind].popleft()]
        queue = self._queue(kind)
        return [queue.popleft() for _ in range(min(len(queue), most))]

    def _preparing(self) -> Flight | None:
        groups = self._next_groups("prepare", max(PREPARE_MIN, min(PREPARE_MAX, int(PREPARE_S * 1e3 / self.group_ms))))
        if not groups:
            return None
        items = [{"group": asdict(self.matrix.groups[g])} for g in groups]
        job = Job(
            "prepare", f"prepare {self._label(groups[0])} +{len(groups) - 1}", items, str(self.cache), self._limits(-1)
        )
        return Flight(job, groups=groups)

    def _exporting(self) -> Flight | None:
        groups = self._next_groups("export", EXPORT_GROUPS)
        if not groups:
            return None
        items = []
        for g in groups:
            most = max(int(self.wanted[g, b]) for b in self._export_for[self.matrix.groups[g].catalog])
            items.append(
                {"pack": str(pack_path(self.cache, self.keys[g])), "form": "onnx", "count": most, **self._parcels(g)}
            )
        job = Job(
            "export", f"export {self._label(groups[0])} +{len(groups) - 1}", items, str(self.cache), self._limits(-1)
        )
        return Flight(job, groups=groups)

    def _batch_for(self, pool: Pool, small: bool = False, joint: bool = True) -> Flight | None:
        """A batch of the first backend of the pool that has one worth a task (any, if ``small``).

        ``joint`` False leaves out the backends that compile.
        """
        left_s = {b: self.queued[b] * self.case_ms(b) / 1e3 for b in pool.backends if self.available[b]}
        order = list(left_s)
        if not self.left_to_prepare and not self.left_to_export:
            order.sort(key=lambda b: -left_s[b])  # all is known: the long ones first, so that the slots end together
        for b in order:
            spec = self.specs[b]
            if self.offers[spec.name].joint and not joint:
                continue
            if self._doubts[b]:
                return self._second_opinion(b)
            if self.isolated[b]:
                g, place = self.isolated[b].popleft()
                return self._batch(b, [(g, [place])])
            if not self.queued[b]:
                continue
            case_ms, slots = self.case_ms(b), pool.devices * int(1 / self.settings[spec.name].fraction)
            # A child that is slow to start should then have work for a while, as long as no slot is left without.
            worth_s = max(min(START_SHARE * self.start_s(b), sum(left_s.values()) / slots), BATCH_MIN_S)
            complete = not self.left_to_prepare and not (self.left_to_export and b in self._exporting_all)
            # The first numbers come early; after that a task is worth its start, whatever a case takes.
            first = self.queued[b] >= BATCH_MIN and not self.started_batches[b]
            enough = (
                first or self.queued[b] >= BATCH_MAX or left_s[b] >= max(START_SHARE * self.start_s(b), BATCH_MIN_S)
            )
            if not (small or enough or complete):
                continue
            target_s = max(min(BATCH_S, left_s[b] / (2 * slots)), worth_s)
            size = int(min(max(target_s * 1e3 / case_ms, 1), BATCH_MAX))
            chosen: list[tuple[int, list[int]]] = []
            count = 0
            whole = self.offers[spec.name].joint
            while self.ready[b] and count < size:
                chosen.append(self.ready[b].popleft())
                count += len(chosen[-1][1])
            while whole and self.ready[b] and self._label(self.ready[b][0][0]) == self._label(chosen[-1][0]):
                chosen.append(self.ready[b].popleft())
            self.queued[b] -= sum(len(p) for _, p in chosen)
            return self._batch(b, chosen)
        return None

    def start_s(self, b: int) -> float:
        """Seconds that the start of a backend's child takes, as measured in this run or by the probe."""
        spent = self.spent.get(self.specs[b].name, {})
        if spent.get("starts"):
            return spent["start_s"] / spent["starts"]
        return float(self.offers[self.specs[b].name].info.get("start_s") or START_S)

    def _label(self, g: int) -> str:
        return self.matrix.groups[g].unit

    def case_ms(self, b: int) -> float:
        """Milliseconds a case of the backend takes, from those that are done."""
        count = self.counts[self.specs[b].name]
        guess, weight = (800.0 if self.offers[self.specs[b].name].joint else 10.0), 20
        return max((count.busy_ms + guess * weight) / (count.done + weight), 0.05)

    def _batch(self, b: int, chosen: list[tuple[int, list[int]]]) -> Flight:
        spec = self.specs[b]
        self.started_batches[b] += 1
        items, cases = [], []
        for g, places in chosen:
            item: dict[str, Any] = {
                "pack": str(pack_path(self.cache, self.keys[g])),
                "places": places,
                "group": asdict(self.matrix.groups[g]),
                **self._parcels(g),
            }
            if b in self._export_for.get(self.matrix.groups[g].catalog, ()):
                item["form"] = self.forms.get(g)
            if b in self.support:
                content, indices = self._content(g, b), self.samples[g]
                known = {str(p): words for p in places if (words := self.support[b].known(content, indices[p]))}
                item |= {"known": known} if known else {}
            if attempts := {str(p): n for p in places if (n := self._attempts(g, b, p))}:
                item["attempts"] = attempts
            items.append(item)
            cases += [(g, p) for p in places]
        name = f"{self._label(chosen[0][0])} +{len(chosen) - 1}/{spec.name}"
        job = Job(
            "batch",
            name,
            items,
            str(self.cache),
            self._limits(b),
            spec.to_json(),
            asdict(self.policy),
            self.run_id,
            info=self.offers[spec.name].info,
        )
        return Flight(job, b, cases)

    def _attempts(self, g: int, b: int, place: int) -> int:
        """How often a case was started before, that is known of."""
        failure = self.again.get(Case(g, b, place))
        return self.losses.get((g, b, place), 0) + (failure.attempts if failure else 0)

    def _parcels(self, g: int) -> dict[str, Any]:
        if self.executor.ship:  # a node may have joined that lacks what the others share
            for path in (pack_path(self.cache, self.keys[g]), Path(self.forms.get(g, ""))):
                if str(path) not in self.parcels.get(g, {}) and path.is_file():
                    self.parcels.setdefault(g, {})[str(path)] = self.executor.parcel(path)
        return {"parcels": self.parcels[g]} if g in self.parcels else {}

    def _prepared(self, g: int) -> PreparedGroup:
        path = pack_path(self.cache, self.keys[g])
        if not path.exists() and str(path) in self.parcels.get(g, {}):
            self.executor.fetch(self.parcels[g][str(path)], path)
        return PreparedGroup(path, self.matrix.groups[g].check)

    # --- what comes back --------------------------------------------------------------------------------------

    def _group_arrived(self, flight: Flight, message: dict[str, Any]) -> None:
        number = message["number"]
        if number in flight.done:
            return
        flight.done.add(number)
        now = time.monotonic()
        flight.first = flight.first or now
        if flight.job.kind == "prepare" and len(flight.done) == len(flight.groups) > 1:
            self.group_ms = max((now - flight.first) * 1e3 / (len(flight.groups) - 1), 0.1)
        g = flight.groups[number]
        if "payload" in message:
            self.parcels.setdefault(g, {})[message["path"]] = message["payload"]
        if flight.job.kind == "export":
            self.left_to_export -= 1
            if "path" in message:
                self.forms[g] = message["path"]
            for b in self._export_for[self.matrix.groups[g].catalog]:
                self._enqueue(g, b)
            return
        self.left_to_prepare -= 1
        group = self.matrix.groups[g]
        if "failed" in message:
            self._unprepared_rows(g, message["failed"])
        else:
            self.keys[g], self.samples[g] = message["key"], message["samples"]
            for b, spec in enumerate(self.specs):
                total = min(int(self.wanted[g, b]), len(self.samples[g]))  # 0 where the backend is unavailable
                self.counts[spec.name].planned += total
                self.counts[spec.name].done += total - len(self._places(g, b))
            for b, gone in enumerate(self.gone):
                if gone:
                    self._gone_rows(g, b)
            exporting = (
                self._export_for.get(group.catalog, []) if checks.samples_of(group.check) == checks.FORWARD else []
            )
            needs = [b for b in exporting if self.available[b] and self._places(g, b)]
            for b in range(len(self.specs)):
                if self.available[b] and b not in exporting:
                    self._enqueue(g, b)
            if needs:
                self.left_to_export += 1
                self.unexported.append(g)
        if group.unit in self._label_left:
            self._label_left[group.unit] -= 1
            if not self._label_left[group.unit]:
                for b in range(len(self.specs)):
                    for entry in self._waiting.pop((group.unit, b), ()):
                        self._make_ready(b, entry)

    def _places(self, g: int, b: int) -> list[int]:
        """Places of the group's samples that the backend has still to run."""
        known = self.done.get((g, b), set())
        indices = self.samples[g][: int(self.wanted[g, b])]
        return [p for p, index in enumerate(indices) if index not in known]

    def _enqueue(self, g: int, b: int) -> None:
        if not self.available[b]:
            if self.gone[b]:
                self._gone_rows(g, b)
            return
        places = self._places(g, b)
        if not places:
            return
        if self.offers[self.specs[b].name].joint and self._label_left.get(self._label(g)):
            self._waiting.setdefault((self._label(g), b), []).append((g, places))
        else:
            self._make_ready(b, (g, places))

    def _make_ready(self, b: int, entry: tuple[int, list[int]]) -> None:
        self.ready[b].append(entry)
        self.queued[b] += len(entry[1])

    def _rows_arrived(self, flight: Flight, message: dict[str, Any]) -> None:
        if flight.moved and self.health.is_sick(self._scopes(flight.backend), flight.place):
            return  # on their way when the device was quarantined: these cases are run again elsewhere
        new = [k for k, number in enumerate(message["done"]) if number not in flight.done]
        flight.done.update(message["done"])
        batches = lakes.from_stream(message["rows"])
        b, place = flight.backend, flight.place
        for k in new if self.again else ():
            g, p = flight.cases[message["done"][k]]
            self._replaces(Case(g, b, p))
        self.health.done(b, place, len(new))
        if message["failed"] and self._elsewhere(b, place) is not None:
            for number, status, attempts, error in message["failed"]:
                g, p = flight.cases[number]
                if self.health.failed(Case(g, b, p), place, Failure(status, attempts)):
                    self._doubts[b].append((Case(g, b, p), place, status, error))
        if len(new) < len(message["done"]):
            batches = [pa.RecordBatch.from_struct_array(b.to_struct_array().take(pa.array(new))) for b in batches]
        self._keep(batches, self.specs[flight.backend].name, message["status"], message["busy_ms"])
        self._learn(flight, [message["done"][k] for k in new], batches)

    def _replaces(self, case: Case) -> None:
        """A row is about to come; if it takes the place of one of a sick device, that one counts no more."""
        if earlier := self.again.pop(case, None):
            count = self.counts[self.specs[case.backend].name]
            count.done -= 1
            count.status[earlier.status] -= 1

    def _learn(self, flight: Flight, numbers: list[int], batches: list[pa.RecordBatch]) -> None:
        """Remember what the backend said that it does not implement."""
        support = self.support.get(flight.backend)
        if support is None:
            return
        rows = pa.Table.from_batches(batches).select(["status", *WORDS]).append_column("number", pa.array(numbers))
        for row in rows.filter(pc.equal(rows["status"], Status.UNSUPPORTED.value)).to_pylist():
            g, place = flight.cases[row["number"]]
            support.learn(self._content(g, flight.backend), self.samples[g][place], row, self.run_id)

    def _keep(self, batches: list[pa.RecordBatch], backend: str, status: dict[str, int], busy_ms: float = 0.0) -> None:
        rows = sum(b.num_rows for b in batches)
        self._batches += batches
        self._rows += rows
        count = self.counts[backend]
        count.done += rows
        count.busy_ms += busy_ms
        for name, number in status.items():
            count.status[name] = count.status.get(name, 0) + number
        if self._rows >= FLUSH_ROWS:
            self.flush()

    def _unprepared_rows(self, g: int, failed: dict[str, str]) -> None:
        """One row per backend of a group that could not be prepared at all."""
        group = self.matrix.groups[g]
        row = {
            "check": group.check,
            "distribution": group.distribution,
            "catalog": group.catalog,
            "op": group.op,
            "variant": group.variant,
            "dtype": group.dtype,
            "sample": -1,
            "seed": group.seed,
            "digest": "",
            "shapes": "",
            **failed,
        }
        self.samples[g] = [-1]
        for b in range(len(self.specs)):
            if self.wanted[g, b]:
                self.counts[self.specs[b].name].planned += 1
                if self._places(g, b):
                    self._own_row(b, row)
                else:
                    self.counts[self.specs[b].name].done += 1

    def _gone_rows(self, g: int, b: int) -> None:
        """Rows of a group's cases on a backend that went away after the run had begun; once."""
        if (g, b) not in self._told:
            self._told.add((g, b))
            self._unavailable(b, g, self._places(g, b))

    def _unavailable(self, b: int, g: int, places: Iterable[int]) -> None:
        prepared: PreparedGroup | None = None
        for place in places:
            prepared = prepared or self._prepared(g)
            attempts = self._attempts(g, b, place)
            self._replaces(Case(g, b, place))
            self._own_row(
                b,
                sample_columns(prepared.samples[place])
                | {
                    "status": Status.UNAVAILABLE.value,
                    "stage": "",
                    "error_type": "",
                    "error": f"available when the run began, gone since: {self.offers[self.specs[b].name].reason}",
                    "attempts": attempts + 1,
                },
            )

    def _own_row(self, b: int, columns: dict[str, Any]) -> None:
        name = self.specs[b].name
        origin = lakes.Origin.of(self.run_id, name, self.offers[name].info)
        own = {"policy": self.policy.id, "started_at": time.time()}
        self._keep([lakes.to_batch([Row.of(own | columns)], origin)], name, {columns["status"]: 1})

    def _lost(self, flight: Flight, left: list[int], why: str) -> None:
        """A supervisor is gone: nobody is blamed, its work is queued again; a repeated suspect runs alone."""
        if flight.job.kind != "batch":
            queue = self._queue(flight.job.kind)
            for number in left:
                g = flight.groups[number]
                key = (g, -1, 0 if flight.job.kind == "prepare" else 1)
                self.losses[key] = self.losses.get(key, 0) + 1
                if self.losses[key] < LOSSES - 1:
                    queue.appendleft(g)
                elif self.losses[key] < LOSSES or len(flight.groups) > 1:
                    self.alone[flight.job.kind].append(g)  # which of them it was, single jobs tell
                else:
                    story = f"in work, alone, when its supervisor died for the {self.losses[key]}th time: {why}"
                    failure = {"status": "invalid", "stage": flight.job.kind, "error_type": "lost", "error": story}
                    self._group_arrived(flight, {"number": number, "failed": failure})
            return
        b = flight.backend
        for number in left:
            g, place = flight.cases[number]
            key = (g, b, place)
            self.losses[key] = self.losses.get(key, 0) + 1
            if self.losses[key] < LOSSES - 1:
                self._make_ready(b, (g, [place]))
            elif self.losses[key] < LOSSES or len(flight.cases) > 1:
                self.isolated[b].append((g, place))
            else:
                story = f"in flight, alone, when its supervisor died for the {self.losses[key]}th time: {why}"
                columns = sample_columns(self._prepared(g).samples[place])
                attempts = self._attempts(*key)
                self._replaces(Case(g, b, place))
                self._own_row(
                    b,
                    columns
                    | {
                        "status": Status.CRASH.value,
                        "kind": "supervisor lost",
                        "stage": "run",
                        "error_type": "",
                        "error": story,
                        "attempts": attempts,
                    },
                )

    # --- nodes and devices that come, go and fall sick ---------------------------------------------------------

    def _look_at_nodes(self) -> None:
        changes = self.executor.changes()
        for node in changes.gone:
            hosts = {h for o in self.offers.values() for i, h in zip(o.node_ids, o.nodes) if i == node}
            self.notices.append(f"node {', '.join(hosts) or node} has left")
            for offer in self.offers.values():
                offer.dismiss(node)
        for node, answers in changes.come.items():
            found = next((n for n in self.executor.nodes if n["id"] == node), None)
            if found is not None:
                new = [
                    o.name
                    for o in self.offers.values()
                    if not o.admit(found, answers.get(o.name, {"unavailable": "it was not asked"}))
                ]
                for b in [
                    b for b in self.support if self.specs[b].name in new and found["host"] != socket.gethostname()
                ]:
                    self.support.pop(b).save()  # it may have other versions than those that have answered
                self.notices.append(f"node {found['host']} has joined, with {', '.join(new) or 'none of the backends'}")
        if changes.gone or changes.come:
            self._changed()
            here = {n["id"] for n in self.executor.nodes}
            for handle, flight in self.flights.items():
                if not flight.begun and not flight.moved and flight.among and not here & set(flight.among):
                    self._call_back(handle, flight)  # no node is left that it could begin on
        now = time.monotonic()
        for b, available in enumerate(self.available):
            if not available or self._nodes(b):
                self._vanished.pop(b, None)
            elif now - self._vanished.setdefault(b, now) >= self.config.node_wait_s:
                del self._vanished[b]
                self._bury(
                    b, f"the last node that offered it has left, and none came within {self.config.node_wait_s:g} s"
                )

    def _call_back(self, handle: int, flight: Flight) -> None:
        flight.moved = True
        self.executor.cancel(handle)

    def _requeue(self, flight: Flight, left: list[int]) -> None:
        """Queue a job's work again, which nobody is to blame for."""
        if flight.opinion is not None:
            return
        if flight.job.kind != "batch":
            self._queue(flight.job.kind).extendleft(flight.groups[n] for n in left)
            return
        b = flight.backend
        by_group: dict[int, list[int]] = {}
        for number in left:
            g, place = flight.cases[number]
            by_group.setdefault(g, []).append(place)
        for g, places in by_group.items():
            if self.available[b]:
                self._make_ready(b, (g, places))
            else:
                self._unavailable(b, g, places)

    def _elsewhere(self, b: int, place: Place, alike: bool = True) -> tuple[list[str], set[Place]] | None:
        """(ids of nodes, devices to avoid there) where a backend can run that is not ``place``; None if nowhere.

        alike: only on devices of the same name: what one model gets wrong, another may well pass.
        """
        models = self.offers[self.specs[b].name].models
        others = [
            n for n in self._nodes(b) if n != place.node and not (alike and models.get(n) != models.get(place.node))
        ]
        if others:
            return others, set()
        return ([place.node], {place}) if place.device and self._healthy(b, place.node) > 1 else None

    def _second_opinion(self, b: int) -> Flight | None:
        """A batch of cases that failed on one device, for another one."""
        place = self._doubts[b][0][1]
        asked: list[tuple[Case, Place, str, str]] = []
        while self._doubts[b] and self._doubts[b][0][1] == place and len(asked) < OPINION_CASES:
            asked.append(self._doubts[b].popleft())
        flight = self._batch(b, [(case.group, [case.place]) for case, *_ in asked])
        flight.opinion = (place, [(status, error) for _, _, status, error in asked])
        return flight

    def _opinions_arrived(self, flight: Flight, message: dict[str, Any]) -> None:
        assert flight.opinion is not None
        (place, earlier), b = flight.opinion, flight.backend
        flight.done.update(message["done"])
        rows = pa.Table.from_batches(lakes.from_stream(message["rows"])).to_pylist()
        for number, row in zip(message["done"], rows):
            status, error = earlier[number]
            evidence = {
                "case_id": row["case_id"],
                "backend": self.specs[b].name,
                "status": status,
                "error": error,
                "elsewhere": row["status"],
                "on": " ".join(filter(None, [row["node"], row["device_ids"]])),
            }
            case = Case(flight.cases[number][0], b, flight.cases[number][1])
            if self.health.is_sick(self._scopes(b), place) or row["status"] in ("unavailable", "unsupported"):
                continue
            if self.health.opinion(case, place, flight.place, row["status"] in ("pass", "imprecise"), evidence):
                offer = self.offers[self.specs[b].name]
                self._quarantine(offer.device_vendor or offer.name, place, "it fails what other devices pass")

    def _place_gone(self, flight: Flight, left: list[int]) -> None:
        """A new child of a backend did not find its device: elsewhere it may be there."""
        b, place = flight.backend, flight.place
        if (
            self.available[b]
            and self.health.gone(b, place, flight.began)
            and not self.health.is_sick(self._scopes(b), place)
        ):
            if self._elsewhere(b, place, alike=False) is None:
                self._bury(b, flight.gone)
            else:
                self._quarantine(self.specs[b].name, place, f"a new process does not find it: {flight.gone}")
        self._requeue(flight, left)

    def _quarantine(self, scope: str, place: Place, why: str) -> None:
        """Give a device no more jobs; what it failed is run again elsewhere, and that row counts."""
        covered = {b: s.name for b, s in enumerate(self.specs) if scope in self._scopes(b)}
        host = next((n["host"] for n in self.executor.nodes if n["id"] == place.node), place.node)
        record = {
            "scope": scope,
            "node": host,
            "node_id": place.node,
            "device": place.device,
            "why": why,
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        }
        failures = self.health.quarantine(scope, place, covered, record)
        for case, failure in failures.items():
            self.again[case] = failure
            if self.available[case.backend]:
                self._make_ready(case.backend, (case.group, [case.place]))
            else:
                self._unavailable(case.backend, case.group, [case.place])
        self._changed()
        for handle, flight in self.flights.items():
            there = (
                place in (flight.place, Place(flight.place.node, "")) if flight.begun else place.node in flight.among
            )
            if flight.backend in covered and there and not flight.moved:
                self._call_back(handle, flight)
        what = f"device {place.device} of {host}" if place.device else host
        self.notices.append(
            f"quarantined: {what} for {', '.join(covered.values())}: {why}; {len(failures)} of its failures are run again elsewhere"
        )
        for b in covered:
            if self.available[b] and not self._nodes(b):
                self._bury(b, f"every device of it is quarantined, the last one, {what}, because {why}")

    def _avoided(self, handle: int, flight: Flight, place: Place) -> None:
        """A job came to a device it was to avoid, and holds it: as long as it does, nobody is sent there."""
        del self.flights[handle]
        self._release(handle)
        if flight.opinion is None:
            self._held[handle] = None
            self._requeue(flight, list(range(len(flight.cases))))
        elif not any(until is not None for until in self._held.values()) and self._submit(flight):
            self._held[handle] = next(reversed(self.flights))  # one at a time: two would wait for each other's device
        else:
            self._held[handle] = handle
            self._release(handle)

    def _release(self, handle: int) -> None:
        """End the jobs that held a device until this one had begun."""
        for holding, until in list(self._held.items()):
            if until == handle:
                self._held[holding] = None
                self.executor.cancel(holding)

    def _bury(self, b: int, why: str) -> None:
        """A backend is gone for good: what is left of its cells becomes rows that say so."""
        name = self.specs[b].name
        self.available[b], self.gone[b], self.offers[name].reason = False, True, why
        self.notices.append(f"{name} is not available any more: {why}")
        self._changed()
        for handle, flight in self.flights.items():
            if flight.backend == b and not flight.moved:
                self._call_back(handle, flight)
        self._doubts[b].clear()
        for key in [k for k in self._waiting if k[1] == b]:
            for entry in self._waiting.pop(key):
                self._make_ready(b, entry)
        while self.ready[b]:
            self._unavailable(b, *self.ready[b].popleft())
        while self.isolated[b]:
            g, place = self.isolated[b].popleft()
            self._unavailable(b, g, [place])
        self.queued[b] = 0

    # --- the lake ---------------------------------------------------------------------------------------------

    def _flush_if_due(self) -> None:
        if self._rows and time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Make the rows so far durable. Raises OSError; the rows are then kept for another try."""
        if self._batches:
            lakes.append(self.lake, self.run_id, self._batches)
            self._batches, self._rows = [], 0
        self._flushed = time.monotonic()

    def missing(self) -> Iterator[tuple[str, int]]:
        """(backend, cases) planned without a row; empty after a finished run."""
        for name, count in self.counts.items():
            if count.done < count.planned:
                yield name, count.planned - count.done
        if self.left_to_prepare:
            yield "(not prepared)", self.left_to_prepare
