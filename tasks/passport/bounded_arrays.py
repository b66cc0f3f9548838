"""Numbers with how far a device may be off them: running error bounds of a formula, as it is written for NumPy.

Each operation passes on what its inputs may be off and adds its own roundings (Wilkinson's running error analysis;
Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.3); a sum adds what its order and bits leave
(`tasks.passport.bounds`). So a formula needs no analysis of its own: its text is evaluated once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.model.dtypes import EPS, SMALLEST_NORMAL, TABLE
from tasks.passport.bounds import find_share_of_sum
from tasks.passport.sum_reading import SumReading

#: Roundings of one quotient, root, exponential or logarithm: 4 ulps, as the OpenCL 3.0 full profile allows functions at
#: most, each of two unit roundoffs.
FUNCTION = 8
#: What the terms of a sum may be. Of each, roundings a step: a running maximum multiplies what is summed so far by an
#: exponential (Milakov & Gimelshein 2018, arXiv:1805.02867), and a running mean takes four (Welford; Chan, Golub &
#: LeVeque, The American Statistician 37, 1983).
EXPONENTIALS, SQUARES, DEVIATIONS, PRODUCTS = "exponentials", "squares", "deviations", "products"
ROUNDINGS = {EXPONENTIALS: 2 + FUNCTION, SQUARES: 4, DEVIATIONS: 4}


@dataclass(frozen=True)
class BoundedSteps:
    """How a device computes in a dtype. own: what was read of the sums of the op; others: of all of the device's in the
    dtype; rows: of the call."""

    dtype: str
    own: tuple[SumReading, ...]
    others: tuple[SumReading, ...]
    rows: int | None

    @property
    def unit(self) -> float:
        """Unit roundoff of a single operation: that of the dtype, as nothing says that it is computed in a wider
        one."""
        return float(EPS[self.dtype]) / 2

    def share(self, of: str, count: int, dims: int) -> tuple[np.ndarray, np.ndarray]:
        """(how far the sum of so many terms is off at most, as a share of what they amount to; the least share that is
        left of it where none is negative), each [2, 1, …]: certainly and in all likelihood, with so many axes behind. A
        reading of as many terms and rows counts alone, with its tree; else the widest of the op's, in any order; of a
        sum that was not read, the widest of all that was read of the device, and no more bits than the dtype has."""
        narrowest = SumReading(bits=(TABLE[self.dtype].digits or 0) + 1, rounding="nearest even", terms=count)
        device = [x for x in self.others if x.bits] + [narrowest]
        own = [x for x in self.own if x.made_of == of and x.tree]
        alike = [x for x in own if (x.terms, x.rows) == (count, self.rows)]
        chosen = [
            replace(like, tree=one.tree, terms=one.terms)
            for one in alike or own
            for like in ([one] if one.bits else device)
        ]
        made = [find_share_of_sum(x, count, bool(alike), ROUNDINGS.get(of, 1)) for x in chosen or device]
        shape = (2, *(1,) * dims)
        off, least = (np.array(x).reshape(-1, 2) for x in ([one.off for one in made], [one.least for one in made]))
        return off.max(0).reshape(shape), least.min(0).reshape(shape)


class BoundedArray(np.ndarray):
    """Exact numbers, float64. off [2, *shape]: how far a device may be off each, certainly and in all likelihood;
    least: how far from 0 each is at least there, on its own side of 0, which may be more than ``off`` leaves: a sum of
    numbers that are never negative keeps its sign however it is rounded; of: what they are as terms of a sum."""

    off: np.ndarray
    least: np.ndarray
    steps: BoundedSteps
    of: str

    @classmethod
    def make(cls, values: Any, steps: BoundedSteps, off: Any = 0.0, of: str = "", least: Any = -np.inf) -> BoundedArray:
        """values: numbers of any shape; off, least: what [2, *shape] broadcasts from, where those that are not finite
        are exact."""
        made = np.asarray(values, np.float64).view(cls)
        with np.errstate(all="ignore"):
            made.off = np.where(np.isfinite(values), np.broadcast_to(off, (2, *made.shape)), 0.0)
            made.least = np.fmax(np.abs(_get_bounded_values(made)) - made.off, np.broadcast_to(least, made.off.shape))
        made.steps, made.of = steps, of
        return made

    def called(self, of: str) -> BoundedArray:
        """The same numbers, as terms of this name."""
        return BoundedArray.make(_get_bounded_values(self), self.steps, self.off, of, self.least)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc is np.isfinite:
            return np.isfinite(_get_bounded_values(inputs[0]))
        rule = _RULES.get(ufunc)
        if method != "__call__" or rule is None:
            return NotImplemented
        with np.errstate(all="ignore"):
            values = [_get_bounded_values(x) for x in inputs]
            offs = [x.off if isinstance(x, BoundedArray) else np.zeros((2, *np.shape(x))) for x in inputs]
            made = ufunc(*values)
            leasts = [x.least if isinstance(x, BoundedArray) else np.abs(np.stack([x, x])) for x in inputs]
            offs, leasts = _spread_bounded_errors(offs, made.ndim), _spread_bounded_errors(leasts, made.ndim)
            off = rule(self.steps, made, values, offs, leasts)
            least = self._leave(ufunc, values, offs, leasts)
        return BoundedArray.make(made, self.steps, np.where(np.isnan(off), np.inf, off), _MADE.get(ufunc, ""), least)

    def _leave(self, ufunc: Any, x: Sequence[np.ndarray], off: Sequence[Any], least: Sequence[Any]) -> Any:
        """How far from 0 the results are at least, of operations that keep a sign."""
        unit = self.steps.unit
        if ufunc is np.add:
            return (least[0] + least[1]) * (1 - unit) if all((one >= 0).all() for one in x) else -np.inf
        if ufunc is np.exp:
            made = np.exp(x[0] - off[0] - 2 * unit * np.abs(x[0])) * (1 - FUNCTION * unit)
        elif ufunc is np.square:
            made = np.square(np.maximum(least[0], 0.0)) * (1 - unit)
        elif ufunc is np.multiply:
            made = np.where((least[0] >= 0) & (least[1] >= 0), least[0] * least[1] * (1 - unit), -np.inf)
        elif ufunc is np.divide:
            share = least[0] / (np.abs(x[1]) + off[1]) * (1 - FUNCTION * unit)
            made = np.where((least[0] >= 0) & (least[1] > 0), share, -np.inf)
        elif ufunc is np.sqrt:
            return np.sqrt(np.maximum(least[0], 0.0)) * (1 - FUNCTION * unit)
        else:
            return -np.inf
        return np.where(made >= 0, np.maximum(made - SMALLEST_NORMAL[self.steps.dtype], 0.0), made)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not np.where:
            return NotImplemented
        chosen, *sides = args
        made = np.where(chosen, *map(_get_bounded_values, sides))
        offs = [x.off if isinstance(x, BoundedArray) else np.zeros((2,)) for x in sides]
        return BoundedArray.make(made, self.steps, np.where(chosen, *_spread_bounded_errors(offs, made.ndim)))

    def sum(self, axis: Any = None, keepdims: bool = False) -> BoundedArray:  # type: ignore[override]
        """Along axes, in what order the device adds."""
        values, many = _get_bounded_values(self), _shift_bounded_axes(axis, self.ndim)
        total = values.sum(axis=axis, keepdims=keepdims)
        count = values.size // max(total.size, 1)
        lost, amounts = (x.sum(axis=many, keepdims=keepdims) for x in (self.off, np.abs(values) + self.off))
        share, left = self.steps.share(self.of, count, np.ndim(total))
        is_positive = (values >= 0).all() and (self.least >= 0).all()
        least = self.least.sum(axis=many, keepdims=keepdims) * left if is_positive else -np.inf
        return BoundedArray.make(total, self.steps, lost + share * amounts, "", least)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:  # type: ignore[override]
        total = self.sum(axis, keepdims)
        return total / (self.size // max(total.size, 1))

    def max(self, axis: Any = None, keepdims: bool = False, initial: float = -np.inf) -> BoundedArray:  # type: ignore[override]
        top = _get_bounded_values(self).max(axis=axis, keepdims=keepdims, initial=initial)
        return BoundedArray.make(
            top, self.steps, self.off.max(axis=_shift_bounded_axes(axis, self.ndim), keepdims=keepdims)
        )

    def __getitem__(self, key: Any) -> Any:
        return self._move(lambda x: x[key])

    def reshape(self, *shape: Any) -> Any:  # type: ignore[override]
        return self._move(lambda x: x.reshape(*shape))

    def swapaxes(self, one: Any, other: Any) -> Any:
        return self._move(lambda x: x.swapaxes(one, other))

    def squeeze(self, axis: Any = None) -> Any:
        return self._move(lambda x: x.squeeze(axis))

    def _move(self, way: Callable[[np.ndarray], np.ndarray]) -> BoundedArray:
        off, least = (np.stack([way(x) for x in one]) for one in (self.off, self.least))
        return BoundedArray.make(way(_get_bounded_values(self)), self.steps, off, self.of, least)


def _get_bounded_values(x: Any) -> np.ndarray:
    return np.asarray(x.view(np.ndarray) if isinstance(x, BoundedArray) else x, np.float64)


def _shift_bounded_axes(axis: Any, dims: int) -> tuple[int, ...]:
    """Axes of an array, of one that has another axis before them."""
    axes = range(dims) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(k % dims + 1 for k in axes)


def _spread_bounded_errors(offs: Sequence[np.ndarray], dims: int) -> list[np.ndarray]:
    """What some arrays are off, with as many axes as their result, so that the first stays the first."""
    return [x.reshape(2, *(1,) * (dims - x.ndim + 1), *x.shape[1:]) for x in offs]


#: Of a result, its inputs, what they are off and how large they are at least: how far it is off.
Rule = Callable[[BoundedSteps, np.ndarray, Sequence[np.ndarray], Sequence[np.ndarray], Sequence[np.ndarray]], Any]


def _bound_rounding(steps: BoundedSteps, sizes: Any, off: Any, roundings: int = 1) -> Any:
    """Off by so much, then rounded so many times where the numbers are of these sizes."""
    return off + roundings * steps.unit * (np.abs(sizes) + off) + SMALLEST_NORMAL[steps.dtype]


def _bound_add(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    # Either side may have been rounded by a factor that both share, as where a shift is added to a product.
    return _bound_rounding(steps, np.abs(x[0]) + np.abs(x[1]), off[0] + off[1])


def _bound_multiply(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    return _bound_rounding(steps, made, np.abs(x[0]) * off[1] + np.abs(x[1]) * off[0] + off[0] * off[1])


def _bound_divide(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    return _bound_rounding(steps, made, (off[0] + np.abs(made) * off[1]) / np.maximum(least[1], 0.0), FUNCTION)


def _bound_square(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    return _bound_multiply(steps, made, [x[0], x[0]], [off[0], off[0]], least)


def _bound_exponential(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    # Its argument is multiplied by log2(e), a number that is rounded as well.
    far = np.where(np.isfinite(x[0]), off[0] + 2 * steps.unit * np.abs(x[0]), 0.0)
    return _bound_rounding(steps, made, np.where(made > 0, made * np.expm1(far), 0.0), FUNCTION)


def _bound_logarithm(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    far = np.maximum(np.log(x[0] / np.clip(least[0], 0.0, x[0])), np.log1p(off[0] / x[0]))
    return _bound_rounding(steps, made, far, FUNCTION)


def _bound_root(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    far = np.maximum(made - np.sqrt(np.maximum(least[0], 0.0)), np.sqrt(x[0] + off[0]) - made)
    return _bound_rounding(steps, made, far, FUNCTION)


def _bound_matrix_product(steps: BoundedSteps, made: Any, x: Any, off: Any, least: Any) -> Any:
    a, b = (np.abs(one) for one in x)
    share, _ = steps.share(PRODUCTS, a.shape[-1], np.ndim(made))
    lost = a @ off[1] + off[0] @ b + off[0] @ off[1]
    return lost + share * (a @ b + lost) + a.shape[-1] * SMALLEST_NORMAL[steps.dtype]


_RULES: Mapping[Any, Rule] = {
    np.add: _bound_add,
    np.subtract: _bound_add,
    np.multiply: _bound_multiply,
    np.divide: _bound_divide,
    np.square: _bound_square,
    np.exp: _bound_exponential,
    np.log: _bound_logarithm,
    np.sqrt: _bound_root,
    np.matmul: _bound_matrix_product,
    np.negative: lambda steps, made, x, off, least: off[0],
}
_MADE = {np.exp: EXPONENTIALS, np.square: SQUARES}
