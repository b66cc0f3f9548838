"""Distributions of input values: each holds what it promises, and is the same in every process."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from tasks.arrays.inputs import SATURATING, THEMES, choose_array_theme, fill_array
from tasks.model import (
    DISTRIBUTIONS,
    DTYPES,
    EPS,
    EXHAUSTIVE,
    FUZZ,
    LARGEST,
    SMALLEST_NORMAL,
    STRUCTURED,
    get_numpy_dtype,
    is_inexact_dtype,
)

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTEGERS = ("int8", "uint8", "int32", "int64", "uint64")
SHAPES = ((), (0,), (1,), (2,), (3, 5), (300,))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def wide(dtype: str, distribution: str, theme: str = "", count: int = 400, **more: bool) -> np.ndarray:
    return fill_array((count,), dtype, distribution, rng(), theme, **more).astype(np.float64)


def test_every_distribution_but_the_ops_own_and_what_is_fuzzed_is_generated() -> None:
    assert ("own", *THEMES, STRUCTURED, FUZZ, EXHAUSTIVE) == DISTRIBUTIONS


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "str"])
def test_every_dtype_shape_and_theme_is_filled(dtype: str) -> None:
    for distribution, themes in THEMES.items():
        for theme in ("", *themes):
            for shape in SHAPES:
                for mild in (False, True):
                    made = fill_array(shape, dtype, distribution, rng(), theme, mild)
                    assert made.shape == shape and made.dtype == get_numpy_dtype(dtype) and made.flags.c_contiguous


@pytest.mark.parametrize("dtype", FLOATS)
def test_regular_values_are_distinct_moderate_and_not_zero(dtype: str) -> None:
    values = wide(dtype, "regular", count=200)
    assert len(np.unique(values)) == 200
    assert (values != 0).all() and np.abs(values).max() < 16 and 0.5 < values.std() < 2


@pytest.mark.parametrize("dtype", INTEGERS)
def test_regular_integers_are_distinct_and_not_zero(dtype: str) -> None:
    values = fill_array((50,), dtype, "regular", rng())
    assert len(np.unique(values)) == 50 and (values != 0).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_boundary_holds_the_limits_of_the_dtype(dtype: str) -> None:
    values = wide(dtype, "boundary")
    normal = SMALLEST_NORMAL[dtype]
    for size in (
        0.0,
        1.0,
        normal,
        normal * EPS[dtype],
        normal * (1 - EPS[dtype]),
        LARGEST[dtype],
        2.5,
        1 + EPS[dtype],
        1 - EPS[dtype] / 2,
    ):
        assert size in values and -size in values, size
    zeros = values[values == 0]
    assert np.signbit(zeros).any() and not np.signbit(zeros).all()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_boundary_holds_the_limits_of_an_integer(dtype: str) -> None:
    values = fill_array((40,), dtype, "boundary", rng())
    info = np.iinfo(dtype)
    assert {int(info.min), int(info.max), 0, 1} <= {int(v) for v in values}


@pytest.mark.parametrize("dtype", FLOATS)
def test_adversarial_themes_are_what_they_are_called(dtype: str) -> None:
    sizes = np.abs(wide(dtype, "adversarial", "magnitudes", 2000))
    assert sizes.min() < SMALLEST_NORMAL[dtype] and sizes.max() > LARGEST[dtype] / 64
    offset = wide(dtype, "adversarial", "offset")
    assert 0 < np.ptp(offset) <= 20 * EPS[dtype] * np.abs(offset).max() and np.abs(offset).min() > 100
    squares = wide(dtype, "adversarial", "squares")
    assert 0.3 * EPS[dtype] < squares.std() / np.abs(squares.mean()) < 0.6 * EPS[dtype] ** 0.5
    far = wide(dtype, "adversarial", "saturating")
    assert {SATURATING, -SATURATING} <= set(far) and (np.abs(far) < 10).mean() > 0.5
    assert len(np.unique(wide(dtype, "adversarial", "ties"))) <= 6


@pytest.mark.parametrize("dtype", FLOATS)
def test_mild_values_have_squares_whose_sum_is_finite(dtype: str) -> None:
    for distribution in ("boundary", "adversarial"):
        for theme in THEMES[distribution]:
            values = wide(dtype, distribution, theme, 4000, mild=True)
            assert np.square(values / LARGEST[dtype] ** 0.5).sum() <= 1, theme


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [1, 2, 3, 401])
def test_nan_and_infinities_stand_at_head_middle_and_tail(dtype: str, count: int) -> None:
    for theme, kind in (("nan", np.isnan), ("plus", np.isposinf), ("minus", np.isneginf)):
        found = np.flatnonzero(kind(wide(dtype, "nan", theme, count)))
        assert list(found) == ([0, count // 2, count - 1] if count > 2 else [0])
    mixed = wide(dtype, "nan", "mixed", 401)
    assert np.isnan(mixed[0]) and mixed[200] == np.inf and mixed[-1] == -np.inf and np.isfinite(mixed).sum() == 398


def test_a_sample_has_the_theme_of_its_index() -> None:
    assert [choose_array_theme("nan", i) for i in range(5)] == ["nan", "plus", "minus", "mixed", "nan"]
    assert [choose_array_theme("adversarial", i) for i in (3, 7, 11)] == ["ties", "squares", "ties"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_variance_from_the_mean_of_squares_has_no_digit_left(dtype: str) -> None:
    for seed in range(8):
        x = fill_array((1000,), dtype, "adversarial", rng(seed), "squares")
        exact = x.astype(np.longdouble).var()
        assert abs(np.square(x).mean() - x.mean() ** 2 - exact) > exact / 20
        assert abs(x.var() - exact) < 1e-5 * exact


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="own.*regular"):
        fill_array((1,), "float32", "own", rng())
    with pytest.raises(ValueError, match="tie.*ties"):
        fill_array((1,), "float32", "adversarial", rng(), "tie")


def digest() -> str:
    """Of all distributions of some dtypes; called in this process and in another."""
    found = hashlib.sha256()
    for dtype in (*FLOATS, *INTEGERS, "complex64", "bool"):
        for distribution in THEMES:
            for seed in range(4):
                found.update(fill_array((3, 67), dtype, distribution, rng(seed)).tobytes())
    return found.hexdigest()


def test_the_same_generator_gives_the_same_bytes_in_another_process() -> None:
    code = "from tests.tasks.test_inputs import digest; print(digest())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == digest()
    assert (
        fill_array((9,), "float32", "regular", rng(1)).tobytes()
        != fill_array((9,), "float32", "regular", rng(2)).tobytes()
    )


def test_only_inexact_dtypes_have_nan() -> None:
    for dtype in DTYPES:
        if dtype != "str" and not is_inexact_dtype(dtype):
            assert fill_array((9,), dtype, "nan", rng()).dtype == get_numpy_dtype(dtype)
