"""What the form of a training run says: the network, its recipe, and which of the arrays is which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tasks.arrays.tree import TensorSpec, decode_tree_specs
from tasks.model import Form, Unsupported
from tasks.training.exact import STORED
from tasks.training.state import StatePlaces


@dataclass(frozen=True)
class TrainingForm:
    """recipe: as `tasks.training.recipe.TrainingRecipe.read` takes it; precision: what products are computed in, FLOAT8 of
    those of linear layers, "" for float32; names: of the form's arrays, by place."""

    network: str
    recipe: Mapping[str, Any]
    places: StatePlaces
    precision: str
    names: Mapping[int, str]

    @classmethod
    def read(cls, form: Form) -> TrainingForm:
        given = decode_tree_specs(form.kwargs)
        names = {x.id: name for name, x in given.items() if isinstance(x, TensorSpec)}
        precision = "" if form.dtype == STORED else form.dtype
        return cls(form.op.partition(":")[2], given["recipe"], StatePlaces.decode(given["places"]), precision, names)

    def name_arrays(self, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
        """The arrays of a step by name."""
        return {name: np.asarray(inputs[k]) for k, name in self.names.items()}


class ArrayLoop(Protocol):
    """A training loop of a framework that is given a state with each step, as NumPy arrays by name."""

    def start(self) -> None: ...

    def step(self, own: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...


class LoopSession:
    """A `tasks.model.Session` of a training loop."""

    def __init__(self, given: TrainingForm, loop: ArrayLoop) -> None:
        self._given, self._loop = given, loop

    def start(self) -> None:
        self._loop.start()

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        if inputs is None:
            raise Unsupported("a training loop is given its inputs")
        return self._loop.step(self._given.name_arrays(inputs))

    def state(self) -> Mapping[str, Any]:
        """Nothing: every step is given its own."""
        return {}

    def close(self) -> None:
        """It holds nothing but what it has compiled."""
