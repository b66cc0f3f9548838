"""Which failures are one, as far as their rows tell: how each failed, without the words that are its own case's.

Rows of a backend and an op that failed alike are taken for one defect until their cases have been made small: the ops,
attributes and modes that are left then tell more (`farm.lake.minimal.make_finding_id`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from tasks.model.errors import mask_error_details
from tasks.model.status import Status


class FailureManner(NamedTuple):
    """words: of the error, without what is its own."""

    status: str
    kind: str
    stage: str = ""
    error_type: str = ""
    words: str = ""


def describe_unjudged_rows(told: Iterable[tuple[str, str | None]], most: int = 3) -> list[str]:
    """What is said of rows, as (status, error), that are in no pass rate: each once, so many at most."""
    silent = [(status, " ".join((error or "").split())) for status, error in told if not Status(status).judged]
    return [f"{status}: {error}" if error else status for status, error in dict.fromkeys(silent)][:most]


def describe_failure_manner(row: Mapping[str, Any], names: Collection[str] = ()) -> FailureManner:
    """How a row of the lake failed. names: of its case's own tensors and nodes.

    What is printed on the way down is not the same twice, and of numbers the error only counts them.
    """
    told = {name: text if isinstance(text := row.get(name), str) else "" for name in (*FailureManner._fields, "error")}
    status, kind, stage = (told[name] for name in ("status", "kind", "stage"))
    if Status(status).deadly:
        return FailureManner(status, kind, stage)
    if status in (Status.WRONG, Status.IMPRECISE) and not stage:
        return FailureManner(status, kind)
    return FailureManner(status, kind, stage, told["error_type"], mask_error_details(told["error"], names))
