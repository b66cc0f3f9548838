"""What is known of a run while it goes on: one object, which the dispatcher's parts change and the screen reads."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from farm.fleet.health import Health
from farm.fleet.inventory import Offer
from farm.work.case_queue import CaseQueue
from farm.work.placement import Placement
from farm.work.row_writer import RowWriter
from farm.work.run_counts import RunCounts
from farm.work.run_groups import RunGroups
from farm.work.state import Before, Flights, Plan
from farm.work.supports import Supports


@dataclass(frozen=True)
class RunState:
    """The parts of a run, each of which changes as it goes on.

    flights: the jobs under way; notices: what happened to nodes and devices, for whoever watches; come: backends that were
    awaited and have answered; left_out: cells (group, backend) of which the end of the budget left cases out; started: when
    this launch began (monotonic seconds).
    """

    plan: Plan
    before: Before
    health: Health
    run_counts: RunCounts
    row_writer: RowWriter
    placement: Placement
    run_groups: RunGroups
    case_queue: CaseQueue
    supports: Supports
    flights: Flights = field(default_factory=Flights)
    notices: list[str] = field(default_factory=list)
    come: list[Offer] = field(default_factory=list)
    left_out: set[tuple[int, int]] = field(default_factory=set)
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, plan: Plan, before: Before | None = None, had: Collection[str] = ()) -> RunState:
        """The state of a run that begins. before: what is in the lake already, of a run that is resumed; had: the backends
        that were available when it began."""
        before, health, run_counts = before or Before(), Health(), RunCounts(plan)
        placement = Placement(plan, health, had)
        there = [a or g for a, g in zip(placement.available, placement.gone, strict=True)]
        run_groups = RunGroups(plan, there, before.done)
        return cls(
            plan,
            before,
            health,
            run_counts,
            RowWriter(plan, run_counts),
            placement,
            run_groups,
            CaseQueue(plan, run_groups.queues["prepare"]),
            Supports(plan, run_groups),
        )

    def missing(self) -> Iterator[tuple[str, int]]:
        """(backend, cases) planned without a row; empty after a finished run."""
        yield from self.run_counts.missing()
        if left := self.run_groups.left["prepare"]:
            yield "(not prepared)", left
