"""Products of matrices with what is added to them, and how their sums go wrong."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.diagnose import rounding
from tasks.diagnose.error_model import ErrorModel, WrongResult
from tasks.diagnose.formula import SummedFormula, WrongFormula
from tasks.diagnose.sums import leave_out_terms
from tasks.matrix_units.accumulators import UnitAccumulator
from tasks.model.kind import CAUSE_ARITHMETIC
from tasks.passport.locate_sum import pair_sum_factors


@dataclass(frozen=True)
class _ProductFormula:
    """alpha·a·b + beta·c of inputs by place. turned: the last two axes of b are swapped; rows: a row of a times the
    same row of b, summed; added: the place of c, None where nothing is added."""

    a: int
    b: int
    added: int | None
    turned: bool = False
    rows: bool = False
    alpha: float = 1.0
    beta: float = 1.0

    def terms(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """The terms of each sum along a first axis."""
        a, b = self._factors(given)
        left = np.moveaxis(a, -1, 0)
        if self.rows:
            return np.asarray(np.moveaxis(a * b, -1, 0))
        if b.ndim == 1:
            return np.asarray(left * b.reshape(-1, *(1,) * (left.ndim - 1)))
        right = np.moveaxis(b, -2, 0)
        if a.ndim == 1:
            return np.asarray(left.reshape(-1, *(1,) * (right.ndim - 1)) * right)
        return np.asarray(left[..., :, None] * right[..., None, :])

    def _factors(self, given: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        a, b = given[self.a], given[self.b]
        if min(a.ndim, b.ndim) < 1:
            raise ValueError("a number is no matrix")
        return a, np.swapaxes(b, -1, -2) if self.turned and b.ndim > 1 else b

    def terms_at(self, given: Sequence[np.ndarray], shape: tuple[int, ...], at: np.ndarray) -> np.ndarray:
        """The terms, along a first axis, of the elements of a result of a shape at some places, flat. Raises ValueError
        where the product is of another shape."""
        left, right = pair_sum_factors(*self._factors(given), shape, at, self.rows)
        return np.asarray(left * right)

    def bare(self, given: Sequence[np.ndarray]) -> np.ndarray:
        """a·b."""
        a, b = self._factors(given)
        return np.asarray((a * b).sum(-1) if self.rows else np.matmul(a, b))

    def finish(self, product: np.ndarray, given: Sequence[np.ndarray]) -> np.ndarray:
        """The result for a product."""
        return np.asarray(self.alpha * product + (0.0 if self.added is None else self.beta * given[self.added]))

    def exact(self, given: Sequence[np.ndarray]) -> np.ndarray:
        return self.finish(self.bare(given), given)

    def fit_scales(self, given: Sequence[np.ndarray], result: np.ndarray) -> _ProductFormula:
        """With the alpha and the beta that give a result best. Raises ValueError for inputs that do not fit."""
        parts = [self.bare(given)] + ([] if self.added is None else [given[self.added]])
        if any(np.broadcast_shapes(x.shape, result.shape) != result.shape for x in parts) or not result.size:
            raise ValueError("other shapes")
        columns = np.stack([np.broadcast_to(x, result.shape).reshape(-1) for x in parts], axis=1)
        if not (np.isfinite(columns).all() and np.isfinite(result).all()):
            return self
        found = np.linalg.lstsq(columns, result.reshape(-1), rcond=None)[0]
        return replace(
            self, alpha=_round_fitted_factor(found[0]), beta=_round_fitted_factor(found[1]) if len(found) > 1 else 1.0
        )

    def added_in(self, adder: UnitAccumulator, given: Sequence[np.ndarray]) -> np.ndarray:
        """The result where a matrix unit adds so. Raises ValueError for what is no product of matrices."""
        return self.finish(adder.product(*self._matrices(given)), given)

    def floor_in(self, adder: UnitAccumulator, given: Sequence[np.ndarray]) -> np.ndarray:
        """How far the result may move there. Raises ValueError as `added_in`."""
        return np.asarray(abs(self.alpha) * adder.floor(*self._matrices(given)))

    def _matrices(self, given: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        a, b = self._factors(given)
        if self.rows or min(a.ndim, b.ndim) < 2:
            raise ValueError("no product of matrices")
        return a, b

    def wrong(
        self, given: Sequence[np.ndarray], dtype: str, adders: Sequence[UnitAccumulator] = ()
    ) -> Iterator[ErrorModel]:
        for adder in adders:
            with contextlib.suppress(ValueError):
                yield ErrorModel(adder.words, self.added_in(adder, given), digits=True, code=CAUSE_ARITHMETIC)
        for name in rounding.list_coarser_formats(dtype):
            for words, change in (
                (rounding.word_rounding(name), rounding.round_to_format),
                (f"truncated to {name}", rounding.cut_to_format),
            ):
                some = [change(x, name) if k in (self.a, self.b) else x for k, x in enumerate(given)]
                yield ErrorModel(f"factors are {words}", self.exact(some), digits=True, code=CAUSE_ARITHMETIC)
        if self.added is not None:
            yield ErrorModel("what is to be added is left out", replace(self, beta=0.0).exact(given))
        if self.alpha != 1:
            yield ErrorModel(
                f"the factor {self.alpha:g} of the product is left out", replace(self, alpha=1.0).exact(given)
            )
        if self.beta != 1:
            yield ErrorModel(
                f"the factor {self.beta:g} of what is added is left out", replace(self, beta=1.0).exact(given)
            )
        a, b = self._factors(given)
        if self.rows or a.size // a.shape[-1] * b.size <= rounding.TERMS:
            yield from self._sums(given, dtype)

    def _sums(self, given: Sequence[np.ndarray], dtype: str) -> Iterator[ErrorModel]:
        terms = self.terms(given)
        yield from leave_out_terms(terms, lambda part: self.finish(part.sum(0), given))
        for precision in rounding.list_narrow_formats(dtype):
            for total in rounding.accumulate_in_format(terms, precision):
                yield ErrorModel(
                    f"accumulated in {precision}", self.finish(total, given), slow=True, code=CAUSE_ARITHMETIC
                )


def _round_fitted_factor(x: float) -> float:
    """A factor without what its fit has rounded."""
    return round(float(x), 12)


def formulas(
    floats: Sequence[np.ndarray], dtype: str, result: np.ndarray, adders: Sequence[UnitAccumulator] = ()
) -> Iterator[WrongFormula]:
    """Products of two inputs; of three, with the third added. adders: those of matrix units for these factors."""
    for found in _fit_product_formulas(floats, result):
        yield WrongFormula(found.exact, functools.partial(found.wrong, dtype=dtype, adders=adders))


def bound_product_in_adder(
    adder: UnitAccumulator, floats: Sequence[np.ndarray], result: WrongResult
) -> np.ndarray | None:
    """How far a result, a product of matrices, may move where a matrix unit adds so; None where it is no such
    product."""
    for found in _fit_product_formulas(floats, result.exact):
        with contextlib.suppress(ValueError):
            if result.is_exact(found.exact(floats)):
                return found.floor_in(adder, floats)
    return None


def find_product_sums(floats: Sequence[np.ndarray], result: WrongResult, at: np.ndarray) -> Iterator[SummedFormula]:
    """A result at some places, flat, as the sums of a product of matrices, where it is one."""
    for found in _fit_product_formulas(floats, result.exact):
        with contextlib.suppress(ValueError):
            if result.is_exact(found.exact(floats)):
                terms = functools.partial(found.terms_at, shape=result.exact.shape, at=at)
                added = 0.0 if found.added is None else found.beta * floats[found.added]
                yield SummedFormula(
                    terms(floats), terms, found.alpha, np.broadcast_to(added, result.exact.shape).reshape(-1)[at]
                )


def _fit_product_formulas(floats: Sequence[np.ndarray], result: np.ndarray) -> Iterator[_ProductFormula]:
    if len(floats) not in (2, 3):
        return
    for a, b in itertools.permutations(range(len(floats)), 2):
        added = next((k for k in range(len(floats)) if k not in (a, b)), None)
        for turned, rows in ((False, False), (True, False), (False, True)):
            try:
                yield _ProductFormula(a, b, added, turned, rows).fit_scales(floats, result)
            except ValueError:
                continue
