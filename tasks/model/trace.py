"""The trace of a case: a row for each step of a check that looks at several, beside the case's one row with the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.model.row import declare_row_column, list_declared_columns
from tasks.model.status import Status


@dataclass(frozen=True)
class TraceStep:
    """What was seen at one step of a case. What was not measured is None."""

    step: int = declare_row_column("int32", "case", "place of the step in its case, from 0")
    name: str = declare_row_column(
        "string", "case", "what was done in it: run 2, a row's place in a batch, a level of optimisation, step 3"
    )
    status: str = declare_row_column(
        "string",
        "outcome",
        "of this step alone, one of the closed set of statuses; the row has that of the case",
        default=Status.PASS.value,
    )
    kind: str = declare_row_column("string", "outcome", "what is wrong at this step, as the row's kind", default="")
    error_units: float | None = declare_row_column(
        "float64",
        "metrics",
        "largest |actual − reference| / (ε·|reference| + δ + tiny) of the step; null: only its bytes were compared",
        "1",
    )
    apart_units: float | None = declare_row_column(
        "float64",
        "metrics",
        "how far the step is from outputs whose bytes it should have; 0: the same bytes; null: it is held to none",
        "1",
    )
    output_digest: str | None = declare_row_column(
        "string", "metrics", "SHA-256 of the step's outputs, as the row's output_digest"
    )
    state_digest: str | None = declare_row_column(
        "string", "metrics", "the same of what the session keeps after the step; null: nothing"
    )
    ms: float | None = declare_row_column(
        "float64", "times", "time of the step, with comparing its bytes to others", "ms"
    )
    error: str | None = declare_row_column(
        "string", "outcome", "what was raised at the step, or how its outputs differ"
    )
    number: int | None = declare_row_column(
        "int32", "case", "which step of a training run it is, from 0; null: of none"
    )
    phase: str | None = declare_row_column(
        "string", "case", "which phase of that step: loss, raw gradients, weights …; null: of none"
    )
    rank: int | None = declare_row_column(
        "int32", "case", "whose it is, where several ranks take the step; null: of all, or of none"
    )

    @property
    def failed(self) -> bool:
        return Status(self.status) not in (Status.PASS, Status.IMPRECISE)


COLUMNS = list_declared_columns(TraceStep)


def find_first_step_off(statuses: Sequence[Status]) -> int:
    """The place of the first step that failed, else of the first that did not pass; -1 where all passed."""
    for fine in ({Status.PASS, Status.IMPRECISE}, {Status.PASS}):
        for at, status in enumerate(statuses):
            if status not in fine:
                return at
    return -1


def describe_trace_step(at: int, status: str, names: Sequence[str]) -> str:
    """In words that a step is the first that is off. names: of all steps."""
    return f"first {status} at step {at} of {len(names)}" + f" ({names[at]})" * (names[at] != f"step {at}")


def describe_first_wrong(steps: Sequence[TraceStep]) -> str:
    """Describe the first wrong step; "" if there is none. The steps' statuses are those of the run's policy."""
    at = find_first_step_off([Status(x.status) for x in steps])
    return describe_trace_step(at, steps[at].status, [x.name for x in steps]) if at >= 0 else ""
