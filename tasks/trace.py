"""What was seen at the steps of a case as rows of its trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.checks import Observation
from tasks.judge import fingerprint
from tasks.judging import Judgement
from tasks.model import Misbehaviour, Status
from tasks.model.errors import shorten_error
from tasks.model.stored_at_once import store_at_once
from tasks.model.trace import TraceStep
from tasks.older_python import zip_equal

#: Longest error text of a step, in characters.
ERROR_LIMIT = 500


@store_at_once
@dataclass(frozen=True)
class TracedSteps:
    """An observation and the digests of what it no longer holds: outputs that are not judged, and a state."""

    what: Observation
    ms: float
    output_digest: str | None = None
    state_digest: str | None = None

    @classmethod
    def of(cls, what: Observation, ms: float) -> TracedSteps:
        """ms: since the observation before it."""
        if what.judged and what.state is None:  # as nearly all are
            return cls(what, ms if what.ms is None else what.ms)
        state = fingerprint.digest_judged_outputs([np.asarray(x) for x in what.state.values()]) if what.state else None
        outputs = None
        if not what.judged and len(what.outputs):
            outputs = fingerprint.digest_judged_outputs([np.asarray(x) for x in what.outputs])
        kept = replace(what, outputs=what.outputs if what.judged else (), state=None)
        return cls(kept, ms if what.ms is None else what.ms, outputs, state)


def list_trace_rows(seen: Sequence[TracedSteps], found: Sequence[Judgement]) -> tuple[TraceStep, ...]:
    """A row for each step; none where there is but one that keeps nothing. found: the judgements of those that are
    judged and raised nothing, in their order; of the first of them alone where more could not be had."""
    if len(seen) < 2 and not any(x.state_digest for x in seen):
        return ()
    judged = iter(found)
    return tuple(_make_trace_step(number, one, judged) for number, one in enumerate(seen))


def join_outputs_of_steps(seen: Sequence[Observation]) -> list[Any]:
    """The outputs of a case: those of its first step, or, of a session's steps, each output with a row for every
    step."""
    first = list(seen[0].outputs)
    if seen[0].row is None or any([x.shape for x in one.outputs] != [x.shape for x in first] for one in seen):
        return first
    return [np.stack(rows) for rows in zip_equal(*(one.outputs for one in seen))]


def _make_trace_step(number: int, seen: TracedSteps, judged: Iterator[Judgement]) -> TraceStep:
    what, error, units, digest = seen.what, "", None, seen.output_digest
    status, kind = (Status.WRONG, what.kind) if what.kind else (Status.PASS, "")
    if isinstance(what.error, Misbehaviour):
        status, kind, error = Status.WRONG, what.error.kind, shorten_error(what.error, ERROR_LIMIT)
    elif what.error is not None:
        status, error = Status.ERROR, f"{type(what.error).__name__}: {shorten_error(what.error, ERROR_LIMIT)}"
    elif what.judged:
        one = next(judged, None)
        if one is None:
            status, error = Status.INVALID, "its outputs could not be judged"
        else:
            status, kind, units = one.status, one.kind, one.metrics.error_units
            digest, error = one.columns.get("output_digest"), one.metrics.detail
    return TraceStep(
        number,
        what.name,
        status.value,
        kind,
        units,
        what.apart,
        digest,
        seen.state_digest,
        seen.ms,
        error or None,
        number=what.number,
        phase=what.phase or None,
        rank=what.rank,
    )
