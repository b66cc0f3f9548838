"""Cases that can be run, by backend, and those that wait for something."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator

from farm.fleet.health import CaseRef
from farm.work.state import DeviceDoubt, Portion, RunPlan, group_planned_cases

#: Where cases stand by a budget: their rank; whether they are further ones of a cell whose first tells most; whether
#: the backend compiles, which comes last; their group, as a budget's groups stand in the order of their worth.
BudgetPlace = tuple[int, bool, bool, int]


class CaseQueue:
    """Queues of every backend. isolated: cases that run in batches of their own; doubts: those that wait for a second
    opinion. A joint backend is given an op when all its groups are prepared."""

    def __init__(self, plan: RunPlan, to_prepare: Iterable[int]) -> None:
        self._plan = plan
        self.ready: list[deque[Portion]] = [deque() for _ in plan.matrix.backends]
        self.isolated: list[deque[list[CaseRef]]] = [deque() for _ in plan.matrix.backends]
        self.doubts: list[deque[DeviceDoubt]] = [deque() for _ in plan.matrix.backends]
        self.cases = [0] * len(plan.matrix.backends)  # in ready
        #: How many of those an earlier run has timed, and their milliseconds then; how many ordinary cases the others
        #: are worth.
        self.timed = [0] * len(plan.matrix.backends)
        self._timed_ms = [0.0] * len(plan.matrix.backends)
        self._untimed = [0.0] * len(plan.matrix.backends)
        joint = any(offer.joint for offer in plan.offers.values())
        self._unprepared = Counter(plan.matrix.groups[g].unit for g in to_prepare) if joint else Counter[str]()
        self._waiting: dict[tuple[str, int], list[Portion]] = {}

    def add(self, b: int, portion: Portion) -> None:
        """Cases that can be run now."""
        if self._plan.order is None:
            self.ready[b].append(portion)
        else:
            g, positions = portion
            first = self._plan.order.first.item(g, b)
            for part in filter(None, (positions[:first], positions[first:])):
                self._insert_by_rank(b, (g, part))
        self._count(b, portion, 1)

    def _insert_by_rank(self, b: int, portion: Portion) -> None:
        """Before those that tell less."""
        ready, rank = self.ready[b], self.rank_of(b, portion)
        behind = sum(1 for _ in itertools.takewhile(lambda p: self.rank_of(b, p) > rank, reversed(ready)))
        ready.insert(len(ready) - behind, portion)

    def rank_of(self, b: int, portion: Portion) -> tuple[int, bool]:
        """The lower, the more some cases tell by a budget; of a cell that nobody has run its first case tells most."""
        if self._plan.order is None:
            return 0, False
        g, positions = portion
        return self._plan.order.rank.item(g, b), positions[0] >= self._plan.order.first.item(g, b)

    def _count(self, b: int, portion: Portion, sign: int) -> None:
        cases = sign * len(portion[1])
        self.cases[b] += cases
        if (ms := self._plan.case_ms(portion[0], b)) is None:
            self._untimed[b] += cases * self._plan.case_worth(portion[0], b)
        else:
            self.timed[b] += cases
            self._timed_ms[b] += cases * ms

    def place(self, b: int) -> BudgetPlace:
        """Of what comes next."""
        ready = self.ready[b]
        return (*self.rank_of(b, ready[0]), self._plan.offer(b).joint, ready[0][0]) if ready else (0, False, False, 0)

    def left_s(self, b: int, usual_ms: float) -> float:
        """Seconds of work that can be done now; usual_ms: of an ordinary case that no earlier run has timed."""
        return (self._timed_ms[b] + self._untimed[b] * usual_ms) / 1e3

    def take(self, b: int, seconds: float, usual_ms: float, most: int, torn: bool) -> list[Portion]:
        """Portions for a batch of about so much work and at most so many cases, at least one portion, of what is timed
        or of what is not. torn: portions of one unit may go to several batches."""
        chosen: list[Portion] = []
        cases, left_ms, ready = 0, seconds * 1e3, self.ready[b]
        alike = self._alike(b)
        while ready and (not chosen or (left_ms > 0 and cases < most and self._alike(b) == alike)):
            chosen.append(ready.popleft())
            g, positions = chosen[-1]
            cases += len(positions)
            ms = self._plan.case_ms(g, b)
            left_ms -= len(positions) * (usual_ms * self._plan.case_worth(g, b) if ms is None else ms)
        while not torn and ready and self._unit(ready[0]) == self._unit(chosen[-1]):
            chosen.append(ready.popleft())
        for portion in chosen:
            self._count(b, portion, -1)
        return chosen

    def _unit(self, portion: Portion) -> str:
        return self._plan.matrix.groups[portion[0]].unit

    def _alike(self, b: int) -> tuple[tuple[int, bool], bool]:
        """What the cases of one batch have in common, of those that come next."""
        ready = self.ready[b]
        return (self.rank_of(b, ready[0]), self._plan.is_timed(ready[0][0])) if ready else ((0, False), False)

    def add_prepared(self, b: int, portion: Portion) -> None:
        """Cases of a group whose unit may not be complete yet."""
        if self._unprepared and self._plan.offer(b).joint and self._unprepared[unit := self._unit(portion)] > 0:
            self._waiting.setdefault((unit, b), []).append(portion)
        else:
            self.add(b, portion)

    def group_came(self, g: int) -> None:
        """A group is prepared, or cannot be: its unit may be complete with that."""
        unit = self._plan.matrix.groups[g].unit if self._unprepared else ""
        if unit in self._unprepared:
            self._unprepared[unit] -= 1
            if not self._unprepared[unit]:
                for b in range(len(self._plan.matrix.backends)):
                    for portion in self._waiting.pop((unit, b), ()):
                        self.add(b, portion)

    def has(self, b: int) -> bool:
        """Whether anything can be run now."""
        return bool(self.cases[b] or self.isolated[b] or self.doubts[b])

    def waits(self, b: int) -> bool:
        return bool(self.cases[b] or self.isolated[b])

    def drain(self, b: int) -> Iterator[Portion]:
        """Everything of a backend that will not be run any more."""
        self.doubts[b].clear()
        for key in [k for k in self._waiting if k[1] == b]:
            yield from self._waiting.pop(key)
        while self.ready[b]:
            yield self.ready[b].popleft()
        while self.isolated[b]:
            yield from group_planned_cases(self.isolated[b].popleft())
        self.cases[b], self.timed[b], self._timed_ms[b], self._untimed[b] = 0, 0, 0.0, 0.0
