"""An expected output of a case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.model.dtypes import EPS


@dataclass(frozen=True)
class Leaf:
    """One expected output of a case. Arrays beside the reference are float64 and have its shape."""

    #: Name of the dtype that the backend must return.
    dtype: str
    shape: tuple[int, ...]
    #: The exact result: float64 for floating dtypes, complex128 for complex ones, the dtype itself for integers, bool
    #: and strings; None where only the metadata is defined.
    reference: np.ndarray | None
    #: The noise floor δ; None for zero everywhere.
    noise: np.ndarray | None = None
    #: The classic tolerance, where the case brings its own.
    rtol: float | None = None
    atol: float | None = None
    #: What a model's output stands for (`interpret`); "" where nobody has said it.
    meaning: str = ""
    #: How far the result moves when every factor of every product inside moves by ε of TF32, where several steps make
    #: that another number than `noise` tells.
    of_products: np.ndarray | None = None
    #: Of a model: how far each element moves, by itself, where a rounding that the program asks for goes the other way.
    jumps: np.ndarray | None = None
    #: Of a derivative that can be computed from a rounded result of the forward pass (tanh′ = 1 − y²): the noise floor
    #: without what that loses, where `noise` has it, or with it, where `noise` has not (`floor_of_kept`).
    kept: np.ndarray | None = None
    #: The share of the output that moves with a single element of each input; None where nobody has asked.
    shared: float | None = None
    #: Elements of one number here may have changed places, as which of equal inputs is chosen is nobody's promise
    #: (`reorder_leaf_ties`).
    ties: np.ndarray | None = None
    #: Of the probe of a training step: how far it moves for each share by which all clipped gradients are too long; None
    #: where their norm is that of few numbers.
    of_norm: np.ndarray | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Leaf:
        """The leaf of some values by field, the others as the class has them. Every case comes here, and to construct a
        frozen dataclass takes several times as long."""
        made = object.__new__(cls)
        object.__setattr__(made, "__dict__", {"reference": None, **values})
        return made

    def with_reference(self, reference: np.ndarray) -> Leaf:
        """The same with another exact result of its shape."""
        return self.of({**vars(self), "reference": reference})


#: Fields of a leaf that are shaped as its reference.
_SHAPED = ("noise", "of_products", "jumps", "kept", "ties", "of_norm")


def take_leaf_elements(leaf: Leaf, places: np.ndarray) -> Leaf:
    """The elements of a leaf at n flat places, as a leaf of shape (n,)."""
    assert leaf.reference is not None
    floors = {name: getattr(leaf, name) for name in _SHAPED}
    some: dict[str, Any] = {k: None if x is None else x.reshape(-1)[places] for k, x in floors.items()}
    return replace(leaf, shape=places.shape, reference=leaf.reference.reshape(-1)[places], **some)


def take_leaf_row(leaf: Leaf, k: int) -> Leaf:
    """What is expected in row ``k`` of a leaf. Of one without a reference it is the shape alone."""
    some: dict[str, Any] = {n: None if (x := getattr(leaf, n)) is None else np.asarray(x[k]) for n in _SHAPED}
    exact = None if leaf.reference is None else np.asarray(leaf.reference[k])
    return replace(leaf, shape=leaf.shape[1:], reference=exact, **some)


def floor_of_kept(leaf: Leaf, excused: bool) -> Leaf:
    """The leaf with the noise floor that has what a derivative loses by being computed from a rounded result, or that
    has not."""
    if leaf.kept is None:
        return leaf
    own = np.zeros(leaf.kept.shape) if leaf.noise is None else leaf.noise
    return replace(leaf, noise=np.maximum(own, leaf.kept) if excused else np.minimum(own, leaf.kept))


def reorder_leaf_ties(actual: np.ndarray, leaf: Leaf) -> np.ndarray:
    """An output of which those that are tied stand in the reference's order."""
    y = leaf.reference
    if leaf.ties is None or y is None or actual.shape != y.shape:
        return actual
    made, ties = actual.reshape(-1).copy(), leaf.ties.reshape(-1)
    made[np.lexsort((y.reshape(-1), ties))] = made[np.lexsort((made.astype(y.dtype), ties))]
    return made.reshape(actual.shape)


def compute_row_floor(noise: np.ndarray) -> np.ndarray:
    """The noise floor of the outputs of a whole model: δ, or its root mean square over the last axis where that is
    larger.

    Of 10⁴ to 10⁶ elements that all hang on the same weights, a few hardly move in so few draws; their neighbours show
    how far they may. A δ that is not finite spoils its row.
    """
    if not (noise.ndim and noise.size):
        return noise
    with np.errstate(all="ignore"):
        return np.maximum(noise, np.sqrt(np.square(noise).mean(-1, keepdims=True)))


def compute_model_floor(leaf: Leaf) -> np.ndarray | None:
    """The noise floor by which an output of a whole model is judged: that of its rows, what a rounding adds to an
    element that the model asks for and, of what is stated to be probabilities or a mask, no less than ε: their scale is
    1, whatever is left of those that are nearly 0."""
    floor = None if leaf.noise is None else compute_row_floor(leaf.noise)
    if leaf.jumps is not None:
        floor = leaf.jumps if floor is None else np.maximum(floor, leaf.jumps)
    if not leaf.meaning.startswith(("probabilities", "mask")):
        return floor
    least = EPS.get(leaf.dtype, 0.0)
    return np.full(leaf.shape, least) if floor is None else np.maximum(floor, least)
