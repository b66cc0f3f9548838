"""Who is best: backends ranked on the cells that all of them were given, catalog by catalog.

`ranking(rows)` is the frame that pages and scripts show; ``right`` of ``cells`` is what ranks.
"""

from __future__ import annotations

import pandas as pd

from farm.report.tables.causes import KNOWN
from farm.report.tables.coverage import (
    FAILED_STATUSES,
    JUDGED_STATUSES,
    MEASURED_STATUSES,
    NOT_VALID_STATUSES,
    PASSED_STATUSES,
)
from tasks import checks
from tasks.model import Status

_CELL = ["check", "op", "variant", "dtype"]


def ranking(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per catalog and backend, the best of each catalog first.

    ``rows``: `distinct` rows with their standing. A backend is ranked in a catalog that it has rows of, on the cells of
    which every such backend has the same valid samples. Columns: catalog, place (equal where ``right`` is), backend, vendor,
    backends (how many are compared), given (cells, valid ones), cells (of these, those common to all), ran (gave
    numbers on its device on all samples), judged (ran, or failed to: an error, a crash), right (ran, and none of its samples
    failed), imprecise (of the right ones, those with an imprecise sample), weak (of the right ones, those that a constant
    output would have passed), failed, known (of the failed ones, those whose failures are all known), emulated, share =
    right/cells. What a backend does not take, or ran elsewhere, is not right: cells − judged.
    """
    rows = rows[~rows["check"].isin(checks.where(runs=False))]
    made = [_ranked(str(catalog), some) for catalog, some in rows.groupby("catalog", sort=True)]
    return pd.concat(made, ignore_index=True) if made else pd.DataFrame(columns=_TOLD)


_TOLD = [
    *("catalog", "place", "backend", "vendor", "backends", "given", "cells", "ran", "judged", "right"),
    *("imprecise", "weak", "failed", "known", "emulated", "share"),
]


def _ranked(catalog: str, rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values("run_id", kind="stable").drop_duplicates(["case_id", "backend"], keep="last")
    backends = rows["backend"].nunique()
    valid = rows[~rows["status"].isin(NOT_VALID_STATUSES)]
    common = rows[valid.groupby("case_id")["backend"].nunique().reindex(rows["case_id"]).eq(backends).to_numpy()]
    failed = common["status"].isin(FAILED_STATUSES)
    facts = {
        "ran": common["status"].isin(MEASURED_STATUSES),
        "judged": common["status"].isin(JUDGED_STATUSES),
        "right": common["status"].isin(PASSED_STATUSES),
        "imprecise": common["status"] != Status.IMPRECISE.value,
        "weak": common["weak"],
        "failed": ~failed,
        "known": ~failed | (common["standing"] == KNOWN),
    }
    cells = pd.DataFrame(facts).groupby([common[name] for name in ("backend", *_CELL)], sort=False).all()
    cells = cells.assign(failed=~cells["failed"])  # any of its samples
    cells = cells.assign(
        known=cells["failed"] & cells["known"],
        imprecise=cells["right"] & ~cells["imprecise"],
        weak=cells["right"] & cells["weak"],
    )
    vendors = rows.drop_duplicates("backend").set_index("backend")["vendor"]
    sums = cells.groupby(level="backend").sum().reindex(vendors.index, fill_value=0).astype("int64")
    size = int(len(cells) / backends)
    sums = sums.assign(  # aligned by backend
        catalog=catalog,
        vendor=vendors,
        backends=backends,
        given=valid.drop_duplicates([*_CELL, "backend"])["backend"].value_counts(),
        cells=size,
        emulated=rows["placement"].str.startswith("emulated").groupby(rows["backend"]).any(),
        share=sums["right"] / (size or float("nan")),
        place=sums["right"].rank(method="min", ascending=False).astype("int64"),
    )
    return sums.reset_index().sort_values(["place", "backend"], kind="stable")[_TOLD]
