"""Checks of gradients: of an op's inputs, of that gradient, of a training step, and of one that autocast computes."""

from __future__ import annotations

from collections.abc import Iterator

from tasks.arrays.training import FirstStep, TrainingStep
from tasks.checks.base import Check, Observation, Scenario
from tasks.model import Form, Misbehaviour, Program, Session, flags


class Backward(Scenario):
    name = "backward"
    lacking = "no gradient is declared"
    about = (
        "the gradient of an op's inputs; for a model, a training step in float32: its loss, every "
        "parameter's gradient, one optimiser step"
    )
    prepared = True
    gradient = True

    @property
    def plain(self) -> bool:
        """Its first step is one program's outputs."""
        return True

    def open(self, program: Program, form: Form) -> Session:
        if isinstance(form.call, TrainingStep) and program.session is None:
            return FirstStep(program, form.call)
        return program.open()

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """The gradients; of a training step its first step, with the weights after it as the state. Kind: "optimiser
        step" where these are not what the optimiser makes of the gradients."""
        outputs = session.step()
        if not isinstance(form.call, TrainingStep):
            yield Observation(program.way, outputs)
            yield from (Observation(name, others) for name, others in program.ways.items())
            return
        weights = session.state()
        try:
            yield Observation("step 0", form.call.consistent(outputs, weights), state=weights)
        except Misbehaviour as error:
            yield Observation("step 0", outputs, error, judged=False, kind=error.kind, state=weights)


class DoubleBackward(Check):
    name = "double_backward"
    lacking = "no gradient of a gradient is declared"
    about = "the gradient of that gradient"
    prepared = True
    gradient = True


class Amp(Backward):
    name = "amp"
    lacking = "no training step under autocast"
    about = "a model's training step under autocast to the dtype, judged in that dtype's precision"

    def precision(self, dtype: str) -> str:
        return dtype

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        program.flags = flags.join_row_flags(program.flags, autocast=form.dtype)
        yield from super().observe(session, program, form)
