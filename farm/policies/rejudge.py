"""Lake rows judged again under another policy, from their stored metrics; nothing is run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from farm import lake
from farm.commandline import clean_line
from farm.plan.config import ConfigError
from farm.policies import vote
from farm.report.words import format_report_number
from farm.work import catalog_lists
from tasks import catalogs
from tasks.cache import default_cache
from tasks.judge import op_classes, policy_files
from tasks.judge.error_metrics import Metrics
from tasks.judge.policy import has_stored_oracle_only
from tasks.judge.policy_files import Policy
from tasks.model import MEASURED, OpClass, Status, label_op, name_statuses
from tasks.model.kind import KIND_CAST, KIND_TOLERANCE, OF_NUMBERS
from tasks.model.row import get_declared_precision, has_own_tolerance

#: Statuses that a policy decides; all others say that there were no numbers to judge.
DECIDED = tuple(name_statuses(MEASURED))
#: Kinds of a wrong row that a policy decides; all others (shape, dtype, mutation, …) no number can mend.
NUMBERS = ("", "nonfinite", *OF_NUMBERS, KIND_TOLERANCE)
#: Columns that judging reads, beside those it writes.
_READ = (
    "op",
    "variant",
    "dtype",
    "op_class",
    "oracle",
    "own_tolerance",
    "compute_precision",
    "status",
    "kind",
    "limit",
    "nonfinite",
    "oracles_units",
    "max_diff",
    "max_ulp",
    "error_units",
    "flip_units",
    "mismatched",
    "numel",
    "classic",
)
#: Classes that rows without a class measured in another way than rows with one.
_MEASURED_ANEW = (OpClass.DISCONTINUOUS, OpClass.CHOICE)


def rejudge_rows(rows: pd.DataFrame, policy: Policy) -> pd.DataFrame:
    """What ``policy`` makes of lake rows: columns status, kind, limit, why, and those of a vote; index as in ``rows``.

    Only pass, imprecise and wrong rows are judged, and of these not what no number can mend (kind shape, dtype,
    mutation, …); all others keep status, kind and limit. ``why`` is "" or, for a row that should have been judged
    and could not be, the reason; it keeps status, kind and limit as well. On generated cases is voted as their run does
    (`farm.policies.vote`). Rows of an older schema, without a class,
    are given the one of the table (`tasks.judge.op_classes`).
    """
    rows = vote.undo_vote(rows)
    columns = {name: _get_row_column(rows, name) for name in _READ}
    out: dict[str, list[Any]] = {"status": [], "kind": [], "limit": [], "why": []}
    for values in zip(*columns.values()):
        row = dict(zip(columns, values))
        status, kind, limit, why = row["status"], row["kind"] or "", row["limit"], ""
        if status in DECIDED and kind in NUMBERS:
            why, judged = _rejudge_row(row, policy)
            if judged is not None:
                status, kind, limit = judged
        for name, value in zip(out, (status, kind, limit, why)):
            out[name].append(value)
    made = pd.DataFrame(out, index=rows.index).astype({"limit": "float64"})
    if set(vote.COLUMNS) <= set(rows.columns):  # a run's own vote: the limits are others, and so may be who agrees
        blameless = vote.find_suspects_of_vote(
            rows.assign(**{name: made[name] for name in ("status", "kind", "limit")})
        )
        told = [*vote.CHANGED]
        made = made.assign(**dict.fromkeys(told[2:])).astype(dict.fromkeys(told, object))
        made.loc[blameless.index, told] = blameless[told]
    return made


def _get_row_column(rows: pd.DataFrame, name: str) -> list[Any]:
    """A column with None for what is missing."""
    if name not in rows.columns:
        return [None] * len(rows)
    column = rows[name]
    return column.astype(object).where(column.notna(), None).tolist()


def _rejudge_row(row: Mapping[str, Any], policy: Policy) -> tuple[str, tuple[str, str, float | None] | None]:
    """("", (status, kind, limit)) of a row judged again, or (why not, None)."""
    op, variant, dtype, oracle = row["op"], row["variant"] or "", row["dtype"], row["oracle"] or ""
    if row["classic"] is None or row["numel"] is None:
        return f"it has no metrics ({'classic' if row['classic'] is None else 'numel'} is missing)", None
    name = row["op_class"]
    if not name:
        placement = op_classes.find_op_class(op, variant, dtype=dtype)
        if placement.unless and policy.rule == "error_units":
            return f"its class depends on {' or '.join(placement.unless)}, which rows of its schema do not tell", None
        if placement.op_class in _MEASURED_ANEW and policy.rule == "error_units":
            return f"its schema measured {placement.op_class} results by another formula", None
        name = placement.op_class.value
    units = policy.rule == "error_units" and not has_stored_oracle_only(oracle, name)
    if (
        units
        and row["error_units"] is None
        and name not in (OpClass.RANDOM, OpClass.UNINITIALISED)
        and oracle not in ("stored", "metadata")
    ):
        return "error_units is missing", None
    label = label_op(op, variant)
    limit, apart = policy.limit_value(label, name, dtype), row["oracles_units"]
    if limit is not None and apart is not None and apart > limit:
        reason = f"its oracles are further apart ({apart:.3g}) than the limit ({limit:g})"
        return f"{reason}, and rows do not tell whether the second one only rounds as its dtype does", None
    precision = get_declared_precision(row)
    limit = policy.limit_value(label, name, dtype, precision)
    nonfinite = row["nonfinite"]
    if nonfinite is None:  # an older schema: only the kind tells
        nonfinite = int(row["kind"] == "nonfinite")
    metrics = Metrics(
        max_diff=row["max_diff"],
        max_ulp=row["max_ulp"],
        error_units=row["error_units"],
        flip_units=row["flip_units"],
        mismatched=int(row["mismatched"] or 0),
        nonfinite=int(nonfinite),
        numel=int(row["numel"]),
        classic=bool(row["classic"]),
    )
    status, kind = policy_files.judge_by_policy(
        metrics, policy, label, name, dtype, oracle, precision, has_own_tolerance(row)
    )
    # What explains the numbers is no matter of policy; within its limit a lost cast is imprecise (`tasks.judging`).
    if row["kind"] == KIND_CAST and (
        kind == "numbers" or (status is Status.PASS and row["status"] == Status.IMPRECISE)
    ):
        status, kind = Status.IMPRECISE if status is Status.PASS else status, KIND_CAST
    return "", (status.value, kind, limit)


def find_rejudged_changes(rows: pd.DataFrame, again: pd.DataFrame) -> pd.DataFrame:
    """The rows whose status or kind is another one, with columns new_status, new_kind and new_limit, worst first."""
    old_kind = rows["kind"].fillna("")
    other = (again["status"] != rows["status"]) | (again["kind"] != old_kind)
    # Selected on both sides: a column given to a frame without rows would give it rows.
    found = rows[other].assign(**{f"new_{name}": again.loc[other, name] for name in ("status", "kind", "limit")})
    worth = {status.value: status.facts.severity for status in Status}
    found = found.assign(rank=found["new_status"].map(worth), size=-found["error_units"].fillna(float("inf")))
    return found.sort_values(["rank", "size", "op", "dtype", "backend"], kind="stable").drop(columns=["rank", "size"])


def sum_up_rejudging(changed: pd.DataFrame) -> list[str]:
    """One line per old and new status, with the number of rows, and by backend."""
    lines = []
    for (old, new), some in changed.groupby(["status", "new_status"], sort=True):
        counts = " · ".join(f"{name} {n}" for name, n in some["backend"].value_counts(sort=True).items())
        what = f"{old} → {new}" if old != new else f"{old}, of another kind"
        lines.append(f"{what:24} {len(some):7}   {counts}")
    return lines


def list_rejudged_cells(changed: pd.DataFrame) -> list[str]:
    """One line per changed cell: what it was, what it is, by its worst row's metrics and limits."""
    keys = ["check", "op", "variant", "dtype", "distribution", "backend", "status", "new_status"]
    lines = []
    for _, some in changed.groupby(keys, sort=False, dropna=False):
        row = some.iloc[0]
        label = label_op(row["op"], row["variant"])
        measured = [
            f"{format_report_number(row[name])} {words}"
            for name, words in (("error_units", "error units"), ("max_ulp", "ulps"), ("max_diff", "max diff"))
            if pd.notna(row[name])
        ]
        kind = f" ({row['new_kind']})" if row["new_kind"] else ""
        limit = f"limit {format_report_number(row['limit'])} → {format_report_number(row['new_limit'])}"
        lines.append(
            clean_line(
                f"{row['status']} → {row['new_status']}{kind}  {label} {row['dtype']} on {row['backend']}  "
                f"{len(some)} sample{'' if len(some) == 1 else 's'}  {'; '.join([*measured, limit])}"
            )
        )
    return lines


def print_rejudged_changes(
    console: Console, rows: pd.DataFrame, again: pd.DataFrame, policy: Policy, limit: int | None = 20
) -> pd.DataFrame:
    """Print what ``again`` (of `rejudge_rows`) changes in ``rows``; returns the changed rows. ``limit``: cells, None
    for all."""

    def line(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    blind = again["why"] != ""
    judged = rows["status"].isin(DECIDED) & rows["kind"].fillna("").isin(NUMBERS) & ~blind
    rest = rows.loc[~judged & ~blind, "status"].value_counts()
    line(f"{len(rows)} rows, {int(judged.sum())} judged again under {policy.id}")
    if len(rest):
        line(f"not a matter of policy: {' · '.join(f'{name} {n}' for name, n in rest.items())}")
    for why, some in rows[blind].groupby(again.loc[blind, "why"].str.replace(r"\d[\d.e+-]*", "…", regex=True)):
        names = sorted(set(some["op"]))
        line(
            f"not judged again, {len(some)} rows: {why}: {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        )
    changed = find_rejudged_changes(rows, again)
    if changed.empty:
        line("nothing changes")
        return changed
    for text in sum_up_rejudging(changed):
        line(text)
    told = list_rejudged_cells(changed)
    shown = told if limit is None else told[:limit]
    line(
        f"changed cells{f', {len(shown)} of {len(told)} (--all for the others)' if len(shown) < len(told) else f': {len(told)}'}"
    )
    for text in shown:
        line(f"  {text}")
    return changed


def write_rejudged_rows(rows: pd.DataFrame, again: pd.DataFrame, policy: Policy, out: Path) -> None:
    """Write the rows with their new status, kind, limit and policy as Parquet or CSV. Raises OSError."""
    judged = rows["status"].isin(DECIDED) & (again["why"] == "")
    made = rows.assign(**{name: again[name] for name in (*vote.CHANGED, "limit") if name in again})
    made["policy"] = made["policy"].where(~judged, policy.id)
    if out.suffix == ".csv":
        made.to_csv(out, index=False, lineterminator="\n")
    else:
        fields = [field for field in lake.SCHEMA if field.name in made.columns]
        pq.write_table(
            pa.Table.from_pandas(made, schema=pa.schema(fields, lake.SCHEMA.metadata), preserve_index=False), out
        )


def list_ops_of_rows(rows: pd.DataFrame) -> dict[str, set[str]]:
    """Per catalog of the rows: the labels of its ops, as rows have them and as it lists them here, if it does."""
    names: dict[str, set[str]] = {}
    for catalog, some in rows[["catalog", "op", "variant"]].drop_duplicates().groupby("catalog"):
        names[str(catalog)] = {label_op(op, variant) for op, variant in zip(some["op"], some["variant"].fillna(""))}
        if catalog in catalogs.list_catalogs():
            with contextlib.suppress(ConfigError):  # a package that is not installed here
                listed = catalog_lists.list_entries_here(str(catalog), default_cache())
                names[str(catalog)] |= {e.label for e in listed}
    return names
