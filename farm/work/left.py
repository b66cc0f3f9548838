"""What a run in progress still needs: the estimate of its plan, corrected by what the run itself measures."""

from __future__ import annotations

import time

import numpy as np

from farm.work.claims import ONE
from farm.work.durations import EXPORT_MS, GUESS, Estimate
from farm.work.run_state import RunState


class Left:
    """Seconds that a run is likely to need still. estimate: of its plan, made before it began; None: what it measures alone tells."""

    def __init__(self, estimate: Estimate | None = None) -> None:
        self.estimate = estimate
        self._first_s: float | None = None  # work that was done when this launch began

    def __call__(self, run: RunState) -> tuple[float, str]:
        """(seconds, how sure that is: "about" or "at least"); nothing left where all cases are done."""
        cases, done = expected_cases(run), [float(count.done) for count in run.run_counts.counts.values()]
        if sum(done) >= sum(cases):
            return 0.0, "about"
        if self.estimate is None or not self.estimate.is_founded:
            return measure_left_s(run), "at least" if _is_guess(run) else "about"
        work_s, done_s = (float(np.dot(n, self.estimate.case_s)) for n in (cases, done))
        return self._corrected_s(self.estimate.total_s, work_s, done_s, time.monotonic() - run.started), "about"

    def _corrected_s(self, total_s: float, work_s: float, done_s: float, elapsed_s: float) -> float:
        """Seconds left of so much work. The estimate weighs as much as a whole run: it alone is believed at first, half at the end."""
        if self._first_s is None:
            self._first_s = done_s
        made = (done_s - self._first_s) / work_s
        return (1 - done_s / work_s) * (total_s + elapsed_s) / (1 + made)


def expected_cases(run: RunState) -> list[float]:
    """Cases of every backend: those planned, and those of what is not prepared yet as far as they can be told."""
    share = run.run_groups.left["prepare"] / max(run.run_groups.groups, 1)
    counts = run.run_counts.counts.values()
    return [max(c.planned + share * asked, c.done) for c, asked in zip(counts, run.run_groups.asked, strict=True)]


def measure_left_s(run: RunState) -> float:
    """Seconds left by what cases and preparing took so far."""
    counts = run.run_counts.counts.values()
    cases_ms = sum(
        (n - c.done) * run.run_counts.case_ms(b)
        for b, (n, c) in enumerate(zip(expected_cases(run), counts, strict=True))
    )
    slots = max(run.plan.executor.slots(None, ONE), 1)
    making_ms = run.run_groups.left["prepare"] * run.run_groups.group_ms + run.run_groups.left["export"] * EXPORT_MS
    return (cases_ms + making_ms) / 1e3 / slots


def _is_guess(run: RunState) -> bool:
    """Whether `measure_left_s` takes the time of some backend's cases from a guess: it has run hardly any of them."""
    counts = run.run_counts.counts.values()
    return any(c.done < min(GUESS, n) for n, c in zip(expected_cases(run), counts, strict=True))
