"""The time a run still needs: as the last run of the same config in the lake went on, else by what its cases took so far."""

from __future__ import annotations

import contextlib
import datetime
import functools
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from farm import lake as lakes
from farm.lake import Lake, LakeError
from farm.work.accounts import GUESS
from farm.work.claims import ONE
from farm.work.learned import LOOKED_AT, cells

if TYPE_CHECKING:
    from farm.work.dispatcher import Dispatcher

#: An earlier run with fewer than this share of the cases says little.
ENOUGH = 0.25
#: Longest time between two cases, in seconds: what is longer was a run that waited to be resumed.
PAUSE_S = 300.0
#: Milliseconds of exporting an op.
EXPORT_MS = 600.0


@dataclass(frozen=True)
class Pace:
    """What an earlier run took: seconds in all, cases of every backend, and milliseconds of one."""

    took_s: float
    cases: Mapping[str, int]
    case_ms: Mapping[str, float]

    def work(self, cases: Mapping[str, float]) -> float:
        """What so many cases of every backend are worth, as a share of the earlier run."""
        usual = sum(self.case_ms.values()) / len(self.case_ms)
        all_ms = sum(n * self.case_ms[name] for name, n in self.cases.items())
        return sum(n * self.case_ms.get(name, usual) for name, n in cases.items()) / all_ms

    def left_s(self, work: float, done: float, before: float, elapsed_s: float) -> float:
        """Seconds left of ``work`` of which ``done`` is done, ``before`` of it in earlier launches.

        The earlier run weighs as much as a whole run: it alone is believed at first, half at the end.
        """
        return (work - done) * (self.took_s + elapsed_s) / (1 + done - before)


def earlier(lake: Lake, name: str, cases: int) -> Pace | None:
    """The pace of the newest finished run of a config, by its name, that had enough cases; None if there is none."""
    with contextlib.suppress(LakeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", lakes.LakeWarning)
        for run_id in reversed(lakes.run_ids(lake)[-LOOKED_AT:]):
            with contextlib.suppress(LakeError, KeyError, TypeError, ValueError):
                record = lakes.read_run(lake, run_id)
                if record["name"] == name and record["finished_at"] and record["planned"] >= cases * ENOUGH:
                    return _pace(lake, record)
    return None


def _pace(lake: Lake, record: dict[str, Any]) -> Pace:
    """Raises ValueError, KeyError if the run says nothing of its times."""
    began, ended = (datetime.datetime.fromisoformat(record[k]).timestamp() for k in ("started_at", "finished_at"))
    rows = lakes.read_table(lake, record["run_id"], [*lakes.KEY, "started_at"])
    at = np.sort(rows["started_at"].drop_null().cast(pa.int64()).to_numpy() / 1e6)
    steps = np.diff(np.concatenate([[began], at, [ended]]))
    by = cells(lake, record["run_id"]).group_by("backend").aggregate([("ms_sum", "sum"), ("ms_count", "sum")])
    names = by["backend"].to_pylist()
    if not names:
        raise ValueError("no rows")
    many = by["ms_count_sum"].to_pylist()
    return Pace(
        float(np.clip(steps, 0.0, PAUSE_S).sum()),
        dict(zip(names, many, strict=True)),
        {name: ms / n for name, ms, n in zip(names, by["ms_sum_sum"].to_pylist(), many, strict=True)},
    )


class Left:
    """Seconds that a run is likely to need still. earlier: finds an earlier run of the same config, asked when it is first needed."""

    def __init__(self, earlier: Callable[[], Pace | None] = lambda: None) -> None:
        self._earlier = earlier
        self._first: dict[str, float] | None = None  # cases that were done when this launch began

    @functools.cached_property
    def before(self) -> Pace | None:
        return self._earlier()

    def __call__(self, run: Dispatcher) -> tuple[float, str]:
        """(seconds, how sure that is: "about" or "at least"); nothing left where all cases are done."""
        done = {name: float(count.done) for name, count in run.accounts.counts.items()}
        cases = expected(run)
        self._first = self._first or done
        if sum(done.values()) >= sum(cases.values()):
            return 0.0, "about"
        if self.before:
            work, made, first = map(self.before.work, (cases, done, self._first))
            return self.before.left_s(work, made, first, time.monotonic() - run.started), "about"
        return measured_s(run), "at least" if guessed(run) else "about"


def expected(run: Dispatcher) -> dict[str, float]:
    """Cases of every backend: those planned, and those of what is not prepared yet as far as they can be told."""
    share = run.stock.left["prepare"] / max(run.stock.groups, 1)
    return {
        name: max(count.planned + share * asked, count.done)
        for (name, count), asked in zip(run.accounts.counts.items(), run.stock.asked, strict=True)
    }


def measured_s(run: Dispatcher) -> float:
    """Seconds left by what cases and preparing took so far."""
    cases, counts = expected(run), run.accounts.counts
    cases_ms = sum((cases[name] - c.done) * run.accounts.case_ms(b) for b, (name, c) in enumerate(counts.items()))
    slots = max(run.plan.executor.slots(None, ONE), 1)
    making_ms = run.stock.left["prepare"] * run.stock.group_ms + run.stock.left["export"] * EXPORT_MS
    return (cases_ms + making_ms) / 1e3 / slots


def guessed(run: Dispatcher) -> bool:
    """Whether `measured_s` takes the time of some backend's cases from a guess: it has run hardly any of them."""
    done = {name: count.done for name, count in run.accounts.counts.items()}
    return any(done[name] < min(GUESS, cases) for name, cases in expected(run).items())


def duration(seconds: float) -> str:
    """ "40 s", "14 min" or "2 h 10 min"."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
