"""What a whole model's outputs are worth: error units of the row floor, and the outputs that must not pass for any model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.judge import policy_files
from tasks.judge.error_metrics import Metrics, compare_outputs
from tasks.judge.model_meaning import ModelMeaning, interpret_meaning, parse_output_meaning
from tasks.judge.policy import judge_by_policy
from tasks.judge.weak_samples import (
    bfloat16_would_pass,
    constant_would_pass,
    measure_excused_share,
    others_would_pass,
    zero_would_pass,
)
from tasks.judge.worst_element import find_worst_element
from tasks.model import EPS, Leaf, OpClass, compute_row_floor

POLICY = policy_files.load_policy("error_units")


def measured(actual: np.ndarray, leaf: Leaf, precision: str = "") -> Metrics:
    """All that is measured of one output."""
    metrics = compare_outputs([actual], [leaf], OpClass.MODEL, precision)
    interpret_meaning(
        metrics, [actual], [leaf], OpClass.MODEL, precision, POLICY.limit_value("models:tiny", "model", "float32")
    )
    return metrics


def of(metrics: Metrics, dtype: str = "float32", precision: str = "") -> tuple[str, str]:
    status, kind = judge_by_policy(metrics, POLICY, "models:tiny", OpClass.MODEL, dtype, "float64", precision)
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
    tolerance = EPS["float32"] * np.abs(leaf.reference) + compute_row_floor(leaf.noise)
    return np.asarray(leaf.reference + units * tolerance * g.uniform(-1, 1, leaf.shape), np.float32)


def test_the_row_floor_is_the_larger_of_an_element_s_own_and_its_row_s_mean_square() -> None:
    noise = np.array([[3.0, 4.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    assert compute_row_floor(noise).tolist() == [[3.0, 4.0, 2.5, 2.5], [0.0] * 4]
    assert compute_row_floor(np.array(2.0)) == 2.0 and compute_row_floor(np.empty((3, 0))).shape == (3, 0)


def test_a_quiet_element_is_no_false_alarm_in_a_model_and_stays_one_in_an_op() -> None:
    leaf = logits()
    healthy = off(leaf, 8)
    assert of(compare_outputs([healthy], [leaf], OpClass.MODEL)) == ("pass", "")
    strict = compare_outputs([healthy], [leaf], OpClass.COMPOSITE)
    assert strict.error_units is not None and strict.error_units > 32


@pytest.mark.parametrize(("units", "expected"), [(30, "pass"), (200, "imprecise"), (850, "wrong"), (5000, "wrong")])
def test_beyond_the_limit_digits_are_lost_and_beyond_eight_times_it_the_model_is_wrong(
    units: float, expected: str
) -> None:
    leaf = logits()
    assert of(compare_outputs([off(leaf, units)], [leaf], OpClass.MODEL))[0] == expected


def test_the_classic_tolerance_excuses_no_model() -> None:
    """Logits of 1e-5: whatever comes out, zeros too, is within atol."""
    whole = logits()
    assert whole.reference is not None and whole.noise is not None
    small = Leaf("float32", whole.shape, whole.reference * 1e-7, whole.noise * 1e-7)
    zeros = compare_outputs([np.zeros(small.shape, np.float32)], [small], OpClass.MODEL)
    assert zeros.classic and of(zeros) == ("wrong", "numbers")


@pytest.mark.parametrize("noise", [np.nan, np.inf])
def test_a_floor_that_is_not_finite_makes_the_case_invalid(noise: float) -> None:
    leaf = logits()
    assert leaf.noise is not None and leaf.reference is not None
    leaf.noise[2, 3] = noise
    for actual in (leaf.reference.astype(np.float32), np.zeros(leaf.shape, np.float32)):
        for policy in map(policy_files.load_policy, policy_files.list_policy_names()):
            metrics = compare_outputs([actual], [leaf], OpClass.MODEL)
            status, kind = judge_by_policy(metrics, policy, "models:tiny", OpClass.MODEL, "float32", "float64")
            assert (status.value, kind) == ("invalid", "oracle"), policy.name
    # What is of no right shape needs no floor to be wrong.
    assert of(compare_outputs([np.zeros((2, 2), np.float32)], [leaf], OpClass.MODEL)) == ("wrong", "shape")


def test_what_is_weak_excused_and_worst_is_so_by_the_row_floor_too() -> None:
    leaf = logits(1, 64)
    assert leaf.noise is not None and leaf.reference is not None
    y = leaf.reference
    quiet = Leaf("float32", leaf.shape, y, np.where(np.arange(64) % 17 == 0, 0.0, 1e3))
    assert constant_would_pass(quiet, 32.0, OpClass.MODEL) and not constant_would_pass(quiet, 32.0)
    assert measure_excused_share(quiet, 32.0, OpClass.MODEL) == 1.0 > measure_excused_share(quiet, 32.0)
    actual = np.asarray(y + compute_row_floor(leaf.noise) * (np.arange(64) == 5), np.float32)
    assert find_worst_element([actual], [leaf], OpClass.MODEL) == (0, (0, 5))
    one = Leaf("float32", (1, 1), np.array([[3.0]]), np.array([[0.05]]))
    assert not zero_would_pass(one, 32.0, OpClass.MODEL) and zero_would_pass(one, 64.0, OpClass.MODEL)


@pytest.mark.parametrize(("precision", "limit"), [("bfloat16", 16), ("tfloat32", 16), ("float16", 16), ("", 32)])
def test_a_declared_precision_is_judged_in_it(precision: str, limit: float) -> None:
    assert POLICY.limit("models:tiny", "model", "float32", precision).value == limit
    leaf: Any = logits()
    ratio = (EPS[precision] if precision else EPS["float32"]) / EPS["float32"]
    inside, outside = off(leaf, 0.5 * limit * ratio), off(leaf, 200 * limit * ratio)
    assert of(compare_outputs([inside], [leaf], OpClass.MODEL, precision), precision=precision) == ("pass", "")
    assert of(compare_outputs([outside], [leaf], OpClass.MODEL, precision), precision=precision)[0] == "wrong"


# --- what the outputs mean ----------------------------------------------------------------------------------------


def test_a_meaning_is_stated_in_words_that_there_are() -> None:
    assert parse_output_meaning("") is None and parse_output_meaning("logits") == ModelMeaning("logits")
    assert parse_output_meaning("probabilities axis 1") == ModelMeaning("probabilities", axis=1)
    assert parse_output_meaning("mask above 0.3") == ModelMeaning("mask", above=0.3) and parse_output_meaning(
        "embedding"
    ) == ModelMeaning("embedding")
    for text in ("logit", "mask axis 1", "logits above 2", "logits axis 1.5", "mask above", "logits "):
        with pytest.raises(ValueError, match="no meaning of an output"):
            parse_output_meaning(text)


def test_what_the_catalog_s_models_state_has_a_meaning() -> None:
    from tasks.catalogs.models.table import MODELS

    stated = {
        label: {name: parse_output_meaning(text) for name, text in model.outputs.items()}
        for label, model in MODELS.items()
    }
    assert stated["unet", "small"] == {"logits": ModelMeaning("logits", axis=1)}  # classes by pixel
    assert stated["gpt2", "small"] == {"logits": ModelMeaning("logits")}
    assert stated["ppocr_det", ""] and sum(map(bool, stated.values())) > len(stated) / 2


def close(gap: float) -> tuple[Leaf, np.ndarray]:
    """Logits of three rows whose two largest are ``gap`` error units of both apart; the same with the two exchanged."""
    y = np.array([[0.0, 2.0, 1.0, -3.0], [1.0, -1.0, 0.5, 2.0], [2.0, 0.0, 0.0, 1.0]])
    noise = np.full(y.shape, 2.0**-12)
    y[0, 2] = y[0, 1] - gap * 2 * (noise[0, 0] + 2 * EPS["float32"])
    actual = y.astype(np.float32)
    actual[0, [1, 2]] = actual[0, [2, 1]]
    return Leaf("float32", y.shape, y, noise, meaning="logits"), actual


@pytest.mark.parametrize(
    ("gap", "expected", "flips", "ties"),
    [
        (3, ("pass", ""), 0, 1),
        (25, ("imprecise", "numbers"), 0, 1),
        (60, ("wrong", "flip"), 1, 0),
        (900, ("wrong", "numbers"), 1, 0),
    ],
)
def test_a_flip_counts_where_the_margin_is_wider_than_the_limit(
    gap: float, expected: tuple[str, str], flips: int, ties: int
) -> None:
    leaf, actual = close(gap)
    metrics = measured(actual, leaf)
    assert of(metrics) == expected
    assert (metrics.decisions, metrics.flips, metrics.ties) == (3, flips, ties)
    assert metrics.flip_units == pytest.approx(gap, rel=0.01)
    same = measured(leaf.reference.astype(np.float32), leaf)  # type: ignore[union-attr]
    assert (same.flips, same.ties, same.flip_units) == (0, 0, 0.0) and same.divergence == pytest.approx(0, abs=1e-12)


def test_what_is_imprecise_without_a_flip_stays_so() -> None:
    leaf, actual = close(900)
    assert leaf.reference is not None
    actual = leaf.reference.astype(np.float32)
    actual[1, 1] -= 200 * 2.0**-12  # the least likely of its row
    metrics = measured(actual, leaf)
    assert of(metrics) == ("imprecise", "numbers") and metrics.flips == 0


def test_where_nothing_is_stated_nothing_is_decided() -> None:
    leaf, actual = close(60)
    silent = Leaf(leaf.dtype, leaf.shape, leaf.reference, leaf.noise)
    metrics = measured(actual, silent)
    assert of(metrics) == ("imprecise", "numbers")
    assert (metrics.decisions, metrics.flips, metrics.divergence, metrics.overlap) == (None,) * 4


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([0.1, 1.0, 30.0, 300.0, 1e5]),
    meaning=st.sampled_from(["logits", "probabilities axis 0", "mask above 0.3", "logits axis 1"]),
    precision=st.sampled_from(["", "bfloat16"]),
)
def test_no_result_within_the_limit_flips_a_decision_beyond_it(
    seed: int, scale: float, meaning: str, precision: str
) -> None:
    """So a flip never contradicts the units: it tells wrong from imprecise, and nothing else."""
    g = np.random.default_rng(seed)
    y = np.round(g.normal(0, 1, (3, 4, 5)), int(g.integers(0, 8)))  # ties among them
    noise = np.abs(g.normal(0, 1e-4, y.shape)) * g.integers(0, 2, y.shape)
    leaf = Leaf("float32", y.shape, y, noise, meaning=meaning)
    actual = np.asarray(y + scale * g.normal(0, 1e-4, y.shape), np.float32)
    metrics = measured(actual, leaf, precision)
    assert metrics.flip_units is not None and metrics.error_units is not None and metrics.flips is not None
    assert metrics.flip_units <= metrics.error_units * (1 + 1e-9)
    if metrics.flips:
        assert metrics.error_units > 32


def test_divergence_of_logits_and_of_their_probabilities_is_the_same() -> None:
    g = np.random.default_rng(3)
    y = g.normal(0, 2, (5, 9))
    a = y + g.normal(0, 0.3, y.shape)
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (y, a))
    exact = float((p * np.log(p / q)).sum(-1).max())
    floor = np.full(y.shape, 1e-6)
    for expected, actual, meaning in ((y, a, "logits"), (p, q, "probabilities"), (p.T, q.T, "probabilities axis 0")):
        shape = expected.shape
        leaf = Leaf("float32", shape, expected, floor.reshape(shape), meaning=meaning)
        assert measured(actual.astype(np.float32), leaf).divergence == pytest.approx(exact, rel=1e-3)
    nothing = measured(np.zeros(p.shape, np.float32), Leaf("float32", p.shape, p, floor, meaning="probabilities"))
    assert nothing.divergence is not None and 10 < nothing.divergence < np.inf


def test_a_mask_overlaps_in_what_is_decisive() -> None:
    y = np.array([[0.9, 0.8, 0.5 + 1e-6, 0.1, 0.0, 0.7]])
    leaf = Leaf("float32", y.shape, y, np.full(y.shape, 1e-6), meaning="mask")
    tie = np.array([[0.9, 0.8, 0.5 - 1e-6, 0.1, 0.0, 0.7]], np.float32)
    metrics = measured(tie, leaf)
    assert of(metrics) == ("pass", "") and (metrics.flips, metrics.ties, metrics.overlap) == (0, 1, 1.0)
    metrics = measured(np.array([[0.9, 0.2, 0.4, 0.1, 0.6, 0.7]], np.float32), leaf)
    assert of(metrics)[0] == "wrong" and (metrics.flips, metrics.ties, metrics.overlap) == (2, 1, 0.5)
    assert measured(np.zeros(y.shape, np.float32), leaf).overlap == 0.0


def test_nan_flips_whatever_it_stands_for() -> None:
    leaf, actual = close(900)
    actual[1, 1] = np.nan
    metrics = measured(actual, leaf)
    assert of(metrics) == ("wrong", "nonfinite") and metrics.flips == 2 and metrics.divergence == np.inf


# --- samples that show nothing -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("floor", "loose"), [(12.0, False), (3000.0, True)])
def test_a_model_whose_floor_hides_bfloat16_or_another_sample_is_no_evidence(floor: float, loose: bool) -> None:
    how = (POLICY, "models:tiny", "float32")
    leaf, other = logits(floor=floor), logits(floor=floor, seed=7)
    assert bfloat16_would_pass([leaf], *how) == loose
    assert not others_would_pass([leaf], [other], *how) and others_would_pass([leaf], [leaf], *how)
    deaf = Leaf("float32", leaf.shape, leaf.reference * (1 + 1e-9), leaf.noise)  # type: ignore[operator]
    assert others_would_pass([leaf], [deaf], *how)
    whole = Leaf("int64", (3,), np.arange(3))
    assert not bfloat16_would_pass([whole], *how) and bfloat16_would_pass([leaf, whole], *how) == loose


def test_what_is_left_of_a_probability_near_nothing_is_no_matter_of_digits() -> None:
    """A sigmoid with an absolute error of 1e-7, as ONNX Runtime's: right as a mask, wrong where nothing is stated."""
    y = np.array([[1.6e-8, 3e-12, 0.25, 0.9999]])
    actual = np.asarray(y + 1.1e-7, np.float32)
    for meaning, expected in (("mask", "pass"), ("probabilities", "pass"), ("", "wrong"), ("logits", "wrong")):
        for noise in (1e-11 * y, None):
            leaf = Leaf("float32", y.shape, y, noise, meaning=meaning)
            assert of(measured(actual, leaf))[0] == expected, meaning
    mask = Leaf("float32", y.shape, y, 1e-11 * y, meaning="mask")
    assert of(measured(np.asarray(y + 1e-4, np.float32), mask)) == ("wrong", "numbers")
    assert not zero_would_pass(mask, 32.0, OpClass.MODEL) and not bfloat16_would_pass([mask], POLICY, "m", "float32")
    empty = Leaf("float32", (1, 3), np.array([[1e-6, 1e-8, 2e-7]]), np.full((1, 3), 1e-13), meaning="mask")
    assert zero_would_pass(empty, 32.0, OpClass.MODEL) and not zero_would_pass(
        Leaf("float32", empty.shape, empty.reference, empty.noise), 32.0, OpClass.MODEL
    )
