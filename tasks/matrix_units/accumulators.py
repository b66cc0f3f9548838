"""Adders of matrix units that keep fewer bits than the result has: what they make of a product, to the bit."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.matrix_units.adders import (
    DIGITS,
    TruncatingAdder,
    UnitFactors,
    find_exponent_powers,
    list_unit_steps,
    multiply_unit_outer,
)
from tasks.matrix_units.table import UNITS, MatrixUnit


@dataclass(frozen=True)
class UnitAccumulator:
    """How a matrix unit adds the products of some dtypes of factors (`tasks.matrix_units.table`), where it keeps less
    than float32."""

    name: str
    factors: tuple[str, ...]
    unit: MatrixUnit

    @property
    def bits(self) -> int:
        """Of a fraction: what is kept while terms are aligned, and of their sum."""
        assert isinstance(self.unit.adder, TruncatingAdder)
        return self.unit.adder.kept

    @property
    def words(self) -> str:
        """As a cause: why a result has lost digits."""
        return f"accumulates in {self.bits} bits"

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a·b, float64: of (…, m, k) and (…, k, n), both of exactly given factors in float64. Raises ValueError for
        factors that are not finite."""
        return self._accumulate_product(a, b, range(a.shape[-1]), self.unit.promoted)[0]

    def floor(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """How far a·b may move in it, as `product`: the largest distance from the exact product over some orders of the
        terms, and no less than the last bit that was kept of the largest number on the way."""
        exact, found = np.matmul(a, b), []
        for order, promoted in _list_summing_orders(a.shape[-1]):
            made, unit = self._accumulate_product(a, b, order, self.unit.promoted * promoted)
            found += [np.abs(made - exact), unit]
        return np.asarray(functools.reduce(np.maximum, found))

    def _accumulate_product(
        self, a: np.ndarray, b: np.ndarray, order: Sequence[int], promoted: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(a·b with the k terms in an order, the largest unit that anything was cut off at)."""
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ValueError("NaN and Inf are not added in steps")
        adder = self.unit.adder
        assert isinstance(adder, TruncatingAdder)
        sides = (np.swapaxes(a[..., order], -1, -2), b[..., order, :])
        left, right = (UnitFactors(x, find_exponent_powers(x, _LOWEST)) for x in map(np.ascontiguousarray, sides))
        kept = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
        total, largest = np.zeros_like(kept), np.zeros_like(kept)
        for start, stop in list_unit_steps(a.shape[-1], adder.fused):
            parts = left.cut(start, stop), right.cut(start, stop)
            powers = (multiply_unit_outer(parts[0].powers, parts[1].powers, place) for place in range(stop - start))
            kept = adder.add(kept, *parts)
            largest = functools.reduce(np.maximum, powers, np.maximum(largest, find_exponent_powers(kept, _LOWEST)))
            if promoted and stop % promoted == 0:
                total, kept = (total + kept).astype(np.float32).astype(np.float64), np.zeros_like(kept)
        return total + kept, largest * 2.0**-adder.kept


def _list_summing_orders(count: int) -> Iterator[tuple[Sequence[int], bool]]:
    """Orders of some terms, and whether the sum goes over to float32 on the way: as given, then shuffled."""
    for promoted in (True, False):
        yield range(count), promoted
    for seed in range(6):
        shuffled: list[int] = np.random.Generator(np.random.PCG64([30, seed])).permutation(count).tolist()
        yield shuffled, seed % 2 == 0


#: Exponents are read as they are: of float8, values alone are known here.
_LOWEST = -1000


def _list_narrow_accumulators() -> Iterator[UnitAccumulator]:
    """Those of the units whose accumulators have fewer digits than float32, which take several dtypes alike."""
    found: dict[tuple[str, str], list[MatrixUnit]] = {}
    for unit in UNITS.values():
        if isinstance(unit.adder, TruncatingAdder) and unit.adder.digits < DIGITS:
            found.setdefault((unit.architecture, unit.dtype.partition("_")[0]), []).append(unit)
    for (architecture, kind), units in found.items():
        yield UnitAccumulator(f"{architecture}-{kind}", tuple(x.dtype for x in units), units[0])


#: By name, of the table of matrix units; a device that is not named keeps what float32 has.
ACCUMULATORS = {x.name: x for x in _list_narrow_accumulators()}


def list_accumulators_for_factors(dtypes: Sequence[str]) -> list[UnitAccumulator]:
    """Those for products of some dtypes of factors."""
    return [x for x in ACCUMULATORS.values() if set(dtypes) <= {*x.factors}]
