"""Softmax and normalisations, and how their statistics go wrong."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.diagnose.elementwise import exp, list_computing_dtypes
from tasks.diagnose.elementwise import log as logarithm
from tasks.diagnose.error_model import ErrorModel
from tasks.diagnose.formula import WrongFormula
from tasks.diagnose.rounding import list_coarser_formats, round_to_format
from tasks.diagnose.sums import bound_variance_cancellation
from tasks.model.kind import CAUSE_ARITHMETIC
from tasks.operators.formulas import EPSILONS, compute_log_softmax, compute_one_pass_variance, compute_softmax


def formulas(floats: Sequence[np.ndarray], dtype: str) -> Iterator[WrongFormula]:
    """Softmaxes of one input; normalisations of one with up to two affine parameters."""
    x = floats[0]
    if x.ndim == 0 or x.size == 0:
        return
    if len(floats) == 1:
        for axis, log in itertools.product(range(x.ndim - 1, -1, -1), (False, True)):
            yield WrongFormula(
                functools.partial(_compute_softmax_formula, axis=axis, log=log),
                functools.partial(_compute_wrong_softmax, axis=axis, log=log, dtype=dtype),
            )
    if len(floats) <= 3 and all(v.ndim == 1 and v.shape[0] == x.shape[-1] for v in floats[1:]):
        for centred, eps in itertools.product((True, False), EPSILONS):
            how = _WrongNormHow(centred, eps)
            yield WrongFormula(
                functools.partial(_compute_wrong_statistics, how=how),
                functools.partial(_compute_wrong_norm, how=how, dtype=dtype),
            )


def _compute_softmax_formula(given: Sequence[np.ndarray], axis: int, log: bool) -> np.ndarray:
    return compute_log_softmax(given[0], axis) if log else compute_softmax(given[0], axis)


def _compute_wrong_softmax(given: Sequence[np.ndarray], axis: int, log: bool, dtype: str) -> Iterator[ErrorModel]:
    x = given[0]
    if log:
        shifted = x - np.max(x, axis=axis, keepdims=True)
        for name in [dtype, *list_coarser_formats(dtype)]:
            total = round_to_format(np.log(np.exp(shifted).sum(axis, keepdims=True)), name)
            yield ErrorModel(
                f"the log of the sum is rounded to {name} before it is subtracted", shifted - total, digits=True
            )
            whole = round_to_format(total + np.max(x, axis=axis, keepdims=True), name)
            yield ErrorModel(f"the log of the sum is rounded to {name} before it is subtracted", x - whole, digits=True)
    for kind in list_computing_dtypes(dtype):
        some = x.astype(kind)
        plain = (
            compute_log_softmax(some, axis, exp, logarithm, shifted=False)
            if log
            else compute_softmax(some, axis, exp, shifted=False)
        )
        words = f"exp without a shift by the maximum, in {kind}"
        yield ErrorModel(
            words, plain.astype(np.float64), digits=kind != list_computing_dtypes(dtype)[0], code=CAUSE_ARITHMETIC
        )
        if log:
            of_result = logarithm(compute_softmax(some, axis, exp))
            yield ErrorModel(f"log of the softmax, in {kind}", of_result.astype(np.float64), code=CAUSE_ARITHMETIC)
    for other in range(x.ndim):
        if other != axis % x.ndim and x.shape[other] > 1:
            yield ErrorModel(f"over axis {other}, not {axis}", _compute_softmax_formula(given, other, log))
    yield ErrorModel("not divided by the sum", np.exp(x - np.max(x, axis=axis, keepdims=True)))


@dataclass(frozen=True)
class _WrongNormHow:
    """centred: a layer norm, else a norm by the root mean square; outside: eps is added to the root."""

    centred: bool
    eps: float
    outside: bool = False
    ddof: int = 0
    axis: int = -1
    weighed: bool = True
    biased: bool = True
    sign: int = 1
    root: bool = True
    summed: bool = False


def _compute_wrong_statistics(
    given: Sequence[np.ndarray], how: _WrongNormHow, kind: str = "float64", one_pass: bool = False
) -> np.ndarray:
    x = given[0].astype(kind)
    n = x.shape[how.axis]
    mean = x.mean(how.axis, keepdims=True) if how.centred else np.zeros(1, kind)
    if one_pass:
        var = compute_one_pass_variance(x, how.axis)
    else:
        var = np.square(x - mean).sum(how.axis, keepdims=True) / (1 if how.summed else n - how.ddof)
    eps = x.dtype.type(how.eps)
    size = var + eps if not how.root else np.sqrt(var) + eps if how.outside else np.sqrt(var + eps)
    out = (x - mean) / size
    if len(given) > 1 and how.weighed:
        out = out * given[1].astype(kind)
    if len(given) > 2 and how.biased:
        out = out + how.sign * given[2].astype(kind)
    return np.asarray(out, np.float64)


def _compute_wrong_norm(given: Sequence[np.ndarray], how: _WrongNormHow, dtype: str) -> Iterator[ErrorModel]:
    own = list_computing_dtypes(dtype)[0]
    if how.centred:
        for kind in list_computing_dtypes(dtype):
            words, result = (
                f"variance as E[x²] - E[x]², in {kind}",
                _compute_wrong_statistics(given, how, kind, one_pass=True),
            )
            yield ErrorModel(words, result, kind != own, code=CAUSE_ARITHMETIC)
            yield ErrorModel(words, result, True, slack=_compute_norm_slack(given, how, kind), code=CAUSE_ARITHMETIC)
        yield ErrorModel("ddof: divided by n - 1, not n", _compute_wrong_statistics(given, replace(how, ddof=1)))
        yield ErrorModel("the mean is not subtracted", _compute_wrong_statistics(given, replace(how, centred=False)))
    for eps in EPSILONS:
        if eps != how.eps:
            yield ErrorModel(f"eps: {eps:g}, not {how.eps:g}", _compute_wrong_statistics(given, replace(how, eps=eps)))
    yield ErrorModel(
        "eps: added to the root, not under it", _compute_wrong_statistics(given, replace(how, outside=True))
    )
    for axis in (k for k in range(given[0].ndim - 1) if given[0].shape[k] > 1):
        yield ErrorModel(
            f"statistics over axis {axis}, not the last", _compute_wrong_statistics(given, replace(how, axis=axis))
        )
    yield ErrorModel("the root is not taken", _compute_wrong_statistics(given, replace(how, root=False)))
    yield ErrorModel("a sum of squares, not their mean", _compute_wrong_statistics(given, replace(how, summed=True)))
    for kind in list_computing_dtypes(dtype):
        yield ErrorModel(
            f"computed in {kind}", _compute_wrong_statistics(given, how, kind), digits=True, code=CAUSE_ARITHMETIC
        )
    if len(given) > 1:
        yield ErrorModel("the weight is ignored", _compute_wrong_statistics(given, replace(how, weighed=False)))
    if len(given) > 2:
        yield ErrorModel("the bias is ignored", _compute_wrong_statistics(given, replace(how, biased=False)))
        yield ErrorModel("the bias is subtracted", _compute_wrong_statistics(given, replace(how, sign=-1)))
    x = given[0]
    if len(given) > 1 and x.ndim == 2 and x.shape[0] == x.shape[1]:
        columns = [x, *(v[:, None] for v in given[1:])]
        yield ErrorModel("weight and bias go down the columns", _compute_wrong_statistics(columns, how))


def _compute_norm_slack(given: Sequence[np.ndarray], how: _WrongNormHow, kind: str) -> np.ndarray:
    """How far a layer norm moves when its variance does by what a difference of rounded squares loses."""
    x = given[0]
    lost = np.expand_dims(bound_variance_cancellation(np.moveaxis(x, -1, 0), kind), -1)
    bare = _compute_wrong_statistics(given[:2], how)
    return np.asarray(np.abs(bare) * lost / (2 * np.maximum(x.var(-1, keepdims=True), lost)))
