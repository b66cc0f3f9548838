"""Sums of 16-bit numbers that are added in 16 bits are told from those that float32 adds, in whatever order either does."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tasks.diagnose import explain_narrow_sums
from tasks.model import Leaf

Product = Callable[[np.ndarray, np.ndarray], np.ndarray]
DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def in_float32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((a.astype(np.float32) @ b.astype(np.float32)).astype(a.dtype))


def one_by_one(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((len(a), b.shape[1]), a.dtype)
    for k in range(len(b)):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total


def fused(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((len(a), b.shape[1]), a.dtype)
    for k in range(len(b)):
        exact = a[:, k : k + 1].astype(np.float64) * b[k : k + 1].astype(np.float64)
        total = (total.astype(np.float64) + exact).astype(a.dtype)
    return total


def in_pairs(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    terms = (a[:, :, None] * b[None]).transpose(1, 0, 2)
    while len(terms) > 1:
        terms = np.concatenate([terms[0 : len(terms) // 2 * 2 : 2] + terms[1::2], terms[len(terms) // 2 * 2 :]])
    return np.asarray(terms[0])


def in_chunks(size: int, inside: Product) -> Product:
    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        total = np.zeros((len(a), b.shape[1]), a.dtype)
        for k in range(0, len(b), size):
            total = total + inside(a[:, k : k + size], b[k : k + size])
        return total

    return product


def chunks_in_float32(size: int) -> Product:
    def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        starts = range(0, len(b), size)
        return np.asarray(
            sum(one_by_one(a[:, k : k + size], b[k : k + size]).astype(np.float32) for k in starts).astype(a.dtype)  # type: ignore[union-attr]
        )

    return product


def steps_in_float32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(len(b)):
        total = total + a[:, k : k + 1].astype(np.float32) * b[k : k + 1].astype(np.float32)
    return total.astype(a.dtype)


def cut_in_float32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As some matrix units do: every sum is cut off, not rounded."""
    total = np.zeros((len(a), b.shape[1]))
    for k in range(len(b)):
        part, exponent = np.frexp(total + a[:, k : k + 1].astype(np.float64) * b[k : k + 1].astype(np.float64))
        total = np.ldexp(np.trunc(part * 2**23) / 2**23, exponent)
    return total.astype(a.dtype)


def scaled_before(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """As attention does: factors are rounded once more, which is not the adding."""
    return in_float32(a * a.dtype.type(0.1376), b / b.dtype.type(0.1376))


def rounded_products(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(a * b).sum() in torch: each product is a tensor's element, the sum is float32's."""
    return np.asarray((a[:, :, None] * b[None]).astype(np.float32).sum(1).astype(a.dtype))


def coarse_factors(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    short = DTYPES["bfloat16"]
    return np.asarray((a.astype(short).astype(np.float32) @ b.astype(short).astype(np.float32)).astype(a.dtype))


NARROW: dict[str, Product] = {
    "one by one": one_by_one,
    "fused": fused,
    "in pairs": in_pairs,
    "chunks of 16": in_chunks(16, in_float32),
    "chunks of 48": in_chunks(48, in_float32),
    "chunks of 64, one by one": in_chunks(64, one_by_one),
    "chunks of 256, float32 between": chunks_in_float32(256),
}
SOUND: dict[str, Product] = {
    "at once": in_float32,
    "step by step": steps_in_float32,
    "cut off": cut_in_float32,
    "scaled before": scaled_before,
    "rounded products": rounded_products,
}


def inputs(kind: str, dtype: str, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    g = np.random.default_rng([seed, k])
    draw = g.random if kind == "positive" else g.standard_normal
    a, b = draw((8, k)), draw((k, 12))
    if kind == "mixed":
        a, b = (x * 10.0 ** g.integers(-2, 2, x.shape) for x in (a, b))
    return a.astype(DTYPES[dtype]), b.astype(DTYPES[dtype])


def told(product: Product, a: np.ndarray, b: np.ndarray) -> str:
    y = a.astype(np.float64) @ b.astype(np.float64)
    dtype = next(name for name, x in DTYPES.items() if x == a.dtype)
    return explain_narrow_sums([a, b], [product(a, b)], [Leaf(dtype, y.shape, y)]).words


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_accumulator_of_16_bits_is_told(dtype: str, name: str) -> None:
    found = [told(NARROW[name], *inputs("normal", dtype, 1024, seed)) for seed in range(3)]
    assert found.count(f"accumulated in {dtype}") >= 2, found


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_accumulator_of_float32_is_not_blamed(dtype: str, name: str) -> None:
    for kind, k, seed in itertools.product(("normal", "positive", "mixed"), (40, 300, 1024), range(2)):
        assert told(SOUND[name], *inputs(kind, dtype, k, seed)) == "", (kind, k, seed)


def test_coarser_factors_are_not_the_adding() -> None:
    for kind, seed in itertools.product(("normal", "positive", "mixed"), range(3)):
        assert told(coarse_factors, *inputs(kind, "float16", 1024, seed)) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_and_means_of_one_tensor(dtype: str) -> None:
    x, _ = inputs("normal", dtype, 2048, 0)
    sums = np.add.accumulate(x, 1, dtype=x.dtype)[:, -1]
    for scale in (1, 2048):  # a power of two: a mean is rounded no further
        y = x.astype(np.float64).sum(1) / scale
        narrow = (sums.astype(np.float64) / scale).astype(x.dtype)
        assert explain_narrow_sums([x], [narrow], [Leaf(dtype, y.shape, y)]).words == f"accumulated in {dtype}"
        assert explain_narrow_sums([x], [y.astype(x.dtype)], [Leaf(dtype, y.shape, y)]).words == ""


def test_what_is_added_and_many_matrices() -> None:
    g = np.random.default_rng(5)
    half = DTYPES["float16"]
    a, b, c = (g.standard_normal(s).astype(half) for s in ((3, 4, 512), (3, 512, 5), (5,)))
    y = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    for product, says in ((one_by_one, "accumulated in float16"), (in_float32, "")):
        made = np.stack([product(x, z) for x, z in zip(a, b)]) + c  # rounded before and after what is added
        assert explain_narrow_sums([a, b, c], [made], [Leaf("float16", y.shape, y)]).words == says


def test_one_number_agrees_by_chance_with_one_of_many_orders() -> None:
    found = []
    for seed in range(30):
        a, b = inputs("normal", "float16", 1024, seed)
        found.append(told(one_by_one, a[:1], b[:, :1]) != "")
        assert told(in_float32, a[:1], b[:, :1]) == told(scaled_before, a[:1], b[:, :1]) == ""
    assert sum(found) >= 15  # where it lies outside what float32 leaves
