"""The table `trace` beside the rows of a run: a row for each step of a case whose check looks at several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lake.beside import OF_ROW, TRACE
from farm.lake.store import AnyLake, Where
from tasks.model.trace import TraceStep

if TYPE_CHECKING:
    import pandas as pd


def read_trace(results: AnyLake, run_id: str | None = None, where: Where | None = None) -> pd.DataFrame:
    """The steps of one run, or of all runs, as a DataFrame: a row per key (run_id, case_id, backend, step), in this
    order.

    Steps of the rows that `farm.lake.read` returns for the same ``where``, which is of the columns of rows. Empty for a
    run without a trace, be it of a farm that wrote none. A damaged file is skipped with a LakeWarning. Raises
    LakeError.
    """
    return TRACE.read(results, run_id, where)


def read_trace_steps(results: AnyLake, run_id: str, case_id: str, backend: str) -> list[TraceStep]:
    """The steps of one row, in order; empty if it has no trace. Raises LakeError."""
    found = read_trace(results, run_id, {"case_id": [case_id], "backend": [backend]})
    lines = found.astype(object).where(found.notna(), None).to_dict("records")
    return [TraceStep(**{str(k): v for k, v in line.items() if k not in OF_ROW}) for line in lines]
