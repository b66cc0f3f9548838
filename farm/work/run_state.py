"""What is known of a run while it goes on: one object, which the dispatcher's parts change and the screen reads."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Collection, Iterator

from farm.fleet.health import DeviceHealth
from farm.fleet.inventory import BackendOffer
from farm.work.case_queue import CaseQueue
from farm.work.placement import JobPlacement
from farm.work.row_writer import RowWriter
from farm.work.run_counts import RunCounts
from farm.work.run_groups import RunGroups
from farm.work.state import BeforeRun, JobFlights, RunPlan
from farm.work.supports import KnownSupports


class RunState:
    """The parts of a run, each of which changes as it goes on.

    before: what is in the lake already, of a run that is resumed; had: the backends that were available when it began;
    started: when this launch did (monotonic seconds); slower: how many times as long as on an idle machine things take,
    where others were at work then; flights: the jobs under way.
    """

    def __init__(self, plan: RunPlan, before: BeforeRun | None = None, had: Collection[str] = ()) -> None:
        self.plan, self.before, self.started = plan, before or BeforeRun(), time.monotonic()
        # Not all that waits for a CPU does so all the time: half of it counts.
        self.slower = 1.0 + os.getloadavg()[0] / (2 * (os.cpu_count() or 1))
        self.flights, self.health, self.run_counts = JobFlights(), DeviceHealth(), RunCounts(plan)
        self.row_writer = RowWriter(plan, self.run_counts)
        self.placement = JobPlacement(plan, self.health, had)
        there = [a or g for a, g in zip(self.placement.available, self.placement.gone)]
        self.run_groups = RunGroups(plan, there, self.before.done)
        self.case_queue = CaseQueue(plan, self.run_groups.queues["prepare"])
        self.supports = KnownSupports(plan, self.run_groups)
        self.notices: list[str] = []  # what happened to nodes and devices, for whoever watches
        self.come: list[BackendOffer] = []  # of backends that were awaited
        self.left_out = Counter[tuple[int, int]]()  # cases that the end of the budget left out, by cell

    def missing(self) -> Iterator[tuple[str, int]]:
        """(backend, cases) planned without a row; empty after a finished run."""
        for name, count in self.run_counts.counts.items():
            if count.done < count.planned:
                yield name, count.planned - count.done
        if left := self.run_groups.left["prepare"]:
            yield "(not prepared)", left
