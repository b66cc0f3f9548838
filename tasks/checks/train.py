"""The check train: each step of a training run, begun with the reference's state, held to float64 in every phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays import contiguous
from tasks.checks.base import Observation, Scenario
from tasks.checks.same import copy_outputs
from tasks.model import Form, Misbehaviour, Program, Session, Status, Unsupported
from tasks.training.phases import ALONE, BUFFERS, CLIPPED, LOSS, RAW, TAPS, split
from tasks.training.trajectory import SLOPE_LIMIT, slope

if TYPE_CHECKING:
    from tasks.judging import Judgement
    from tasks.prepare.cases import PreparedSample

#: The kind of a row whose gradients are all within their floors, and one of them too long or too short at every step.
KIND_SLOPE = "slope"
#: The kind of a row where the output of a module is off as well: the fault is in the forward pass.
KIND_FORWARD = "forward"


def _part_by_rank(outputs: list[Any], form: Form) -> list[list[Any]]:
    """The outputs of each rank. Taps may be lacking: nobody can look into a loop that is compiled."""
    whole = len(form.phases)
    each = whole if len(outputs) % whole == 0 else whole - form.phases.count(TAPS)
    if len(outputs) % each:
        raise Misbehaviour("structure", f"a step returned {len(outputs)} outputs; a rank has {whole}")
    return [outputs[at : at + each] for at in range(0, len(outputs), each)]


class Train(Scenario):
    """Kinds: the phase that is the first to be off at the first step that is ("loss", "raw gradients", "weights", …), "forward" where the
    loss or a gradient is and the output of a module as well, and "slope". The culprit is the module or the parameter."""

    name = "train"
    about = "a training run step by step: forward, gradients, clipping, the optimiser alone; the first phase that is off is named"
    lacking = "no training run"
    prepared = True

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        if program.session is None:
            raise Unsupported("the backend runs no session of a training loop")
        for k, inputs in enumerate(contiguous.dense(form).steps()):
            number = int(inputs[form.stepped[0]][0])  # the first of its inputs says which step of the run it is
            outputs = copy_outputs(session.step(inputs))
            for rank, some in enumerate(ranks := _part_by_rank(outputs, form)):
                lacking = len(form.phases) - len(some)
                gradients: list[Any] = []
                whose = (f"step {number}, rank {rank}", rank) if len(ranks) > 1 else (f"step {number}", None)
                for phase, a, b in split(form.phases):
                    if phase == TAPS and lacking:
                        continue
                    seen = some[a - lacking : b - lacking]
                    yield Observation(
                        f"{whose[0]}: {phase}",
                        seen,
                        part=(a, b),
                        row=k,
                        made_of=gradients if phase in ALONE else (),
                        noted=TAPS if phase == TAPS else "",
                        rank=whose[1],
                    )
                    if phase in (RAW, CLIPPED):
                        gradients = seen

    def conclude(
        self, seen: Sequence[Observation], found: Sequence[Judgement], sample: PreparedSample
    ) -> Judgement | None:
        phases = sample.record.phases
        off = [k for k, x in enumerate(found) if x.status is not Status.PASS and not seen[k].noted]
        if not off:
            return self._find_slope(seen, found, sample)
        first = off[0]
        step = [k for k, x in enumerate(seen) if (x.row, x.rank) == (seen[first].row, seen[first].rank)]
        beside = [k for k, x in enumerate(seen) if (x.row, x.part) == (seen[first].row, seen[first].part)]
        sound = [k for k in beside if k not in off]  # the same phase of other ranks
        phase, one = phases[seen[first].part[0]], found[first]
        taps = [found[k] for k in step if seen[k].noted and found[k].status is not Status.PASS]
        kind = KIND_FORWARD if taps and phase in (LOSS, BUFFERS, RAW) else phase
        culprit = taps[0].metrics.detail if kind == KIND_FORWARD else one.metrics.detail
        culprit = f"rank {seen[first].rank}: {culprit}" if sound else culprit
        count = one.metrics.mismatched
        units = f"{one.metrics.error_units:.3g}" if one.metrics.error_units is not None else "no"
        others = f" and {count - 1} more" if count > 1 else ""
        where = f"; the first module whose output is off: {culprit}" if kind == KIND_FORWARD else ""
        words = f"{seen[first].name}: {one.metrics.detail} is {units} floors off{others}{where}"
        return one.rule(one.status, kind, {"culprit": culprit, "error": words})

    def _find_slope(
        self, seen: Sequence[Observation], found: Sequence[Judgement], sample: PreparedSample
    ) -> Judgement | None:
        """What no step alone shows: a gradient that is off along itself, by the same share at every step."""
        worst = max((x for k, x in enumerate(found) if not seen[k].noted), key=lambda x: x.metrics.error_units or 0.0)
        scores = score_slopes(seen, sample)
        if not scores:
            return worst
        name = max(scores, key=lambda x: abs(scores[x]))
        if abs(scores[name]) <= SLOPE_LIMIT:
            return worst
        words = f"the gradient of {name} is off along itself at all steps, {abs(scores[name]):.3g} standard errors"
        return worst.rule(Status.WRONG, KIND_SLOPE, {"culprit": name, "error": words})


def score_slopes(seen: Sequence[Observation], sample: PreparedSample) -> dict[str, float]:
    """Of each gradient, the mean over the steps of ⟨g, reference⟩ / ⟨reference, reference⟩ − 1 in standard errors of what rounding makes of
    it, or of its own scatter where that is larger."""
    record, expected = sample.record, sample.expected()
    steps = [x for x in seen if record.phases[x.part[0]] == RAW and not x.rank]
    if len(steps) < 2:
        return {}
    found = {}
    for place in (k for k, phase in enumerate(record.phases) if phase == RAW):
        reference, floor = expected[place].reference, record.slopes[place]
        assert reference is not None and floor is not None
        rows = [slope(np.asarray(x.outputs[place - x.part[0]], np.float64), reference[x.row]) for x in steps]
        error = max(floor, float(np.std(rows, ddof=1))) / math.sqrt(len(rows))
        found[record.names[place]] = float(np.mean(rows)) / error if error else 0.0
    return found
