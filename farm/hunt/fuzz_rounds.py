"""A fuzzing run: rounds of generated cases, each dispatched as any plan is, until the time or the cases are used up."""

from __future__ import annotations

import contextlib
import datetime
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from farm import lake as lakes
from farm.hunt.fuzz_schedule import CHUNK, FuzzBatch, FuzzSchedule, Key
from farm.plan.matrix import Matrix
from farm.work.claims import ONE
from farm.work.dispatcher import Dispatcher
from farm.work.durations import JOINT_MS
from farm.work.earlier_runs import LOOKED_AT
from farm.work.launch import LaunchedRun
from farm.work.run_counts import BackendCount
from farm.work.run_state import RunState
from farm.work.state import BeforeRun, RunPlan
from tasks.catalogs.fuzz import catalog as fuzz
from tasks.model import Group

if TYPE_CHECKING:
    import pandas as pd

#: Seconds of work that a round is planned for, and of the first one, of which nobody knows what its cases take.
ROUND_S, FIRST_S = 20.0, 3.0
#: Rounds in a row without a case that is worth running, after which a run ends.
_EMPTY = 50
#: By how much a round may raise what is thought to be done in a second: the next may have other ops. Down it goes at
#: once, since a round that is too long goes past the budget and one that is too short costs little.
_FASTER = 4.0
#: Columns that a schedule learns from, and those of other runs.
LEARNT = "run_id case_id backend op dtype seed sample status kind stage error_type error flags build_ms run_ms attempts".split()
COSTS = "run_id case_id catalog backend op status build_ms run_ms attempts".split()


@dataclass(frozen=True)
class FuzzBudget:
    """seconds: after which no round begins; cases: rows that are made; None where it is no bound."""

    seconds: float | None = None
    cases: int | None = None

    @staticmethod
    def of(record: Mapping[str, Any] | None) -> FuzzBudget:
        """What the record of an earlier launch says; without bounds where it says nothing."""
        said = (record or {}).get("fuzz", {}).get("budget", {})
        return FuzzBudget(said.get("seconds"), said.get("cases"))

    def is_spent(self, seconds: float, cases: int) -> bool:
        return (self.seconds is not None and seconds >= self.seconds) or (
            self.cases is not None and cases >= self.cases
        )


@dataclass(frozen=True)
class FuzzTold:
    """What is said after a round: its number, rows so far, seconds so far, findings so far, those that are new."""

    number: int
    rows: int
    seconds: float
    findings: int
    new: Sequence[Key]


class FuzzRounds:
    """One fuzzing run of the lake: `begin`, `go`, `finish`.

    Its record has under "fuzz" its budget, how many rounds there were and how many cases they asked for, how many
    chunks each op has had, and of the last round each batch with its op, dtype, seed and by backend the numbers of its
    cases: so what is missing of it is known when the run is resumed.
    """

    def __init__(self, plan: RunPlan, budget: FuzzBudget) -> None:
        self.plan, self.budget, self.run = plan, budget, LaunchedRun(plan)
        self._counts: dict[str, BackendCount] = {}
        self._spent: dict[str, dict[str, float]] = {}
        dtypes: dict[str, list[str]] = {}
        self._asked: dict[tuple[str, str], set[str]] = {}  # backends that the config does not skip, by op and dtype
        for g, group in enumerate(plan.matrix.groups):
            dtypes.setdefault(group.op_name, []).append(group.dtype)
            asked = {s.name for b, s in enumerate(plan.matrix.backends) if plan.matrix.wanted[g, b]}
            self._asked[group.op_name, group.dtype] = asked
        every = {op: set().union(*(self._asked[op, dtype] for dtype in some)) for op, some in dtypes.items()}
        self.schedule = FuzzSchedule(dtypes, [], plan.request.config.seed, every, plan.request.config.deadline_s * 1e3)
        self.schedule.even = budget.seconds is None
        self._missing = {name for name, offer in plan.offers.items() if not (offer.available or offer.awaited)}
        self.rounds, self.planned, self._last = 0, 0, list[dict[str, Any]]()
        self._before = 0.0  # seconds of earlier launches
        self._pace = 1.0  # CPU-seconds of cases, as the schedule counts them, in a second

    @property
    def run_id(self) -> str:
        return self.run.run_id

    def begin(self) -> None:
        """Write the record; of a resumed run, learn from its rows; of others of the lake, what cases take. Raises
        OSError, LakeError."""
        earlier = self.run.record.get("fuzz", {})
        self.rounds, self.planned = earlier.get("rounds", 0), earlier.get("planned", 0)
        self._last, self._before = earlier.get("last", []), float(earlier.get("seconds", 0.0))
        self.schedule.chunks.update(earlier.get("chunks", {}))
        self.run.record["finished_at"] = None
        self._keep(0.0)
        self.run.begin()
        if self.rounds:
            self.schedule.learn(self._rows())
        self._remember()

    def go(self, told: Callable[[FuzzTold], None] = lambda told: None) -> None:
        """Rounds until the budget is spent. Raises OSError when the lake or the cache cannot be written."""
        started = time.monotonic()
        rows, empty = self._finish_last() if self.rounds else 0, 0
        while not self.budget.is_spent(self._before + time.monotonic() - started, rows):
            self._look()
            batches = self.schedule.round(self._size(self._before + time.monotonic() - started))
            batches = self._within(batches, rows)
            empty = 0 if batches else empty + 1
            if empty > _EMPTY:  # all backends are gone, or all that is left is known to fail
                break
            if not batches:
                continue
            self.rounds, self.planned = self.rounds + 1, self.planned + _count_fuzz_cases(batches)
            self._last = [{"op": b.op, "dtype": b.dtype, "seed": b.seed, "wanted": dict(b.wanted)} for b in batches]
            self._keep(time.monotonic() - started)
            lakes.write_run_record(self.plan.request.lake, self.run_id, self.run.record)
            begun = time.monotonic()
            made = self._dispatch(batches, {})
            took = time.monotonic() - begun
            rows += len(made)
            new = self.schedule.learn(made)
            # As the next round will be counted: by what these cases took, of which the guess may have been a hundred
            # times as much.
            self._pace = min(self.schedule.cost_s(batches) / took, self._pace * _FASTER)
            told(
                FuzzTold(self.rounds, rows, self._before + time.monotonic() - started, len(self.schedule.triggers), new)
            )
        self._keep(time.monotonic() - started)

    def finish(self, change: lakes.Change) -> tuple[pd.DataFrame, str]:
        """As `Run.finish`."""
        record, lake = self.run.record, self.plan.request.lake
        record["children"] = {name: {k: round(v, 2) for k, v in spent.items()} for name, spent in self._spent.items()}
        lakes.compact_run(lake, self.run_id, change)
        rows = lakes.read(lake, self.run_id)
        record["planned"] = self.planned
        record["inventory"]["backends"] = {name: offer.record() for name, offer in self.plan.offers.items()}
        record["finished_at"] = datetime.datetime.now(datetime.timezone.utc).isoformat()
        lakes.write_run_record(lake, self.run_id, record)
        return rows, "" if len(rows) == self.planned else f"{len(rows)} rows of {self.planned} planned"

    def without_rows(self, rows: pd.DataFrame) -> dict[str, list[str]]:
        """The backends that no case was run on, by the reason; but for those of which it was known from the
        beginning."""
        found: dict[str, list[str]] = {}
        given, planned = set(rows["backend"]), set().union(*self._asked.values())
        for name, offer in self.plan.offers.items():
            if name not in given and name not in self._missing:
                why = offer.reason if not offer.available else ""
                why = why or ("the time was up before its first case" if name in planned else "it has none of the ops")
                found.setdefault(why, []).append(name)
        return found

    @property
    def cpu_s(self) -> float:
        """CPU-seconds of all children of this launch."""
        return sum(spent.get("cpu_s", 0.0) for spent in self._spent.values())

    # --- a round ----------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take in which backends there are: those with an environment of their own may come while others run."""
        for offer in self.plan.late():
            self.plan.offers[offer.name] = offer
        self.schedule.guess_ms = {name: JOINT_MS for name, offer in self.plan.offers.items() if offer.joint}
        self.schedule.backends = [
            s.name for b, s in enumerate(self.plan.matrix.backends) if self.plan.offer(b).available
        ]

    def _keep(self, seconds: float) -> None:
        self.run.record["fuzz"] = {
            "seconds": round(self._before + seconds, 1),
            "rounds": self.rounds,
            "planned": self.planned,
            "chunks": dict(self.schedule.chunks),
            "last": self._last,
            "budget": {"seconds": self.budget.seconds, "cases": self.budget.cases},
        }

    def _remember(self) -> None:
        """Learn from the newest other runs of the lake that have generated cases what these take."""
        lake, names = self.plan.request.lake, [s.name for s in self.plan.matrix.backends]
        with contextlib.suppress(lakes.LakeError), warnings.catch_warnings():
            warnings.simplefilter("ignore", lakes.LakeWarning)
            for run_id in [x for x in lakes.run_ids(lake) if x != self.run_id][-LOOKED_AT:]:
                where = {"catalog": [fuzz.Fuzz.name], "backend": names}
                self.schedule.remember(lakes.read_table(lake, run_id, COSTS, where).to_pylist())

    def _size(self, seconds: float) -> float:
        """CPU-seconds of the next round."""
        left = math.inf if self.budget.seconds is None else max(self.budget.seconds - seconds, 1.0)
        slots = self.plan.executor.slots(None, ONE)
        blind = not self.rounds and not self.schedule.find_timed_backends().issuperset(self.schedule.backends)
        return FIRST_S * slots if blind else min(ROUND_S, left) * self._pace

    def _within(self, batches: Sequence[FuzzBatch], rows: int) -> list[FuzzBatch]:
        """Batches less what is known to fail, and not more cases than the budget has left."""
        left = math.inf if self.budget.cases is None else self.budget.cases - rows
        made = []
        for batch in batches:
            wanted: dict[str, tuple[int, ...]] = {}
            for backend, numbers in self._unknown(batch).items():
                if backend not in self._asked[batch.op, batch.dtype]:
                    continue
                numbers = numbers[: int(min(left, CHUNK))]
                left -= len(numbers)
                if numbers:
                    wanted[backend] = numbers
            if wanted:
                made.append(replace(batch, wanted=wanted))
        return made

    def _unknown(self, batch: FuzzBatch) -> Mapping[str, tuple[int, ...]]:
        """By backend the numbers of a batch's cases that may show something new."""
        op = f"{fuzz.Fuzz.name}:{batch.op}"
        known = {key[0] for key, found in self.schedule.triggers.items() if key[1] == op and found.words}
        if not known.intersection(batch.wanted):
            return batch.wanted
        group = _make_fuzz_group(batch)
        words = {n: fuzz.describe_fuzzed_sample(group, n) for numbers in batch.wanted.values() for n in numbers}
        return {
            backend: tuple(n for n in numbers if not self.schedule.should_skip(backend, op, words[n], batch.seed + n))
            for backend, numbers in batch.wanted.items()
        }

    def _dispatch(self, batches: Sequence[FuzzBatch], had: Mapping[Any, set[int]]) -> list[dict[str, Any]]:
        """Run batches to their end, but for what they ``had`` (`_had`); the rows that come."""
        names = [s.name for s in self.plan.matrix.backends]
        groups = [_make_fuzz_group(batch) for batch in batches]
        wanted = np.zeros((len(groups), len(names)), np.int32)
        before = BeforeRun()
        for g, batch in enumerate(batches):
            for backend, numbers in batch.wanted.items():
                b = names.index(backend)
                there = had.get((batch.op, batch.dtype, batch.seed, backend), set())
                wanted[g, b] = CHUNK
                before.done[g, b] = (set(range(CHUNK)) - set(numbers)) | there
        # Who is awaited has no part in this round, and no round waits for it.
        offers = {name: replace(offer, awaited=False) for name, offer in self.plan.offers.items()}
        matrix = Matrix(groups, self.plan.matrix.backends, wanted)
        plan = replace(self.plan, matrix=matrix, offers=offers, run_id=self.run_id, late=lambda: [])
        state, came = RunState(plan, before), list[pa.RecordBatch]()
        state.row_writer.told = came.extend
        try:
            Dispatcher(state).run()
        finally:
            for name, spent in state.run_counts.spent.items():
                total = self._spent.setdefault(name, {})
                for what, value in spent.items():
                    total[what] = total.get(what, 0.0) + value
        return [row for batch in came for row in batch.select(LEARNT).to_pylist()]

    def _finish_last(self) -> int:
        """Run what is missing of the last round of a resumed run; how many rows there are then."""
        last = [_read_fuzz_batch(one) for one in self._last]
        had = self._had(last)
        if _count_fuzz_cases(last) > sum(map(len, had.values())):
            self.schedule.learn(self._dispatch(last, had))
        return len(self._rows())

    def _rows(self, batches: Sequence[FuzzBatch] | None = None) -> list[dict[str, Any]]:
        """The rows of some batches, or of all."""
        table = lakes.read_table(self.plan.request.lake, self.run_id, LEARNT)
        if batches is None:
            return list(table.to_pylist())
        wanted = {
            (b.op, b.dtype, b.seed, name, n) for b in batches for name, numbers in b.wanted.items() for n in numbers
        }
        columns = [table.column(name).to_pylist() for name in ("op", "dtype", "seed", "backend", "sample")]
        places = [k for k, (op, *rest) in enumerate(zip(*columns)) if (op.partition(":")[2], *rest) in wanted]
        return list(table.take(pa.array(places, pa.int64())).to_pylist())

    def _had(self, batches: Sequence[FuzzBatch]) -> dict[tuple[str, str, int, str], set[int]]:
        """The samples of batches that have rows, by op, dtype, seed and backend."""
        found: dict[tuple[str, str, int, str], set[int]] = {}
        for row in self._rows(batches):
            key = (row["op"].partition(":")[2], row["dtype"], row["seed"], row["backend"])
            found.setdefault(key, set()).add(row["sample"])
        return found


def _count_fuzz_cases(batches: Sequence[FuzzBatch]) -> int:
    return sum(len(numbers) for batch in batches for numbers in batch.wanted.values())


def _read_fuzz_batch(one: Mapping[str, Any]) -> FuzzBatch:
    return FuzzBatch(one["op"], one["dtype"], one["seed"], {k: tuple(v) for k, v in one["wanted"].items()})


def _make_fuzz_group(batch: FuzzBatch) -> Group:
    return Group(f"{fuzz.Fuzz.name}:{batch.op}", fuzz.get_generator_variant(batch.op), batch.dtype, CHUNK, batch.seed)
