"""What a whole model's outputs are worth: error units of the row floor, and the outputs that must not pass for any model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks.judge import verdict
from tasks.judge.plain import Metrics, compare
from tasks.judge.policy import judge
from tasks.judge.prepared import constant_would_pass, excused, zero_would_pass
from tasks.judge.worst import worst
from tasks.model import EPS, Leaf, OpClass, row_floor

POLICY = verdict.load("error_units")


def of(metrics: Metrics, dtype: str = "float32", precision: str = "") -> tuple[str, str]:
    status, kind = judge(metrics, POLICY, "models:tiny", OpClass.MODEL, dtype, "float64", precision)
    return status.value, kind


def logits(rows: int = 6, columns: int = 64, floor: float = 12.0, seed: int = 0) -> Leaf:
    """An output whose elements move by some ``floor`` ε of their row's size; a few hardly moved in the draws."""
    g = np.random.default_rng(seed)
    y = g.normal(0, 3, (rows, columns))
    noise = floor * EPS["float32"] * np.abs(g.normal(0, 3, y.shape))
    noise[:, ::17] *= 1e-4
    return Leaf("float32", y.shape, y, noise)


def off(leaf: Leaf, units: float, seed: int = 1) -> np.ndarray:
    """The reference, moved by up to so many of its rows' error units, in float32."""
    g = np.random.default_rng(seed)
    assert leaf.reference is not None and leaf.noise is not None
    tolerance = EPS["float32"] * np.abs(leaf.reference) + row_floor(leaf.noise)
    return np.asarray(leaf.reference + units * tolerance * g.uniform(-1, 1, leaf.shape), np.float32)


def test_the_row_floor_is_the_larger_of_an_element_s_own_and_its_row_s_mean_square() -> None:
    noise = np.array([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert row_floor(noise).tolist() == [[3.0, 4.0, 2.5, 2.5], [0.0] * 4]
    assert row_floor(np.array(2.0)) == 2.0 and row_floor(np.empty((3, 0))).shape == (3, 0)


def test_a_quiet_element_is_no_false_alarm_in_a_model_and_stays_one_in_an_op() -> None:
    leaf = logits()
    healthy = off(leaf, 8)
    assert of(compare([healthy], [leaf], OpClass.MODEL)) == ("pass", "")
    strict = compare([healthy], [leaf], OpClass.COMPOSITE)
    assert strict.error_units is not None and strict.error_units > 32


@pytest.mark.parametrize(("units", "expected"), [(30, "pass"), (200, "imprecise"), (850, "wrong"), (5000, "wrong")])
def test_beyond_the_limit_digits_are_lost_and_beyond_eight_times_it_the_model_is_wrong(
    units: float, expected: str
) -> None:
    leaf = logits()
    assert of(compare([off(leaf, units)], [leaf], OpClass.MODEL))[0] == expected


def test_the_classic_tolerance_excuses_no_model() -> None:
    """Logits of 1e-5: whatever comes out, zeros too, is within atol."""
    whole = logits()
    assert whole.reference is not None and whole.noise is not None
    small = Leaf("float32", whole.shape, whole.reference * 1e-7, whole.noise * 1e-7)
    zeros = compare([np.zeros(small.shape, np.float32)], [small], OpClass.MODEL)
    assert zeros.classic and of(zeros) == ("wrong", "numbers")


@pytest.mark.parametrize("noise", [np.nan, np.inf])
def test_a_floor_that_is_not_finite_makes_the_case_invalid(noise: float) -> None:
    leaf = logits()
    assert leaf.noise is not None and leaf.reference is not None
    leaf.noise[2, 3] = noise
    for actual in (leaf.reference.astype(np.float32), np.zeros(leaf.shape, np.float32)):
        for policy in map(verdict.load, verdict.names()):
            metrics = compare([actual], [leaf], OpClass.MODEL)
            status, kind = judge(metrics, policy, "models:tiny", OpClass.MODEL, "float32", "float64")
            assert (status.value, kind) == ("invalid", "oracle"), policy.name
    # What is of no right shape needs no floor to be wrong.
    assert of(compare([np.zeros((2, 2), np.float32)], [leaf], OpClass.MODEL)) == ("wrong", "shape")


def test_what_is_weak_excused_and_worst_is_so_by_the_row_floor_too() -> None:
    leaf = logits(1, 64)
    assert leaf.noise is not None and leaf.reference is not None
    y = leaf.reference
    quiet = Leaf("float32", leaf.shape, y, np.where(np.arange(64) % 17 == 0, 0.0, 1e3))
    assert constant_would_pass(quiet, 32.0, OpClass.MODEL) and not constant_would_pass(quiet, 32.0)
    assert excused(quiet, 32.0, OpClass.MODEL) == 1.0 > excused(quiet, 32.0)
    actual = np.asarray(y + row_floor(leaf.noise) * (np.arange(64) == 5), np.float32)
    assert worst([actual], [leaf], OpClass.MODEL) == (0, (0, 5))
    one = Leaf("float32", (1, 1), np.array([[3.0]]), np.array([[0.05]]))
    assert not zero_would_pass(one, 32.0, OpClass.MODEL) and zero_would_pass(one, 64.0, OpClass.MODEL)


@pytest.mark.parametrize(("precision", "limit"), [("bfloat16", 16), ("tfloat32", 16), ("float16", 16), ("", 32)])
def test_a_declared_precision_is_judged_in_it(precision: str, limit: float) -> None:
    assert POLICY.limit("models:tiny", "model", "float32", precision).value == limit
    leaf: Any = logits()
    ratio = (EPS[precision] if precision else EPS["float32"]) / EPS["float32"]
    inside, outside = off(leaf, 0.5 * limit * ratio), off(leaf, 200 * limit * ratio)
    assert of(compare([inside], [leaf], OpClass.MODEL, precision), precision=precision) == ("pass", "")
    assert of(compare([outside], [leaf], OpClass.MODEL, precision), precision=precision)[0] == "wrong"
