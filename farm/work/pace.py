"""The time a run still needs: as the last run of the same config in the lake went on, else by what its cases took so far."""

from __future__ import annotations

import contextlib
import datetime
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farm import lake as lakes
from farm.lake import Lake, LakeError
from farm.work.accounts import GUESS

if TYPE_CHECKING:
    from farm.work.dispatcher import Dispatcher

#: Runs of the lake that are looked at, the newest first; one with fewer than this share of the cases says little.
LOOKED_AT, ENOUGH = 20, 0.25
#: Longest time between two cases, in seconds: what is longer was a run that waited to be resumed.
PAUSE_S = 300.0
#: Milliseconds of a case beside building and running it; of exporting an op.
ASIDE_MS, EXPORT_MS = 10.0, 600.0


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
    rows = lakes.read_table(lake, record["run_id"], [*lakes.KEY, "started_at", "build_ms", "run_ms"])
    at = np.sort(rows["started_at"].drop_null().cast(pa.int64()).to_numpy() / 1e6)
    steps = np.diff(np.concatenate([[began], at, [ended]]))
    spent = pc.add(pc.fill_null(rows["build_ms"], 0.0), pc.fill_null(rows["run_ms"], 0.0))
    by = (
        pa.table({"backend": rows["backend"], "ms": spent})
        .group_by("backend")
        .aggregate([("ms", "mean"), ("ms", "count")])
    )
    names = by["backend"].to_pylist()
    if not names:
        raise ValueError("no rows")
    case_ms = [ms + ASIDE_MS for ms in by["ms_mean"].to_pylist()]
    return Pace(
        float(np.clip(steps, 0.0, PAUSE_S).sum()),
        dict(zip(names, by["ms_count"].to_pylist(), strict=True)),
        dict(zip(names, case_ms, strict=True)),
    )


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
    slots = max(run.plan.executor.slots(None, 1.0), 1)
    making_ms = run.stock.left["prepare"] * run.stock.group_ms + run.stock.left["export"] * EXPORT_MS
    return (cases_ms + making_ms) / 1e3 / slots


def guessed(run: Dispatcher) -> bool:
    """Whether `measured_s` takes the time of some backend's cases from a guess: it has run hardly any of its many."""
    done = {name: count.done for name, count in run.accounts.counts.items()}
    return any(done[name] < GUESS < cases for name, cases in expected(run).items())


def duration(seconds: float) -> str:
    """ "40 s", "14 min" or "2 h 10 min"."""
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
