"""Adders of matrix units that keep fewer bits than the result has: what they make of a product, to the bit."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


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

    def product(
        self, a: np.ndarray, b: np.ndarray, order: Sequence[int] | None = None, promoted: bool = True
    ) -> np.ndarray:
        """a·b, float64: of (…, m, k) and (…, k, n), both of exactly given factors in float64. order: in which the k terms are taken;
        promoted: whether the sum goes over to float32 on the way. Raises ValueError for factors that are not finite."""
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            raise ValueError("NaN and Inf are not added in steps")
        a, b = (a, b) if order is None else (a[..., order], b[..., order, :])
        left, right = _exponent(a), _exponent(b)
        kept = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))
        total = np.zeros_like(kept)
        for start in range(0, a.shape[-1], self.terms):
            part = slice(start, start + self.terms)
            terms = a[..., :, None, part] * np.swapaxes(b[..., part, :], -1, -2)[..., None, :, :]
            # Exponents of factors add up: a product of two significands may be 2 and more, and is not normalised.
            sizes = left[..., :, None, part] + np.swapaxes(right[..., part, :], -1, -2)[..., None, :, :]
            unit = np.ldexp(1.0, np.maximum(sizes.max(-1), _exponent(kept)) - self.bits)
            kept = _cut(np.trunc(terms / unit[..., None]).sum(-1) * unit + np.trunc(kept / unit) * unit, self.bits)
            if promoted and self.promoted and (start + self.terms) % self.promoted == 0:
                total, kept = (total + kept).astype(np.float32).astype(np.float64), np.zeros_like(kept)
        return np.asarray(total + kept)

    def floor(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """How far a·b may move in it: the largest distance from the exact product over some orders of the terms."""
        exact = np.matmul(a, b)
        found = [np.abs(self.product(a, b, order, promoted) - exact) for order, promoted in _orders(a.shape[-1])]
        return np.asarray(functools.reduce(np.maximum, found))


def _orders(count: int) -> Iterator[tuple[Sequence[int] | None, bool]]:
    """As given, with and without the way over float32, then shuffled."""
    yield None, True
    yield None, False
    for seed in range(6):
        yield np.random.Generator(np.random.PCG64([30, seed])).permutation(count), seed % 2 == 0  # type: ignore[misc]


#: Of zero: below that of any product.
_LOWEST = -1000


def _exponent(x: np.ndarray) -> np.ndarray:
    """e of 2^e <= |x| < 2^(e+1)."""
    return np.where(x == 0, _LOWEST, np.frexp(x)[1] - 1)


def _cut(x: np.ndarray, bits: int) -> np.ndarray:
    """Towards zero, to so many bits of a fraction."""
    significand, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.trunc(np.ldexp(significand, bits + 1)), exponent - bits - 1))


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

#: Names in ACCUMULATORS by architecture of an NVIDIA GPU. Blackwell's matrix units keep 25 bits of float8's products.
_OF_NVIDIA = {"sm_90": ("hopper-float8",), "sm_89": ("ada-float8",)}


def of_nvidia(architecture: str) -> tuple[str, ...]:
    """Names of the accumulators of an NVIDIA GPU ("sm_90") that keep less than float32."""
    return _OF_NVIDIA.get(architecture, ())


def for_factors(dtypes: Sequence[str]) -> list[Accumulator]:
    """Those for products of some dtypes of factors."""
    return [x for x in ACCUMULATORS.values() if set(dtypes) <= {*x.factors}]
