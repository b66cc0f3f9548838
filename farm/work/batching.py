"""How much work a task is worth: sizes and orders of batches, from what was measured so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farm.work.state import Portion

#: Work of one batch: aimed at, at least, and at most (seconds; cases).
BATCH_S, BATCH_MIN_S, BATCH_MIN, BATCH_MAX = 8.0, 1.0, 200, 10_000
#: A batch is worth this many times the start of its child, where other backends have work for the slot as well.
START_SHARE = 8.0


@dataclass(frozen=True)
class Demand:
    """What a backend has to do. cases: that can be run now; slots: jobs of it that run at once; first: it has run
    nothing yet; complete: no case is to come any more."""

    cases: int
    case_ms: float
    start_s: float
    slots: int
    first: bool
    complete: bool

    @property
    def left_s(self) -> float:
        return self.cases * self.case_ms / 1e3


def order(left_s: Mapping[int, float], complete: bool) -> list[int]:
    """Backends in the order in which they get batches: as in the config; once all work is known, the long ones first, so
    that the slots end together."""
    return sorted(left_s, key=lambda b: -left_s[b]) if complete else list(left_s)


def size(demand: Demand, all_left_s: float, small: bool) -> int:
    """Cases of the backend's next batch; 0 if what it has is not worth a task yet. all_left_s: of all backends that share
    its devices; small: a device has nothing to do, and takes whatever there is."""
    if not demand.cases:
        return 0
    share_s = START_SHARE * demand.start_s
    # The first numbers come early; after that a task is worth its start, whatever a case takes.
    enough = (
        (demand.first and demand.cases >= BATCH_MIN)
        or demand.cases >= BATCH_MAX
        or demand.left_s >= max(share_s, BATCH_MIN_S)
    )
    if not (small or enough or demand.complete):
        return 0
    # A child that is slow to start should then have work for a while, as long as no slot is left without.
    worth_s = max(min(share_s, all_left_s / demand.slots), BATCH_MIN_S)
    target_s = max(min(BATCH_S, demand.left_s / (2 * demand.slots)), worth_s)
    return int(min(max(target_s * 1e3 / demand.case_ms, 1), BATCH_MAX))


def take(ready: deque[Portion], cases: int, unit: Callable[[int], str] | None) -> list[Portion]:
    """Portions for a batch of about so many cases. unit: of a group, which is not torn apart; None where that is no loss."""
    chosen: list[Portion] = []
    count = 0
    while ready and count < cases:
        chosen.append(ready.popleft())
        count += len(chosen[-1][1])
    while unit and ready and unit(ready[0][0]) == unit(chosen[-1][0]):
        chosen.append(ready.popleft())
    return chosen
