"""What changed since the last run of the same config: new, fixed, changed, by the words of `farm.report.tables.changes`.

`since(report)` is what pages and scripts show: a `SinceLastRun`, or None where the lake has no earlier run to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from farm.report.once import once
from farm.report.runs import find_run_before
from farm.report.tables.causes import KNOWN
from farm.report.tables.changes import GROUPS, KINDS, NEW, SAME, ChangeCounts, add_diff_commands, compare_cells_of_sides
from farm.report.tables.view import Report


@dataclass(frozen=True)
class SinceLastRun:
    """What changed from an earlier run of the config to this one.

    run_id, started_at: of the earlier one; cells: one line per cell and ``backend`` that changed, as `compare` has
    them, with ``group`` (of `GROUPS`) and the ``standing`` of the worst sample now, worst first; sums: of the cells
    that both have; known: of the new ones, those of a known failure; farms: the versions that judged then and now,
    where they differ: a change may be the judge's.
    """

    run_id: str
    started_at: Any
    cells: pd.DataFrame
    sums: ChangeCounts
    known: int
    farms: tuple[str, str] | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Cells by group."""
        return {name: getattr(self.sums, name) for name in GROUPS}

    @property
    def compared(self) -> int:
        """Cells that both runs have."""
        return self.sums.cells

    @property
    def sentence(self) -> str:
        judged = f"; judged by farm {self.farms[0]} then, {self.farms[1]} now" if self.farms else ""
        return f"Since {self.run_id}, the last run of this config: {self.sums.sentence(self.known)}{judged}"

    @property
    def short_sentence(self) -> str:
        """Which run and the counts alone, for the end of an output: a line of a terminal."""
        return f"Since {self.run_id}: {self.sums.sentence(self.known)}"


@once
def since(report: Report) -> SinceLastRun | None:
    """What changed since the last finished run of the same config (`farm.report.runs.find_run_before`); None where
    there is none."""
    earlier = find_run_before(str(report.rows.attrs.get("results", "")), report.run)
    return compare_since_run(*earlier, report.rows) if earlier else None


def compare_since_run(then: pd.DataFrame, run: Mapping[str, Any], now: pd.DataFrame) -> SinceLastRun | None:
    """What changed from the rows of an earlier run (``run``: its record) to those of this one; None if they share none.

    ``then`` and ``now`` are rows of one run each, ``now`` with their standing and ``attrs`` that say which lake it is
    of.
    """
    cells = compare_cells_of_sides(then, now)
    if cells.empty:
        return None
    key = ["case_id", "backend"]
    changed = add_diff_commands(cells[cells["change"] != SAME], str(now.attrs.get("results", "results")))
    changed = changed.rename(columns={"backend_b": "backend"}).merge(
        now[[*key, "standing"]].drop_duplicates(key), on=key, how="left"
    )
    changed["group"] = changed["change"].map({name: one.group for name, one in KINDS.items()})
    known = int(((changed["group"] == NEW) & (changed["standing"] == KNOWN)).sum())
    farms = _read_farm_version(then), _read_farm_version(now)
    differ = farms if all(farms) and farms[0] != farms[1] else None
    return SinceLastRun(str(run.get("run_id")), run.get("started_at"), changed, ChangeCounts.of(cells), known, differ)


def _read_farm_version(rows: pd.DataFrame) -> str:
    """The version of the farm that judged rows, the last one of a run that was resumed under another; "" where none is
    known."""
    told = rows["farm_version"].dropna().astype(str) if "farm_version" in rows else pd.Series(dtype=str)
    return str(told.iloc[-1]) if len(told) else ""
