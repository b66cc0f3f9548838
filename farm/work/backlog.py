"""Cases that can be run, by backend, and those that wait for something."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from farm.fleet.health import CaseRef
from farm.work.state import Doubt, Plan, Portion, portions


class Backlog:
    """Queues of every backend. isolated: cases that run in batches of their own; doubts: those that wait for a second
    opinion. A joint backend is given an op when all its groups are prepared."""

    def __init__(self, plan: Plan, to_prepare: Iterable[int]) -> None:
        self._plan = plan
        self.ready: list[deque[Portion]] = [deque() for _ in plan.backends]
        self.isolated: list[deque[list[CaseRef]]] = [deque() for _ in plan.backends]
        self.doubts: list[deque[Doubt]] = [deque() for _ in plan.backends]
        self.cases = [0] * len(plan.backends)  # in ready
        joint = any(offer.joint for offer in plan.offers.values())
        self._unprepared = Counter(plan.unit(g) for g in to_prepare) if joint else Counter[str]()
        self._waiting: dict[tuple[str, int], list[Portion]] = {}

    def add(self, b: int, portion: Portion) -> None:
        """Cases that can be run now."""
        self.ready[b].append(portion)
        self.cases[b] += len(portion[1])

    def add_prepared(self, b: int, portion: Portion) -> None:
        """Cases of a group whose unit may not be complete yet."""
        unit = self._plan.unit(portion[0])
        if self._plan.offer(b).joint and self._unprepared[unit] > 0:
            self._waiting.setdefault((unit, b), []).append(portion)
        else:
            self.add(b, portion)

    def group_came(self, g: int) -> None:
        """A group is prepared, or cannot be: its unit may be complete with that."""
        unit = self._plan.unit(g)
        if unit in self._unprepared:
            self._unprepared[unit] -= 1
            if not self._unprepared[unit]:
                for b in range(len(self._plan.backends)):
                    for portion in self._waiting.pop((unit, b), ()):
                        self.add(b, portion)

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
            yield from portions(self.isolated[b].popleft())
        self.cases[b] = 0
