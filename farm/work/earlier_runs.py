"""What earlier runs of the lake tell of each cell of a plan: what it took, how it failed, on which version of the runtime."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farm import lake as lakes
from farm.lake import Lake, LakeError
from farm.plan.matrix import GROUP, Matrix
from tasks.model import FAILED, Status, name_statuses

#: Runs of the lake that are looked at, the newest first; older ones are not once this share of a plan's cells is known.
LOOKED_AT, KNOWN = 20, 0.95
#: Milliseconds of a case beside building and running it.
ASIDE_MS = 10.0
#: Of what the first run of a lake took to compile, the share that is counted: later runs find most of it in the
#: compiler's cache (all but an eighth of quick.yaml's), unless the first has found it there too.
COMPILED = 0.25


@dataclass(frozen=True)
class LearnedFromRuns:
    """What earlier runs tell of the cells of a plan; arrays are [groups, backends].

    ms: milliseconds of a case, NaN where nobody has run the cell; finding: below 0 where nothing failed, else a number
    that cells of one op and backend that failed in the same way share; weak: no pass of it was any evidence, or it was
    imprecise; unasked: the backend did not take it; version: a number of the runtime's version, below 0 for none;
    versions: what these numbers mean; runs: ids of those that this is from, the newest first. prepare_ms: what making
    the samples of each group took when it was first made, [groups], NaN where no run tells. start_s: seconds that a
    process of each backend took to start, [backends], NaN where no run tells.
    """

    ms: np.ndarray
    finding: np.ndarray
    weak: np.ndarray
    unasked: np.ndarray
    version: np.ndarray
    start_s: np.ndarray
    prepare_ms: np.ndarray
    versions: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @classmethod
    def nothing(cls, shape: tuple[int, ...]) -> LearnedFromRuns:
        no, none = np.zeros(shape, bool), np.full(shape, -1, np.int32)
        ms, start_s = np.full(shape, np.nan, np.float32), np.full(shape[1:], np.nan)
        return cls(ms, none, no, no.copy(), none.copy(), start_s, np.full(shape[:1], np.nan))

    def of(self, order: list[int]) -> LearnedFromRuns:
        """Of a matrix with its groups in this order."""
        arrays = {k: getattr(self, k)[order] for k in ("ms", "finding", "weak", "unasked", "version", "prepare_ms")}
        return replace(self, **arrays)

    def estimate_times(self, matrix: Matrix, guess_ms: Sequence[float], worth: np.ndarray) -> np.ndarray:
        """Milliseconds of a case of every cell: of cells that nobody has run, what those of the same op, dtype and worth
        took on the backend, else those of the backend, else ``guess_ms`` of it; these two for as many ordinary cases as
        one of each cell is worth, [groups, backends]."""
        alike = [(g.op, g.dtype, *of_g) for g, of_g in zip(matrix.groups, worth.tolist(), strict=True)]
        codes = {one: n for n, one in enumerate(dict.fromkeys(alike))}
        ops = np.array([codes[one] for one in alike], np.intp)
        known, filled = np.isfinite(self.ms), self.ms.copy()
        for b, guess in enumerate(guess_ms):
            some = known[:, b]
            spent = np.bincount(ops[some], self.ms[some, b], len(codes))
            many = np.bincount(ops[some], minlength=len(codes))
            usual = spent.sum() / worth[some, b].sum() if some.any() else guess
            of_op = np.where(many[ops] > 0, (spent / np.maximum(many, 1))[ops], usual * worth[:, b])
            filled[~some, b] = of_op[~some]
        return filled


def learn_from_runs(lake: Lake, matrix: Matrix, there: Sequence[bool], joint: Sequence[bool]) -> LearnedFromRuns:
    """What the newest runs of the lake tell of the cells of a plan; of each cell, the newest. there: backends whose
    cells count; joint: those that compile."""
    known, found = LearnedFromRuns.nothing(matrix.wanted.shape), 0
    enough = KNOWN * np.count_nonzero(matrix.wanted[:, list(there)])
    numbers, column = matrix.numbers(), {spec.name: b for b, spec in enumerate(matrix.backends)}
    versions: dict[str, int] = {}
    failures: dict[str, int] = {}
    runs: list[str] = []
    with contextlib.suppress(LakeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", lakes.LakeWarning)
        all_runs = lakes.run_ids(lake)
        for run_id in reversed(all_runs[-LOOKED_AT:]):
            if found >= enough:
                break
            lines, before = table_cells_of_run(lake, run_id), found
            columns = (
                "backend",
                "ms_sum",
                "ms_count",
                "failure_max",
                "weak_min",
                "imprecise_max",
                "gap_min",
                "version_max",
                "prepare_ms_sum",
                "build_ms_sum",
            )
            for *group, name, ms, n, failure, weak, imprecise, gap, version, prepare_ms, build_ms in zip(
                *(lines[c].to_pylist() for c in (*GROUP, *columns)), strict=True
            ):
                g, b = numbers.get(tuple(group)), column.get(name)
                if g is None or b is None or not matrix.wanted[g, b] or np.isfinite(known.ms[g, b]):
                    continue
                found += there[b]
                known.ms[g, b] = (ms - (1 - COMPILED) * build_ms * (joint[b] and run_id == all_runs[0])) / n
                if failure:
                    known.finding[g, b] = failures.setdefault(failure, len(failures))
                known.weak[g, b], known.unasked[g, b] = weak or imprecise, gap
                known.prepare_ms[g] = np.fmax(known.prepare_ms[g], prepare_ms)
                if version:
                    known.version[g, b] = versions.setdefault(version, len(versions))
            if found > before:
                runs.append(run_id)
                _record_start_times(lakes.read_run(lake, run_id), column, known.start_s)
    return replace(known, versions=tuple(versions), runs=tuple(runs))


def _record_start_times(record: dict[str, Any], column: dict[str, int], start_s: np.ndarray) -> None:
    """Put in what starting a process took in a run, of backends of which no newer one tells."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # a record of another time
        for name, spent in (record.get("children") or {}).items():
            b = column.get(name)
            if b is not None and np.isnan(start_s[b]) and spent.get("starts"):
                start_s[b] = spent["start_s"] / spent["starts"]


def table_cells_of_run(lake: Lake, run_id: str) -> pa.Table:
    """A line for each cell of a run: what its cases took (ms: with what a case takes beside), and how they went. Raises
    LakeError."""
    columns = ["prepare_ms", "build_ms", "run_ms", "status", "kind", "weak", "runtime_version"]
    rows = lakes.read_table(lake, run_id, [*lakes.KEY, *GROUP, *columns])
    status = rows["status"]
    failed = pc.is_in(status, pa.array(name_statuses(FAILED)))
    how = pc.binary_join_element_wise(status, pc.fill_null(rows["kind"], ""), " ")
    ms = pc.add(pc.add(pc.fill_null(rows["build_ms"], 0.0), pc.fill_null(rows["run_ms"], 0.0)), ASIDE_MS)
    gap = pc.is_in(status, pa.array(name_statuses([Status.UNSUPPORTED, Status.FALLBACK, Status.VACUOUS])))
    how_went = {
        "ms": ms,
        "prepare_ms": pc.fill_null(rows["prepare_ms"], 0.0),
        "build_ms": pc.fill_null(rows["build_ms"], 0.0),
        "failure": pc.if_else(failed, how, ""),
        "weak": pc.fill_null(rows["weak"], False),
        "imprecise": pc.equal(status, Status.IMPRECISE.value),
        "gap": gap,
        "version": pc.fill_null(rows["runtime_version"], ""),
    }
    told = {name: pc.fill_null(rows[name], "") for name in (*GROUP, "backend")}
    asked = [("ms", "sum"), ("ms", "count"), ("weak", "min"), ("imprecise", "max"), ("gap", "min")]
    return (
        pa.table(told | how_went)
        .group_by(list(told))
        .aggregate([*asked, ("failure", "max"), ("version", "max"), ("prepare_ms", "sum"), ("build_ms", "sum")])
    )
