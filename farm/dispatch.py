"""Keeps the slots full: prepares, exports, batches; counts every case, requeues lost ones, writes the lake."""
from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farm import lake as lakes
from farm.child_process import Limits
from farm.config import Config
from farm.executors import Executor
from farm.inventory import Offer
from farm.matrix import Matrix
from farm.probing import WORDS, Support
from farm.supervisor import Job, run_columns
from tasks import catalogs
from tasks.model import Status
from tasks.prepare import PreparedGroup, pack_path
from tasks.runner import sample_columns
from tasks.verdict import Policy

#: Seconds between two parts of the lake, and rows that make one at once.
FLUSH_S, FLUSH_ROWS = 2.0, 50_000
#: Work of one batch: aimed at, at least, and at most (seconds; cases).
BATCH_S, BATCH_MIN_S, BATCH_MIN, BATCH_MAX = 8.0, 1.0, 200, 10_000
#: Groups of one preparing job: as many as take about this many seconds, within these bounds; of an exporting job.
PREPARE_S, PREPARE_MIN, PREPARE_MAX, EXPORT_GROUPS = 2.0, 64, 1024, 16
#: Losses of a supervisor after which the case in flight is recorded as their cause.
LOSSES = 3
#: Seconds without a word, beyond the deadline, after which a supervisor is given up.
SILENCE_S = 120.0

#: A case by its places in the plan: (group, backend, place in the prepared group).
Key = tuple[int, int, int]


@dataclass
class Flight:
    """A job under way. cases: of a batch, by number in it; groups: of a preparing or exporting job."""

    job: Job
    backend: int = -1
    cases: list[tuple[int, int]] = field(default_factory=list)  # (group, place)
    groups: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    heard: float = 0.0
    first: float = 0.0  # when its first result came
    begun: bool = False  # a queued job may be silent for as long as others hold the slots
    patience_s: float = 0.0


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
        self, matrix: Matrix, config: Config, executor: Executor, offers: dict[str, Offer], lake: lakes.Lake,
        run_id: str, cache: Path, policy: Policy, done: dict[tuple[int, int], set[int]] | None = None,
        had: Collection[str] = (),
        progress: Callable[[Dispatcher], None] = lambda d: None, fresh: bool = False,
    ) -> None:  # fmt: skip
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
        self.losses: dict[Key, int] = {}
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
        self.support = self._supports(fresh)

    def _supports(self, fresh: bool) -> dict[int, Support]:
        """What backends have said before; of one host each, since the nodes of several may have other versions."""
        found = {}
        for b, spec in enumerate(self.specs):
            offer = self.offers[spec.name]
            if offer.available and set(offer.nodes) == {socket.gethostname()}:
                found[b] = Support.load(spec, offer.info, self.cache)
                if fresh:
                    found[b].cases.clear()
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
                if not self.flights:
                    break
                for handle, message in self.executor.poll(0.2):
                    self._handle(handle, message)
                self._give_up_silent()
                self._flush_if_due()
                self.progress(self)
        finally:
            self.flush()
            self.progress(self)
            for support in self.support.values():
                support.save()

    def _handle(self, handle: int, message: Any) -> None:
        flight = self.flights[handle]
        flight.heard = time.monotonic()
        if isinstance(message, dict):
            if "begun" in message:
                flight.begun = True
                return
            if "stop" in message:
                raise OSError(f"the cache of prepared cases: {message['stop']}")
            if flight.job.kind == "batch":
                self._rows_arrived(flight, message)
            else:
                self._group_arrived(flight, message)
            return
        del self.flights[handle]
        # A stream can end early without an error: what was not heard of is done again.
        left = [n for n in range(len(flight.cases) or len(flight.groups)) if n not in flight.done]
        if left:
            self._lost(flight, left, str(message) if message is not None else "its stream ended early")

    def _give_up_silent(self) -> None:
        now = time.monotonic()
        for handle, flight in self.flights.items():
            if flight.begun and now - flight.heard > flight.patience_s:
                flight.heard = now
                self.executor.cancel(handle)

    # --- filling the slots ------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Submit until every pool has about two jobs per slot under way."""
        cpu = self.executor.slots(None, 1.0)
        pools: dict[str, int] = {}
        for flying in self.flights.values():
            pool = self._pool(flying.backend)
            pools[pool] = pools.get(pool, 0) + 1
        preparing = sum(1 for f in self.flights.values() if f.job.kind == "prepare")
        while pools.get("CPU", 0) < 2 * cpu:
            # Preparing has half of the places, so that judged numbers come early; the rest if nothing else is ready.
            flight: Flight | None = None
            if preparing < cpu:
                flight = self._preparing()
                preparing += flight is not None
            # The quick backends before the exporter, the compilers last: most of the matrix is there early.
            flight = flight or self._batch_for("CPU", cpu, joint=False) or self._exporting()
            flight = flight or self._batch_for("CPU", cpu) or self._preparing() or self._batch_for("CPU", cpu, small=True)
            if flight is None:
                break
            self._submit(flight)
            pools["CPU"] = pools.get("CPU", 0) + 1
        for b, spec in enumerate(self.specs):
            pool = self._pool(b)
            if pool == "CPU" or not self.available[b]:
                continue
            slots = self.executor.slots(self.offers[spec.name], self.settings[spec.name].fraction)
            while pools.get(pool, 0) < 2 * slots:
                batch = self._batch_for(pool, slots, small=True)
                if batch is None:
                    break
                self._submit(batch)
                pools[pool] = pools.get(pool, 0) + 1

    def _pool(self, b: int) -> str:
        """Which slots a backend's jobs take: "CPU", or a device's resource and vendor."""
        if b < 0:
            return "CPU"
        offer = self.offers[self.specs[b].name]
        return "CPU" if offer.resource == "CPU" else f"{offer.resource}/{offer.device_vendor}"

    def _submit(self, flight: Flight) -> None:
        offer = self.offers[self.specs[flight.backend].name] if flight.backend >= 0 else None
        fraction = self.settings[self.specs[flight.backend].name].fraction if flight.backend >= 0 else 1.0
        handle = self.executor.submit(flight.job, offer, fraction)
        flight.heard = time.monotonic()
        steps = len(flight.cases) if offer is not None and offer.joint else 1
        for g in flight.groups:  # a group is one message, whatever number of samples
            steps = max(steps, self.matrix.groups[g].samples)
        flight.patience_s = SILENCE_S + self.config.deadline_s * (steps + 2)
        self.flights[handle] = flight

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
        job = Job("prepare", f"prepare {self._label(groups[0])} +{len(groups) - 1}", items, str(self.cache), self._limits(-1))
        return Flight(job, groups=groups)

    def _exporting(self) -> Flight | None:
        groups = self._next_groups("export", EXPORT_GROUPS)
        if not groups:
            return None
        items = []
        for g in groups:
            most = max(int(self.wanted[g, b]) for b in self._export_for[self.matrix.groups[g].catalog])
            items.append({"pack": str(pack_path(self.cache, self.keys[g])), "form": "onnx", "count": most, **self._parcels(g)})
        job = Job("export", f"export {self._label(groups[0])} +{len(groups) - 1}", items, str(self.cache), self._limits(-1))
        return Flight(job, groups=groups)

    def _batch_for(self, pool: str, slots: int, small: bool = False, joint: bool = True) -> Flight | None:
        """A batch of the first backend of the pool that has one worth a task (any, if ``small``).

        ``joint`` False leaves out the backends that compile.
        """
        for b, spec in enumerate(self.specs):
            if not self.available[b] or self._pool(b) != pool or (self.offers[spec.name].joint and not joint):
                continue
            if self.isolated[b]:
                g, place = self.isolated[b].popleft()
                return self._batch(b, [(g, [place])])
            case_ms = self.case_ms(b)
            complete = not self.left_to_prepare and not (self.left_to_export and b in self._exporting_all)
            # The first numbers come early; after that a task is worth a second of work, whatever a case takes.
            first = self.queued[b] >= BATCH_MIN and not self.started_batches[b]
            enough = first or self.queued[b] >= BATCH_MAX or self.queued[b] * case_ms >= BATCH_MIN_S * 1e3
            if not self.queued[b] or not (small or enough or complete):
                continue
            left_s = self.queued[b] * case_ms / 1e3
            target_s = max(min(BATCH_S, left_s / (2 * slots)), BATCH_MIN_S)
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
                "pack": str(pack_path(self.cache, self.keys[g])), "places": places, "group": asdict(self.matrix.groups[g]),
                **self._parcels(g),
            }  # fmt: skip
            if b in self._export_for.get(self.matrix.groups[g].catalog, ()):
                item["form"] = self.forms.get(g)
            if b in self.support:
                content, indices = self._content(g, b), self.samples[g]
                known = {str(p): words for p in places if (words := self.support[b].known(content, indices[p]))}
                item |= {"known": known} if known else {}
            if losses := {str(p): self.losses[g, b, p] for p in places if (g, b, p) in self.losses}:
                item["attempts"] = losses
            items.append(item)
            cases += [(g, p) for p in places]
        name = f"{self._label(chosen[0][0])} +{len(chosen) - 1}/{spec.name}"
        job = Job(
            "batch", name, items, str(self.cache), self._limits(b), spec.to_json(), asdict(self.policy), self.run_id,
            info=self.offers[spec.name].info,
        )  # fmt: skip
        return Flight(job, b, cases)

    def _parcels(self, g: int) -> dict[str, Any]:
        return {"parcels": self.parcels[g]} if g in self.parcels else {}

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
            exporting = self._export_for.get(group.catalog, []) if group.computed == "forward" else []
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
        new = [k for k, number in enumerate(message["done"]) if number not in flight.done]
        flight.done.update(message["done"])
        with pa.ipc.open_stream(message["rows"]) as reader:
            batches = list(reader)
        if len(new) < len(message["done"]):
            batches = [pa.RecordBatch.from_struct_array(b.to_struct_array().take(pa.array(new))) for b in batches]
        self._keep(batches, self.specs[flight.backend].name, message["status"], message["busy_ms"])
        self._learn(flight, [message["done"][k] for k in new], batches)

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
        row = {"check": group.check, "distribution": group.distribution, "catalog": group.catalog, "op": group.op, "variant": group.variant, "dtype": group.dtype, "sample": -1,
               "seed": group.seed, "digest": "", "shapes": "", "attempts": 1, "policy": self.policy.id,
               "started_at": time.time(), "kind": "", **failed}  # fmt: skip
        self.samples[g] = [-1]
        for b in range(len(self.specs)):
            if self.wanted[g, b]:
                self.counts[self.specs[b].name].planned += 1
                if self._places(g, b):
                    self._own_row(b, row)
                else:
                    self.counts[self.specs[b].name].done += 1

    def _gone_rows(self, g: int, b: int) -> None:
        """Rows of a group's cases on a backend that went away after the run had begun."""
        places = self._places(g, b)
        if not places:
            return
        prepared = PreparedGroup(pack_path(self.cache, self.keys[g]), self.matrix.groups[g].check)
        for place in places:
            self._own_row(b, sample_columns(prepared.samples[place]) | {
                "status": Status.UNAVAILABLE.value, "kind": "", "stage": "", "error_type": "", "policy": self.policy.id,
                "error": f"available when the run began, gone since: {self.offers[self.specs[b].name].reason}",
                "attempts": 1, "started_at": time.time(),
            })  # fmt: skip

    def _own_row(self, b: int, row: dict[str, Any]) -> None:
        spec = self.specs[b]
        constant = run_columns(self.run_id, spec.to_json(), self.offers[spec.name].info)
        self._keep([lakes.to_batch([row], constant)], spec.name, {row["status"]: 1})

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
                columns = sample_columns(PreparedGroup(pack_path(self.cache, self.keys[g]), self.matrix.groups[g].check).samples[place])
                self._own_row(b, columns | {
                    "status": Status.CRASH.value, "kind": "supervisor lost", "stage": "run", "error_type": "", "error": story,
                    "attempts": self.losses[key], "policy": self.policy.id, "started_at": time.time(),
                })  # fmt: skip

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


