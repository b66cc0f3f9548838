"""Backward checks of kernels: gradients of the reference function by differences in float64, with their noise floor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks.arrays import autograd as gradients
from tasks.arrays import noise
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.user.ops import UserOp
from tasks.model import EPS, Group, Leaf, is_inexact, wide

#: Most elements of the inputs to be differentiated: each costs eleven evaluations of the reference, and so in every draw.
MOST = 1000

Arrays = Mapping[str, np.ndarray]


def elements(op: UserOp, dims: Mapping[str, int]) -> int:
    """How many elements are to be differentiated."""
    total = 0
    for name in op.gradient:
        given = op.inputs[name]
        shape = given["shape"] if isinstance(given, Mapping) else given
        total += int(np.prod([dims[n] if isinstance(n, str) else n for n in shape], dtype=np.int64))
    return total


def fill(
    made: Sample,
    op: UserOp,
    arrays: Arrays,
    outputs: list[Leaf],
    evaluate: Callable[[Arrays], list[np.ndarray]],
    group: Group,
    draws: int,
) -> None:
    """Make of a forward sample, whose reference gives ``outputs``, one of the gradients of ``op.gradient``.

    evaluate: the reference on float64 arrays. The cotangents are fixed random arrays in the outputs' dtypes; the noise
    floor is how far the gradients move with inputs and cotangents, and what the differences may be off by.
    """
    names = [name for name in op.inputs if name in op.gradient]
    made.wrt = tuple(i for i, name in enumerate(op.inputs) if name in op.gradient)
    floating = [i for i, leaf in enumerate(outputs) if is_inexact(leaf.dtype)]
    given = gradients.cotangents(
        [(outputs[i].shape, outputs[i].dtype) for i in floating], f"{group.label}/{group.dtype}/{made.index}"
    )
    places = dict(zip(floating, range(len(made.arrays), len(made.arrays) + len(given))))
    made.cotangents = tuple(places.get(i, -1) for i in range(len(outputs)))
    made.arrays += given
    made.op_class, made.definition = gradients.class_of(made.op_class), ""
    errors: list[np.ndarray] = []

    def gradient(inputs: Arrays, cotangents: list[np.ndarray]) -> list[np.ndarray]:
        def chosen(**values: Any) -> list[np.ndarray]:
            found = evaluate(values)
            return [found[i] for i in floating]

        found, error = gradients.numpy_vjp(chosen, dict(inputs), names, cotangents)
        errors[:] = error
        return found

    def widened(x: np.ndarray) -> np.ndarray:
        return x.astype(wide(x.dtype.name))

    def moved(draw: int) -> tuple[Arrays, list[np.ndarray]]:
        places = itertools.count(1)

        def one(x: np.ndarray) -> np.ndarray:
            name = x.dtype.name
            return noise.moved(widened(x), EPS[name], draw, next(places)) if is_inexact(name) else widened(x)

        return {k: one(x) for k, x in arrays.items()}, [one(c) for c in given]

    exact = gradient({k: widened(x) for k, x in arrays.items()}, [widened(c) for c in given])
    own = [np.array(e) for e in errors]
    if all(np.isinf(e).all() for e in own):
        made.failure = Failure.vacuous("the reference is not differentiable at these inputs", "reference")
        return
    elements = sum(x.size for x in arrays.values())
    floor = noise.floor(exact, lambda drawn: (gradient(*moved(draw)) for draw in drawn), made.op_class, draws, elements)
    made.expected = [
        Leaf(arrays[name].dtype.name, y.shape, y, e if delta is None else delta + e)
        for name, y, delta, e in zip(names, exact, floor, own)
    ]
    made.oracle = "finite differences"
