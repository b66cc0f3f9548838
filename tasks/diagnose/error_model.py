"""What an error model says a result is, and when that explains the one at hand."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from tasks.model import (
    EPS,
    LARGEST,
    SMALLEST_NORMAL,
    WITHOUT_NOISE,
    Leaf,
    OpClass,
    is_complex_dtype,
    is_inexact_dtype,
    round_to_dtype,
)
from tasks.model.kind import CAUSE_OTHER

#: Least share of the elements that are off, and of all, that a model must give bit for bit or within a unit: libraries
#: differ by a bit in exp and log, which a formula that cancels makes visible here and there.
SHARE = 0.8
#: A model is better than a plainer one if it explains that much more.
BETTER = 0.05
#: What a model leaves may be so many times the largest error that it explains, in units: exp and log that differ by a
#: bit are magnified where a formula cancels (some twenty times in exp(x) − 1), but an error of another size has another
#: cause.
LEFT = 100.0
#: The errors of a result over the slack of a formula that cancels, at least and at most.
SIZES = (0.02, 2.0)
#: So few elements that are off must all be explained.
FEW = 3
#: Elements from which on a model is held against some of them first, how many of those that are off and of all, and the
#: least share of these that it must give: less than `SHARE`, as they are a sample.
MANY, LOOKED_AT, OPEN = 1 << 12, 256, 0.5
#: Dtypes that are added in float32.
NARROW = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True)
class ErrorModel:
    """words: the cause; result: what comes out if it is (float64 where the output is inexact, before the last
    rounding). digits: whether it is about digits, so that zeros, NaN and Inf are no evidence of it: much else gives
    those. slow: one of many orders of a sum, each a matter of milliseconds. slack: of a formula that subtracts what is
    nearly equal, how far its result may be from ``result``, as it hangs on the order of its sums. code: of the cause
    (`tasks.model.kind`)."""

    words: str
    result: np.ndarray
    digits: bool = False
    slow: bool = False
    slack: np.ndarray | float = 0.0
    code: str = CAUSE_OTHER


@dataclass(frozen=True)
class ErrorCause:
    """Why a result is off. words: for people, "" where nothing explains it; code: what is decided on
    (`tasks.model.kind`), "" then too."""

    words: str = ""
    code: str = ""


@dataclass(frozen=True)
class WrongResult:
    """One output: as it is and as it ought to be, both wide and of one shape; unit: what rounding may do to an element;
    bits: whether no rounding excuses it; off: which elements are further away than that."""

    dtype: str
    actual: np.ndarray
    exact: np.ndarray
    noise: np.ndarray | float
    bits: bool
    off: np.ndarray

    @classmethod
    def of(cls, actual: np.ndarray, leaf: Leaf, op_class: OpClass) -> WrongResult:
        """The output ``actual`` for what is expected of an op of a class: an exact one has no unit but the very
        bits."""
        assert leaf.reference is not None
        y = leaf.reference
        noise: np.ndarray | float = 0.0 if leaf.noise is None or op_class in WITHOUT_NOISE else leaf.noise
        bits = op_class is OpClass.EXACT
        made = cls(leaf.dtype, actual.astype(y.dtype), y, noise, bits, np.zeros(y.shape, bool))
        return replace(made, off=~made.near(y))

    def near(self, result: np.ndarray, slack: np.ndarray | float = 0.0) -> np.ndarray:
        """Which elements are a result's, bit for bit or within a unit: ε·|result| + δ + tiny, and ``slack``."""
        if not is_inexact_dtype(self.dtype):
            return np.asarray(self.actual == result)
        cast = np.asarray(round_to_dtype(result, self.dtype))
        same = (self.actual == cast) | (np.isnan(self.actual) & np.isnan(cast))
        if self.bits:
            return np.asarray(same)
        unit = self._unit(result) + slack
        finite = np.isfinite(self.actual) & np.isfinite(cast) & np.isfinite(unit)
        return np.asarray(same | (finite & (np.abs(self.actual - result) <= unit)))

    def _unit(self, result: np.ndarray) -> np.ndarray:
        eps = EPS[self.dtype]
        return np.asarray(eps * np.abs(result) + self.noise + eps * SMALLEST_NORMAL.get(self.dtype, 0.0))

    def score_model(self, model: ErrorModel) -> float:
        """How well a model explains the result: 0 for not at all, 1 for every element bit for bit."""
        result = model.result
        if result.shape != self.actual.shape or not self._is_open(model):
            return 0.0
        telling = self._telling(model)
        near = self.near(result, model.slack)
        least = SHARE if telling.sum() >= FEW else 1.0
        # Where the model is another result than the exact one, the result has to follow it: what is hardly off may lie
        # between.
        apart = (
            np.abs(result - self.exact) > self._unit(result) if is_inexact_dtype(self.dtype) else result != self.exact
        )
        if apart.any() and near[apart].mean() < least:
            return 0.0
        if not telling.any() or near[telling].mean() < least or near[self.off].mean() < least or near.mean() < least:
            return 0.0
        if not near.all() and self._leaves_larger(result, near):
            return 0.0
        if np.any(model.slack):  # nothing bit for bit: what is explained is the size of the error
            size, wide = (np.sqrt(np.mean(np.square(x[telling]))) for x in self._sizes(model.slack))
            return float(near.mean()) / 2 if SIZES[0] * wide <= size <= SIZES[1] * wide else 0.0
        cast = round_to_dtype(result, self.dtype) if is_inexact_dtype(self.dtype) else result
        same = (
            (self.actual == cast) | (np.isnan(self.actual) & np.isnan(cast)) if is_inexact_dtype(self.dtype) else near
        )
        return float(near[self.off].mean() + same[self.off].mean()) / 2

    def _leaves_larger(self, result: np.ndarray, near: np.ndarray) -> bool:
        """Whether what a model does not explain is far from it, and by far more than what it explains is from the exact
        result."""
        if not is_inexact_dtype(self.dtype):
            return False
        explained, left = np.abs(self.actual - self.exact)[near & self.off], np.abs(self.actual - result)[~near]
        unit = np.broadcast_to(self._unit(self.exact), near.shape)
        explained, left = explained / unit[near & self.off], left / unit[~near]
        # A NaN that it explains is larger than any error; one that it leaves is of no size.
        sizes = [np.nan_to_num(x, nan=y, posinf=np.inf).max(initial=0.0) for x, y in ((explained, np.inf), (left, 0.0))]
        return bool(sizes[1] > LEFT * sizes[0])

    def _telling(self, model: ErrorModel) -> np.ndarray:
        """Which elements are evidence of a model."""
        return self.off & np.isfinite(self.actual) & (self.actual != 0) if model.digits else self.off

    @functools.cached_property
    def some(self) -> tuple[np.ndarray, WrongResult] | None:
        """(places of a few elements, flat; the result there): all that are off or some of them, and some of all. None
        of a small result."""
        if self.off.size <= MANY:
            return None
        off = np.flatnonzero(self.off)
        spread = [off[:: -(-off.size // LOOKED_AT)], np.arange(0, self.off.size, self.off.size // LOOKED_AT)]
        at = np.unique(np.concatenate(spread))
        noise = self.noise.reshape(-1)[at] if isinstance(self.noise, np.ndarray) and self.noise.ndim else self.noise
        flat = [x.reshape(-1)[at] for x in (self.actual, self.exact, self.off)]
        return at, WrongResult(self.dtype, flat[0], flat[1], noise, self.bits, flat[2])

    def _is_open(self, model: ErrorModel) -> bool:
        """Whether a few elements leave it open that a model explains the result: a glance, as most do not."""
        if self.some is None:
            return True
        at, few = self.some
        slack = (
            model.slack if np.ndim(model.slack) == 0 else np.broadcast_to(model.slack, self.off.shape).reshape(-1)[at]
        )
        return few.gives(replace(model, result=model.result.reshape(-1)[at], slack=slack))

    def gives(self, model: ErrorModel) -> bool:
        """Whether a model gives so many of these few elements that it is worth a look at all."""
        near = self.near(model.result, model.slack)
        return all(not x.any() or near[x].mean() >= OPEN for x in (self.off, self._telling(model)))

    def is_exact(self, result: np.ndarray, at: np.ndarray | None = None) -> bool:
        """Whether a formula in float64 gives the exact result, but for float64's own rounding; at: of which elements,
        in one dimension, ``result`` is."""
        exact = self.exact if at is None else self.exact.reshape(-1)[at]
        if result.shape != exact.shape:
            return False
        finite = np.isfinite(exact)
        if not (finite == np.isfinite(result)).all() or not finite.any():
            return at is not None and bool((finite == np.isfinite(result)).all())
        return bool((np.abs(result - exact)[finite] <= 1e-11 * (np.abs(exact[finite]) + 1e-2 * self._scale)).all())

    @functools.cached_property
    def _scale(self) -> float:
        """Size of the largest finite exact number."""
        return float(np.abs(self.exact[np.isfinite(self.exact)]).max(initial=0.0))

    def _sizes(self, slack: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
        """The errors of all elements, and the slack of a model for them."""
        return self.actual - self.exact, np.broadcast_to(np.asarray(slack, np.float64), self.exact.shape)

    @property
    def largest(self) -> float:
        return LARGEST[self.dtype]

    @property
    def real(self) -> bool:
        """Whether its numbers are rounded and have an order."""
        return is_inexact_dtype(self.dtype) and not is_complex_dtype(self.dtype)
