"""How much faster one of several arms is: single runs in random order, round after round, and the interval of their ratio."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Confidence of an interval: twenty comparisons of an arm with itself are to find nothing, all of them.
CONFIDENCE = 0.999
#: Rounds: below the first no interval has this confidence; BUDGET_S decides between them.
FEWEST, MOST = 11, 101
BUDGET_S = 8.0


@dataclass(frozen=True)
class Ratio:
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
class Taken:
    """What single runs took, in seconds: by wall clock and of this process's CPU time, a value per round for every arm."""

    wall: Mapping[str, list[float]]
    cpu: Mapping[str, list[float]]

    @property
    def rounds(self) -> int:
        return min(map(len, self.wall.values()))


def race(
    arms: Callable[[int], Mapping[str, Callable[[], Callable[[], Any]]]],
    seen: Callable[[Mapping[str, Any]], None],
    seed: int = 0,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Taken:
    """Run every arm once in every round, in random order, and time it; the first round is not counted.

    arms: from the number of a round, each arm by its name, always the same names: what makes its run ready, which is not
    timed and done just before it, for all arms alike. seen: is given what they returned. As many rounds as ``budget_s`` seconds allow, from FEWEST to MOST. Runs of one round stand next to each other, so
    that whatever else the machine does meets all arms alike. Raises what any of these raises.
    """
    rng, begin, collecting = random.Random(seed), clock(), gc.isenabled()
    walls: dict[str, list[float]] = {}
    cpus: dict[str, list[float]] = {}
    gc.disable()
    try:
        for turn in range(MOST + 1):
            calls = arms(turn)
            found = {}
            for name in rng.sample(list(calls), len(calls)):
                run = calls[name]()
                wall, cpu = clock(), cpu_clock()
                found[name] = run()
                cpu, wall = cpu_clock() - cpu, clock() - wall
                if turn:
                    walls.setdefault(name, []).append(wall)
                    cpus.setdefault(name, []).append(cpu)
            seen(found)
            if turn >= FEWEST and clock() - begin > budget_s:
                break
    finally:
        if collecting:
            gc.enable()
    return Taken(walls, cpus)


def ratio(slow: Sequence[float], fast: Sequence[float]) -> Ratio | None:
    """How many times as fast ``fast`` is, round by round: the median with its interval; None if the clock could not tell.

    The interval is that of order statistics (Conover, Practical Nonparametric Statistics, 3.2): it asks nothing of how times
    are distributed, and one run that was interrupted moves it by a rank.
    """
    if min(*slow, *fast) <= 0:
        return None
    found = sorted(a / b for a, b in zip(slow, fast))
    n, middle = len(found), len(found) // 2
    median = found[middle] if n % 2 else math.sqrt(found[middle - 1] * found[middle])
    tail, rank = 0.0, 0
    while (tail := tail + math.comb(n, rank) * 0.5**n) <= (1 - CONFIDENCE) / 2:
        rank += 1
    if not rank:
        raise ValueError(f"{n} rounds are too few for an interval of confidence {CONFIDENCE}")
    return Ratio(median, found[rank - 1], found[n - rank])
