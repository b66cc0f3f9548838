"""What changed since the last run of the same config: new, fixed, changed, by the words of `farm.report.diff`.

`since(report)` is what pages and scripts show: a `Since`, or None where the lake has no earlier run to compare with.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from farm.report.runs import before
from farm.report.tables.causes import KNOWN, many
from farm.report.tables.changes import CHANGES, diff
from farm.report.tables.view import Report

#: `CHANGES` as three words; "same" is none.
GROUPS = {
    "new": ("regression", "new failure"),
    "fixed": ("fix",),
    "changed": tuple(c for c in CHANGES if c not in ("regression", "new failure", "fix", "same")),
}


@dataclass(frozen=True)
class Since:
    """What changed from an earlier run of the config to this one.

    run_id, started_at: of the earlier one; cells: one line per cell that changed, as `farm.report.diff` has them, with
    ``backend``, ``group`` (a key of `GROUPS`) and the ``standing`` of the worst sample now, worst first; counts: cells by
    group; known: of the new ones, those of a known failure; compared: cells that both have; farms: the versions that judged then and
    now, where they differ: a change may be the judge's.
    """

    run_id: str
    started_at: Any
    cells: pd.DataFrame
    counts: Mapping[str, int]
    known: int
    compared: int
    farms: tuple[str, str] | None = None

    @property
    def sentence(self) -> str:
        known = {"new": f" ({self.known:,} known)" * bool(self.known)}
        counts = ", ".join(f"{self.counts[name]:,} {name}{known.get(name, '')}" for name in GROUPS)
        judged = f"; judged by farm {self.farms[0]} then, {self.farms[1]} now" if self.farms else ""
        both = f"{many(self.compared, 'cell')} in both"
        return f"Since {self.run_id}, the last run of this config: {counts} of {both}{judged}"


@functools.lru_cache(maxsize=1)  # every face asks
def since(report: Report) -> Since | None:
    """What changed since the last finished run of the same config (`farm.report.runs.before`); None where there is none."""
    earlier = before(str(report.rows.attrs.get("results", "")), report.run)
    return compare(*earlier, report.rows) if earlier else None


def compare(then: pd.DataFrame, run: Mapping[str, Any], now: pd.DataFrame) -> Since | None:
    """What changed from the rows of an earlier run (``run``: its record) to those of this one; None if they share none.

    ``then`` and ``now`` are rows of one run each, ``now`` with their standing and ``attrs`` that say which lake it is of.
    """
    shared = sorted(set(then["backend"]) & set(now["backend"]))
    tables = []
    for backend in shared:
        sides = [rows[rows["backend"] == backend] for rows in (then, now)]
        both = pd.concat(sides, ignore_index=True)
        both.attrs = {"results": now.attrs.get("results", "results")}
        names = (f"{side['run_id'].iloc[0]}:{backend}" for side in sides)
        tables.append(diff(both, *names).assign(backend=backend))
    cells = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["change"])
    if cells.empty:
        return None
    key = ["case_id", "backend"]
    changed = cells[cells["change"] != "same"].merge(now[[*key, "standing"]].drop_duplicates(key), on=key, how="left")
    group = changed["change"].map({change: name for name, some in GROUPS.items() for change in some})
    changed = changed.assign(group=group, rank=changed["change"].map(CHANGES.index)).sort_values("rank", kind="stable")
    counts = {name: int((group == name).sum()) for name in GROUPS}
    found = changed.drop(columns="rank").reset_index(drop=True)
    known = int(((found["group"] == "new") & (found["standing"] == KNOWN)).sum())
    farms = _farm_of(then), _farm_of(now)
    differ = farms if all(farms) and farms[0] != farms[1] else None
    return Since(str(run.get("run_id")), run.get("started_at"), found, counts, known, len(cells), differ)


def _farm_of(rows: pd.DataFrame) -> str:
    """The version of the farm that judged rows, the last one of a run that was resumed under another; "" where none is known."""
    told = rows["farm_version"].dropna().astype(str) if "farm_version" in rows else pd.Series(dtype=str)
    return str(told.iloc[-1]) if len(told) else ""
