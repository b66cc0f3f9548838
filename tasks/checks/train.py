"""The check train: each step of a training run, begun with the reference's state, held to float64 in every phase."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays import contiguous
from tasks.arrays.blocks import add_as_numpy, map_blocks, split_as_numpy_adds
from tasks.checks.base import Observation, Scenario
from tasks.checks.same_bytes import copy_program_outputs
from tasks.model import EPS, Form, Leaf, Misbehaviour, Program, Session, Status, Unsupported
from tasks.model.flags import parse_row_flags
from tasks.training.exact import HALF, STORED, STORINGS
from tasks.training.layout import StepLayout
from tasks.training.phases import (
    ALONE,
    ALONG,
    BUFFERS,
    CLIPPED,
    FLAG_NORM,
    LOSS,
    PHASES,
    PROBE,
    RAW,
    SHARES,
    TAPS,
    OwnGradients,
    split_step_phases,
)
from tasks.training.trajectory import SLOPE_LIMIT, STEPS

if TYPE_CHECKING:
    from tasks.judging import Judgement
    from tasks.prepare.cases import PreparedSample

#: The kind of a row in which all is within its floor, and a gradient, a buffer or the loss too large or too small at
#: every step.
KIND_SLOPE = "slope"
#: The flag of such a row that says of which phase, with _ for blanks.
FLAG_SLOPE = "slope_of"
#: The kind of a row where each rank's own gradients are right, and what all of them have after the reduction is not.
KIND_REDUCTION = "reduction"
#: The kind of a row where the output of a module is off as well: the fault is in the forward pass.
KIND_FORWARD = "forward"


def _part_by_rank(outputs: Sequence[Any]) -> list[tuple[StepLayout, dict[str, list[Any]]]]:
    """(layout, outputs by phase) of each rank."""
    found, at = [], 0
    while at < len(outputs):
        try:
            layout = StepLayout.decode(outputs[at])
        except ValueError as error:
            raise Misbehaviour("structure", f"a step returned {len(outputs)} outputs; the {at}th is {error}") from None
        at += 1
        if len(outputs) < at + layout.size:
            raise Misbehaviour(
                "structure", f"a step returned {len(outputs)} outputs, not the {at + layout.size} of its layout"
            )
        phases = {}
        for phase, count in layout.counts.items():
            phases[phase], at = list(outputs[at : at + count]), at + count
        found.append((layout, phases))
    return found


def _find_module_taps(layout: StepLayout, taps: Sequence[Any], names: Sequence[str]) -> list[tuple[int, list[Any]]]:
    """Runs of the expected modules that were looked into: (place of the first, outputs). A loop may show some alone:
    nobody can look into what is compiled, nor at all tokens of an expert that one rank sends to another. names: of the
    expected ones."""
    seen = dict(zip(layout.taps, taps))
    found = list[tuple[int, list[Any]]]()
    for k, name in enumerate(names):
        if name not in seen:
            continue
        if found and found[-1][0] + len(found[-1][1]) == k:
            found[-1][1].append(seen[name])
        else:
            found.append((k, [seen[name]]))
    return found


class Train(Scenario):
    """Kinds: the phase that is the first to be off at the first step that is ("loss", "raw gradients", "weights", …),
    "forward" where the loss or a gradient is and the output of a module as well, "reduction", and "slope". The culprit
    is the module or the parameter."""

    name = "train"
    about = "a training run step by step: forward, gradients, clipping, the optimiser alone; the first phase that is off is named"
    lacking = "no training run"
    prepared = True
    deadlines = 2 * len(STEPS)

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        if program.session is None:
            raise Unsupported("the backend runs no session of a training loop")
        for k, inputs in enumerate(contiguous.dense(form).steps()):
            yield from self._observe_step(session, form, k, inputs)

    @staticmethod
    def _observe_step(session: Session, form: Form, k: int, inputs: list[Any]) -> Iterator[Observation]:
        """What is seen of one step, which is gone when the next one is taken."""
        number = int(inputs[form.stepped[0]][0])  # the first of its inputs says which step of the run it is
        ranks = _part_by_rank(copy_program_outputs(session.step(inputs)))
        for rank, (layout, outputs) in enumerate(ranks):
            gradients: OwnGradients | None = None
            raw: OwnGradients | None = None
            whose = f"step {number}, rank {rank}" if len(ranks) > 1 else f"step {number}"
            for phase, a, b in split_step_phases(form.phases):
                runs = [(0, seen)] if (seen := outputs.pop(phase, [])) else []
                if phase == TAPS:
                    runs = _find_module_taps(layout, seen, form.names[a:b])
                elif not seen and phase != SHARES:
                    raise Misbehaviour("structure", f"{whose}: nothing of the phase {phase} was returned")
                for first, some in runs:
                    yield Observation(
                        f"{whose}: {phase}",
                        some,
                        part=(a + first, a + first + len(some)),
                        row=k,
                        made_of=gradients if phase in ALONE else raw if phase == PROBE else None,
                        noted=TAPS if phase == TAPS else "",
                        number=number,
                        phase=phase,
                        rank=rank if len(ranks) > 1 else None,
                        ranks=len(ranks),
                        owners=layout.owner_of,
                    )
                if phase in (RAW, CLIPPED):
                    gradients = OwnGradients(seen)
                    raw = raw or gradients

    def spend(self, seen: Observation, sample: PreparedSample) -> Observation:
        kept = replace(seen, outputs=(), made_of=None)
        if seen.phase not in ALONG or seen.rank:
            return kept
        leaves = seen.expected(sample.expected())
        return replace(kept, slopes=_measure_output_slopes(seen.outputs, leaves))

    def conclude(
        self, seen: Sequence[Observation], found: Sequence[Judgement], sample: PreparedSample
    ) -> Judgement | None:
        shares = [parse_row_flags(x.columns.get("flags")).get(FLAG_NORM) for x in found]
        furthest = max(filter(None, shares), key=lambda x: abs(float(x)), default=None)
        return self._find_first_off(seen, found, sample).flag(**{FLAG_NORM: furthest})

    def _find_first_off(
        self, seen: Sequence[Observation], found: Sequence[Judgement], sample: PreparedSample
    ) -> Judgement:
        """The judgement of the first phase that is off, at the first step; of the furthest where none is."""
        off = [k for k, x in enumerate(found) if x.status is not Status.PASS and not seen[k].noted]
        if all(seen[k].phase == PROBE for k in off):  # what makes it so may be below its floor at each step
            judged = [x for k, x in enumerate(found) if not seen[k].noted]
            worst = max(judged, key=lambda x: x.metrics.error_units or 0.0)
            steady = self._find_slope(worst, seen, sample)
            if steady is not None or not off:
                return steady or worst
        # What ranks exchange is off on all of them, and seen first at the first of them: what each has of its own is
        # looked at before.
        first = min(off, key=lambda k: (seen[k].row, PHASES.index(seen[k].phase), k))
        phase, one = seen[first].phase, found[first]
        step = [k for k, x in enumerate(seen) if x.row == seen[first].row]
        beside = [k for k in step if seen[k].phase == phase]  # the same phase of all ranks
        sound = [k for k in beside if k not in off]
        own = [k for k in step if seen[k].rank == seen[first].rank]
        taps = [found[k] for k in own if seen[k].noted and found[k].status is not Status.PASS]
        kind = KIND_FORWARD if taps and phase in (LOSS, BUFFERS, SHARES, RAW) else phase
        if phase == RAW and not sound and kind == RAW and any(seen[k].phase == SHARES for k in step):
            kind = KIND_REDUCTION  # the own gradients of all ranks are right, or one of them were the first that is off
        culprit = taps[0].metrics.detail if kind == KIND_FORWARD else one.metrics.detail
        find_owner = seen[first].owners
        owner = find_owner(culprit) if find_owner is not None else None
        rank = seen[first].rank if sound else owner
        if (
            phase == LOSS and rank is None
        ):  # which is of all ranks together: their own gradients say whose batches are off
            shares = [k for k in step if seen[k].phase == SHARES]
            wrong = [seen[k].rank for k in shares if k in off]
            rank = wrong[0] if 0 < len(wrong) < len(shares) else None
        culprit = culprit if rank is None else f"rank {rank}: {culprit}"
        count = one.metrics.mismatched
        units = f"{one.metrics.error_units:.3g}" if one.metrics.error_units is not None else "no"
        others = f" and {count - 1} more" if count > 1 else ""
        where = f"; the first module whose output is off: {culprit}" if kind == KIND_FORWARD else ""
        words = f"{seen[first].name}: {one.metrics.detail} is {units} floors off{others}{where}"
        return one.rule(one.status, kind, {"culprit": culprit, "error": words})

    def _find_slope(self, worst: Judgement, seen: Sequence[Observation], sample: PreparedSample) -> Judgement | None:
        """What no step alone shows: a gradient, a buffer or the loss that is off along itself, by the same share at
        every step."""
        one = max(measure_training_slopes(seen, sample), key=lambda x: abs(x.score), default=None)
        if one is None or abs(one.score) <= SLOPE_LIMIT:
            return None
        subject = f"the gradient of {one.name}" if one.phase == RAW else one.name
        words = f"{subject} is off along itself at all steps, {abs(one.score):.3g} standard errors"
        found = worst.rule(Status.WRONG, KIND_SLOPE, {"culprit": one.name, "error": words})
        return found.flag(**{FLAG_SLOPE: one.phase.replace(" ", "_")})


def _measure_output_slopes(outputs: Sequence[np.ndarray], expected: Sequence[Leaf]) -> list[float]:
    """`tasks.training.trajectory.measure_update_slope` of each output, NaN of one that is none of its shape."""
    alike = [x.reference is not None and np.shape(a) == x.reference.shape for a, x in zip(outputs, expected)]
    pairs = [
        (np.reshape(a, -1), np.reshape(x.reference, -1))
        for a, x, ok in zip(outputs, expected, alike)
        if ok and x.reference is not None
    ]

    def multiply(k: int, begin: int, end: int) -> tuple[float, float]:
        x, y = (one[begin:end].astype(np.float64, copy=False) for one in pairs[k])
        return float(np.square(y).sum()), float((x * y).sum())

    found = map_blocks(multiply, [split_as_numpy_adds(y.size) for _, y in pairs])
    sums = iter([[add_as_numpy(some, y.size) for some in zip(*parts)] for parts, (_, y) in zip(found, pairs)])
    slopes = []
    for ok in alike:
        size, along = next(sums) if ok else (0.0, math.nan)
        slopes.append(along / size - 1 if size else 0.0 if ok else math.nan)
    return slopes


@dataclass(frozen=True)
class Along:
    """An output of a phase of ALONG over all steps. score: the mean of ⟨x, reference⟩ / ⟨reference, reference⟩ − 1 in
    standard errors of what rounding makes of it, or of its own scatter where that is larger."""

    phase: str
    name: str
    score: float


def measure_training_slopes(seen: Sequence[Observation], sample: PreparedSample) -> list[Along]:
    """Of each output of the phases of ALONG; none where fewer than two steps are looked at. seen: after `Train.spend`."""
    record = sample.record
    found = []
    for place in (k for k, phase in enumerate(record.phases) if phase in ALONG):
        steps = [x for x in seen if not x.noted and not x.rank and x.part[0] <= place < (x.part[1] or 0)]
        floor = record.slopes[place]
        if len(steps) < 2:
            continue
        assert floor is not None
        off = [x.slopes[place - x.part[0]] for x in steps]
        # What the draws of a single number, or of a buffer, do not have may be the same at every step: a factor that
        # float32 holds.
        always = 0.0 if record.phases[place] == RAW else STORINGS * HALF * EPS[STORED]
        error = max(floor, float(np.std(off, ddof=1))) / math.sqrt(len(off)) + always
        found.append(Along(record.phases[place], record.names[place], float(np.mean(off)) / error if error else 0.0))
    return found
