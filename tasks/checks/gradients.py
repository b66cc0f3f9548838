"""Checks of gradients: of an op's inputs, of that gradient, of a training step, and of one that autocast computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.arrays.training import TrainingStep
from tasks.checks.base import Check
from tasks.model import Form, Program, flags


class Backward(Check):
    name = "backward"
    lacking = "no gradient is declared"
    about = (
        "the gradient of an op's inputs; for a model, a training step in float32: its loss, every "
        "parameter's gradient, one optimiser step"
    )
    prepared = True
    gradient = True

    def run(self, program: Program, form: Form) -> Sequence[Any]:
        outputs = program.run()
        return form.call.consistent(outputs) if isinstance(form.call, TrainingStep) else outputs


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

    def run(self, program: Program, form: Form) -> Sequence[Any]:
        program.flags = flags.join(program.flags, autocast=form.dtype)
        return super().run(program, form)
