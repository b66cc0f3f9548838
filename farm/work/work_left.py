"""What a run in progress still needs: the work that is left of it, at the pace at which it has gone so far."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from farm.work.durations import GUESS, GUESSED_MS, START_S, guess_case_ms
from farm.work.run_state import RunState
from farm.work.state import JobFlight

#: How much the estimate weighs beside the pace: a share of the work, and seconds.
WEIGHT, WEIGHT_S = 0.1, 1.0
#: What it takes to find an exported model in the cache, as a share of exporting it.
CACHED = 0.05
#: Seconds from the last case to the end: the lake's parts are joined, the tables made, the report written.
END_S = 2.5


@dataclass(frozen=True)
class WorkAmount:
    """Of one backend, or of preparing or exporting, in seconds of one slot. took: so far; done: what that was estimated
    to take; left: what is still to do, longest: of the job that ends last, both as estimated; timed: earlier runs have
    timed most of it."""

    took: float
    done: float
    left: float
    longest: float
    timed: bool


class WorkLeft:
    """Seconds that a run is likely to need still. Guesses are of an idle machine: where others are at work it is that
    much slower."""

    def __init__(self) -> None:
        #: Not all that waits for a CPU does so all the time: half of it counts.
        self._slower = 1.0 + os.getloadavg()[0] / (2 * (os.cpu_count() or 1))

    def __call__(self, run: RunState) -> tuple[float, str]:
        """(seconds, how sure that is: "about" or "at least"); nothing left where all cases are done."""
        cases, done = count_expected_cases(run), [float(count.done) for count in run.run_counts.counts.values()]
        if sum(done) >= sum(cases):
            return 0.0, "about"
        left_s = max((estimate_left_s(*pool) for pool in measure_pools_left(run, self._slower)), default=0.0)
        return left_s + END_S * self._slower, "at least" if _is_duration_guessed(run) else "about"


def estimate_left_s(works: Sequence[WorkAmount], slots: int) -> float:
    """Seconds until the last job on so many slots has ended: each backend goes on at the pace at which it has gone, and
    one that has hardly begun at that of the others, if earlier runs have timed it and them."""
    timed = [work for work in works if work.timed]
    usual = _compute_pace(sum(w.took for w in timed), sum(w.done for w in timed), sum(w.left for w in timed), 1.0)
    total_s = longest_s = 0.0
    for work in works:
        pace = _compute_pace(work.took, work.done, work.left, usual if work.timed else 1.0)
        total_s += pace * work.left
        longest_s = max(longest_s, pace * work.longest)
    return max(total_s / slots, longest_s)


def _compute_pace(took: float, done: float, left: float, usual: float) -> float:
    """What work takes, as a share of what it was estimated to."""
    weight = WEIGHT * (done + left) + WEIGHT_S
    return (took + usual * weight) / (done + weight)


def measure_pools_left(run: RunState, slower: float) -> Iterator[tuple[list[WorkAmount], int]]:
    """(what is done and left of each backend of a pool of devices, its slots); preparing and exporting are done by the
    CPUs. slower: how many times as long as guessed what nobody has timed takes."""
    awaited = [b for b, spec in enumerate(run.plan.matrix.backends) if run.plan.offers[spec.name].awaited]
    for pool in run.placement.pools():
        if not pool.devices:
            continue
        # Of what is awaited nobody knows yet where it will run: most likely on CPUs.
        works = [_measure_backend_left(run, b, slower) for b in (*pool.backends, *(awaited if pool.main else ()))]
        works += [_measure_kind_left(run, kind, slower) for kind in (GUESSED_MS if pool.main else ())]
        yield works, pool.devices


def _measure_backend_left(run: RunState, b: int, slower: float) -> WorkAmount:
    counts, guess_ms = run.run_counts, guess_case_ms(run.plan.offer(b).joint) * slower
    did = counts.did[b]
    to_do = np.maximum(run.run_groups.to_come[b] + counts.to_do[b] - did, 0.0)
    start_ms = counts.start_s(b) * 1e3
    done_ms, left_ms = (float(work[1] * guess_ms + work[2]) for work in (did, to_do))
    if did[0]:
        done_ms += start_ms * max(counts.starts(b), 1)
    elif to_do[0]:
        left_ms += start_ms

    def one_ms(flight: JobFlight) -> float:
        return float(flight.work[1] * guess_ms + flight.work[2]) / len(flight.cases)

    return _add_work_in_flight(run, b, done_ms, left_ms, one_ms, start_ms * (not did[0]), bool(to_do[1] < to_do[0] / 2))


def _measure_kind_left(run: RunState, kind: str, slower: float) -> WorkAmount:
    groups, guess_ms = run.run_groups, GUESSED_MS[kind] * slower
    if kind == "export":  # whose cases earlier runs have timed, they have exported, and the cache has it
        asked = groups.to_come[:, :2].sum(axis=0) + run.run_counts.to_do[:, :2].sum(axis=0)
        guess_ms *= max(float(asked[1] / max(asked[0], 1.0)), CACHED)
    made = {"prepare": groups.groups - groups.left["prepare"], "export": groups.exported}[kind]
    left = groups.left[kind] + groups.exports_to_come * (kind == "export")
    start_ms = START_S * 1e3 * slower
    done_ms, left_ms = made * guess_ms + start_ms * bool(made), left * guess_ms + start_ms * bool(left and not made)
    return _add_work_in_flight(run, kind, done_ms, left_ms, lambda flight: guess_ms, start_ms * (not made), False)


def _add_work_in_flight(
    run: RunState,
    who: int | str,
    done_ms: float,
    left_ms: float,
    one_ms: Callable[[JobFlight], float],
    first_ms: float,
    timed: bool,
) -> WorkAmount:
    """`WorkAmount` with what its jobs under way are at: that is done in part, though nothing has come of it yet."""
    now, took_s, longest_ms = time.monotonic(), run.run_counts.slot_s[who], 0.0
    for flight in run.flights.values():
        if flight.who == who and flight.begun:
            took_s += now - flight.began
            left = len(flight.remaining)
            begins_ms = first_ms * (not flight.done)
            at_work_ms = min((now - flight.heard) * 1e3, one_ms(flight) * bool(left) + begins_ms)
            done_ms, left_ms = done_ms + at_work_ms, max(left_ms - at_work_ms, 0.0)
            longest_ms = max(longest_ms, left * one_ms(flight) + begins_ms - at_work_ms)
    return WorkAmount(took_s, done_ms / 1e3, left_ms / 1e3, longest_ms / 1e3, timed)


def count_expected_cases(run: RunState) -> list[float]:
    """Cases of every backend: those planned, and those of what is not prepared yet, at most."""
    counts = run.run_counts.counts.values()
    return [
        max(c.planned + ahead, c.done) for c, ahead in zip(counts, run.run_groups.to_come[:, 0].tolist(), strict=True)
    ]


def _is_duration_guessed(run: RunState) -> bool:
    """Whether the time of some backend's cases is a guess: no earlier run has timed them, and this one has run hardly
    any."""
    counts = run.run_counts
    untimed = run.run_groups.to_come[:, 1] + counts.to_do[:, 1] - counts.did[:, 1]
    return any(
        n > GUESS and count.done < GUESS for n, count in zip(untimed.tolist(), counts.counts.values(), strict=True)
    )
