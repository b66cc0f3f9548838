"""Bias: kernels that are off to one side by less than a unit are told, beside sound twins of theirs that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from tasks.arrays import noise
from tasks.judge.error_metrics import Metrics, compare_outputs, compute_ulp_spacing, does_error_lean
from tasks.model import EPS, SMALLEST_NORMAL, Leaf, OpClass, get_numpy_dtype

Kernel = Callable[
    [np.ndarray, str], np.ndarray
]  # exact results and a dtype to results as float64, which the dtype holds


def _grid(y: np.ndarray, dtype: str) -> np.ndarray:
    return compute_ulp_spacing(np.abs(y), EPS[dtype], SMALLEST_NORMAL[dtype])


def nearest(y: np.ndarray, dtype: str) -> np.ndarray:
    return y.astype(get_numpy_dtype(dtype)).astype(np.float64)


def truncated(y: np.ndarray, dtype: str) -> np.ndarray:
    return np.trunc(y / _grid(y, dtype)) * _grid(y, dtype)


def upwards(y: np.ndarray, dtype: str) -> np.ndarray:
    return np.ceil(y / _grid(y, dtype)) * _grid(y, dtype)


def half_up(y: np.ndarray, dtype: str) -> np.ndarray:
    return np.floor(y / _grid(y, dtype) + 0.5) * _grid(y, dtype)


def stochastic(skew: float) -> Kernel:
    def kernel(y: np.ndarray, dtype: str) -> np.ndarray:
        draws = np.random.default_rng(5).random(y.shape) + skew
        return np.floor(y / _grid(y, dtype) + draws) * _grid(y, dtype)

    return kernel


def times(factor: float) -> Kernel:
    return lambda y, dtype: nearest(y * factor, dtype)


#: Kernel, dtypes, whether a fifth of the exact results are ties.
BIASED: dict[str, tuple[Kernel, tuple[str, ...], bool]] = {
    "truncates": (truncated, ("bfloat16", "float16", "float32"), False),
    "rounds up": (upwards, ("bfloat16", "float16", "float32"), False),
    "rounds away from zero": (
        lambda y, d: np.sign(y) * upwards(np.abs(y), d),
        ("bfloat16", "float16", "float32"),
        False,
    ),
    "rounds half up": (half_up, ("bfloat16", "float16", "float32"), True),
    "stochastic rounding with a skew": (stochastic(0.15), ("bfloat16", "float16", "float32"), False),
    "a mean over one of a thousand too many": (times(1000 / 1001), ("bfloat16", "float16"), False),
    "a reciprocal of the count in float16": (times(float(np.float16(1 / 9)) * 9), ("float16",), False),
    "one addend of 2048 left out": (times(2047 / 2048), ("float16",), False),
    "one addend of 512 left out": (times(511 / 512), ("bfloat16",), False),
}
SOUND: dict[str, tuple[Kernel, bool]] = {
    "to nearest": (nearest, False),
    "to nearest, with ties": (nearest, True),
    "stochastic rounding": (stochastic(0.0), False),
}


def measured(kernel: Kernel, dtype: str, ties: bool) -> Metrics:
    """The metrics of a kernel on results of a contraction: (256, 256), of both signs, with a noise floor of ε|y|."""
    rng = np.random.default_rng(3)
    y = rng.normal(size=(256, 256)) * np.exp(rng.normal(size=(256, 256)))
    if ties:
        at = rng.random(y.shape) < 0.2
        y = np.where(at, (np.floor(y / _grid(y, dtype)) + 0.5) * _grid(y, dtype), y)
    made = kernel(y, dtype).astype(get_numpy_dtype(dtype))
    return compare_outputs([made], [Leaf(dtype, y.shape, y, EPS[dtype] * np.abs(y))], OpClass.CONTRACTION)


CASES = [(name, dtype) for name, (_, dtypes, _) in BIASED.items() for dtype in dtypes]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_kernel_that_is_off_to_one_side_is_told(name: str, dtype: str) -> None:
    kernel, _, ties = BIASED[name]
    found = measured(kernel, dtype, ties)
    assert found.error_units is not None and found.error_units <= 1.0, "no maximum sees it"
    assert does_error_lean(found), (found.bias, found.bias_sigmas)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", SOUND)
def test_its_sound_twin_is_not(name: str, dtype: str) -> None:
    found = measured(SOUND[name][0], dtype, SOUND[name][1])
    assert not does_error_lean(found), (found.bias, found.bias_sigmas)


def test_there_are_twenty() -> None:
    assert len(CASES) == 20


def _of_means(count: int, divide: Callable[[np.ndarray], np.ndarray]) -> Metrics:
    """The metrics of what is made in float32 of 16,384 float32 sums of ``count`` positive numbers."""
    x = np.random.default_rng(0).uniform(0, 1, (1 << 14, count)).astype(np.float32).astype(np.float64)
    y = x.mean(-1)
    floor = np.max(
        [np.abs(noise.perturb_by_noise(x, EPS["float32"], draw, 1).mean(-1) - y) for draw in range(4)], axis=0
    )
    made = divide(x.sum(-1, dtype=np.float32)).astype(np.float32)
    return compare_outputs([made], [Leaf("float32", y.shape, y, floor, shared=1 / y.size)], OpClass.REDUCTION)


@pytest.mark.parametrize("count", [3, 7, 9, 49, 768])
def test_a_mean_by_a_rounded_reciprocal_is_as_far_off_as_a_truncated_one(count: int) -> None:
    reciprocal = _of_means(count, lambda sums: sums * np.float32(1 / count))
    cut_off = _of_means(count, lambda sums: truncated(sums.astype(np.float64) / count, "float32"))
    divided = _of_means(count, lambda sums: sums / np.float32(count))
    assert does_error_lean(reciprocal) and does_error_lean(cut_off) and not does_error_lean(divided)
    assert reciprocal.bias and cut_off.bias and divided.bias
    assert abs(reciprocal.bias) > abs(cut_off.bias) / 5 and abs(reciprocal.bias) > 10 * abs(divided.bias)


@pytest.mark.parametrize("count", [4, 64, 1024])
def test_a_reciprocal_that_needs_no_rounding_is_a_division(count: int) -> None:
    assert not does_error_lean(_of_means(count, lambda sums: sums * np.float32(1 / count)))


def _of_rows(rows: int, error: Callable[[np.ndarray], np.ndarray]) -> Metrics:
    """The metrics of ``rows`` rows that are normalised one by one, each element of which moves with its row alone."""
    y = np.random.default_rng(9).normal(size=(rows, (1 << 14) // rows))
    leaf = Leaf("float32", y.shape, y, EPS["float32"] * np.abs(y), shared=1 / rows)
    return compare_outputs([error(y).astype(np.float32)], [leaf], OpClass.NORMALISATION)


@pytest.mark.parametrize("rows", [1, 2, 5, 64])
def test_errors_that_rows_share_are_no_bias(rows: int) -> None:
    shared = 1 + EPS["float32"] * (0.6 + 0.1 * np.random.default_rng(4).normal(size=(rows, 1)))
    of_few = _of_rows(
        rows,
        lambda y: y * (shared if rows < 16 else 1 + EPS["float32"] * np.random.default_rng(4).normal(size=(rows, 1))),
    )
    assert not does_error_lean(of_few), (of_few.bias, of_few.bias_sigmas)


def test_rows_that_are_truncated_are_biased() -> None:
    assert does_error_lean(_of_rows(64, lambda y: truncated(y, "float32")))


def test_how_many_results_hang_together() -> None:
    x = np.random.default_rng(1).normal(size=(8, 1024))

    def evaluate(draws: Sequence[int]) -> Iterator[list[np.ndarray]]:
        for draw in draws:
            moved = noise.perturb_by_noise(x, 2.0**-24, draw, 1)
            yield [moved / np.abs(moved).sum(-1, keepdims=True), moved * 2, moved / moved.sum(), moved.sum(-1)]

    exact = [x / np.abs(x).sum(-1, keepdims=True), x * 2, x / x.sum(), x.sum(-1)]
    assert noise.measure_shared_noise(exact, evaluate) == [1 / 8, 1 / x.size, 1.0, None], (
        "by row, alone, all, and too few"
    )


def test_errors_that_are_copies_are_no_bias() -> None:
    """The softmax of rows that are all equal: one rounding error, 32,000 times."""
    y = np.full((32, 1000), 1 / 1000)
    leaf = Leaf("float16", y.shape, y, EPS["float16"] * y, shared=1 / 32)
    assert not does_error_lean(compare_outputs([y.astype(np.float16)], [leaf], OpClass.NORMALISATION))
