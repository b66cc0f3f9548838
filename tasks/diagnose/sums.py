"""Reductions, and how their sums go wrong."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.diagnose import rounding
from tasks.diagnose.elementwise import exp, list_computing_dtypes, log
from tasks.diagnose.error_model import ErrorModel, WrongResult
from tasks.diagnose.formula import SummedFormula, WrongFormula
from tasks.model import EPS
from tasks.model.kind import CAUSE_ARITHMETIC
from tasks.operators.formulas import Axes, compute_log_sum_exp, compute_one_pass_variance

#: Blocks of which the last, partial one may be forgotten.
BLOCKS = (256, 128, 64, 32, 16, 8)

#: A reduction: of an array along an axis.
Reduce = Callable[[np.ndarray, Axes], np.ndarray]


def formulas(floats: Sequence[np.ndarray], dtype: str, shape: tuple[int, ...]) -> Iterator[WrongFormula]:
    """Reductions of one input that give a result of a shape."""
    if len(floats) == 1:
        yield from _list_reduction_formulas(floats[0], dtype, shape)


def find_reduction_sums(floats: Sequence[np.ndarray], result: WrongResult, at: np.ndarray) -> Iterator[SummedFormula]:
    """A result at some places, flat, as the sums or means of one input, where it is that."""
    if len(floats) != 1 or not floats[0].ndim:
        return
    for axis, _ in _find_reduced_axes(floats[0], result.exact.shape):

        def terms(given: Sequence[np.ndarray], axis: Axes = axis) -> np.ndarray:
            rows = _collect_reduction_terms(given[0], axis)
            return rows.reshape(len(rows), -1)[:, at]

        rows = _collect_reduction_terms(floats[0], axis)
        for scale in (1.0, 1 / max(len(rows), 1)):
            if result.is_exact((scale * rows.sum(0)).reshape(result.exact.shape)):
                yield SummedFormula(terms(floats), terms, scale)


def _find_reduced_axes(x: np.ndarray, shape: tuple[int, ...]) -> Iterator[tuple[Axes, bool]]:
    """Axes along which a reduction gives a shape, and whether they are kept."""
    several: list[Axes] = [*range(x.ndim - 1, -1, -1), *((-2, -1),) * (x.ndim > 2), None]
    for axis in several:
        for keep in (False, True):
            if np.sum(x, axis=axis, keepdims=keep).shape == shape:
                yield axis, keep


def _list_reduction_formulas(x: np.ndarray, dtype: str, shape: tuple[int, ...]) -> Iterator[WrongFormula]:
    if x.size == 0 or x.ndim == 0:
        return
    for axis, keep in _find_reduced_axes(x, shape):
        count = x.size // max(int(np.sum(x, axis=axis).size), 1)
        if count < 2:
            continue
        for name, function in REDUCTIONS.items():

            def exact(
                given: Sequence[np.ndarray], function: Reduce = function, axis: Axes = axis, keep: bool = keep
            ) -> np.ndarray:
                found = function(given[0], axis)
                return np.asarray(np.expand_dims(found, _list_reduced_axes(axis, given[0])) if keep else found)

            def wrong(
                given: Sequence[np.ndarray],
                name: str = name,
                axis: Axes = axis,
                exact: Callable[..., np.ndarray] = exact,
            ) -> Iterator[ErrorModel]:
                return _compute_wrong_reduction(given[0], name, axis, dtype, exact)

            yield WrongFormula(exact, wrong)


def _list_reduced_axes(axis: Axes, x: np.ndarray) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis


def _make_spread(function: Callable[..., Any], ddof: int) -> Reduce:
    def reduce_axis(x: np.ndarray, axis: Axes) -> np.ndarray:
        with warnings.catch_warnings():  # of one element it is NaN, which numpy would tell the user of
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.asarray(function(x, axis=axis, ddof=ddof))

    return reduce_axis


REDUCTIONS: dict[str, Reduce] = {
    "sum": lambda x, axis: np.asarray(np.sum(x, axis=axis)),
    "mean": lambda x, axis: np.asarray(np.mean(x, axis=axis)),
    "var1": _make_spread(np.var, 1),
    "var0": _make_spread(np.var, 0),
    "std1": _make_spread(np.std, 1),
    "std0": _make_spread(np.std, 0),
    "logsumexp": functools.partial(compute_log_sum_exp, keep=False),
    "norm": lambda x, axis: np.sqrt(np.sum(x * x, axis=axis)),
    "squares": lambda x, axis: np.asarray(np.sum(x * x, axis=axis)),
    "prod": lambda x, axis: np.asarray(np.prod(x, axis=axis)),
}


def _compute_wrong_reduction(
    x: np.ndarray, name: str, axis: Axes, dtype: str, exact: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> Iterator[ErrorModel]:
    shape = exact([x]).shape
    rows = _collect_reduction_terms(x, axis)
    count = len(rows)
    if name == "mean" and count > 1:
        yield ErrorModel("divided by n - 1, not n", exact([x]) * count / (count - 1))
    if name[:3] in ("var", "std"):
        yield from _compute_wrong_variance(x, rows, name, axis, dtype, shape)
    if name == "logsumexp":
        for kind in list_computing_dtypes(dtype):
            given = rows.astype(kind)
            plain = compute_log_sum_exp(given, 0, False, exp, log, shifted=False).reshape(shape)
            yield ErrorModel(
                f"log of a sum of exp without a shift, in {kind}",
                plain,
                digits=kind != list_computing_dtypes(dtype)[0],
                code=CAUSE_ARITHMETIC,
            )
            yield ErrorModel("the shift is not added again", exact([x]) - np.max(rows, axis=0).reshape(shape))
    if name in ("norm", "squares"):
        for kind in ("float16", "bfloat16"):
            square = rounding.round_to_format(rows * rows, kind)
            total = rounding.round_to_format(square.sum(0), kind)
            yield ErrorModel(
                f"squares in {kind}",
                np.reshape(np.sqrt(total) if name == "norm" else total, shape),
                code=CAUSE_ARITHMETIC,
            )
    if name == "norm":
        yield ErrorModel("the root is not taken", exact([x]) ** 2)
    yield from leave_out_terms(rows, lambda part: REDUCTIONS[name](part, 0).reshape(shape))
    for other in range(x.ndim):
        found = REDUCTIONS[name](x, other)
        if isinstance(axis, int) and other != axis and found.shape == shape:
            yield ErrorModel(f"reduced along axis {other}, not {axis}", found)
    if name in ("sum", "mean"):
        for precision in rounding.list_narrow_formats(dtype):
            for total in rounding.accumulate_in_format(rows, precision):
                result = total / count if name == "mean" else total
                yield ErrorModel(
                    f"accumulated in {precision}", np.reshape(result, shape), slow=True, code=CAUSE_ARITHMETIC
                )


def _collect_reduction_terms(x: np.ndarray, axis: Axes) -> np.ndarray:
    """The terms of each sum along a first axis."""
    places = tuple(p % x.ndim for p in _list_reduced_axes(axis, x))
    others = [p for p in range(x.ndim) if p not in places]
    moved = np.transpose(x, (*places, *others))
    return np.ascontiguousarray(moved.reshape(-1, *(x.shape[p] for p in others)))


def _compute_wrong_variance(
    x: np.ndarray, rows: np.ndarray, name: str, axis: Axes, dtype: str, shape: tuple[int, ...]
) -> Iterator[ErrorModel]:
    ddof = int(name[-1])
    finish = np.sqrt if name.startswith("std") else np.asarray
    other = np.var(x, axis=axis, ddof=1 - ddof)
    said = "divided by n, not n - 1" if ddof else "divided by n - 1, not n"
    yield ErrorModel(f"ddof: {said}", np.reshape(finish(other), shape))
    for kind in list_computing_dtypes(dtype):
        given = rows.astype(kind)
        n = len(given)
        plain = compute_one_pass_variance(given, 0)[0] * given.dtype.type(n / (n - ddof))
        lost = bound_variance_cancellation(rows, kind)
        slack = lost if name.startswith("var") else lost / (2 * np.sqrt(np.maximum(rows.var(0), lost)))
        words, result = f"variance as E[x²] - E[x]², in {kind}", np.reshape(finish(plain).astype(np.float64), shape)
        yield ErrorModel(words, result, kind != list_computing_dtypes(dtype)[0], code=CAUSE_ARITHMETIC)
        yield ErrorModel(words, result, True, slack=np.reshape(slack, shape), code=CAUSE_ARITHMETIC)


def bound_variance_cancellation(rows: np.ndarray, kind: str) -> np.ndarray:
    """What rounding E[x²] and E[x]² twice each may do to their difference, of sums along the first axis."""
    return np.asarray(4 * EPS[kind] * np.square(rows).mean(0))


def leave_out_terms(rows: np.ndarray, reduced: Callable[[np.ndarray], np.ndarray]) -> Iterator[ErrorModel]:
    """Sums without some of their terms."""
    n = len(rows)
    if n > 1:
        yield ErrorModel("the last element is left out", reduced(rows[:-1]))
        yield ErrorModel("the first element is left out", reduced(rows[1:]))
    for size in BLOCKS:
        if size < n and n % size:
            yield ErrorModel(f"the last, partial block of {size} is left out", reduced(rows[: n // size * size]))
            yield ErrorModel(f"only the last block of {size} is kept", reduced(rows[n // size * size :]))
