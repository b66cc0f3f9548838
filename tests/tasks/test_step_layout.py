"""How the outputs of a training step lie, and what a step says that does not say so."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.checks.train import Train
from tasks.model import Form, Misbehaviour, Program
from tasks.training.layout import StepLayout

PHASES = ("taps", "taps", "taps", "loss", "raw gradients", "first moments", "weights", "probe")
NAMES = ("a", "b", "c", "the loss", "w", "w", "w", "the loss of the probe")


def observe(outputs: list[Any]) -> list[Any]:
    form = Form("torch", "training:x", "float32", arrays=[np.array([[3]])], stepped=(0,), phases=PHASES, names=NAMES)
    session: Any = SimpleNamespace(step=lambda inputs: outputs)
    program = Program(run=lambda: [], placement="cpu", session=lambda: session)
    return list(Train().observe(session, program, form))


def outputs_of(layout: StepLayout) -> list[Any]:
    return [layout.encode(), *(np.full(1, k, np.float32) for k in range(layout.size))]


COUNTS = {"loss": 1, "raw gradients": 1, "first moments": 1, "weights": 1, "probe": 1}


def test_a_layout_says_who_owns_a_parameter_and_the_module_that_holds_it() -> None:
    owners = {"blocks.0.up.weight": 0, "blocks.0.up.bias": 0, "blocks.1.up.weight": 1}
    layout = StepLayout.decode(StepLayout({"loss": 1}, ("a",), owners).encode())
    assert layout.size == 1 and layout.taps == ("a",)
    assert (layout.owner_of("blocks.0.up.weight"), layout.owner_of("blocks.0.up"), layout.owner_of("blocks.1")) == (
        0,
        0,
        1,
    )
    assert layout.owner_of("blocks") is None and layout.owner_of("norm") is None


def test_modules_that_nobody_could_look_into_leave_a_gap() -> None:
    seen = observe(outputs_of(StepLayout({"taps": 2} | COUNTS, ("c", "a"))))
    taps = [x for x in seen if x.phase == "taps"]
    assert [(x.part, float(x.outputs[0][0])) for x in taps] == [((0, 1), 1.0), ((2, 3), 0.0)]
    assert {(x.number, x.rank) for x in seen} == {(3, None)}
    assert [x.phase for x in observe(outputs_of(StepLayout(COUNTS)))] == list(COUNTS)


def test_ranks_are_told_apart() -> None:
    seen = observe(outputs_of(StepLayout(COUNTS)) * 2)
    assert [x.rank for x in seen] == [0] * 5 + [1] * 5 and {x.ranks for x in seen} == {2}


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        ([np.zeros(3, np.float32)], "no layout"),
        (outputs_of(StepLayout(COUNTS))[:-1], "not the 6 of its layout"),
        (outputs_of(StepLayout({"loss": 1})), "nothing of the phase raw gradients"),
    ],
)
def test_a_step_that_does_not_say_is_one_line(outputs: list[Any], said: str) -> None:
    with pytest.raises(Misbehaviour, match=said):
        observe(outputs)
