"""ONNX operators that reduce, accumulate or multiply along axes, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.model.dtypes import get_integer_range
from tasks.operators.call import Evaluate, OperatorCall
from tasks.operators.left_open import LeftOpen


def get_operator_axes(call: OperatorCall, place: int, rank: int) -> tuple[int, ...] | None:
    """The axes of an attribute or of the input at a place; None where none are given."""
    given = call.attributes.get("axes")
    if given is None and call.at(place) is not None:
        given = np.asarray(call.at(place)).reshape(-1).tolist()
    return None if given is None or not len(given) else tuple(int(x) % rank for x in given)


def make_reduction_operator(function: Callable[[np.ndarray, Any, bool], Any]) -> Evaluate:
    """A reduction by a function of an array, its axes, and whether they are kept."""

    def operator(call: OperatorCall) -> list[np.ndarray]:
        x = np.asarray(call.inputs[0])
        axes = get_operator_axes(call, 1, x.ndim)
        if axes is None and call.attributes.get("noop_with_empty_axes"):
            found = np.asarray(function(x[..., None], (x.ndim,), False))
        else:
            axes = tuple(range(x.ndim)) if axes is None else axes
            found = np.asarray(function(x, axes, bool(call.attributes.get("keepdims", 1))))
        return [found.astype(x.dtype) if x.dtype.kind != "f" else found]

    return operator


def make_extreme_operator(most: bool) -> Callable[[np.ndarray, Any, bool], Any]:
    """The maximum or minimum; of nothing, the number that all others are beyond."""

    def function(x: np.ndarray, axes: Any, keep: bool) -> Any:
        if x.dtype.kind == "f":
            beyond: Any = -np.inf if most else np.inf
        else:
            beyond = get_integer_range(x.dtype.name)[1 - most] if x.dtype.kind != "b" else not most
        return (x.max if most else x.min)(axis=axes, keepdims=keep, initial=beyond)

    return function


def make_arg_operator(function: Callable[..., Any]) -> Evaluate:
    """The place of an extreme along an axis, the first or the last of equals."""

    def operator(call: OperatorCall) -> list[np.ndarray]:
        (x,), a = call.arrays(), call.attributes
        axis = int(a.get("axis", 0)) % x.ndim
        if a.get("select_last_index"):
            found = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis)
        else:
            found = function(x, axis=axis)
        return [np.asarray(np.expand_dims(found, axis) if a.get("keepdims", 1) else found, np.int64)]

    return operator


def make_cumulative_operator(function: Callable[..., Any], start: int) -> Evaluate:
    """A running reduction that starts with ``start``."""

    def operator(call: OperatorCall) -> list[np.ndarray]:
        x, axis = np.asarray(call.inputs[0]), int(np.asarray(call.inputs[1]).reshape(-1)[0])
        if call.attributes.get("reverse"):
            x = np.flip(x, axis)
        found = function(x, axis=axis, dtype=x.dtype)
        if call.attributes.get("exclusive"):
            first = np.full_like(np.take(found, [0], axis), start)
            kept = np.take(found, range(x.shape[axis] - 1), axis)
            found = np.concatenate([first, kept], axis)
        return [np.array(np.flip(found, axis) if call.attributes.get("reverse") else found)]

    return operator


def evaluate_hardmax(call: OperatorCall) -> list[np.ndarray]:
    """Hardmax: 1 at the first largest element along an axis (before opset 13 of all axes from ``axis`` on)."""
    (x,) = call.arrays()
    axis = int(call.attributes.get("axis", -1 if call.opset >= 13 else 1)) % max(x.ndim, 1)
    shape = x.shape
    if call.opset < 13:
        x, axis = x.reshape(int(np.prod(shape[:axis])), -1), 1
    found = np.zeros(x.shape)
    np.put_along_axis(found, np.expand_dims(x.argmax(axis), axis), 1.0, axis)
    return [found.reshape(shape)]


def evaluate_gemm(call: OperatorCall) -> list[np.ndarray]:
    """Gemm: α·A·B + β·C."""
    (a, b, c), more = call.three(), call.attributes
    a, b = (a.T if more.get("transA") else a), (b.T if more.get("transB") else b)
    if a.dtype.kind != "f":
        y = a @ b  # of integers: alpha and beta are 1
        return [y if c is None else y + c]
    y = more.get("alpha", 1.0) * (a @ b)
    return [y if c is None else y + more.get("beta", 1.0) * c]


def evaluate_matmul(call: OperatorCall) -> list[np.ndarray]:
    """MatMul of any numbers, with all but the last axis of the first as rows of one product where the second has
    two."""
    a, b = call.arrays()
    if a.ndim > 2 and b.ndim == 2:
        return [(a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[1])]
    return [np.asarray(np.matmul(a, b))]


def evaluate_matmul_integer(call: OperatorCall) -> list[np.ndarray]:
    """MatMulInteger: (A − a₀)·(B − b₀) in int32; a zero point of A may be one of each row, of B of each column."""
    a, b = (np.asarray(x).astype(np.int32) for x in call.inputs[:2])
    for place in (2, 3):
        zero = call.at(place)
        if zero is None:
            continue
        zero = np.asarray(zero).astype(np.int32)
        if place == 2:
            a = a - (zero.reshape(-1, 1) if zero.ndim == 1 and zero.size > 1 else zero)
        else:
            b = b - zero
    return [np.asarray(np.matmul(a, b))]


def evaluate_einsum(call: OperatorCall) -> list[np.ndarray]:
    """Einsum, pair after pair: of three tensors and more one sum over all is slow."""
    return [np.asarray(np.einsum(call.attributes["equation"].replace(" ", ""), *call.arrays(), optimize=True))]


def evaluate_loss(call: OperatorCall) -> None:
    """NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss, which onnx's evaluator computes: it clips what is out of
    bounds."""
    scores, labels, weights = call.three()
    counted = np.asarray(labels)[np.asarray(labels) != call.attributes.get("ignore_index")]
    outside = ((counted < 0) | (counted >= scores.shape[1])).any()
    if outside or (weights is not None and weights.shape != scores.shape[1:2]):
        raise LeftOpen("a loss of labels without a class, or of weights that are not one a class, is left open")
