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
    find_blameless_rows,
)
from tasks import checks
from tasks.model import Status
from tasks.model.row import EMULATED

_CELL = ["check", "op", "variant", "dtype"]
#: What is read of the rows: each step takes some of them, and what it takes of eighty columns is most of its time.
_READ = [
    *_CELL,
    *("catalog", "run_id", "case_id", "backend", "vendor", "execution", "status", "weak", "standing", "fault"),
]


def ranking(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per catalog and backend, the best of each catalog first, then those that are not ranked.

    ``rows``: `distinct` rows with their standing. A backend is ranked in a catalog that it has rows of, on the cells of
    which every ranked one has the same valid samples. A sample that some backend fails by no fault of its own
    (`farm.report.tables.coverage.find_blameless_rows`) is compared for nobody. A backend that was given fewer than half
    of the cells that the most were given would shrink the comparison for all: it is compared with them, on the cells
    that all of them and it were given, and has no place, where two others or more are left. Columns: catalog, place
    (equal where ``right`` is; NaN for none), backend, vendor, backends (how many are ranked), given (cells, valid
    ones), without (cells that the ranked ones would have in common without it), apart (cells with samples that are
    compared for nobody), cells (of the given ones, those common to all that it is compared with), best (the most that
    any of them has right there), ran (gave numbers on its device on all samples), judged (ran, or failed to: an error,
    a crash), then what the cells are counted in, each once: right (all samples ran and passed), weak (they did, and a
    constant output would have passed them all: no evidence), failed (a sample did), fallback (a sample ran elsewhere),
    unsupported (a sample was not taken); imprecise (of the right ones, those with an imprecise sample), known (of the
    failed ones, those whose failures are all known), emulated, share = right/cells.
    """
    rows = rows[[name for name in _READ if name in rows]]
    rows = rows[~rows["check"].isin(checks.list_checks_where(runs=False))]
    # Texts as numbers: what follows groups by them many times.
    rows = rows.assign(
        cell=rows.groupby(_CELL, sort=False, dropna=False).ngroup(), case_id=pd.factorize(rows["case_id"])[0]
    )
    rows = rows.drop(columns=_CELL)
    made = [_rank_backends_of_catalog(str(catalog), some) for catalog, some in rows.groupby("catalog", sort=True)]
    return pd.concat(made, ignore_index=True) if made else pd.DataFrame(columns=_TOLD)


_TOLD = [
    *("catalog", "place", "backend", "vendor", "backends", "given", "without", "apart", "cells", "best"),
    *("ran", "judged", "right", "imprecise", "weak", "failed", "known", "fallback", "unsupported", "emulated", "share"),
]


def _rank_backends_of_catalog(catalog: str, rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.sort_values("run_id", kind="stable").drop_duplicates(["case_id", "backend"], keep="last")
    valid, nobody = rows[~rows["status"].isin(NOT_VALID_STATUSES)], rows.loc[find_blameless_rows(rows), "case_id"]
    apart = valid["case_id"].isin(nobody)
    left_out, valid = valid.loc[apart, "cell"].nunique(), valid[~apart]
    given = valid.drop_duplicates(["cell", "backend"])["backend"].value_counts()
    given = given.reindex(rows["backend"].unique(), fill_value=0)
    ranked = given.index[2 * given >= given.max()]
    ranked = ranked if len(ranked) > 1 else given.index
    sums = _sum_common_cells(valid, ranked).assign(backends=len(ranked))
    sums["place"] = sums["right"].rank(method="min", ascending=False)
    sums["without"] = _count_cells_without(valid, ranked)
    alone = [
        _sum_common_cells(valid, ranked.append(pd.Index([name]))).loc[[name]] for name in given.index.difference(ranked)
    ]
    made = pd.concat([sums, *alone]).assign(
        backends=len(ranked), catalog=catalog, apart=left_out, given=given
    )  # aligned by backend
    made = made.assign(
        vendor=rows.drop_duplicates("backend").set_index("backend")["vendor"],
        emulated=(rows["execution"] == EMULATED).groupby(rows["backend"]).any(),
        share=made["right"] / made["cells"].where(made["cells"] > 0),
    )
    return made.rename_axis("backend").reset_index().sort_values(["place", "backend"], kind="stable")[_TOLD]


def _sum_common_cells(valid: pd.DataFrame, backends: pd.Index) -> pd.DataFrame:
    """What each of some backends has of the cells that all of them were given; index: backend."""
    valid = valid[valid["backend"].isin(backends)]
    times = valid["case_id"].value_counts()
    common = valid[valid["case_id"].isin(times.index[times == len(backends)])]
    status = common["status"]
    every = {
        "ran": status.isin(MEASURED_STATUSES),
        "judged": status.isin(JUDGED_STATUSES),
        "passed": status.isin(PASSED_STATUSES),
        "all_weak": common["weak"] & (status == Status.PASS.value),
        "all_known": ~status.isin(FAILED_STATUSES) | (common["standing"] == KNOWN),
    }
    some = {
        "imprecise": status == Status.IMPRECISE.value,
        "failed": status.isin(FAILED_STATUSES),
        "fallback": status == Status.FALLBACK.value,
        "unsupported": status == Status.UNSUPPORTED.value,
    }
    by = [common["backend"], common["cell"]]
    cells = pd.DataFrame(every).groupby(by, sort=False).all().join(pd.DataFrame(some).groupby(by, sort=False).any())
    taken = ~cells["failed"] & ~cells["fallback"]
    cells = cells.assign(
        right=cells["passed"] & ~cells["all_weak"],
        weak=cells["all_weak"],
        imprecise=cells["passed"] & cells["imprecise"],
        known=cells["failed"] & cells["all_known"],
        fallback=~cells["failed"] & cells["fallback"],
        unsupported=taken & cells["unsupported"],
    )
    sums = cells.groupby(level="backend").sum().reindex(backends, fill_value=0).astype("int64")
    return sums.assign(cells=len(cells) // len(backends), best=sums["right"].max())


def _count_cells_without(valid: pd.DataFrame, backends: pd.Index) -> pd.Series:
    """By backend, how many cells the others have in common."""
    valid = valid[valid["backend"].isin(backends)].assign(has=True)
    cell_of = valid.drop_duplicates("case_id").set_index("case_id")["cell"]
    has = (
        valid.pivot(index="case_id", columns="backend", values="has")
        .notna()
        .reindex(columns=backends, fill_value=False)
    )
    lacks = (~has).sum(axis=1)
    made = {name: cell_of.loc[has.index[lacks - ~has[name] == 0]].nunique() for name in backends}
    return pd.Series(made, dtype="float64")
