"""Failures that take a structure of an input: "only where expert is all equal"."""

from __future__ import annotations

from collections.abc import Collection

import pandas as pd

from farm.report.tables.coverage import CELL, FAILED_STATUSES
from tasks.draw import structure
from tasks.model import Status

#: Structures that are named; of more, only the input is.
_NAMED = 3


def find_only_failing_structure(rows: pd.DataFrame) -> pd.Series:
    """Of each row that failed, or is imprecise, where its cell is so alone: "only where expert is all equal". "" where
    ordinary values fail too, where several inputs are in a structure, and where no sample without those structures has
    passed."""
    found = pd.Series("", index=rows.index, dtype=object)
    if "structure" not in rows:
        return found
    labels = rows["structure"].fillna("")
    for statuses in (FAILED_STATUSES, (Status.IMPRECISE.value,)):
        bad = rows["status"].isin(statuses)
        if not (labels[bad] != "").any():
            continue
        some = rows[CELL].agg("\0".join, axis=1)
        for cell in some[bad & (labels != "")].unique():
            mine = some == cell
            needed = set(labels[mine & bad])
            passed = labels[mine & (rows["status"] == Status.PASS.value)]
            # Structures of several inputs have nothing in common: chance has drawn them.
            inputs = {label.partition("=")[0] for label in needed}
            if "" in needed or len(inputs) > 1 or not (~passed.isin(needed)).any():
                continue
            found[mine & bad] = _describe_failing_structures(needed)
    return found


def _describe_failing_structures(labels: Collection[str]) -> str:
    """In words, of structures of one input."""
    name = next(iter(labels)).partition("=")[0]
    codes = sorted(label.partition("=")[2] for label in labels)
    words = [structure.WORDS.get(code, code) for code in codes]
    more = f" or otherwise structured ({len(words) - _NAMED} more ways)" if len(words) > _NAMED else ""
    return f"only where {name} is {' or '.join(words[:_NAMED])}{more}"
