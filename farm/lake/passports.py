"""The table `passports` beside the rows of a run: a row for each sum whose order and adder were read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from farm.lake.beside import PASSPORTS
from farm.lake.store import AnyLake, Where
from tasks.passport import SumReading
from tasks.passport.known_passports import KnownSum, Passport, shorten_op_name

if TYPE_CHECKING:
    import pandas as pd


def read_passports(results: AnyLake, run_id: str | None = None, where: Where | None = None) -> pd.DataFrame:
    """The readings of one run, or of all runs, as a DataFrame: a row per key (run_id, case_id, backend, reading), in
    this order.

    Those of the rows that `farm.lake.read` returns for the same ``where``. A damaged file is skipped with a
    LakeWarning. Raises LakeError.
    """
    return PASSPORTS.read(results, run_id, where)


def find_passports(
    results: AnyLake, backends: Collection[str], dtypes: Collection[str], run_id: str | None = None
) -> dict[str, tuple[Passport, ...]]:
    """The passports of backends: of each version and device of a backend that of its newest run, or of one run, with
    the readings in some dtypes.

    Raises LakeError.
    """
    frame = read_passports(results, run_id, {"backend": sorted(backends)})
    frame = frame[frame["dtype"].isin(list(dtypes))]
    frame = frame.astype(object).where(frame.notna(), None)
    found: dict[str, list[Passport]] = {}
    for key, lines in frame.groupby(["backend", *_WHOSE], dropna=False, sort=True):
        newest = lines[lines["run_id"] == max(lines["run_id"])]
        sums = tuple(
            KnownSum(shorten_op_name(x["op"]), x["dtype"], _make_passport_reading(x)) for x in newest.to_dict("records")
        )
        backend, version, build, driver, device = ("" if x is None or x != x else str(x) for x in key)
        found.setdefault(backend, []).append(Passport(newest["run_id"].iloc[0], version, build, driver, device, sums))
    return {backend: tuple(passports) for backend, passports in found.items()}


#: Columns that tell whose a passport is, in the order of `Passport`.
_WHOSE = ("runtime_version", "build", "driver_version", "device")


def _make_passport_reading(line: Mapping[Any, Any]) -> SumReading:
    """The reading of a line of the table."""
    values: dict[str, Any] = {f.name: line[f.name] for f in fields(SumReading) if line.get(f.name) is not None}
    lists = {k: tuple(int(n) for n in v) for k, v in values.items() if isinstance(v, (list, np.ndarray))}
    return SumReading(**(values | lists))
