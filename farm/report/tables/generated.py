"""What a fuzzing run found: failures of generated cases put together, references that are suspect, what is left open."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from farm.commandline import clean_line
from farm.lake.key import RowKey
from farm.report.tables.causes import NEW
from farm.report.words import format_report_number
from tasks.catalogs import get_generating_catalog
from tasks.model import FAILED, flags, name_statuses
from tasks.model.errors import shorten_error_gist
from tasks.model.failing import describe_failure_manner
from tasks.model.kind import KIND_SPEC, KIND_UNDRAWN

#: Share of a backend's passing rows from which on what all of them have says nothing of a case.
NEARLY_ALL = 0.9
#: Columns of `list_generated_findings`.
_FOUND = ["backend", "op", "said", "rows", "dtypes", "what", "words", "key", "known"]


def are_rows_generated(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of catalogs whose cases are generated."""
    return rows["catalog"].isin([name for name in rows["catalog"].dropna().unique() if get_generating_catalog(name)])


def list_generated_findings(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per backend, op and manner of failing (`tasks.model.failing`), the most frequent first.

    Columns: backend, op, said (status and kind), rows, dtypes, what (of the row with the fewest choices), words (modes
    and attributes that all its cases have in common), key (run_id:case_id:backend of that row), known (bool). rows:
    with the column ``standing`` (`Report.rows`).
    """
    failed = rows[are_rows_generated(rows) & rows["status"].isin(name_statuses(FAILED))]
    if failed.empty:
        return pd.DataFrame(columns=_FOUND).astype({"known": bool, "rows": int})
    groups = failed.groupby(["backend", "op", failed.apply(describe_failure_manner, axis=1)], sort=True)
    right = rows[rows["status"] == "pass"]
    always = {name: _find_common_words(some["flags"]) for name, some in right.groupby("backend")}
    found = pd.DataFrame([_make_generated_line(some, always) for _, some in groups], columns=_FOUND)
    return found.sort_values("rows", ascending=False, kind="stable").reset_index(drop=True)


def _find_common_words(said: pd.Series) -> set[str]:
    """Words that nearly all rows have: of the backend, not of the case."""
    count = Counter(word for words in said.map(_list_flag_words) for word in words)
    return {word for word, number in count.items() if number >= NEARLY_ALL * len(said)}


def _list_flag_words(said: Any) -> set[str]:
    return set(flags.split_row_flags(said))


def _make_generated_line(some: pd.DataFrame, always: Mapping[Any, set[str]]) -> list[Any]:
    """always: by backend the words that are its own."""
    size = some["choices"].map(lambda x: len(x) if x is not None else 0)
    first = some.iloc[int(size.to_numpy().argmin())]
    common = set.intersection(*map(_list_flag_words, some["flags"])) - always.get(first["backend"], set())
    exact = first["error_units"] == math.inf and not first["nonfinite"]  # rounding moves nothing: units say nothing
    units = f"{format_report_number(first['error_units'])} units, " * (not exact)
    far = f"{units}{format_report_number(first['max_diff'])} off"
    what = clean_line(shorten_error_gist(first["error"]), 160) if first["error"] else far
    words = sorted(common)
    key = str(RowKey.of(first.to_dict()))
    said = " ".join(filter(None, (first["status"], first["kind"])))
    known = bool((some["standing"] != NEW).all())
    dtypes = ", ".join(sorted(some["dtype"].unique()))
    return [first["backend"], first["op"], said, len(some), dtypes, what, " ".join(words), key, known]


def _count_undrawn_reasons(rows: pd.DataFrame, why: Callable[[str], str]) -> pd.DataFrame:
    table = rows.assign(why=rows["error"].fillna("").map(why))
    made = table.groupby(["op", "why"]).size().rename("rows").reset_index()
    return made.sort_values("rows", ascending=False, kind="stable").reset_index(drop=True)


def list_suspect_references(rows: pd.DataFrame) -> pd.DataFrame:
    """The references that nobody independent stands with, by op. Columns: op, why, rows."""
    some = rows[rows["acquitted"].fillna("") != ""]
    columns = (some[name].fillna("") for name in ("acquitted", "was_status", "was_kind", "error"))
    told = [
        f"{why}; it was {f'{was} {kind}'.strip()}: {error}".removesuffix(": ")
        for why, was, kind, error in zip(*columns)
    ]
    return _count_undrawn_reasons(some.assign(error=told), lambda text: clean_line(text, 160))


def table_left_open_ops(rows: pd.DataFrame) -> pd.DataFrame:
    """What the specification does not say, by op; a case counts once. Columns: op, why, rows."""
    return _count_generated_cases(rows, KIND_SPEC)


def table_undrawn_cases(rows: pd.DataFrame) -> pd.DataFrame:
    """What the generator failed to make, by op and error; a case counts once. Columns: op, why, rows."""
    return _count_generated_cases(
        rows.assign(error=rows["error_type"].fillna("") + ": " + rows["error"].fillna("")), KIND_UNDRAWN
    )


def _count_generated_cases(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    some = rows[are_rows_generated(rows) & (rows["status"] == "invalid") & (rows["kind"] == kind)]
    return _count_undrawn_reasons(some.drop_duplicates("case_id"), lambda text: clean_line(text, 300))
