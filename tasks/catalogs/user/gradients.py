"""Backward checks of kernels: gradients of the reference function by differences in float64, with their noise floor."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks.arrays import autograd as gradients
from tasks.arrays import noise
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.noise import jittered
from tasks.catalogs.user import of_torch, samples
from tasks.catalogs.user.ops import UserOp
from tasks.model import EPS, Group, Leaf, is_inexact, wide

#: Most elements of the inputs to be differentiated: each costs eleven evaluations of the reference, and so in every draw.
MOST = 1000

Arrays = Mapping[str, np.ndarray]


def _kept(eps: float, draw: int, x: Any, place: int) -> Any:
    return jittered(x, eps, draw, place)


def elements(op: UserOp, dims: Mapping[str, int]) -> int:
    """How many elements are to be differentiated."""
    return samples.elements(op, dims, op.gradient)


#: From inputs, cotangents and the number of a draw (None: nothing is moved) to gradients and what they may be off by.
Gradient = Callable[[Arrays, "list[np.ndarray]", "int | None"], "tuple[list[np.ndarray], list[np.ndarray]]"]


def _gradient(
    op: UserOp,
    names: list[str],
    floating: list[int],
    evaluate: Callable[[Arrays], list[np.ndarray]],
    reference: Callable[..., Any] | None,
    eps: float,
) -> Gradient:
    """The gradients of an op's inputs ``names``, by autograd of a reference in torch, else by differences of ``evaluate``."""

    def by_torch(
        inputs: Arrays, cotangents: list[np.ndarray], draw: int | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        assert reference is not None
        # What the forward pass keeps is rounded to the dtype under test, however exactly the inputs are given.
        kept = None if draw is None else functools.partial(_kept, eps, draw)
        found = of_torch.vjp(reference, inputs, op.kwargs, names, floating, cotangents, kept)
        return found, [np.zeros(y.shape) for y in found]

    def by_differences(
        inputs: Arrays, cotangents: list[np.ndarray], draw: int | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        def chosen(**values: Any) -> list[np.ndarray]:
            found = evaluate(values)
            return [found[i] for i in floating]

        return gradients.numpy_vjp(chosen, dict(inputs), names, cotangents)

    return by_differences if reference is None else by_torch


def fill(
    made: Sample,
    op: UserOp,
    arrays: Arrays,
    outputs: list[Leaf],
    evaluate: Callable[[Arrays], list[np.ndarray]],
    group: Group,
    draws: int,
    reference: Callable[..., Any] | None = None,
) -> None:
    """Make of a forward sample, whose reference gives ``outputs``, one of the gradients of ``op.gradient``.

    evaluate: the reference on float64 arrays; reference: the function of torch tensors that it is, where it is one: autograd
    differentiates it. The cotangents are fixed random arrays in the outputs' dtypes; the noise
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
    gradient = _gradient(op, names, floating, evaluate, reference, EPS.get(group.dtype, 0.0))

    def widened(x: np.ndarray) -> np.ndarray:
        return x.astype(wide(x.dtype.name))

    def moved(draw: int) -> tuple[Arrays, list[np.ndarray]]:
        places = itertools.count(1)

        def one(x: np.ndarray) -> np.ndarray:
            name = x.dtype.name
            return noise.moved(widened(x), EPS[name], draw, next(places)) if is_inexact(name) else widened(x)

        return {k: one(x) for k, x in arrays.items()}, [one(c) for c in given]

    exact, own = gradient({k: widened(x) for k, x in arrays.items()}, [widened(c) for c in given], None)
    if all(np.isinf(e).all() for e in own):
        made.failure = Failure.vacuous("the reference is not differentiable at these inputs", "reference")
        return
    elements = sum(x.size for x in arrays.values())
    floor = noise.floor(
        exact, lambda drawn: (gradient(*moved(draw), draw)[0] for draw in drawn), made.op_class, draws, elements
    )
    floor = noise.of_kernel(exact, floor, [x for x in arrays.values() if is_inexact(x.dtype.name)], group.dtype, 0.0)
    made.expected = [
        Leaf(arrays[name].dtype.name, y.shape, y, e if delta is None else delta + e)
        for name, y, delta, e in zip(names, exact, floor, own)
    ]
    made.oracle = gradients.DIFFERENCES if reference is None else "autograd of the reference"
