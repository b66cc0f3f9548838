"""The table `passports` beside the rows of a run: a row for each sum whose order and adder were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from farm.lake.beside import PASSPORTS
from farm.lake.store import AnyLake, Where

if TYPE_CHECKING:
    import pandas as pd


def read_passports(results: AnyLake, run_id: str | None = None, where: Where | None = None) -> pd.DataFrame:
    """The readings of one run, or of all runs, as a DataFrame: a row per key (run_id, case_id, backend, reading), in this order.

    Those of the rows that `farm.lake.read` returns for the same ``where``. A damaged file is skipped with a LakeWarning. Raises LakeError.
    """
    return PASSPORTS.read(results, run_id, where)
