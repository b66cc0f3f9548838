"""Adders of matrix units that keep fewer bits than the result has: what they make of a product, to the bit."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.model.dtypes import round_digits


@dataclass(frozen=True)
class Accumulator:
    """How a matrix unit adds the products of some dtypes of factors.

    bits: of a fraction. The exact products of one step, and the sum so far, are aligned to the largest exponent among them, cut off
    at so many bits below it, and added; the sum is cut off to so many bits again. terms: products that one step adds. promoted:
    after so many products the sum is added to one of float32, and begins again (0: never). evidence: where that is known from.
    """

    name: str
    factors: tuple[str, ...]
    bits: int
    terms: int
    promoted: int
    evidence: str

    @property
    def words(self) -> str:
        """As a cause: why a result has lost digits."""
        return f"accumulates in {self.bits} bits"

    def product(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a·b, float64: of (…, m, k) and (…, k, n), both of exactly given factors in float64. Raises ValueError for factors that are
        not finite."""
        return self._accumulate_product(a, b, range(a.shape[-1]), self.promoted)[0]

    def floor(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """How far a·b may move in it, as `product`: the largest distance from the exact product over some orders of the terms, and no
        less than the last bit that was kept of the largest number on the way."""
        exact, found = np.matmul(a, b), []
        for order, promoted in _list_summing_orders(a.shape[-1]):
            made, unit = self._accumulate_product(a, b, order, self.promoted * promoted)
            found += [np.abs(made - exact), unit]
        return np.asarray(functools.reduce(np.maximum, found))

    def _accumulate_product(
        self, a: np.ndarray, b: np.ndarray, order: Sequence[int], promoted: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(a·b with the k terms in an order, the largest unit that anything was cut off at)."""
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ValueError("NaN and Inf are not added in steps")
        a, b = a[..., order], np.swapaxes(b[..., order, :], -1, -2)
        left, right = _exponent(a), _exponent(b)
        kept = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2]))
        total, coarsest = np.zeros_like(kept), np.zeros_like(kept)
        for start in range(0, a.shape[-1], self.terms):
            part = slice(start, start + self.terms)
            terms = a[..., :, None, part] * b[..., None, :, part]
            # Exponents of factors add up: a product of two significands may be 2 and more, and is not normalised.
            sizes = left[..., :, None, part] + right[..., None, :, part]
            unit = np.ldexp(1.0, np.maximum(sizes.max(-1), _exponent(kept)) - self.bits)
            kept = _truncate_bits(
                np.trunc(terms / unit[..., None]).sum(-1) * unit + np.trunc(kept / unit) * unit, self.bits
            )
            coarsest = functools.reduce(np.maximum, (coarsest, unit, np.ldexp(1.0, _exponent(kept) - self.bits)))
            if promoted and (start + self.terms) % promoted == 0:
                total, kept = (total + kept).astype(np.float32).astype(np.float64), np.zeros_like(kept)
        return total + kept, coarsest


def _list_summing_orders(count: int) -> Iterator[tuple[Sequence[int], bool]]:
    """Orders of some terms, and whether the sum goes over to float32 on the way: as given, then shuffled."""
    for promoted in (True, False):
        yield range(count), promoted
    for seed in range(6):
        shuffled: list[int] = np.random.Generator(np.random.PCG64([30, seed])).permutation(count).tolist()
        yield shuffled, seed % 2 == 0


#: Of zero: below that of any product.
_LOWEST = -1000


def _exponent(x: np.ndarray) -> np.ndarray:
    """e of 2^e <= |x| < 2^(e+1)."""
    return np.where(x == 0, _LOWEST, np.frexp(x)[1] - 1)


def _truncate_bits(x: np.ndarray, bits: int) -> np.ndarray:
    """Towards zero, to so many bits of a fraction."""
    return round_digits(x, 2.0**-bits, np.trunc)


_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
#: By name. What is here is measured, or modelled to the bit by others; a device that is not named keeps what float32 has.
ACCUMULATORS = {
    x.name: x
    for x in (
        Accumulator(
            "hopper-float8",
            _FLOAT8,
            bits=13,
            terms=32,
            promoted=128,
            evidence="one H200, cuBLAS 13.1, torch._scaled_mm without fast accumulation: error units and bias of 15 of 15 shapes are "
            "this model's, digit for digit. Also DeepSeek-V3 (arXiv 2412.19437, 3.3.2: 'around 14 bits') and MMA-Sim's wgmma.",
        ),
        Accumulator(
            "ada-float8",
            _FLOAT8,
            bits=13,
            terms=16,
            promoted=0,
            evidence="MMA-Sim's model of mma on Ada Lovelace, which its authors hold bit-equal to the hardware; not measured here.",
        ),
    )
}


def for_factors(dtypes: Sequence[str]) -> list[Accumulator]:
    """Those for products of some dtypes of factors."""
    return [x for x in ACCUMULATORS.values() if set(dtypes) <= {*x.factors}]
