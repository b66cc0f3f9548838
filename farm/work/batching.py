"""How much work a task is worth: sizes and orders of batches, from what was measured so far."""

from __future__ import annotations

from dataclasses import dataclass

#: Work of one batch: aimed at, at least, and at most (seconds; cases).
BATCH_S, BATCH_MIN_S, BATCH_MIN, BATCH_MAX = 8.0, 1.0, 200, 10_000
#: Cases of a batch of a backend of which nobody has timed so many yet: of one that compiles a case takes seconds, not
#: the milliseconds that are guessed, and one slot would have them all.
UNTIMED = 8
#: Tasks a second that a driver hands out at most: each costs it two or three milliseconds, Ray's part with it. Where
#: slots are very many the least batch grows with them.
TASKS = 250.0
#: A batch is worth this many times the start of its child, where other backends have work for the slot as well.
START_SHARE = 8.0


@dataclass(frozen=True)
class BatchDemand:
    """What a backend has to do. cases: that can be run now, left_s: what they take; slots: jobs of it that run at once;
    first: it has run nothing yet; complete: no case is to come any more."""

    cases: int
    left_s: float
    start_s: float
    slots: int
    first: bool
    complete: bool


def does_batch_wait(demand: BatchDemand, timed: int, started: int, under_way: int) -> bool:
    """Whether a backend's next batch waits for a child that is at work, instead of starting another: what is left would
    be done before that one had started. timed, started, under_way: its rows, children and batches so far. What nobody
    has timed is guessed, and has to be worth more."""
    if not under_way or under_way < started:
        return False
    return demand.left_s < demand.start_s * (1.0 if timed else START_SHARE)


def choose_batch_size_s(demand: BatchDemand, all_left_s: float, small: bool) -> float:
    """Seconds of work of the backend's next batch; 0 if what it has is not worth a task yet. all_left_s: of all
    backends that share its devices; small: a device has nothing to do, and takes whatever there is."""
    if not demand.cases:
        return 0
    share_s, least_s = START_SHARE * demand.start_s, demand.slots / TASKS
    if demand.complete:  # it is worth more that the slots end together: what is less than a round of them they share
        least_s = min(least_s / 2, all_left_s / demand.slots)
    least_s = max(BATCH_MIN_S, least_s)
    # The first numbers come early; after that a task is worth its start, whatever a case takes.
    enough = (
        (demand.first and demand.cases >= BATCH_MIN)
        or demand.cases >= BATCH_MAX
        or demand.left_s >= max(share_s, least_s)
    )
    if not (small or enough or demand.complete):
        return 0
    # A child that is slow to start should then have work for a while, as long as no slot is left without.
    worth_s = max(min(share_s, all_left_s / demand.slots), least_s)
    return max(min(BATCH_S, all_left_s / (2 * demand.slots)), worth_s)
