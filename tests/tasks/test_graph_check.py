"""The check graph, on stand-ins for a device that captures: a replay that heeds no new inputs is found, beside its sound twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.checks import planned
from tasks.checks.graph import Graph
from tasks.judge import verdict
from tasks.model import Form, Group, Program, RuntimeInfo
from tasks.prepare.cases import PreparedGroup, prepare
from tasks.runner import Runner, whole

Replay = Callable[[list[np.ndarray]], list[np.ndarray]]


def relu(arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.maximum(arrays[0], 0)]


def sound(arrays: list[np.ndarray]) -> Replay:
    held = [x.copy() for x in arrays]

    def replay(new: list[np.ndarray]) -> list[np.ndarray]:
        for old, x in zip(held, new):
            old[...] = x
        return relu(held)

    return replay


def stale(arrays: list[np.ndarray]) -> Replay:
    """New inputs lie where the recording does not look."""
    return lambda new: relu(arrays)


def halved(arrays: list[np.ndarray]) -> Replay:
    """The second half of the batch is that of the recording."""

    def replay(new: list[np.ndarray]) -> list[np.ndarray]:
        mixed = new[0].copy()
        mixed[len(mixed) // 3 :] = arrays[0][len(mixed) // 3 :]
        return relu([mixed])

    return replay


def late(arrays: list[np.ndarray]) -> Replay:
    """Each replay gives the outputs of the inputs before: it does not wait."""
    held = [arrays]

    def replay(new: list[np.ndarray]) -> list[np.ndarray]:
        before, held[0] = held[0], new
        return relu(before)

    return replay


class Capturing(Backend):
    forms = ("torch",)
    captures = True

    def __init__(self, capture: Callable[[list[np.ndarray]], Replay]) -> None:
        super().__init__("capturing-cpu", "cpu", {})
        self.make = capture

    def build(self, form: Form) -> Program:
        def given(arrays: list[Any]) -> Callable[[], list[np.ndarray]]:
            return lambda: relu(arrays)

        return Program(given(form.arrays), given=given, capture=lambda: self.make(form.arrays))


@pytest.mark.parametrize(
    ("capture", "status", "kind"),
    [(sound, "pass", ""), (stale, "wrong", "stale"), (halved, "wrong", "other inputs"), (late, "wrong", "stale")],
)
def test_a_replay_computes_on_the_inputs_that_it_is_given(
    capture: Callable[[list[np.ndarray]], Replay], status: str, kind: str, cache: Path
) -> None:
    _, made = prepare(Group("critical:relu", "", "float32", 1), cache)
    runner = Runner(Capturing(capture), RuntimeInfo("1", "cpu"), verdict.load("error_units"), lambda *step: None)
    (row,) = (x.row for x in runner.run([whole(PreparedGroup(made.pack.path, "graph"))]))
    assert (row.status, row.kind) == (status, kind), row.error
    if status == "pass":
        assert "replayed=same_bytes" in row.flags and row.apart_units == 0


def test_it_is_planned_where_programs_can_be_captured_alone() -> None:
    pytest.importorskip("torch")
    fits = {
        name: Graph().fits(BackendSpec.parse(name).create())
        for name in ("torch-cpu", "torch-cuda", "torch-rocm", "inductor-cuda")
    }
    assert fits == {"torch-cpu": False, "torch-cuda": True, "torch-rocm": True, "inductor-cuda": False}
    assert planned("graph", ("forward",))
