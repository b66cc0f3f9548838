"""Numbers with how far a device may be off them: running error bounds of a formula, as it is written for NumPy.

Each operation passes on what its inputs may be off and adds its own roundings (Wilkinson's running error analysis; Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., 3.3); a sum adds what its order and bits leave (`tasks.passport.bounds`). So a formula needs no analysis of its own: its text is evaluated once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.model.dtypes import EPS, SMALLEST_NORMAL, TABLE
from tasks.passport.bounds import share_of_sum
from tasks.passport.reading import Reading

#: Roundings of one quotient, root, exponential or logarithm: 4 ulps, as the OpenCL 3.0 full profile allows functions at most, each of two unit roundoffs.
FUNCTION = 8
#: What the terms of a sum may be. Of each, roundings a step: a running maximum multiplies what is summed so far by an exponential (Milakov & Gimelshein 2018,
#: arXiv:1805.02867), and a running mean takes four (Welford; Chan, Golub & LeVeque, The American Statistician 37, 1983).
EXPONENTIALS, SQUARES, DEVIATIONS, PRODUCTS = "exponentials", "squares", "deviations", "products"
ROUNDINGS = {EXPONENTIALS: 2 + FUNCTION, SQUARES: 4, DEVIATIONS: 4}


@dataclass(frozen=True)
class Steps:
    """How a device computes in a dtype. own: what was read of the sums of the op; others: of all of the device's in the dtype; rows: of the call."""

    dtype: str
    own: tuple[Reading, ...]
    others: tuple[Reading, ...]
    rows: int | None

    @property
    def unit(self) -> float:
        """Unit roundoff of a single operation: that of the dtype, as nothing says that it is computed in a wider one."""
        return float(EPS[self.dtype]) / 2

    def share(self, of: str, count: int) -> np.ndarray:
        """(certain, likely) of what the sum of so many terms is off by, as a share of what they amount to. A reading of as many terms and rows counts alone, with its tree; else
        the widest of the op's, in any order; of a sum that was not read, the widest of all that was read of the device, and no more bits than the dtype has."""
        narrowest = Reading(bits=(TABLE[self.dtype].digits or 0) + 1, rounding="nearest even", terms=count)
        device = [x for x in self.others if x.bits] + [narrowest]
        own = [x for x in self.own if x.made_of == of and x.tree]
        alike = [x for x in own if (x.terms, x.rows) == (count, self.rows)]
        chosen = [
            replace(like, tree=one.tree, terms=one.terms)
            for one in alike or own
            for like in ([one] if one.bits else device)
        ]
        made = [share_of_sum(x, count, bool(alike), ROUNDINGS.get(of, 1)) for x in chosen or device]
        return np.max(made, axis=0)


class Bounded(np.ndarray):
    """Exact numbers, float64. off [2, *shape]: how far a device may be off each, certainly and in all likelihood; of: what they are as terms of a sum."""

    off: np.ndarray
    steps: Steps
    of: str

    @classmethod
    def make(cls, values: Any, steps: Steps, off: Any = 0.0, of: str = "") -> Bounded:
        """values: numbers of any shape; off: what [2, *shape] broadcasts from, where those that are not finite are exact."""
        made = np.asarray(values, np.float64).view(cls)
        with np.errstate(all="ignore"):
            made.off = np.where(np.isfinite(values), np.broadcast_to(off, (2, *made.shape)), 0.0)
        made.steps, made.of = steps, of
        return made

    def called(self, of: str) -> Bounded:
        """The same numbers, as terms of this name."""
        return Bounded.make(_values(self), self.steps, self.off, of)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if ufunc is np.isfinite:
            return np.isfinite(_values(inputs[0]))
        rule = _RULES.get(ufunc)
        if method != "__call__" or rule is None:
            return NotImplemented
        with np.errstate(all="ignore"):
            values = [_values(x) for x in inputs]
            offs = [x.off if isinstance(x, Bounded) else np.zeros((2, *np.shape(x))) for x in inputs]
            made = ufunc(*values)
            off = rule(self.steps, made, values, _spread(offs, made.ndim))
        return Bounded.make(made, self.steps, np.where(np.isnan(off), np.inf, off), _MADE.get(ufunc, ""))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is not np.where:
            return NotImplemented
        chosen, *sides = args
        made = np.where(chosen, *map(_values, sides))
        offs = [x.off if isinstance(x, Bounded) else np.zeros((2,)) for x in sides]
        return Bounded.make(made, self.steps, np.where(chosen, *_spread(offs, made.ndim)))

    def sum(self, axis: Any = None, keepdims: bool = False) -> Bounded:  # type: ignore[override]
        """Along axes, in what order the device adds."""
        values, many = _values(self), _behind(axis, self.ndim)
        total = values.sum(axis=axis, keepdims=keepdims)
        count = values.size // max(total.size, 1)
        lost, amounts = (x.sum(axis=many, keepdims=keepdims) for x in (self.off, np.abs(values) + self.off))
        share = self.steps.share(self.of, count).reshape(2, *(1,) * np.ndim(total))
        return Bounded.make(total, self.steps, lost + share * amounts)

    def mean(self, axis: Any = None, keepdims: bool = False) -> Any:  # type: ignore[override]
        total = self.sum(axis, keepdims)
        return total / (self.size // max(total.size, 1))

    def max(self, axis: Any = None, keepdims: bool = False, initial: float = -np.inf) -> Bounded:  # type: ignore[override]
        top = _values(self).max(axis=axis, keepdims=keepdims, initial=initial)
        return Bounded.make(top, self.steps, self.off.max(axis=_behind(axis, self.ndim), keepdims=keepdims))

    def __getitem__(self, key: Any) -> Any:
        return self._move(lambda x: x[key])

    def reshape(self, *shape: Any) -> Any:  # type: ignore[override]
        return self._move(lambda x: x.reshape(*shape))

    def swapaxes(self, one: Any, other: Any) -> Any:
        return self._move(lambda x: x.swapaxes(one, other))

    def squeeze(self, axis: Any = None) -> Any:
        return self._move(lambda x: x.squeeze(axis))

    def _move(self, way: Callable[[np.ndarray], np.ndarray]) -> Bounded:
        return Bounded.make(way(_values(self)), self.steps, np.stack([way(x) for x in self.off]), self.of)


def _values(x: Any) -> np.ndarray:
    return np.asarray(x.view(np.ndarray) if isinstance(x, Bounded) else x, np.float64)


def _behind(axis: Any, dims: int) -> tuple[int, ...]:
    """Axes of an array, of one that has another axis before them."""
    axes = range(dims) if axis is None else (axis,) if isinstance(axis, int) else axis
    return tuple(k % dims + 1 for k in axes)


def _spread(offs: Sequence[np.ndarray], dims: int) -> list[np.ndarray]:
    """What some arrays are off, with as many axes as their result, so that the first stays the first."""
    return [x.reshape(2, *(1,) * (dims - x.ndim + 1), *x.shape[1:]) for x in offs]


#: Of a result, its inputs and what they are off: how far it is off.
Rule = Callable[[Steps, np.ndarray, Sequence[np.ndarray], Sequence[np.ndarray]], Any]


def _round(steps: Steps, sizes: Any, off: Any, roundings: int = 1) -> Any:
    """Off by so much, then rounded so many times where the numbers are of these sizes."""
    return off + roundings * steps.unit * (np.abs(sizes) + off) + SMALLEST_NORMAL[steps.dtype]


def _add(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    # Either side may have been rounded by a factor that both share, as where a shift is added to a product.
    return _round(steps, np.abs(x[0]) + np.abs(x[1]), off[0] + off[1])


def _multiply(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    return _round(steps, made, np.abs(x[0]) * off[1] + np.abs(x[1]) * off[0] + off[0] * off[1])


def _divide(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    least = np.maximum(np.abs(x[1]) - off[1], 0.0)
    return _round(steps, made, (off[0] + np.abs(made) * off[1]) / least, FUNCTION)


def _square(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    return _multiply(steps, made, [x[0], x[0]], [off[0], off[0]])


def _exponentiate(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    # Its argument is multiplied by log2(e), a number that is rounded as well.
    far = np.where(np.isfinite(x[0]), off[0] + 2 * steps.unit * np.abs(x[0]), 0.0)
    return _round(steps, made, np.where(made > 0, made * np.expm1(far), 0.0), FUNCTION)


def _take_logarithm(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    return _round(steps, made, -np.log1p(-np.minimum(off[0] / x[0], 1.0)), FUNCTION)


def _take_root(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    return _round(steps, made, made - np.sqrt(np.maximum(x[0] - off[0], 0.0)), FUNCTION)


def _multiply_matrices(steps: Steps, made: Any, x: Any, off: Any) -> Any:
    a, b = (np.abs(one) for one in x)
    share = steps.share(PRODUCTS, a.shape[-1]).reshape(2, *(1,) * np.ndim(made))
    lost = a @ off[1] + off[0] @ b + off[0] @ off[1]
    return lost + share * (a @ b + lost) + a.shape[-1] * SMALLEST_NORMAL[steps.dtype]


_RULES: Mapping[Any, Rule] = {
    np.add: _add,
    np.subtract: _add,
    np.multiply: _multiply,
    np.divide: _divide,
    np.square: _square,
    np.exp: _exponentiate,
    np.log: _take_logarithm,
    np.sqrt: _take_root,
    np.matmul: _multiply_matrices,
    np.negative: lambda steps, made, x, off: off[0],
}
_MADE = {np.exp: EXPONENTIALS, np.square: SQUARES}
