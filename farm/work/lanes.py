"""Threads that run jobs one after another, each with children of its own, and the line in which jobs wait for them."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from typing import Any

from farm.fleet import envs
from farm.work.child_pool import ChildPool, Closed, alike
from farm.work.job import Job
from farm.work.state import HERE
from farm.work.supervisor import run_job
from tasks import wire


class Line:
    """Jobs that wait for lanes, by handle; and jobs that are expected, whose children an idle lane starts."""

    def __init__(self, lanes: int, came: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, Job] = {}
        self._expected: deque[Job] = deque()
        self._closed = False
        self._lanes = [Lane(self, came) for _ in range(lanes)]
        for lane in self._lanes:
            lane.thread.start()

    def put(self, handle: int, job: Job) -> None:
        with self._changed:
            self._waiting[handle] = job
            self._changed.notify_all()

    def expect(self, job: Job) -> None:
        """Such jobs are to come."""
        with self._changed:
            self._expected.append(job)
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

    def next(self, lane: Lane) -> tuple[int, Job] | None:
        """What a lane is to do: a job with its handle, or 0 and a job whose child is to be started. None: to end."""
        with self._changed:
            lane.idle, lane.starting = True, None
            while not self._closed:
                if handle := self._choice(lane):
                    lane.idle = False
                    return handle, self._waiting.pop(handle)
                while self._expected:
                    job = self._expected.popleft()
                    if not any(one.has(job) for one in self._lanes):
                        lane.starting = job
                        return 0, job
                self._changed.wait()
        return None

    def _choice(self, lane: Lane) -> int:
        """Handle of a job whose child the lane has, else of one whose child no idle lane has, since a start may take
        seconds; 0 if there is none."""
        others = [one for one in self._lanes if one.idle and one is not lane]
        own = (handle for handle, job in self._waiting.items() if lane.has(job))
        free = (handle for handle, job in self._waiting.items() if not any(one.has(job) for one in others))
        return next(own, 0) or next(free, 0)


class Lane:
    """One thread and its children. idle: it waits, or starts a child of jobs like ``starting``."""

    def __init__(self, line: Line, came: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self._line, self._came = line, came
        self.children = ChildPool()
        self.idle = True
        self.starting: Job | None = None
        # Children die with the thread that started them (PR_SET_PDEATHSIG), and it must not keep a process that ends.
        self.thread = threading.Thread(target=self._work, daemon=True)

    def has(self, job: Job) -> bool:
        """Whether a child for such jobs is there, or about to be."""
        return self.children.has(job) or (self.starting is not None and alike(self.starting, job))

    def _work(self) -> None:
        try:
            while (found := self._line.next(self)) is not None:
                handle, job = found
                if handle:
                    self._came.put((handle, wire.Begun(HERE)))
                    self._came.put((handle, self._run(handle, job)))
                else:
                    with contextlib.suppress(envs.EnvError):  # said by the first job
                        self.children.get(job)
        except Closed:
            pass
        finally:
            self.children.close()

    def _run(self, handle: int, job: Job) -> BaseException | None:
        """Do a job; what ended it, if it was no end of its own. Raises Closed."""
        try:
            for message in run_job(job, self.children):
                self._came.put((handle, message))
        except Closed:
            raise
        except Exception as error:  # as if the supervisor had died: tried again, then blamed
            return error
        return None
