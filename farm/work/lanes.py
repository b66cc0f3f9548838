"""Threads that run jobs one after another, each with children of its own, and the line in which jobs wait for them."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from farm.work.child_pool import ChildPool, Closed, can_share_child
from farm.work.claims import ONE, DeviceClaim
from farm.work.executor import Unplaced
from farm.work.job import Job
from farm.work.state import HERE
from farm.work.supervisor import run_supervised_job_items
from tasks import wire
from tasks.wire import Place

#: Shares are fractions such as 1/3: three of them make a whole device.
ROUNDING = 1e-9


@dataclass(eq=False)
class LaneCapacity:
    """What a job is given: some of the CPUs, one device, or several devices together (``parts``), which jobs take by
    themselves as well. room: how much is not taken, where it has no parts; env: what shows a child these devices
    alone."""

    room: float
    place: Place = HERE
    env: Mapping[str, str] = field(default_factory=dict)
    parts: tuple[LaneCapacity, ...] = ()

    @property
    def free(self) -> float:
        """How much is not taken; of several devices, of each."""
        return min(part.room for part in self.parts) if self.parts else self.room

    def take(self, claim: DeviceClaim, sign: int = 1) -> None:
        """Take what a job claims, or give it back (``sign`` -1)."""
        for part in self.parts:
            part.room -= sign * claim.fraction
        if not self.parts:
            self.room -= sign * claim.size

    def suits(self, claim: DeviceClaim) -> bool:
        """Whether it is what such a job runs on: as many devices, or CPUs, of which it may take any number."""
        return len(self.parts) == claim.devices if self.parts else self.place == HERE or not claim.is_gang

    def needs(self, claim: DeviceClaim) -> float:
        """How much of it must be free for such a job."""
        return claim.fraction if self.parts else claim.size

    def meets(self, other: LaneCapacity) -> bool:
        """Whether they have a device in common."""
        return not {id(x) for x in self.parts or (self,)}.isdisjoint(id(x) for x in other.parts or (other,))


@dataclass(frozen=True)
class _WaitingJob:
    job: Job
    claim: DeviceClaim


class JobLine:
    """Jobs that wait for a share of a device, by handle; and jobs that are expected, whose children an idle lane
    starts.

    A device has as many lanes as jobs have ever run on it, and children have been started ahead, at once: a lane is
    started when a job could begin and no lane is idle there.
    """

    def __init__(self, capacities: Sequence[LaneCapacity], came: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self._changed = threading.Condition()
        self._capacities, self._came = list(capacities), came
        self._waiting: dict[int, _WaitingJob] = {}
        self._expected: deque[_WaitingJob] = deque()
        self._closed = False
        self._lanes: list[JobLane] = []

    def join(self, devices: int, together: Callable[[range, tuple[LaneCapacity, ...]], LaneCapacity]) -> None:
        """Offer jobs so many devices at once: those that stand side by side. ``together`` makes one of them, by their
        numbers."""
        with self._changed:
            single = tuple(c for c in self._capacities if not c.parts and c.place != HERE)
            if not any(len(c.parts) == devices for c in self._capacities):
                for first in range(0, len(single) - devices + 1, devices):
                    numbers = range(first, first + devices)
                    self._capacities.append(together(numbers, single[first : first + devices]))

    def put(self, handle: int, job: Job, claim: DeviceClaim = ONE) -> None:
        """Take a job; one that may go to none of the devices comes back at once, as Unplaced."""
        with self._changed:
            one = _WaitingJob(job, claim)
            if not any(_may_start_job(one, c) for c in self._capacities):
                self._came.put((handle, Unplaced("every device here is to be avoided")))
                return
            self._waiting[handle] = one
            self._start_missing_lanes()
            self._changed.notify_all()

    def expect(self, job: Job, claim: DeviceClaim = ONE) -> None:
        """Such jobs are to come. A child that could not be started is started once more by the first of the jobs alone."""
        with self._changed:
            self._expected.append(_WaitingJob(job, claim))
            self._start_missing_lanes()
            self._changed.notify_all()

    def withdraw(self, handle: int) -> bool:
        """Take a job back; False if it does not wait here (any more)."""
        with self._changed:
            return self._waiting.pop(handle, None) is not None

    def close(self, patience_s: float) -> None:
        """End every lane and its children; wait so long for each."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for lane in self._lanes:
            lane.children.kill()
        for lane in self._lanes:
            lane.thread.join(patience_s)

    def next(self, lane: JobLane) -> tuple[int, Job] | None:
        """What a lane is to do: a job with its handle, or 0 and a job whose child is to be started. None: to end."""
        with self._changed:
            if lane.held is not None:
                lane.capacity.take(lane.held, -1)
            lane.idle, lane.held, lane.starting = True, None, None
            self._start_missing_lanes()
            self._changed.notify_all()  # what it held may be what another lane's job waits for
            while not self._closed:
                if handle := self._choice(lane):
                    found = self._waiting.pop(handle)
                    lane.idle, lane.held = False, found.claim
                    lane.capacity.take(found.claim)
                    self._changed.notify_all()  # what was left to this lane, another one may take now
                    return handle, lane.place_job(found.job)
                while self._expected and lane.capacity.suits(self._expected[0].claim):
                    job = lane.place_job(self._expected.popleft().job)
                    if not any(one.has(job) for one in self._lanes):
                        lane.starting = job
                        return 0, job
                self._changed.wait()
        return None

    def _choice(self, lane: JobLane) -> int:
        """Handle of a job whose child the lane has, else of one whose child no idle lane has, since a start may take
        seconds; 0 if there is none."""
        others = [one for one in self._lanes if one is not lane]
        last = self._find_last_startable(lane.capacity)
        here = {handle: w for handle, w in self._waiting.items() if _fits_capacity(w, lane.capacity) and handle <= last}
        own = (handle for handle, w in here.items() if lane.has(w.job))
        free = (
            h
            for h, w in here.items()
            if not any(x.is_idle_for(w.job) and x.has(w.job) and _fits_capacity(w, x.capacity) for x in others)
        )
        return next(own, 0) or next(free, 0)

    def _find_last_startable(self, capacity: LaneCapacity) -> float:
        """The handle up to which jobs may begin on a device: the oldest job that has room nowhere is left the devices
        that have most room, or smaller jobs would take every share that becomes free."""
        for handle, w in sorted(self._waiting.items()):
            where = [c for c in self._capacities if _may_start_job(w, c)]
            room = [c for c in where if _fits_capacity(w, c)]
            if where and not room:
                return handle if max(where, key=lambda c: c.free).meets(capacity) else math.inf
            if where and all(c.meets(capacity) and c is not capacity for c in room):
                return handle  # it is about to begin on devices of which this is one
        return math.inf

    def _start_missing_lanes(self) -> None:
        """Start the lanes that are missing: one for each job that could begin now and finds no idle lane. A job is
        counted on the lane that has its child, as `_choice` gives it."""
        asked = [*self._waiting.values(), *self._expected]
        idle = [lane for lane in self._lanes if lane.idle]
        free = {id(c): c.free for c in self._capacities}
        for one in asked:
            if self._closed:
                return
            where = [
                c for c in self._capacities if _may_start_job(one, c) and free[id(c)] >= c.needs(one.claim) - ROUNDING
            ]
            if not where:
                continue
            with_lane = [lane for lane in idle if lane.is_idle_for(one.job) and lane.capacity in where]
            with_lane = [lane for lane in with_lane if lane.has(one.job)] or with_lane
            chosen = max([lane.capacity for lane in with_lane] or where, key=lambda c: free[id(c)])
            free[id(chosen)] -= chosen.needs(one.claim)
            if with_lane:
                idle.remove(next(lane for lane in with_lane if lane.capacity is chosen))
            else:
                lane = JobLane(self, chosen, self._came)
                self._lanes.append(lane)
                lane.thread.start()


def _may_start_job(waiting: _WaitingJob, capacity: LaneCapacity) -> bool:
    return capacity.suits(waiting.claim) and capacity.place not in waiting.job.avoid


def _fits_capacity(waiting: _WaitingJob, capacity: LaneCapacity) -> bool:
    return _may_start_job(waiting, capacity) and capacity.free >= capacity.needs(waiting.claim) - ROUNDING


class JobLane:
    """One thread and its children, on one device. idle: it waits, or starts a child of jobs like ``starting``; held:
    what its job takes of the device."""

    def __init__(self, line: JobLine, capacity: LaneCapacity, came: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self._line, self._came, self.capacity = line, came, capacity
        self.children = ChildPool()
        self.idle = True
        self.held: DeviceClaim | None = None
        self.starting: Job | None = None
        # Children die with the thread that started them (PR_SET_PDEATHSIG), and it must not keep a process that ends.
        self.thread = threading.Thread(target=self._work, daemon=True)

    def place_job(self, job: Job) -> Job:
        """A job as it runs on the lane's device."""
        return replace(job, device=self.capacity.place.device, env={**job.env, **self.capacity.env})

    def is_idle_for(self, job: Job) -> bool:
        """Whether it waits, or starts the child of such jobs: it is idle for no other ones then."""
        return self.idle and (self.starting is None or can_share_child(self.starting, self.place_job(job)))

    def has(self, job: Job) -> bool:
        """Whether a child for such jobs is there, or about to be."""
        job = self.place_job(job)
        return self.children.has(job) or (self.starting is not None and can_share_child(self.starting, job))

    def _work(self) -> None:
        try:
            while (found := self._line.next(self)) is not None:
                handle, job = found
                if handle:
                    self._came.put((handle, wire.Begun(self.capacity.place)))
                    self._came.put((handle, self._run(handle, job)))
                else:
                    self._start(job)
        except Closed:
            pass
        finally:
            self.children.close()

    def _start(self, job: Job) -> None:
        """Start the child of jobs that are to come. Why it cannot be, the first of them says. Raises Closed."""
        try:
            self.children.get(job)
        except Closed:
            raise
        except Exception:
            self.children.forget(job)

    def _run(self, handle: int, job: Job) -> BaseException | None:
        """Do a job; what ended it, if it was no end of its own. Raises Closed."""
        try:
            for message in run_supervised_job_items(job, self.children):
                self._came.put((handle, message))
        except Closed:
            raise
        except Exception as error:  # as if the supervisor had died: tried again, then blamed
            return error
        return None
