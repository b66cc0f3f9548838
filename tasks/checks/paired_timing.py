"""How much faster one of several arms is: single runs in random order, round after round, and the interval of their ratio."""

from __future__ import annotations

import gc
import itertools
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tasks.model import RACE_S, Timed
from tasks.run_queue import subtract_run_queue_seconds

#: Confidence of an interval: twenty comparisons of an arm with itself are to find nothing, all of them.
CONFIDENCE = 0.999
#: Rounds: below the first no interval has this confidence; time decides between them.
FEWEST, MOST = 11, 101


@dataclass(frozen=True)
class SpeedRatio:
    """How many times as fast, with its interval. `certain`: the interval does not hold 1."""

    value: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        return self.low > 1 or self.high < 1

    def __str__(self) -> str:
        return f"{self.value:.3g}[{self.low:.3g},{self.high:.3g}]"


@dataclass(frozen=True)
class RaceTimes:
    """What single runs took, in seconds: a value per round for every arm."""

    #: What the runs themselves say: by wall clock, of their process's CPU time, between two events on a device. None
    #: where they do not.
    calls: Mapping[str, list[Timed]]
    #: By the wall clock of this process, around a run, its way here and back included; of calls that are made together,
    #: of one on average.
    seen: Mapping[str, list[float]]
    #: The same from when a run is made ready: what is handed to a process beforehand it may also work on beforehand.
    whole: Mapping[str, list[float]]

    @property
    def rounds(self) -> int:
        return min(map(len, self.seen.values()))

    def seconds(self, clock: str) -> dict[str, list[float]]:
        """Of each arm by a clock: "wall", "cpu", "device", "seen" or "whole"; of a clock that not every run has,
        nothing."""
        if clock in ("seen", "whole"):
            return dict(getattr(self, clock))
        found = {arm: [getattr(x, f"{clock}_s") for x in calls] for arm, calls in self.calls.items()}
        return {} if any(x is None for values in found.values() for x in values) else found


def race_arms(
    arms: Callable[[int], Mapping[str, Callable[[], Callable[[], Timed]]]],
    seen: Callable[[int, Mapping[str, Timed]], None],
    seed: int = 0,
    budget_s: float = RACE_S,
    clock: Callable[[], float] = time.perf_counter,
    uncounted: Callable[[int], bool] = lambda turn: not turn,
    queued: Callable[[], float | None] = lambda: None,
) -> RaceTimes:
    """Run every arm once in every round, in random order.

    arms: from the number of a round, each arm by its name, always the same names: what makes its run ready, which is
    not timed and done just before it, for all arms alike. seen: is given the number of a round and what its runs gave.
    uncounted: of which rounds the times are not kept. queued: seconds that the threads of a run have waited for a
    processor, which no wall clock is to count (None: nobody knows). As many rounds as ``budget_s`` seconds allow, of
    those that count from FEWEST to MOST. Runs of one round stand next to each other, so that whatever else the machine
    does meets all arms alike. Raises what any of these raises.
    """
    rng, begin, collecting = random.Random(seed), clock(), gc.isenabled()
    kept: dict[str, list[Timed]] = {}
    walls: dict[str, list[float]] = {}
    wholes: dict[str, list[float]] = {}
    counted = 0
    gc.disable()
    try:
        for turn in itertools.count():
            calls = arms(turn)
            found = {}
            for name in rng.sample(list(calls), len(calls)):
                at_first, whole = queued(), clock()
                run = calls[name]()
                before, wall = queued(), clock()
                found[name] = run()
                end, after = clock(), queued()
                if not uncounted(turn):
                    told, count = replace(found[name], outputs=(), digests=()), found[name].calls
                    waited, waited_whole = (
                        subtract_run_queue_seconds(after, before),
                        subtract_run_queue_seconds(after, at_first),
                    )
                    if (
                        (running := _find_running_seconds(told, waited)) is None
                        or waited is None
                        or waited_whole is None
                    ):
                        waited = waited_whole = 0.0
                    else:
                        told = replace(told, wall_s=running)
                    kept.setdefault(name, []).append(told)
                    walls.setdefault(name, []).append((end - wall - waited) / count)
                    wholes.setdefault(name, []).append((end - whole - waited_whole) / count)
            counted += not uncounted(turn)
            seen(turn, found)
            if counted >= MOST or (counted >= FEWEST and clock() - begin > budget_s):
                break
    finally:
        if collecting:
            gc.enable()
    return RaceTimes(kept, walls, wholes)


def _find_running_seconds(told: Timed, waited: float | None) -> float | None:
    """Seconds of a call by the wall clock without those in which others had the processor: what it takes where nobody
    else wants that. No less than its CPU time, for its thread may have waited for others of its own. waited: seconds
    that the system counted while all its calls were made. None where it is not known, and on a device, which works on
    meanwhile."""
    if told.waited_s is None or told.cpu_s is None or waited is None:
        return None
    return max(told.wall_s - min(told.waited_s, waited / told.calls), min(told.wall_s, told.cpu_s))


def compute_speed_ratio(slow: Sequence[float], fast: Sequence[float]) -> SpeedRatio | None:
    """How many times as fast ``fast`` is, round by round: the median with its interval; None if the clock could not
    tell.

    The interval is that of order statistics (Conover, Practical Nonparametric Statistics, 3.2): it asks nothing of how
    times are distributed, and one run that was interrupted moves it by a rank.
    """
    if min(*slow, *fast) <= 0:
        return None
    found = sorted(a / b for a, b in zip(slow, fast))
    n, middle = len(found), len(found) // 2
    median = found[middle] if n % 2 else math.sqrt(found[middle - 1] * found[middle])
    return SpeedRatio(median, *_find_median_interval(found))


def compute_time_difference(
    more: Sequence[float], less: Sequence[float], confidence: float = CONFIDENCE
) -> tuple[float, float]:
    """Between which two numbers lies the median of the differences, round by round: the interval of `compute_speed_ratio`."""
    return _find_median_interval(sorted(float(a - b) for a, b in zip(more, less)), confidence)


def _find_median_interval(found: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The interval of the median of sorted numbers."""
    n, tail, rank = len(found), 0.0, 0
    while (tail := tail + math.comb(n, rank) * 0.5**n) <= (1 - confidence) / 2:
        rank += 1
    if not rank:
        raise ValueError(f"{n} rounds are too few for an interval of confidence {confidence}")
    return found[rank - 1], found[n - rank]
