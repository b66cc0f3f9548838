"""How long a run takes: one estimate for planning, for `--budget` and for the time left (`farm.work.work_left`).

Of each cell what earlier runs of the lake measured (`farm.work.earlier_runs`), else a guess; what the run itself
measures corrects it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from farm.plan.matrix import Matrix
from farm.work.earlier_runs import LearnedFromRuns
from farm.work.state import RunPlan
from farm.work.work_kinds import CASE_MS, JOINT_MS, find_work_kinds
from tasks import catalogs

#: Guesses. Milliseconds of preparing an ordinary group: half a second where shapes are large, next to nothing in the
#: cache; of exporting a group. Seconds that a child takes to start.
GROUP_MS, EXPORT_MS, START_S = 31.0, 600.0, 0.5
#: Of a group, by the kind of job.
GUESSED_MS = {"prepare": GROUP_MS, "export": EXPORT_MS}
#: As many cases a guess weighs beside those that are measured.
GUESS = 20


def guess_case_ms(joint: bool) -> float:
    """Milliseconds of an ordinary case that nobody has timed. joint: whether the backend compiles."""
    return JOINT_MS if joint else CASE_MS


def guess_work_s(matrix: Matrix, race_s: float) -> float:
    """Seconds of work, on one slot, of a plan whose backends nobody has asked yet. race_s: of a race."""
    kinds = find_work_kinds(matrix.groups, race_s)
    seconds = float(kinds.prepare[kinds.of[matrix.wanted.any(axis=1)]].sum()) * GROUP_MS / 1e3
    for b, spec in enumerate(matrix.backends):
        if (wanted := matrix.wanted[:, b]).any():
            if made := spec.create_if_there():
                seconds += float(wanted @ kinds.run(made.joint)[kinds.of]) * guess_case_ms(made.joint) / 1e3 + START_S
    return seconds


@dataclass(frozen=True)
class DurationEstimate:
    """What a plan is likely to take, by what is known of its cells."""

    plan: RunPlan
    known: LearnedFromRuns

    @functools.cached_property
    def cells_s(self) -> np.ndarray:
        """Seconds of the cases of each cell, [groups, backends]; 0 where it is not planned."""
        joint = [self.plan.offer(b).joint for b in range(len(self.plan.matrix.backends))]
        guess, kinds = [guess_case_ms(x) for x in joint], self.plan.kinds
        worth = np.stack([kinds.run(x)[kinds.of] for x in joint], axis=1)
        return self.known.estimate_times(self.plan.matrix, guess, worth) * self.plan.matrix.wanted / 1e3

    @functools.cached_property
    def start_s(self) -> np.ndarray:
        """Seconds that a process of each backend takes to start, [backends]: as in earlier runs, else as when it was
        probed, else a guess."""
        probed = [(self.plan.offer(b).info.start_s or START_S) for b in range(len(self.plan.matrix.backends))]
        return np.where(np.isnan(self.known.start_s), probed, self.known.start_s)

    def cells(self) -> tuple[np.ndarray, np.ndarray]:
        """(group, backend) of the planned cells whose backend is there or awaited."""
        offers = [self.plan.offer(b) for b in range(len(self.plan.matrix.backends))]
        there = np.array([offer.available or offer.awaited for offer in offers], dtype=np.int32)
        g, b = np.nonzero(self.plan.matrix.wanted * there)
        return g, b

    def aside_s(self, g: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray, dict[int, int]]:
        """(seconds that each cell takes beside its cases, if they come in this order: the first of a group prepares it,
        the first of a backend starts its process; the number of its kind of slot; slots of each kind)."""
        plan = self.plan
        aside = np.zeros(len(g))
        first_of = np.unique(g, return_index=True)[1]
        aside[first_of] += GROUP_MS / 1e3 * plan.kinds.prepare[plan.kinds.of[g[first_of]]]
        offers = [plan.offer(x) for x in range(len(plan.matrix.backends))]
        begins = np.unique(b, return_index=True)[1]
        aside[begins] += self.start_s[b[begins]]
        kinds_of = [
            (group.catalog, catalogs.get_catalog(group.catalog).forms_of(group)) for group in plan.matrix.groups
        ]
        first = {kind: group for kind, group in zip(reversed(kinds_of), reversed(plan.matrix.groups))}
        names = {kind: n for n, kind in enumerate(first)}
        exports = np.array(
            [
                [catalogs.get_catalog(kind[0]).needs_export(offer.forms, first[kind]) for offer in offers]
                for kind in names
            ]
        )
        of = np.array([names[kind] for kind in kinds_of])
        aside[exports[of[g], b] & np.isnan(self.known.ms[g, b])] += EXPORT_MS / 1e3
        kinds = {name: n for n, name in enumerate(dict.fromkeys(offer.resource for offer in offers))}
        slots: dict[int, int] = {}
        for x, offer in enumerate(offers):
            many = plan.executor.slots(None if offer.resource == "CPU" else offer, plan.claim(x))
            slots[kinds[offer.resource]] = max(slots.get(kinds[offer.resource], 1), many)
        return aside, np.array([kinds[offer.resource] for offer in offers])[b], slots

    @functools.cached_property
    def total_s(self) -> float:
        """Seconds of the whole plan from its first job on: of its slowest kind of slot."""
        cells = self.cells()
        aside, pool, slots = self.aside_s(*cells)
        cost = aside + self.cells_s[cells]
        return max((float(cost[pool == p].sum()) / number for p, number in slots.items()), default=0.0)


def format_duration(seconds: float) -> str:
    """ "40 s", "14 min" or "2 h 10 min"."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
