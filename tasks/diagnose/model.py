"""What an error model says a result is, and when that explains the one at hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.model import EPS, LARGEST, SMALLEST_NORMAL, Leaf, is_complex, is_inexact, rounded

#: Least share of the elements that are off, and of all, that a model must give bit for bit or within a unit: libraries
#: differ by a bit in exp and log, which a formula that cancels makes visible here and there.
SHARE = 0.8
#: A model is better than a plainer one if it explains that much more.
BETTER = 0.05
#: So few elements that are off must all be explained.
FEW = 3


@dataclass(frozen=True)
class Model:
    """words: the cause; result: what comes out if it is (float64 where the output is inexact, before the last rounding).
    digits: whether it is about digits, so that zeros, NaN and Inf are no evidence of it: much else gives those. slow: one of
    many orders of a sum, each a matter of milliseconds."""

    words: str
    result: np.ndarray
    digits: bool = False
    slow: bool = False


@dataclass(frozen=True)
class Result:
    """One output: as it is and as it ought to be, both wide and of one shape; unit: what rounding may do to an element;
    off: which elements are further away than that."""

    dtype: str
    actual: np.ndarray
    exact: np.ndarray
    noise: np.ndarray | float
    off: np.ndarray

    @classmethod
    def of(cls, actual: np.ndarray, leaf: Leaf, exact: bool = False) -> Result:
        """The output ``actual`` for what is expected; exact: whether no noise of the inputs excuses it."""
        assert leaf.reference is not None
        y = leaf.reference
        noise: np.ndarray | float = 0.0 if leaf.noise is None or exact else leaf.noise
        made = cls(leaf.dtype, actual.astype(y.dtype), y, noise, np.zeros(y.shape, bool))
        return cls(made.dtype, made.actual, y, noise, ~made.near(y))

    def near(self, result: np.ndarray) -> np.ndarray:
        """Which elements are a result's, bit for bit or within a unit: ε·|result| + δ + tiny."""
        if not is_inexact(self.dtype):
            return np.asarray(self.actual == result)
        cast = np.asarray(rounded(result, self.dtype))
        same = (self.actual == cast) | (np.isnan(self.actual) & np.isnan(cast))
        eps = EPS[self.dtype]
        unit = eps * np.abs(result) + self.noise + eps * SMALLEST_NORMAL.get(self.dtype, 0.0)
        finite = np.isfinite(self.actual) & np.isfinite(cast) & np.isfinite(unit)
        return np.asarray(same | (finite & (np.abs(self.actual - result) <= unit)))

    def explained(self, model: Model) -> float:
        """How well a model explains the result: 0 for not at all, 1 for every element bit for bit."""
        result = model.result
        if result.shape != self.actual.shape:
            return 0.0
        telling = self.off
        if model.digits:
            telling = telling & np.isfinite(self.actual) & (self.actual != 0)
        near = self.near(result)
        least = SHARE if telling.sum() >= FEW else 1.0
        if not telling.any() or near[telling].mean() < least or near[self.off].mean() < least or near.mean() < least:
            return 0.0
        cast = rounded(result, self.dtype) if is_inexact(self.dtype) else result
        same = (self.actual == cast) | (np.isnan(self.actual) & np.isnan(cast)) if is_inexact(self.dtype) else near
        return float(near[self.off].mean() + same[self.off].mean()) / 2

    def is_exact(self, result: np.ndarray) -> bool:
        """Whether a formula in float64 gives the exact result, but for float64's own rounding."""
        if result.shape != self.exact.shape:
            return False
        finite = np.isfinite(self.exact)
        if not (finite == np.isfinite(result)).all() or not finite.any():
            return False
        scale = float(np.abs(self.exact[finite]).max())
        return bool((np.abs(result - self.exact)[finite] <= 1e-11 * (np.abs(self.exact[finite]) + 1e-2 * scale)).all())

    @property
    def largest(self) -> float:
        return LARGEST[self.dtype]

    @property
    def real(self) -> bool:
        """Whether its numbers are rounded and have an order."""
        return is_inexact(self.dtype) and not is_complex(self.dtype)
