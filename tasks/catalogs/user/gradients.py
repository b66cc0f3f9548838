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
Gradient = Callable[[Arrays, "list[np.ndarray | None]", "int | None"], "tuple[list[np.ndarray], list[np.ndarray]]"]


def _by_autograd(check: str, op: UserOp, wrt: tuple[int, ...], call: Callable[..., Any], eps: float) -> Gradient:
    """By autograd of a function of tensors."""

    def gradient(
        inputs: Arrays, cotangents: list[np.ndarray | None], draw: int | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        # What the forward pass keeps is rounded to the dtype under test, however exactly the inputs are given.
        kept = None if draw is None else functools.partial(_kept, eps, draw)
        found = of_torch.gradients(check, call, inputs, op.kwargs, wrt, cotangents, kept)
        return found, [np.zeros(y.shape) for y in found]

    return gradient


def _by_differences(names: list[str], evaluate: Callable[[Arrays], list[np.ndarray]]) -> Gradient:
    """By differences of the reference's values."""

    def gradient(
        inputs: Arrays, cotangents: list[np.ndarray | None], draw: int | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        def chosen(**values: Any) -> list[np.ndarray]:
            return [y for y, c in zip(evaluate(values), cotangents) if c is not None]

        return gradients.numpy_vjp(chosen, dict(inputs), names, [c for c in cotangents if c is not None])

    return gradient


def fill(
    made: Sample,
    op: UserOp,
    arrays: Arrays,
    outputs: list[Leaf],
    evaluate: Callable[[Arrays], list[np.ndarray]],
    group: Group,
    draws: int,
    reference: Callable[..., Any],
) -> None:
    """Make of a forward sample, whose reference gives ``outputs``, one of the gradients of ``op.gradient``, or of their gradients.

    evaluate: the reference on float64 arrays; reference: the function itself. The cotangents are fixed random arrays in the
    dtypes of the outputs and, for "double_backward", of the inputs; the noise floor is how far the gradients move with
    inputs and cotangents, and what the differences may be off by.
    """
    names = [name for name in op.inputs if name in op.gradient]
    made.wrt = tuple(i for i, name in enumerate(op.inputs) if name in op.gradient)
    floating = [i for i, leaf in enumerate(outputs) if is_inexact(leaf.dtype)]
    twice = group.check == "double_backward"
    shapes = [(outputs[i].shape, outputs[i].dtype) for i in floating]
    given = gradients.cotangents(
        shapes + [(arrays[name].shape, arrays[name].dtype.name) for name in names] * twice,
        f"{group.label}/{group.dtype}/{made.index}",
    )
    base = len(made.arrays)
    places = dict(zip(floating, itertools.count(base)))
    made.cotangents = tuple(places.get(i, -1) for i in range(len(outputs)))
    if twice:
        made.cotangents += tuple(range(base + len(floating), base + len(given)))
    made.arrays += given
    made.op_class, made.definition = gradients.class_of(made.op_class), ""

    by_torch = op.reference_framework == "torch"
    call = reference if by_torch else of_torch.of_arrays(reference)
    if by_torch or twice:
        gradient = _by_autograd(group.check, op, made.wrt, call, EPS.get(group.dtype, 0.0))
    else:
        gradient = _by_differences(names, evaluate)

    def widened(x: np.ndarray) -> np.ndarray:
        return x.astype(wide(x.dtype.name))

    def passed(change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray | None]:
        return [None if i < 0 else change(made.arrays[i]) for i in made.cotangents]

    def moved(draw: int) -> tuple[Arrays, list[np.ndarray | None]]:
        places = itertools.count(1)

        def one(x: np.ndarray) -> np.ndarray:
            name = x.dtype.name
            return noise.moved(widened(x), EPS[name], draw, next(places)) if is_inexact(name) else widened(x)

        return {k: one(x) for k, x in arrays.items()}, passed(one)

    exact_inputs = {k: widened(x) for k, x in arrays.items()}
    if twice and not by_torch and (why := _not_followed(call, exact_inputs, op, outputs)):
        made.failure = Failure.vacuous(f"{why}: a reference of torch tensors has second derivatives", "reference")
        return
    exact, own = gradient(exact_inputs, passed(widened), None)
    if all(np.isinf(e).all() for e in own):
        made.failure = Failure.vacuous("the reference is not differentiable at these inputs", "reference")
        return
    elements = sum(x.size for x in arrays.values())
    floor = noise.floor(
        exact, lambda drawn: (gradient(*moved(draw), draw)[0] for draw in drawn), made.op_class, draws, elements
    )
    floor = noise.of_kernel(exact, floor, [x for x in arrays.values() if is_inexact(x.dtype.name)], group.dtype, 0.0)
    dtypes = [arrays[name].dtype.name for name in names] + [dtype for _, dtype in shapes] * twice
    made.expected = [
        Leaf(dtype, y.shape, y, e if delta is None else delta + e)
        for dtype, y, delta, e in zip(dtypes, exact, floor, own)
    ]
    made.oracle = "autograd of the reference" if by_torch or twice else gradients.DIFFERENCES


def _not_followed(call: Callable[..., Any], inputs: Arrays, op: UserOp, outputs: list[Leaf]) -> str:
    """Why autograd cannot follow a NumPy reference; "" where it can."""
    try:
        found = of_torch.evaluated(call)(**inputs, **op.kwargs)
    except Exception as error:
        return f"autograd cannot follow the NumPy reference ({type(error).__name__}: {error})"
    for y, leaf in zip(found, outputs):
        right = np.asarray(leaf.reference)
        scale = float(np.abs(right).max(initial=0.0, where=np.isfinite(right)))
        if np.shape(y) != right.shape or not np.allclose(y, right, 1e-6, 1e-6 * scale, equal_nan=True):
            return "torch's NumPy gives other values than NumPy for the reference"
    return ""
