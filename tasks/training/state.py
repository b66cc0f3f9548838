"""What a training step begins with: weights, moments and buffers, each as one vector, and their places in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TrainingState:
    """Of every parameter its value and its moments, of every floating buffer its value; in the order of `StatePlaces`."""

    weights: list[np.ndarray]
    first: list[np.ndarray]
    second: list[np.ndarray]
    buffers: list[np.ndarray]

    def rounded(self) -> TrainingState:
        """As float32 holds it, in float64."""
        with np.errstate(over="ignore"):  # a run that diverges: the loss says so
            return TrainingState(
                *([x.astype(np.float32).astype(np.float64) for x in part] for part in vars(self).values())
            )

    def vectors(self) -> dict[str, np.ndarray]:
        """A float32 vector of each part, by name."""
        return {name: join_state_vector(part) for name, part in vars(self).items()}


@dataclass(frozen=True)
class StatePlaces:
    """The parameters that are trained and the floating buffers of a module, by name with their shapes."""

    parameters: dict[str, tuple[int, ...]]
    buffers: dict[str, tuple[int, ...]]

    @classmethod
    def of(cls, module: Any) -> StatePlaces:
        parameters = {name: tuple(p.shape) for name, p in module.named_parameters() if p.requires_grad}
        buffers = {name: tuple(b.shape) for name, b in module.named_buffers() if b.is_floating_point()}
        return cls(parameters, buffers)

    def values(self) -> dict[str, Any]:
        """As `decode` takes it: plain data."""
        return {kind: {name: list(shape) for name, shape in some.items()} for kind, some in vars(self).items()}

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> StatePlaces:
        return cls(**{kind: {name: tuple(shape) for name, shape in some.items()} for kind, some in values.items()})

    def read(self, vectors: dict[str, np.ndarray]) -> TrainingState:
        """The state of `State.vectors`."""
        shapes = list(self.parameters.values())
        weights, first, second = (cut_state_vector(vectors[name], shapes) for name in ("weights", "first", "second"))
        return TrainingState(weights, first, second, cut_state_vector(vectors["buffers"], list(self.buffers.values())))


def join_state_vector(parts: Sequence[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
    """All elements as one float32 vector. out: where it is put."""
    made = np.empty(sum(x.size for x in parts), np.float32) if out is None else out
    return np.concatenate([made[:0], *(x.reshape(-1) for x in parts)], out=made, casting="same_kind")


def cut_state_vector(vector: Any, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
    """The parts of a vector (an array or a tensor), shaped."""
    found, at = [], 0
    for shape in shapes:
        size = int(np.prod(shape, dtype=np.int64))
        found.append(vector[at : at + size].reshape(shape))
        at += size
    return found
