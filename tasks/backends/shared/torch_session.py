"""Sessions on torch's devices: what a call that has steps keeps stays on the device, arrays go in and come out."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays import contiguous, torch_tree
from tasks.model import FORWARD, Form, Program, TensorSession

if TYPE_CHECKING:
    from tasks.backends.torch import TorchEager


class TorchSession:
    """A `tasks.model.Session` over one of tensors. program: is told of a step that ran elsewhere, as of a run. Inputs
    are contiguous, whatever the form's are."""

    def __init__(self, backend: TorchEager, form: Form, program: Program, session: TensorSession) -> None:
        self._backend, self._form, self._program, self._session = backend, contiguous.dense(form), program, session

    def start(self) -> None:
        stepped = set(self._form.stepped)
        begun = [x[:1] if k in stepped else x for k, x in enumerate(self._form.arrays)]  # all steps may be many GB
        _, kwargs = self._backend.arguments(replace(self._form, arrays=begun))
        given = {name: x for name, x in kwargs.items() if name not in self._find_stepped_arguments()}
        self._backend.run_and_wait(lambda: self._session.start(self._backend.target, given))

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        import torch

        form = self._form if inputs is None else replace(self._form, arrays=list(inputs))
        args, kwargs = self._backend.run_and_wait(lambda: self._backend.arguments(form))
        own = {name: x for name, x in kwargs.items() if name in self._find_stepped_arguments()}
        modes = self._backend.modes if form.check == FORWARD else None
        watch = modes.watch_fallbacks(self._program) if modes else contextlib.nullcontext()

        def compute() -> list[Any]:
            with torch.enable_grad(), self._backend.default_device(args, kwargs), watch:
                return torch_tree.list_output_tensors(self._session.step(args, own))

        return [
            torch_tree.make_output_array(torch_tree.dense(x)) for x in self._backend.run_watched(compute, self._program)
        ]

    def state(self) -> Mapping[str, Any]:
        found = self._backend.run_and_wait(self._session.state)
        return {name: np.array(torch_tree.make_output_array(torch_tree.dense(x))) for name, x in found.items()}

    def close(self) -> None:
        self._session.close()

    def _find_stepped_arguments(self) -> list[str]:
        """Names of the arguments of which each step has its own."""
        places = set(self._form.stepped)
        given = (self._form.kwargs or {"v": ()})["v"]
        return [name for name, node in given if isinstance(node, dict) and node.get("id") in places]
