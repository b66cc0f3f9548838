"""Digest and signature of a result: the same bytes and no others; never further apart than the results are."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.judge.error_metrics import compare_outputs
from tasks.judge.fingerprint import LENGTH, compute_error_signature, digest_judged_outputs, measure_signature_distance
from tasks.model import EPS, Leaf, OpClass


def leaf(y: np.ndarray, noise: np.ndarray | None = None, dtype: str = "float32") -> Leaf:
    return Leaf(dtype, y.shape, y, noise)


def results(size: int, seed: int) -> tuple[Leaf, np.ndarray, np.ndarray]:
    """A reference with noise floor, and two results that lie about it."""
    rng = np.random.default_rng(seed)
    y, noise = rng.normal(size=size) * 10.0 ** rng.integers(-3, 4, size), np.abs(rng.normal(size=size)) * 1e-6
    a, b = (np.float32(y + rng.normal(size=size) * (noise + 1e-6 * np.abs(y)) * 20) for _ in "ab")
    return leaf(y, noise), a, b


def test_a_digest_tells_one_bit_and_a_shape_and_a_dtype() -> None:
    a = np.arange(6, dtype=np.float32)
    other = a.copy()
    other.view(np.uint32)[3] ^= 1
    assert (
        digest_judged_outputs([a]) == digest_judged_outputs([a.copy()]) == digest_judged_outputs([np.asfortranarray(a)])
    )
    assert len({digest_judged_outputs([x]) for x in (a, other, a.reshape(2, 3), a.view(np.int32))}) == 4
    assert digest_judged_outputs([a, a]) != digest_judged_outputs([np.concatenate([a, a])])
    assert digest_judged_outputs([np.array(["x"], dtype=object)]) != digest_judged_outputs(
        [np.array(["y"], dtype=object)]
    )


@pytest.mark.parametrize("size", [1, LENGTH, LENGTH + 1, 1000, 50_000])
def test_signatures_are_never_further_apart_than_the_results(size: int) -> None:
    for seed in range(3):
        expected, a, b = results(size, seed)
        one, other = (compute_error_signature([x], [expected], OpClass.COMPOSITE) for x in (a, b))
        assert one is not None and other is not None and len(one) <= LENGTH
        assert expected.reference is not None and expected.noise is not None
        units = np.abs(a.astype(float) - b) / (EPS["float32"] * np.abs(expected.reference) + expected.noise)
        assert 0 < measure_signature_distance(one, other) <= units.max() * (1 + 1e-6)
        if size <= LENGTH:
            assert measure_signature_distance(one, other) == pytest.approx(units.max())


def test_the_largest_error_of_a_small_result_is_in_its_signature() -> None:
    expected, a, _ = results(1000, 7)
    found = compute_error_signature([a], [expected], OpClass.COMPOSITE)
    assert found is not None
    assert max(map(abs, found)) == pytest.approx(compare_outputs([a], [expected]).error_units)


def test_one_wrong_element_is_seen_and_the_sign_counts() -> None:
    y = np.linspace(1, 2, 500)
    up, down = np.float32(y), np.float32(y)
    up[321] *= 1.01
    down[321] *= 0.99
    right, high, low = (compute_error_signature([x], [leaf(y)], OpClass.COMPOSITE) for x in (np.float32(y), up, down))
    assert right is not None and high is not None and low is not None
    assert (
        measure_signature_distance(right, high) > 1e4
        and measure_signature_distance(high, low) > 1e4
        and measure_signature_distance(high, high) == 0
    )


@pytest.mark.parametrize(("bad", "apart"), [(np.nan, np.inf), (np.inf, np.inf), (-np.inf, np.inf)])
def test_a_misplaced_nan_or_inf_is_infinitely_far_and_a_right_one_is_none(bad: float, apart: float) -> None:
    y = np.arange(1.0, 51.0)
    broken = np.float32(y)
    broken[7] = bad
    one, other = (compute_error_signature([x], [leaf(y)], OpClass.COMPOSITE) for x in (np.float32(y), broken))
    assert (
        one is not None
        and other is not None
        and measure_signature_distance(one, other) == apart
        and measure_signature_distance(other, other) == 0
    )
    y[7] = bad
    assert (
        measure_signature_distance(compute_error_signature([broken], [leaf(y)], OpClass.COMPOSITE) or [1.0], one) == 0
    )


def test_a_coarser_declared_precision_counts_in_its_own_units() -> None:
    expected, a, _ = results(100, 1)
    fine, coarse = (compute_error_signature([a], [expected], OpClass.CONTRACTION, p) for p in ("", "float16"))
    assert fine is not None and coarse is not None
    assert max(map(abs, coarse)) == pytest.approx(
        compare_outputs([a], [expected], OpClass.CONTRACTION, "float16").error_units
    )
    assert max(map(abs, coarse)) < max(map(abs, fine)) / 1000


def test_integers_count_by_difference_and_complex_numbers_part_by_part() -> None:
    y = np.arange(5)
    assert compute_error_signature([y + 2], [Leaf("int64", (5,), y)], OpClass.EXACT) == [2.0] * 5
    z = np.array([1 + 1j, 2 - 1j])
    found = compute_error_signature([np.complex64(z + 1e-3j)], [leaf(z, dtype="complex64")], OpClass.COMPOSITE)
    assert found is not None and found[:2] == [0.0, 0.0] and min(found[2:]) > 1000


def test_what_cannot_be_compared_element_by_element_has_no_signature() -> None:
    y = np.ones(3)
    a = np.float32(y)
    assert compute_error_signature([a], [leaf(y)], OpClass.RANDOM) is None
    assert compute_error_signature([a], [leaf(np.ones(4))], OpClass.COMPOSITE) is None
    assert compute_error_signature([a, a], [leaf(y)], OpClass.COMPOSITE) is None
    assert compute_error_signature([a], [Leaf("float32", (3,), None)], OpClass.COMPOSITE) is None
    assert compute_error_signature([a[:0]], [leaf(y[:0])], OpClass.COMPOSITE) is None
