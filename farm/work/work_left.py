"""What a run in progress still needs: the work that is left of it, at the pace at which it has gone so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from farm.work.durations import GUESS, GUESSED_MS, START_S, guess_case_ms
from farm.work.run_state import RunState
from farm.work.state import JobFlight

#: How much the estimate weighs beside the pace: a share of the work that earlier runs have timed, and seconds.
WEIGHT, WEIGHT_S = 0.1, 1.0
#: What it takes to find an exported model in the cache, as a share of exporting it.
CACHED = 0.05
#: Seconds from the last case to the end: the lake's parts are joined, the tables made, the report written.
END_S = 2.5


@dataclass(frozen=True)
class WorkAmount:
    """Of one kind of work of one backend, or of preparing or exporting, in seconds of one slot. took: so far; done: what
    that was estimated to take; left: what is still to do, longest: of the job that ends last, both as estimated; timed:
    earlier runs have timed most of it."""

    took: float
    done: float
    left: float
    longest: float
    timed: bool


def estimate_run_left(run: RunState) -> tuple[float, str]:
    """(seconds that a run is likely to need still, how sure that is: "about" or "at least"); nothing left where all
    cases are done."""
    if sum(count.done for count in run.run_counts.counts.values()) >= sum(count_expected_cases(run)):
        return 0.0, "about"
    left_s = max((estimate_left_s(*pool) for pool in measure_work_of_pools(run)), default=0.0)
    return left_s + END_S * run.slower, "at least" if _is_duration_guessed(run) else "about"


def estimate_left_s(works: Sequence[WorkAmount], slots: int) -> float:
    """Seconds until the last job on so many slots has ended: each kind of work of a backend goes on at the pace at which
    it has gone, and one that has hardly begun at that of the others, if earlier runs have timed it and them."""
    timed = [work for work in works if work.timed]
    usual = _compute_pace(
        sum(w.took for w in timed), sum(w.done for w in timed), sum(w.left for w in timed), 1.0, WEIGHT
    )
    total_s = longest_s = 0.0
    for work in works:
        # A guess gives way as soon as there is a second of work to go by.
        assumed, weight = (usual, WEIGHT) if work.timed else (1.0, 0.0)
        pace = _compute_pace(work.took, work.done, work.left, assumed, weight)
        total_s += pace * work.left
        longest_s = max(longest_s, pace * work.longest)
    return max(total_s / slots, longest_s)


def _compute_pace(took: float, done: float, left: float, assumed: float, weight: float) -> float:
    """What work takes, as a share of what it was estimated to. assumed: of work of which nothing is done; weight: of
    that, beside what is done, as a share of all."""
    weighs = weight * (done + left) + WEIGHT_S
    return (took + assumed * weighs) / (done + weighs)


def measure_work_of_pools(run: RunState) -> Iterator[tuple[list[WorkAmount], int]]:
    """(what is done and left of each backend of a pool of devices and each kind of work, its slots); preparing and
    exporting are done by the CPUs."""
    awaited = [b for b, spec in enumerate(run.plan.matrix.backends) if run.plan.offers[spec.name].awaited]
    kinds = range(len(run.plan.kinds))
    for pool in run.placement.pools():
        if not pool.devices:
            continue
        # Of what is awaited nobody knows yet where it will run: most likely on CPUs.
        backends = (*pool.backends, *(awaited if pool.main else ()))
        works = [_measure_backend_left(run, b, kind) for b in backends for kind in kinds]
        if pool.main:
            works += [_measure_preparing_left(run, kind) for kind in kinds]
            works.append(_measure_exporting_left(run))
        yield works, pool.devices


def _measure_backend_left(run: RunState, b: int, kind: int) -> WorkAmount:
    counts = run.run_counts
    joint = run.plan.offer(b).joint
    guess_ms = guess_case_ms(joint) * run.slower * run.plan.kinds.run(joint).item(kind)
    all_did = counts.did[b]
    all_to_do = np.maximum(run.run_groups.to_come[b] + counts.to_do[b] - all_did, 0.0)
    did, to_do = all_did[kind], all_to_do[kind]
    start_ms = counts.start_s(b) * 1e3
    done_ms, left_ms = (float(work[1] * guess_ms + work[2]) for work in (did, to_do))
    first_ms = 0.0
    if all_did[:, 0].any():
        done_ms += start_ms * max(counts.starts(b), 1) * float(did[0] / all_did[:, 0].sum())
    elif to_do[0] and not all_to_do[:kind, 0].any():  # its process starts with the first kind that it has
        first_ms = start_ms
        left_ms += start_ms

    def one_ms(flight: JobFlight) -> float:
        work = flight.work[kind]
        return float(work[1] * guess_ms + work[2]) / max(float(work[0]), 1.0)

    timed = bool(to_do[1] < to_do[0] / 2)
    return _add_work_in_flight(run, b, kind, done_ms, left_ms, one_ms, first_ms, timed)


def _measure_preparing_left(run: RunState, kind: int) -> WorkAmount:
    groups = run.run_groups
    guess_ms = GUESSED_MS["prepare"] * run.slower * run.plan.kinds.prepare.item(kind)
    made, left = int(groups.prepared[kind]), int(groups.to_prepare[kind])
    is_first = not groups.prepared.any() and not groups.to_prepare[:kind].any()
    return _measure_groups_left(run, "prepare", kind, made, left, guess_ms, is_first)


def _measure_exporting_left(run: RunState) -> WorkAmount:
    groups, guess_ms = run.run_groups, GUESSED_MS["export"] * run.slower
    # Whose cases earlier runs have timed, they have exported, and the cache has it.
    asked = (groups.to_come + run.run_counts.to_do)[..., :2].sum(axis=(0, 1))
    guess_ms *= max(float(asked[1] / max(asked[0], 1.0)), CACHED)
    left = groups.left["export"] + groups.exports_to_come
    return _measure_groups_left(run, "export", 0, groups.exported, left, guess_ms, not groups.exported)


def _measure_groups_left(
    run: RunState, job: str, kind: int, made: int, left: int, guess_ms: float, is_first: bool
) -> WorkAmount:
    """Of groups of a kind that a kind of job makes. is_first: no process has done any yet."""
    start_ms = START_S * 1e3 * run.slower
    done_ms, left_ms = made * guess_ms + start_ms * bool(made), left * guess_ms + start_ms * bool(left and is_first)
    return _add_work_in_flight(run, job, kind, done_ms, left_ms, lambda flight: guess_ms, start_ms * is_first, False)


def _add_work_in_flight(
    run: RunState,
    who: int | str,
    kind: int,
    done_ms: float,
    left_ms: float,
    one_ms: Callable[[JobFlight], float],
    first_ms: float,
    timed: bool,
) -> WorkAmount:
    """`WorkAmount` with what its jobs under way are at: that is done in part, though nothing has come of it yet."""
    now, took_s, longest_ms = time.monotonic(), run.run_counts.slot_s[who, kind], 0.0
    pace = _compute_pace(took_s, done_ms / 1e3, 0.0, 1.0, 0.0)
    for flight in run.flights.values():
        if flight.who == who and flight.begun and (left := flight.count_remaining(kind)):
            at_work_ms, begins_ms = 0.0, first_ms * (not flight.done)
            if flight.kind == kind:
                took_s += now - flight.counted
                at_work_ms = min((now - flight.heard) * 1e3 / pace, one_ms(flight) + begins_ms)
            done_ms, left_ms = done_ms + at_work_ms, max(left_ms - at_work_ms, 0.0)
            longest_ms = max(longest_ms, left * one_ms(flight) + begins_ms - at_work_ms)
    return WorkAmount(took_s, done_ms / 1e3, left_ms / 1e3, longest_ms / 1e3, timed)


def count_expected_cases(run: RunState) -> list[float]:
    """Cases of every backend: those planned, and those of what is not prepared yet, at most."""
    counts = run.run_counts.counts.values()
    return [
        max(c.planned + ahead, c.done)
        for c, ahead in zip(counts, run.run_groups.to_come[..., 0].sum(axis=1).tolist(), strict=True)
    ]


def _is_duration_guessed(run: RunState) -> bool:
    """Whether the time of some backend's cases of a kind is a guess: no earlier run has timed them, and this one has
    run hardly any."""
    counts, worth = run.run_counts, run.plan.kinds.eager
    untimed = run.run_groups.to_come[..., 1] + counts.to_do[..., 1] - counts.did[..., 1]
    return bool(((untimed * worth > GUESS) & (counts.did[..., 0] * worth < GUESS)).any())
