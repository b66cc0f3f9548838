"""Lake rows → tables of coverage, pass rate and findings; pandas in, pandas out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from farm.lake.key import RowKey
from farm.lake.origin_columns import COLUMNS, KEY
from farm.program import name_farm_program, write_results_option
from farm.report.once import freeze_frame, is_frame_frozen, once
from tasks import checks
from tasks.model import (
    BY_SEVERITY,
    DEADLY,
    FAILED,
    FINDINGS,
    JUDGED,
    MEASURED,
    NOT_VALID,
    PASSED,
    Status,
    name_statuses,
)

#: All statuses, in the order of the columns of the tables.
STATUSES: tuple[str, ...] = tuple(name_statuses(Status))
#: The worst first.
SEVERITY: tuple[str, ...] = tuple(name_statuses(BY_SEVERITY))
#: Rank of a status, 0 for the worst.
RANK = {status: rank for rank, status in enumerate(SEVERITY)}
JUDGED_STATUSES, PASSED_STATUSES, FAILED_STATUSES = name_statuses(JUDGED), name_statuses(PASSED), name_statuses(FAILED)
NOT_VALID_STATUSES, MEASURED_STATUSES = name_statuses(NOT_VALID), name_statuses(MEASURED)
#: Statuses worth a line of their own in a list of findings.
FINDING_STATUSES: tuple[str, ...] = tuple(name_statuses(FINDINGS))

#: Joins the parts of a key that pandas groups by. No NUL: pandas 2 takes two texts for equal that differ after one.
JOINED_BY = "\x1f"
#: A cell of the matrix; its samples are judged together.
CELL = ["check", "op", "variant", "dtype", "backend"]
#: Columns of the lake by what is made of them. A measured count may be missing, so it is a number like the others.
_TEXT = [c.name for c in COLUMNS if c.type == "string"]
_NUMBERS = [c.name for c in COLUMNS if c.type == "float64" or (c.type == "int64" and c.shown == "metrics")]
NO_REASON = "no reason was given"
#: Column order of a coverage table.
COUNTS = ["planned", "valid", "judged", "passed", "failed", "apart", "weak", "weak_cells"]


def keep_distinct_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows made ready for tables: one per (run_id, case_id, backend), every column of the lake present.

    Of several rows with one key the one with the most attempts counts, then the last. Text that is missing is "",
    ``weak`` is False where it is missing, and ``label`` is the op with its variant. Raises ValueError when a status
    is not one of the closed set. A frame that was made ready is returned as it is.
    """
    if is_frame_frozen(rows):
        return rows
    made: dict[Any, pd.Series] = dict(rows.items())
    nothing = pd.Series(None, index=rows.index, dtype=object)
    made |= {c.name: nothing for c in COLUMNS if c.name not in made}
    for name in _TEXT:
        column = made[name]
        if not isinstance(column.dtype, pd.StringDtype) or column.hasnans:
            made[name] = column.astype(object).where(column.notna(), "").astype(str)
    for name in _NUMBERS:
        if made[name].dtype != "float64":
            made[name] = pd.to_numeric(made[name], errors="coerce").astype("float64")
    attrs = dict(rows.attrs)
    rows = pd.DataFrame(made, index=rows.index)  # at once: a column after another would be a block of its own, each
    rows.attrs.update(attrs)
    unknown = rows.loc[~rows["status"].isin(STATUSES), "status"]
    if len(unknown):
        names = ", ".join(repr(name) for name in sorted(unknown.unique())[:5])
        raise ValueError(f"{len(unknown)} row(s) have a status outside the closed set: {names}; known: {STATUSES}")
    rows["weak"] = rows["weak"].eq(True).fillna(False).astype(bool)
    attempts = pd.to_numeric(rows["attempts"], errors="coerce").fillna(0)
    if rows.duplicated(KEY).any():
        order = attempts.reset_index(drop=True).sort_values(kind="stable").index
        rows = rows.iloc[order].drop_duplicates(KEY, keep="last")
    rows["label"] = rows["op"].where(rows["variant"] == "", rows["op"] + "." + rows["variant"])
    return freeze_frame(rows.reset_index(drop=True))


@once
def find_column_values(rows: pd.DataFrame, column: str) -> frozenset[Any]:
    """What rows have in a column."""
    return frozenset(rows[column].unique())


def rank_status_column(status: pd.Series) -> pd.Series:
    """Rank of statuses, 0 for the worst."""
    return status.map(RANK).astype("int64")


def select_latest_rows(rows: pd.DataFrame, run_ids: Sequence[str]) -> pd.DataFrame:
    """Of several runs, the row of each (case_id, backend) from the newest run; ``run_ids``: oldest first."""
    rows = keep_distinct_rows(rows)
    age = rows["run_id"].map({name: number for number, name in enumerate(run_ids)}).fillna(-1)
    order = age.sort_values(kind="stable").index
    return rows.loc[order].drop_duplicates(["case_id", "backend"], keep="last").reset_index(drop=True)


def coverage(
    rows: pd.DataFrame, by: str | Sequence[str] = ("backend",), inventory: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """Coverage and pass rate of each group of lake rows; ``by=()`` gives one line, "all".

    Columns: ``planned``; ``valid`` (planned − invalid − vacuous − skipped − ``apart`` − the weak passes of cells where
    more was seen, see `find_weak_rows_beside`); ``judged`` (pass, imprecise, wrong, error, crash, timeout, oom, without
    ``weak`` and ``apart``); ``passed`` (pass, imprecise, without ``weak``); ``failed`` (without ``apart``); ``apart``
    (failures that are known not to be the backend's, see `find_blameless_rows`); ``weak`` (passes of samples that a
    constant output would have passed: no evidence, neither judged nor passed; where such a sample fails it is judged as
    any other); ``weak_cells`` (cells of which nothing but such passes was seen); ``coverage`` = judged/valid,
    ``pass_rate`` = passed/judged and, of that, ``imprecise_rate`` = imprecise/judged, NaN where the denominator is 0;
    then one count per status, the weak passes among ``pass``. Rows of the build check are not counted, because nothing
    was computed: see `count_built_rows`.

    With the ``inventory`` of a run and ``by`` made of "vendor" and "backend" only, backends without a row get a line
    of zeros, and ``available`` and ``reason`` are added. Raises ValueError for a column that the lake does not have.
    """
    keys = [by] if isinstance(by, str) else list(by)
    rows = keep_distinct_rows(rows)
    unknown = [key for key in keys if key not in rows.columns]
    if unknown:
        raise ValueError(f"cannot group by {', '.join(unknown)}: not a column of the lake ({', '.join(rows.columns)})")
    table = _count_coverage_rows(rows, *keys).copy()
    if inventory is not None and "backend" in keys and set(keys) <= {"vendor", "backend"}:
        table = _add_absent_backends(table, rows, keys, inventory)
    return table


def find_blameless_rows(rows: pd.DataFrame) -> pd.Series:
    """Which `keep_distinct_rows` rows failed by no fault of their backend (`farm.plan.known_failure.KnownFailure.fault`), as far as they
    tell."""
    return ~rows["fault"].isin(["", "backend"]) if "fault" in rows else pd.Series(False, index=rows.index)


def add_code_column(rows: pd.DataFrame, run: Mapping[str, Any]) -> pd.DataFrame:
    """Rows with the column ``code``: equal for backends that run the same code, modes of one runtime in one
    environment."""
    config = run.get("config")
    listed = config.get("backends") if isinstance(config, Mapping) else None
    said = {b["name"]: b for b in listed or () if isinstance(b, Mapping) and "name" in b}
    code = {
        name: JOINED_BY.join(map(str, (b.get("like") or name, b.get("packages") or "", b.get("python") or "")))
        for name, b in said.items()
    }
    return rows.assign(code=rows["backend"].map(lambda name: code.get(name, name)))


def count_rows_once(rows: pd.DataFrame) -> pd.DataFrame:
    """`keep_distinct_rows` rows for sums over backends: of those that backends with one ``code`` have of a case, the worst."""
    if "code" not in rows or rows["code"].nunique() == rows["backend"].nunique():
        return rows
    return _keep_worst_rows(rows)


@once
def _keep_worst_rows(rows: pd.DataFrame) -> pd.DataFrame:
    worst = rank_status_column(rows["status"]).sort_values(kind="stable").index
    return freeze_frame(rows.loc[worst].drop_duplicates(["run_id", "case_id", "vendor", "code"]).sort_index())


def find_weak_rows_beside(rows: pd.DataFrame) -> pd.Series:
    """Which `keep_distinct_rows` rows are weak passes of a cell that has evidence besides: they neither add to nor lower
    coverage."""
    weak = rows["weak"] & (rows["status"] == Status.PASS.value)
    evidence = (
        (rows["status"].isin(JUDGED_STATUSES) & ~weak)
        .groupby([rows[name] for name in CELL], sort=False)
        .transform("any")
    )
    return weak & evidence.astype(bool)


def count_built_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """What was only built, by (vendor, backend): ``planned``, ``valid``, ``built``, ``refused`` (unsupported,
    fallback), ``failed``.

    ``build_rate`` = built/(built + failed), NaN where that is 0. A program that was built is no evidence of its
    numbers.
    """
    rows = keep_distinct_rows(rows)
    rows = rows[rows["check"].isin(checks.list_checks_where(runs=False))]
    status = rows["status"]
    ones = pd.DataFrame(
        {
            "planned": status.notna(),
            "valid": ~status.isin(NOT_VALID_STATUSES),
            "built": status == Status.PASS.value,
            "refused": status.isin([Status.UNSUPPORTED.value, Status.FALLBACK.value]),
            "failed": status.isin(FAILED_STATUSES),
        }
    ).astype("int64")
    table = ones.groupby([rows["vendor"], rows["backend"]], sort=True).sum()
    tried = table["built"] + table["failed"]
    return table.assign(build_rate=table["built"] / tried.where(tried > 0))


@once
def _mark_counted_rows(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series, pd.Series]:
    """Of `keep_distinct_rows` rows those that were run, what each counts as (0 or 1, by status and "weak", "beside", "apart"),
    which are judged, and which are weak passes."""
    rows = rows[~rows["check"].isin(checks.list_checks_where(runs=False))]
    judged = rows["status"].isin(JUDGED_STATUSES)
    weak = rows["weak"] & (rows["status"] == Status.PASS.value)
    codes = pd.Index(STATUSES).get_indexer(pd.Index(rows["status"]))
    ones = {status: codes == number for number, status in enumerate(STATUSES)}
    ones |= {
        "weak": weak.to_numpy(),
        "beside": find_weak_rows_beside(rows).to_numpy(),
        "apart": find_blameless_rows(rows).to_numpy(),
    }
    told = pd.DataFrame(np.column_stack([*ones.values()]).astype("int64"), index=rows.index, columns=[*ones])
    return rows, told, judged, weak


@once
def _count_coverage_rows(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    rows, told, judged, weak = _mark_counted_rows(rows)
    groups: list[Any] = [rows[key] for key in keys]
    if not keys:
        groups = [pd.Series("all", index=rows.index, name="all", dtype="str")]
    counts = told.groupby(groups, observed=True, sort=True, dropna=False).sum()
    if not keys and rows.empty:
        counts.loc["all"] = 0
    # A cell is weakly tested when it was run and all that came of it are passes of weak samples.
    cell_keys = list(dict.fromkeys([*(keys or ["run_id"]), *CELL]))
    tested = rows.loc[judged, cell_keys].assign(all_weak=weak[judged])
    all_weak = tested.groupby(cell_keys, observed=True, sort=False, dropna=False)["all_weak"].all()
    if keys:
        weak_cells = all_weak.groupby(level=[*keys], sort=False, dropna=False).sum().reindex(counts.index, fill_value=0)
    else:
        weak_cells = pd.Series(int(all_weak.sum()), index=counts.index)
    return _sum_coverage_rates(counts.assign(weak_cells=weak_cells.astype("int64")))


def _sum_coverage_rates(counts: pd.DataFrame) -> pd.DataFrame:
    """Sums and rates from the counts per status, ``weak``, ``find_weak_rows_beside``, ``apart`` and ``weak_cells``."""
    # As arrays: a report asks for a dozen of these tables, of a few lines each.
    n = {name: counts[name].to_numpy() for name in counts.columns}

    def add(statuses: Sequence[str]) -> np.ndarray:
        return sum((n[status] for status in statuses), np.zeros(len(counts), "int64"))

    planned, judged = add(STATUSES), add(JUDGED_STATUSES) - n["weak"] - n["apart"]
    valid, passed = planned - add(NOT_VALID_STATUSES) - n["beside"] - n["apart"], add(PASSED_STATUSES) - n["weak"]
    failed = add(FAILED_STATUSES) - n["apart"]
    kept = {name: n[name] for name in ("apart", "weak", "weak_cells")}
    table = {"planned": planned, "valid": valid, "judged": judged, "passed": passed, "failed": failed, **kept}
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = {
            "coverage": np.where(valid > 0, judged / valid, np.nan),
            "pass_rate": np.where(judged > 0, passed / judged, np.nan),
            "imprecise_rate": np.where(judged > 0, n[Status.IMPRECISE.value] / judged, np.nan),
        }
    statuses = {status: n[status] for status in STATUSES}
    return pd.DataFrame({name: table[name] for name in COUNTS} | rates | statuses, index=counts.index)


def list_inventory_backends(inventory: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The backends an inventory speaks of: name → vendor, available, reason, runtime_version, device, nodes."""
    backends = (inventory or {}).get("backends") or {}
    return {str(name): dict(said or {}) for name, said in backends.items()}


def table_unavailable_backends(inventory: Mapping[str, Any] | None) -> pd.DataFrame:
    """Backends that no node offers: index ``backend``, columns ``vendor`` and ``reason``."""
    lines = [
        (name, str(said.get("vendor") or ""), str(said.get("reason") or NO_REASON))
        for name, said in sorted(list_inventory_backends(inventory).items())
        if not said.get("available")
    ]
    return pd.DataFrame(lines, columns=["backend", "vendor", "reason"]).set_index("backend")


def _add_absent_backends(
    table: pd.DataFrame, rows: pd.DataFrame, keys: list[str], inventory: Mapping[str, Any]
) -> pd.DataFrame:
    said = list_inventory_backends(inventory)
    seen = set(rows["backend"])
    extra = [
        {"backend": name, "vendor": str(what.get("vendor") or "")} for name, what in said.items() if name not in seen
    ]
    if extra:
        index = pd.DataFrame(extra).set_index(keys).index
        zeros = pd.DataFrame(
            0, index=index, columns=[*STATUSES, "weak", "beside", "apart", "weak_cells"], dtype="int64"
        )
        table = pd.concat([table, _sum_coverage_rates(zeros)]).sort_index()
    names = table.index.get_level_values("backend")
    return table.assign(
        available=[name not in said or bool(said[name].get("available")) for name in names],
        reason=[str(said.get(name, {}).get("reason") or "") for name in names],
    )


def sort_backend_names(vendor: str, name: str) -> tuple[Any, ...]:
    """Sort key of backends: by vendor and name, the versions of one ("ort-cpu@1.20.1") after it, the newest first."""
    base, at, version = name.partition("@")
    return vendor, base, bool(at), tuple(-int(part) for part in re.findall(r"\d+", version)), version


def list_frame_lines(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The lines of a table as dicts by column name."""
    columns = {str(name): column.tolist() for name, column in table.items()}
    return [dict(zip(columns, line, strict=True)) for line in zip(*columns.values(), strict=True)]


def table_cell_matrix(rows: pd.DataFrame) -> pd.DataFrame:
    """Every square of the matrix: index (label, backend), all dtypes and samples of an op on a backend together.

    ``worst`` is the most severe status of the square, ``weakly_tested`` says that it has only passes of weak samples;
    the counts and rates are those of ``coverage``. ``table_cell_matrix(rows)["worst"].unstack()`` is op × backend.
    """
    table = _count_coverage_rows(keep_distinct_rows(rows), "label", "backend").copy()
    worst = np.select([table[status].to_numpy() > 0 for status in SEVERITY], SEVERITY, "")
    table.insert(0, "worst", worst.astype(object))
    table.insert(1, "weakly_tested", (table["judged"] == 0) & (table["weak"] > 0))
    return table


def table_worst_matrix(rows: pd.DataFrame, inventory: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """op × backend of the worst status; "" where nothing was planned, "unavailable" below a missing backend."""
    matrix = table_cell_matrix(rows)["worst"].unstack("backend").fillna("")
    for name in table_unavailable_backends(inventory).index:
        if name not in matrix.columns:
            matrix[name] = Status.UNAVAILABLE.value
    return matrix.sort_index(axis=1)


def vendor_by_dtype(rows: pd.DataFrame) -> pd.DataFrame:
    """Coverage of each (vendor, dtype); ``["pass_rate"].unstack()`` is vendor × dtype."""
    return coverage(rows, by=("vendor", "dtype"))


def status_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows per status and backend, with their sum; index (vendor, backend)."""
    table = coverage(rows, by=("vendor", "backend"))
    return table[[*STATUSES, "planned"]]


def write_reproduce_command(run_id: str, case_id: str, backend: str, results: str = "results", status: str = "") -> str:
    """The command that runs one row of the lake ``results`` again, quoted for a POSIX shell.

    ``status``: the row's; one that takes the process down is run in a child.
    """
    what = str(RowKey(run_id, case_id, backend)).replace("'", "'\"'\"'")
    return f"{name_farm_program()} reproduce '{what}'{write_results_option(results)}{write_status_option(status)}"


def make_reproduce_commands(rows: pd.DataFrame, results: str, side: str = "") -> pd.Series:
    """`write_reproduce_command` of every row; ``side``: how the names of its columns end, "_a" or "_b" in a diff."""
    named = zip(rows[f"run_id{side}"], rows["case_id"], rows[f"backend{side}"], rows[f"status{side}"], strict=True)
    made = [write_reproduce_command(run, case, backend, results, status) for run, case, backend, status in named]
    return pd.Series(made, index=rows.index, dtype=object)


def write_status_option(status: str) -> str:
    """The option of `write_reproduce_command` for a row of this status."""
    return " --child" * (status in DEADLY)
