"""Metrics: exact on what can be computed by hand, equal to a plain float64 formula, and never fooled by NaN."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tasks.judge.error_metrics import BLOCK, USUAL_UNITS, Metrics, bound_by_limit, compare_outputs
from tasks.judge.policy_files import judge_by_policy, load_policy
from tasks.judge.weak_samples import compare_two_oracles, constant_would_pass
from tasks.judge.worst_element import describe_worst_element, find_worst_element
from tasks.model import EPS, LARGEST, SMALLEST_NORMAL, WITHOUT_NOISE, Leaf, OpClass, Status, get_numpy_dtype
from tasks.model.dtypes import CLASSIC

FLOATS = ("float64", "float32", "float16", "bfloat16")
LOW_BITS = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float4_e2m1fn")
QUICK = settings(max_examples=60, deadline=None)


def leaf(reference: object, dtype: str, noise: object = None, **kwargs: float) -> Leaf:
    y = np.asarray(reference)
    if dtype in EPS:
        y = y.astype("complex128" if dtype.startswith("complex") else "float64")
    elif dtype != "str":
        y = y.astype(get_numpy_dtype(dtype))
    delta = None if noise is None else np.broadcast_to(np.asarray(noise, dtype=np.float64), y.shape)
    return Leaf(dtype, y.shape, y, delta, **kwargs)


def measure(
    actual: object,
    reference: object,
    dtype: str,
    noise: object = None,
    op_class: OpClass = OpClass.COMPOSITE,
    **kwargs: float,
) -> Metrics:
    return compare_outputs(
        [np.asarray(actual).astype(get_numpy_dtype(dtype))], [leaf(reference, dtype, noise, **kwargs)], op_class
    )


# --- floating ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", (*FLOATS, *LOW_BITS))
def test_equal_is_zero_units(dtype: str) -> None:
    values = np.array([0.0, 1.0, -1.5, 2.0, 4.0])
    m = measure(values, values, dtype)
    assert (m.error_units, m.max_ulp, m.max_diff, m.max_rel, m.rmse) == (0, 0, 0, 0, 0)
    assert (m.mismatched, m.nonfinite, m.numel, m.classic, m.kind) == (0, 0, 5, True, "")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("value", (1.0, 1.5, -2.0, 1024.0))
def test_one_ulp(dtype: str, value: float) -> None:
    spacing = EPS[dtype] * 2.0 ** np.floor(np.log2(abs(value)))
    m = measure([value + spacing], [value], dtype)
    assert m.max_ulp == 1
    assert m.max_diff == spacing
    assert m.error_units is not None and 0.5 <= m.error_units <= 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_subnormals_are_measured_in_their_own_spacing(dtype: str) -> None:
    step = SMALLEST_NORMAL[dtype] * EPS[dtype]
    m = measure([3 * step], [2 * step], dtype)
    assert m.max_ulp == 1
    assert m.error_units is not None and 0.9 < m.error_units <= 1
    flushed = measure([0.0], [SMALLEST_NORMAL[dtype] / 2], dtype)  # a result flushed to zero is seen
    assert flushed.max_ulp == 0.5 / EPS[dtype]
    assert flushed.error_units is not None and flushed.error_units > 0.3 / EPS[dtype]


@pytest.mark.parametrize("dtype", FLOATS)
def test_sign_of_zero_is_no_difference(dtype: str) -> None:
    m = measure([-0.0, 0.0], [0.0, -0.0], dtype)
    assert (m.error_units, m.mismatched) == (0, 0)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    ("actual", "reference", "right"),
    [
        (np.nan, np.nan, True),
        (np.inf, np.inf, True),
        (-np.inf, -np.inf, True),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (np.inf, 1.0, False),
        (1.0, np.inf, False),
        (np.inf, -np.inf, False),
        (np.nan, np.inf, False),
        (np.inf, np.nan, False),
        (0.0, -np.inf, False),
    ],
)
def test_places_of_nan_and_inf(dtype: str, actual: float, reference: float, right: bool) -> None:
    m = measure([2.0, actual], [2.0, reference], dtype)
    assert m.nonfinite == m.mismatched == (0 if right else 1)
    assert m.classic is right
    assert m.error_units == (0 if right else np.inf)
    assert m.max_diff == 0  # over elements finite on both sides
    alone = measure([actual], [reference], dtype)
    assert alone.error_units == (0 if right else np.inf)
    assert alone.max_diff is None


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_misplaced_infinity_hides_no_other_error(dtype: str) -> None:
    m = measure([np.inf, 5.0], [np.inf, 4.0], dtype)
    assert m.max_diff == 1
    assert m.error_units is not None and np.isfinite(m.error_units) and m.error_units > 10


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_border_of_overflow(dtype: str) -> None:
    top, eps = LARGEST[dtype], EPS[dtype]
    # The exact result rounds to the largest finite value, the device rounded up to Inf: two units at most.
    just_below = measure([np.inf], [top * (1 - eps / 4)], dtype)
    assert just_below.nonfinite == 0
    assert just_below.error_units is not None and just_below.error_units < 2
    just_above = measure([top], [top * (1 + eps)], dtype)
    assert just_above.nonfinite == 0
    assert just_above.error_units is not None and just_above.error_units < 2
    assert measure([np.inf], [top * 4], dtype).error_units == 0  # cast to the dtype the reference is Inf
    assert measure([-np.inf], [top * (1 - eps / 4)], dtype).error_units > 1 / eps  # type: ignore[operator]
    far = measure([np.inf], [top / 1024], dtype)
    assert (far.nonfinite, far.error_units) == (1, np.inf)
    saturated = measure([top], [np.inf], dtype)  # a true infinity is not the border
    assert (saturated.nonfinite, saturated.error_units) == (1, np.inf)


def test_overflow_of_the_difference_itself() -> None:
    top = LARGEST["float64"]
    assert measure([top], [-top], "float64").error_units == np.inf
    assert measure([top], [-top], "float64", noise=np.inf).error_units == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_infinite_noise_excuses_its_element_alone(dtype: str) -> None:
    m = measure([1e3, np.nan, np.inf], [1.0, 2.0, 3.0], dtype, noise=[np.inf] * 3)
    assert (m.error_units, m.nonfinite, m.noise_floor) == (0, 0, np.inf)
    m = measure([1e3, np.nan], [1.0, 2.0], dtype, noise=[np.inf, 1.0])
    assert (m.error_units, m.nonfinite) == (np.inf, 1)


def test_noise_widens_what_a_unit_is() -> None:
    assert measure([1.5], [1.0], "float32").error_units > 1e6  # type: ignore[operator]
    assert measure([1.5], [1.0], "float32", noise=0.5).error_units == pytest.approx(1, rel=1e-6)
    assert measure([1.5], [1.0], "float32", noise=0.5).noise_floor == 0.5


def test_a_small_value_next_to_a_large_one_is_not_forgiven() -> None:
    m = measure([1e6, 2e-6], [1e6, 1e-6], "float32")
    assert m.error_units is not None and m.error_units > 1e6


def test_declared_precision_widens_the_unit_and_never_narrows_it() -> None:
    a, y = np.array([1 + 2.0**-12], np.float32), leaf([1.0], "float32")
    assert compare_outputs([a], [y]).error_units > 1000  # type: ignore[operator]
    assert compare_outputs([a], [y], precision="tfloat32").error_units < 1  # type: ignore[operator]
    assert compare_outputs([a], [y], precision="float64").error_units == compare_outputs([a], [y]).error_units
    assert compare_outputs([a], [y]).max_ulp == 2.0**11
    assert compare_outputs([a], [y], precision="tfloat32").max_ulp == 0.25  # spacings of what was declared


@pytest.mark.parametrize("size", (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1))
@pytest.mark.parametrize("dtype", ("float32", "int64", "bool", "complex64"))
def test_the_last_element_of_any_size_is_seen(size: int, dtype: str) -> None:
    y = np.ones(size)
    a = y.copy()
    a[-1] = 0
    m = measure(a, y, dtype)
    assert (m.mismatched, m.numel, m.max_diff) == (1, size, 1)
    assert m.rmse == pytest.approx(size**-0.5, rel=1e-12)
    assert find_worst_element([a.astype(get_numpy_dtype(dtype))], [leaf(y, dtype)]) == (0, (size - 1,))
    if dtype in ("float32", "complex64"):
        a[-1] = np.nan
        assert measure(a, y, dtype).nonfinite == 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_against_a_strong_reference_fail(dtype: str) -> None:
    y = np.array([[1e-3, -2e-3], [3e-3, 1e-4]])
    m = measure(np.zeros((2, 2)), y, dtype)
    assert m.error_units == pytest.approx(1 / EPS[dtype], rel=0.05)
    assert not m.classic
    assert not constant_would_pass(leaf(y, dtype), 32 if dtype != "bfloat16" else 8)


# --- shapes, counts, dtypes -------------------------------------------------------------------------------------


def test_wrong_structure() -> None:
    a, y = np.zeros(3, np.float32), leaf(np.zeros(3), "float32")
    assert compare_outputs([a], [y]).kind == ""
    assert (compare_outputs([a, a], [y]).kind, compare_outputs([], [y]).kind, compare_outputs([], []).kind) == (
        "structure",
        "structure",
        "",
    )
    assert compare_outputs([np.zeros((1, 3), np.float32)], [y]).kind == "shape"
    assert "(1, 3)" in compare_outputs([np.zeros((1, 3), np.float32)], [y]).detail
    assert compare_outputs([np.zeros(3)], [y]).kind == "dtype"
    assert "float64" in compare_outputs([np.zeros(3)], [y]).detail
    second = compare_outputs([a, np.zeros(4, np.float32)], [y, y])
    assert (second.kind, second.classic) == ("shape", False) and second.detail.startswith("output 1:")
    assert second.error_units is None


def test_nothing_to_compare() -> None:
    m = compare_outputs([np.zeros((0, 3), np.float32)], [leaf(np.zeros((0, 3)), "float32")])
    assert (m.numel, m.error_units, m.max_diff, m.classic) == (0, None, None, True)
    assert find_worst_element([np.zeros((0, 3), np.float32)], [leaf(np.zeros((0, 3)), "float32")]) is None


def test_the_worst_element_is_the_judges_under_a_declared_precision() -> None:
    # Beyond the range of float16 there is nothing but its largest number, so the other element is the worse one.
    y = np.array([1e6, 1.0])
    assert find_worst_element(
        [np.array([65504.0, 1.001], np.float32)], [Leaf("float32", (2,), y)], precision="float16"
    ) == (0, (1,))
    # No precision but a coarser one rounds the inputs of an op whose inputs count as given exactly.
    y, noise, a = np.array([1.0, 1.0]), np.array([1.0, 0.0]), np.array([1.5, 1.25], np.float32)
    known = [Leaf("float32", (2,), y, noise)]
    assert find_worst_element([a], known, OpClass.ELEMENTARY, "float32") == (0, (0,))
    assert find_worst_element([a], known, OpClass.ELEMENTARY, "float16") == (0, (1,))


@pytest.mark.parametrize(("op_class", "precision"), [("exact", ""), ("elementary", ""), ("elementary", "bfloat16")])
@pytest.mark.parametrize(
    ("exact", "actual"), [(2.0, 1.9990234375), (2.0, 2.001953125), (1.5, 1.4990234375), (1e-7, 0.0)]
)
def test_the_ulps_of_an_element_are_those_of_its_verdict(
    exact: float, actual: float, op_class: str, precision: str
) -> None:
    known, a = Leaf("float16", (1,), np.array([exact])), np.array([actual], np.float16)
    counted = compare_outputs([a], [known], OpClass(op_class), precision).max_ulp
    assert describe_worst_element(a, known, (0,), OpClass(op_class), precision)["ulps"] == repr(counted)


def test_zero_dimensional() -> None:
    m = compare_outputs([np.float32(1.5)], [leaf(1.0, "float32")])
    assert (m.max_diff, m.numel) == (0.5, 1)
    assert find_worst_element([np.float32(1.5)], [leaf(1.0, "float32")]) == (0, ())


def test_several_outputs_are_one_case() -> None:
    expected = [leaf([1.0, 2.0], "float32"), leaf([7, 8], "int64")]
    m = compare_outputs([np.array([1.0, 2.5], np.float32), np.array([7, 9])], expected)
    assert (m.numel, m.mismatched, m.max_diff) == (4, 2, 1)
    assert m.rmse == pytest.approx(np.sqrt((0.25 + 1) / 4))
    assert find_worst_element([np.array([1.0, 2.0], np.float32), np.array([7, 9])], expected) == (1, (1,))


def test_random_and_metadata() -> None:
    y = Leaf("float32", (3,), None)
    good, bad = np.array([1, 2, 3], np.float32), np.array([1, np.nan, np.inf], np.float32)
    assert compare_outputs([good], [y], OpClass.RANDOM).nonfinite == 0
    m = compare_outputs([bad], [y], OpClass.RANDOM)
    assert (m.nonfinite, m.mismatched, m.error_units, m.numel) == (2, 2, np.inf, 3)
    m = compare_outputs([bad], [y], OpClass.UNINITIALISED)
    assert (m.nonfinite, m.error_units, m.numel, m.classic) == (0, None, 3, True)
    assert compare_outputs([good.astype(np.float64)], [y], OpClass.UNINITIALISED).kind == "dtype"


# --- integers, bools, strings, complex --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ("int8", "uint8", "int32", "int64", "uint64", "int4", "uint4"))
def test_integers_are_exact(dtype: str) -> None:
    assert measure([1, 2, 7], [1, 2, 7], dtype).error_units == 0
    m = measure([1, 2, 6], [1, 2, 7], dtype)
    assert (m.error_units, m.mismatched, m.max_diff, m.max_ulp, m.classic) == (np.inf, 1, 1, 1, False)


def test_integers_beyond_the_float64_significand() -> None:
    big = 2**60
    a, y = np.array([big + 1, big], np.int64), np.array([big, big], np.int64)
    m = compare_outputs([a], [Leaf("int64", (2,), y)])
    assert (m.mismatched, m.max_diff) == (1, 1)
    assert find_worst_element([a], [Leaf("int64", (2,), y)]) == (0, (0,))
    assert compare_outputs([a + 99], [Leaf("int64", (2,), y)]).max_diff == 100
    low, high = np.array([-(2**63)], np.int64), np.array([2**63 - 1], np.int64)
    assert compare_outputs([low], [Leaf("int64", (1,), high)]).max_diff == float(2**64 - 1)
    top = np.array([2**64 - 1], np.uint64)
    assert compare_outputs([top - np.uint64(3)], [Leaf("uint64", (1,), top)]).max_diff == 3


def test_noise_that_can_flip_an_integer_excuses_it() -> None:
    assert measure([4, 5], [4, 6], "int64", noise=[0, 1]).error_units == 1
    assert measure([5, 5], [4, 6], "int64", noise=[0, 1]).error_units == np.inf  # not the element beside it
    assert measure([9], [4], "int64", noise=[1]).error_units == 5
    assert measure([9], [4], "int64", noise=[np.inf]).error_units == 0
    assert measure([True], [False], "bool", noise=[1]).error_units == 1


def test_bool() -> None:
    assert measure([True, False], [True, False], "bool").classic
    m = measure([True, True, False], [True, False, True], "bool")
    assert (m.mismatched, m.max_diff, m.error_units) == (2, 1, np.inf)


@pytest.mark.parametrize("shape", ((3,), (), (0,), (1, 3)))
def test_strings(shape: tuple[int, ...]) -> None:
    y = np.full(shape, "é", dtype=object)
    expected = Leaf("str", shape, y)
    m = compare_outputs([y.copy()], [expected])
    assert (m.numel, m.mismatched, m.max_diff) == (y.size, 0, None)
    if y.size:
        bad = y.copy()
        bad[(-1,) * y.ndim] = "e"
        m = compare_outputs([bad], [expected])
        assert (m.mismatched, m.error_units, m.classic) == (1, np.inf, False)
        assert compare_outputs([bad.astype("U")], [expected]).mismatched == 1


def test_complex() -> None:
    y = [3 + 4j, 1 - 1j]
    assert measure(y, y, "complex64").error_units == 0
    m = measure([3 + 5j, 1 - 1j], y, "complex64")
    assert (m.max_diff, m.max_rel) == (1, 0.2)
    assert m.error_units == pytest.approx(0.2 / EPS["complex64"])
    assert measure([complex(np.nan, 0), 1 - 1j], y, "complex64").nonfinite == 1
    assert measure(y, [complex(0, np.inf), 1 - 1j], "complex64").nonfinite == 1
    # Which part of an overflowed product is NaN and which is Inf is a matter of the formula used.
    assert measure([complex(np.inf, np.nan)], [complex(np.nan, -np.inf)], "complex64").nonfinite == 0


@pytest.mark.parametrize("dtype", ("complex64", "complex128"))
def test_complex_numbers_that_are_moved_are_equal_in_both_parts(dtype: str) -> None:
    y = np.array([1 + 2.0**-60 * 1j, complex(np.nan, 2), complex(0, np.inf)])
    right = [leaf(y, dtype)]
    assert compare_outputs([y.astype(dtype)], right, OpClass.EXACT).error_units == 0
    for place, other in ((0, 1 + 0j), (1, complex(2, np.nan)), (1, complex(np.nan, 3)), (2, complex(np.inf, 0))):
        a = y.copy()
        a[place] = other
        m = compare_outputs([a.astype(dtype)], right, OpClass.EXACT)
        assert (
            m.numel == 3
            and judge_by_policy(m, load_policy("error_units"), "torch:x", "exact", dtype, "float64")[0] is Status.WRONG
        )


@pytest.mark.parametrize("shape", ((), (0,), (2, 0, 3)))
@pytest.mark.parametrize("op_class", list(OpClass))
def test_scalars_and_empty_outputs_in_every_class(shape: tuple[int, ...], op_class: OpClass) -> None:
    y = np.full(shape, 2.0)
    assert compare_outputs([y.astype(np.float32)], [leaf(y, "float32")], op_class).kind == ""
    m = compare_outputs([y.astype(np.float32) + 1], [leaf(y, "float32")], op_class)
    inspected = y.size and op_class not in (OpClass.RANDOM, OpClass.UNINITIALISED)
    assert bool(m.error_units) == bool(inspected)


def test_the_case_may_bring_a_wider_tolerance() -> None:
    assert not measure([1.01], [1.0], "float32").classic
    assert measure([1.01], [1.0], "float32", rtol=0.1).classic
    assert measure([0.01], [0.0], "float32", atol=0.1).classic
    assert measure([5], [4], "int64", atol=1.0).classic


# --- by class ---------------------------------------------------------------------------------------------------

EXCUSED = [c for c in OpClass if c not in (*WITHOUT_NOISE, OpClass.RANDOM)]


@pytest.mark.parametrize("op_class", (OpClass.EXACT, OpClass.ELEMENTARY))
def test_the_noise_floor_excuses_no_exact_and_no_elementary_result(op_class: OpClass) -> None:
    tie = measure([3.0], [2.0], "float32", noise=1.0, op_class=op_class)  # 2.5 rounded up: the input stands on the edge
    assert tie.max_ulp == 2**22 and tie.error_units is not None and tie.error_units > 1e6
    assert tie.noise_floor == 0  # not consulted
    assert measure([3], [2], "int64", noise=1, op_class=op_class).error_units == np.inf
    assert measure([np.nan], [2.0], "float32", noise=np.inf, op_class=op_class).nonfinite == 1
    assert measure([2.0], [2.0], "float32", noise=1.0, op_class=op_class).max_ulp == 0


@pytest.mark.parametrize("op_class", EXCUSED)
def test_it_excuses_all_others(op_class: OpClass) -> None:
    assert measure([3.0], [2.0], "float32", noise=1.0, op_class=op_class).error_units == pytest.approx(1, rel=1e-6)
    assert measure([3], [2], "int64", noise=1, op_class=op_class).error_units == 1
    assert measure([np.nan], [2.0], "float32", noise=np.inf, op_class=op_class).nonfinite == 0


def test_a_step_is_the_nearest_value_or_a_jump_as_high_as_the_noise_floor_shows() -> None:
    step = OpClass.DISCONTINUOUS
    assert measure([2.0, 5.0], [2.0 + 1e-9, 5.0], "float32", op_class=step).error_units == 0  # the reference, rounded
    near = measure([2.0 + 2 * EPS["float32"]], [2.0], "float32", op_class=step)
    assert near.error_units == np.inf  # one spacing beside it is no step: nothing excuses it
    assert measure([3.0], [2.0], "float32", noise=1.0, op_class=step).error_units == 1
    assert measure([9.0], [2.0], "float32", noise=1.0, op_class=step).error_units == 7
    m = measure([3.0, 3.0], [2.0, 2.0], "float32", noise=[1.0, 0.0], op_class=step)
    assert (m.error_units, m.mismatched) == (np.inf, 2)  # only the element that stands on the edge
    assert measure([8.0], [2.0], "float32", noise=np.inf, op_class=step).error_units == 0
    # Half a spacing, in each dtype's own: a value that rounds to the one given.
    for dtype in FLOATS[1:]:
        assert measure([1.0], [1.0 + EPS[dtype] / 2], dtype, op_class=step).error_units == 0
        assert measure([1.0], [1.0 + EPS[dtype] * 0.51], dtype, op_class=step).error_units == np.inf


def test_declared_precision_makes_the_noise_floor_as_much_larger_as_the_spacing() -> None:
    ratio = EPS["tfloat32"] / EPS["float32"]
    a, y = np.array([1.5], np.float32), leaf([0.0], "float32", 1e-4)
    own, coarse = compare_outputs([a], [y]), compare_outputs([a], [y], precision="tfloat32")
    assert own.error_units == pytest.approx(1.5e4) and coarse.error_units == pytest.approx(1.5e4 / ratio)
    assert coarse.noise_floor == pytest.approx(1e-4 * ratio)
    finer = compare_outputs([a], [y], precision="float64")
    assert (finer.error_units, finer.noise_floor) == (own.error_units, own.noise_floor)
    integers = leaf([4], "int64", 1.0)  # they have no spacing to be coarser than
    assert compare_outputs([np.array([6])], [integers], precision="bfloat16").error_units == 2


@pytest.mark.parametrize("op_class", (OpClass.EXACT, OpClass.ELEMENTARY))
def test_a_coarser_declared_precision_rounds_the_inputs_of_exact_and_elementary_ops(op_class: OpClass) -> None:
    """exp(9) of an input rounded to bfloat16: 4.5 spacings of the result away, as far as rounding it moves it."""
    eps, y = EPS["bfloat16"], leaf([8103.0], "float32", noise=9 * 8103.0 * EPS["float32"])
    a = np.array([8103.0 * (1 + 4.5 * eps)], np.float32)
    assert compare_outputs([a], [y], op_class, "bfloat16").max_ulp == 0
    finer = compare_outputs([a], [y], op_class, "tfloat32")
    assert finer.max_ulp == 0  # four noise floors are allowed; eight times as coarse is seen from there on
    assert compare_outputs([a], [y], op_class).max_ulp > 1e5  # type: ignore[operator]
    far = np.array([8103.0 * (1 + 72 * eps)], np.float32)
    assert compare_outputs([far], [y], op_class, "bfloat16").max_ulp == pytest.approx(
        (72 - 36) / (9 + 4096 / 8103), rel=0.05
    )


@pytest.mark.parametrize("a", [65504.0, 131008.0, np.inf])
def test_a_declared_precision_has_a_range_beyond_which_results_saturate(a: float) -> None:
    """A device that computes float32 in float16 has nothing for 1e6 but its largest number and Inf."""
    x = np.array([a], np.float32)
    assert compare_outputs([x], [leaf([1e6], "float32")], precision="float16").error_units < 0.01  # type: ignore[operator]
    assert compare_outputs([x], [leaf([1e6], "float32")], precision="tfloat32").error_units > 800  # type: ignore[operator]
    assert compare_outputs([x], [leaf([-1e6], "float32")], precision="float16").error_units > 1000  # type: ignore[operator]
    assert compare_outputs([x], [leaf([6e4], "float32")], precision="float16").error_units > 90  # type: ignore[operator]
    assert (
        compare_outputs([np.array([6e4], np.float32)], [leaf([1e6], "float32")], precision="float16").error_units > 900
    )  # type: ignore[operator]


def test_the_classic_tolerance_of_a_stored_output_is_that_of_the_declared_precision() -> None:
    """A mean that cancels to 0.01, of numbers of size 2 rounded to float16: off by a spacing of theirs at most."""
    y = leaf([2.0, 0.01], "float32")
    assert not compare_outputs([np.array([2.0, 0.0105], np.float32)], [y]).classic
    assert compare_outputs([np.array([2.0, 0.0105], np.float32)], [y], precision="float16").classic
    assert not compare_outputs([np.array([2.0, 0.015], np.float32)], [y], precision="float16").classic
    exact = compare_outputs([np.array([2.0, 0.0105], np.float32)], [y], OpClass.EXACT, "float16")
    assert not exact.classic


def test_an_overflow_at_the_border_of_a_declared_range_is_judged_by_its_distance() -> None:
    y = leaf([65500.0], "float32")
    assert compare_outputs([np.array([np.inf], np.float32)], [y], precision="float16").error_units < 2  # type: ignore[operator]
    assert compare_outputs([np.array([np.nan], np.float32)], [y], precision="float16").error_units == np.inf


def test_below_a_declared_range_numbers_have_the_digits_of_its_subnormals() -> None:
    y = leaf([2.0**-26, 2.0**-20], "float32")
    coarse = compare_outputs([np.array([0.0, 2.0**-20], np.float32)], [y], OpClass.ELEMENTARY, "float16")
    assert coarse.max_ulp == 0.25 and coarse.error_units < 1  # type: ignore[operator]
    flushed = compare_outputs([np.array([0.0, 0.0], np.float32)], [y], OpClass.ELEMENTARY, "float16")
    assert flushed.max_ulp == 16  # what is flushed although float16 has it


@pytest.mark.parametrize("op_class", (OpClass.EXACT, OpClass.ELEMENTARY))
def test_constant_would_pass_asks_no_noise_floor_where_the_verdict_does_not(op_class: OpClass) -> None:
    loose = leaf([1.0, 2.0], "float32", noise=5.0)
    assert constant_would_pass(loose, 32)
    assert not constant_would_pass(loose, 32, op_class)


def test_oracles_are_compared_in_the_measure_of_the_class() -> None:
    y = leaf([1.0, 2.0], "float32", noise=1.0)
    other = np.array([1.0, 2.0 + 8 * EPS["float32"]])
    assert compare_two_oracles([other], [y], OpClass.COMPOSITE)["units"] < 1e-4
    assert compare_two_oracles([other], [y], OpClass.ELEMENTARY)["units"] == 4
    assert compare_two_oracles([other], [y, y], OpClass.COMPOSITE)["units"] == np.inf
    assert compare_two_oracles([other[:1]], [y], OpClass.COMPOSITE)["units"] == np.inf
    assert compare_two_oracles([np.array([1.0, np.nan])], [y], OpClass.COMPOSITE)["units"] == np.inf


# --- against a plain formula ------------------------------------------------------------------------------------


def plain(a: np.ndarray, y: np.ndarray, noise: np.ndarray, dtype: str) -> dict[str, float]:
    """The metrics as their definitions say, element by element in Python floats."""
    eps, tiny = EPS[dtype], EPS[dtype] * SMALLEST_NORMAL[dtype]
    rtol, atol = CLASSIC[dtype]
    out = {"max_diff": 0.0, "max_rel": 0.0, "max_ulp": 0.0, "error_units": 0.0, "mismatched": 0, "rmse": 0.0}
    for x, r, d in zip(a.astype(np.float64).tolist(), y.tolist(), noise.tolist()):
        diff = abs(x - r)
        spacing = eps * 2.0 ** (np.frexp(max(abs(r), SMALLEST_NORMAL[dtype]))[1] - 1)
        out["max_diff"] = max(out["max_diff"], diff)
        out["max_rel"] = max(out["max_rel"], diff / abs(r) if r else 0.0)
        out["max_ulp"] = max(out["max_ulp"], diff / spacing)
        out["error_units"] = max(out["error_units"], diff / (eps * abs(r) + d + tiny))
        out["mismatched"] += diff > atol + rtol * abs(r)
        out["rmse"] += diff * diff / len(y)
    out["rmse"] **= 0.5
    return out


def values(limit: float) -> st.SearchStrategy[float]:
    return st.floats(-limit, limit) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-30, 5e-8])


@QUICK
@given(st.data(), st.sampled_from(["float32", "float16", "bfloat16"]), st.integers(1, 12))
def test_metrics_agree_with_the_plain_formula(data: st.DataObject, dtype: str, size: int) -> None:
    y = data.draw(hnp.arrays(np.float64, size, elements=values(6e4)))
    noise = data.draw(hnp.arrays(np.float64, size, elements=st.floats(0, 10)))
    error = data.draw(hnp.arrays(np.float64, size, elements=st.floats(-0.01, 0.01)))
    a = (y * (1 + error)).astype(get_numpy_dtype(dtype))
    m = compare_outputs([a], [Leaf(dtype, y.shape, y, noise)])
    for name, value in plain(a, y, noise, dtype).items():
        # The square of what is below 1e-154 is subnormal and has lost digits.
        least = 1e-154 if name == "rmse" else 1e-300
        assert getattr(m, name) == pytest.approx(value, rel=1e-9, abs=least), name
    assert m.noise_floor == noise.max() and m.nonfinite == 0


@QUICK
@given(st.data(), st.sampled_from(["float32", "float16", "bfloat16", "float64"]), st.integers(1, 8))
def test_any_misplaced_nonfinite_is_counted(data: st.DataObject, dtype: str, size: int) -> None:
    special = st.sampled_from([np.nan, np.inf, -np.inf, 1.0, 0.0, -3.0])
    y, x = (data.draw(hnp.arrays(np.float64, size, elements=special)) for _ in range(2))
    m = measure(x, y, dtype)
    same = (np.isnan(x) & np.isnan(y)) | (x == y)
    assert m.nonfinite == np.count_nonzero(~same & ~(np.isfinite(x) & np.isfinite(y)))
    assert m.mismatched == np.count_nonzero(~same)
    assert (m.error_units == 0) == bool(same.all())
    place = find_worst_element([x.astype(get_numpy_dtype(dtype))], [leaf(y, dtype)])
    assert place is not None
    if not same.all():
        assert not same[place[1]]


def _many(seed: int) -> tuple[list[np.ndarray], list[Leaf]]:
    g = np.random.default_rng(seed)
    y = [g.normal(size=s) for s in (BLOCK + 7, 1000, 3)]
    return [(v + g.normal(size=v.shape) * 1e-6).astype(np.float32) for v in y], [leaf(v, "float32", 1e-7) for v in y]


def test_repeating_and_copying_change_no_bit() -> None:
    a, y = _many(1)
    first = compare_outputs(a, y)
    _ = compare_outputs(*_many(2))
    for shift in range(1, 9):  # other alignments, and with other work in between
        moved = []
        for x in a:
            room = np.empty(x.size + shift, x.dtype)
            room[shift:] = x
            moved.append(room[shift:])
        assert compare_outputs(moved, y) == first
    backwards = [np.ascontiguousarray(x[::-1])[::-1] for x in a]
    assert compare_outputs(backwards, y) == first


def test_the_number_of_threads_changes_no_bit() -> None:
    program = (
        "from tests.tasks.test_compare import _many\nfrom tasks.judge.error_metrics import compare_outputs\n"
        "for k in range(8): m = compare_outputs(*_many(k)); print(m.rmse.hex(), m.error_units.hex(), m.max_rel.hex())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"OPENBLAS_NUM_THREADS": n, "PATH": ""},
            text=True,
            check=True,
            capture_output=True,
        ).stdout
        for n in ("1", "4")
    }
    assert len(said) == 1 and said.pop().strip()


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_classic_is_what_torch_testing_says(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    rtol, atol = CLASSIC[dtype]
    g = np.random.default_rng(7)
    said = set()
    for _ in range(300):
        y = (g.normal(size=5) * 10.0 ** g.integers(-6, 4)).astype(get_numpy_dtype(dtype)).astype(np.float64)
        a = (y * (1 + g.normal(size=5) * rtol * 10.0 ** g.integers(-1, 2))).astype(get_numpy_dtype(dtype))
        allowed = atol + rtol * np.abs(y)
        far = np.abs(a.astype(np.float64) - y) / allowed
        if (np.abs(far - 1) < 0.05).any():
            continue  # torch computes the border in the dtype itself
        actual, expected = (torch.tensor(v.astype(np.float64)).to(getattr(torch, dtype)) for v in (a, y))
        try:
            torch.testing.assert_close(actual, expected, equal_nan=True)
            close = True
        except AssertionError:
            close = False
        assert compare_outputs([a], [leaf(y, dtype)]).classic is close
        said.add(close)
    assert said == {True, False}


# --- weak samples -----------------------------------------------------------------------------------------------


def brute(y: Leaf, threshold: float, candidates: np.ndarray) -> bool:
    reference = y.reference
    assert reference is not None
    for c in candidates:
        a = np.full(reference.shape, c).astype(get_numpy_dtype(y.dtype))
        units = compare_outputs([a], [y]).error_units
        if units is not None and units <= threshold:
            return True
    return False


@QUICK
@given(st.data(), st.sampled_from(["float32", "float16"]), st.integers(1, 5))
def test_constant_would_pass_against_brute_force(data: st.DataObject, dtype: str, size: int) -> None:
    values = st.floats(-8, 8, width=16) | st.floats(0.999, 1.001) | st.sampled_from([0.0, 1.0, np.nan, np.inf])
    y = data.draw(hnp.arrays(np.float64, size, elements=values))
    noise = data.draw(st.none() | hnp.arrays(np.float64, size, elements=st.sampled_from([0.0, 0.01, 0.3, np.inf])))
    threshold = data.draw(st.sampled_from([1.0, 4.0, 32.0]))
    sample = Leaf(dtype, y.shape, y, noise)
    d = 0.0 if noise is None else np.where(np.isfinite(noise), noise, 0)
    reach = threshold * (np.abs(y) * EPS[dtype] + d)
    with np.errstate(invalid="ignore"):
        ends = np.concatenate([y, y - reach, y + reach, [0.0, np.nan, np.inf]])
    # A constant within the intervals survives being rounded to the dtype only up to half a spacing.
    slack = 1 + 1.01 / threshold
    if brute(sample, threshold, ends):
        assert constant_would_pass(sample, threshold * slack)
    if constant_would_pass(sample, threshold):
        assert brute(sample, threshold * slack, ends)


@QUICK
@given(st.data(), st.integers(1, 4))
def test_constant_would_pass_of_complex_results(data: st.DataObject, size: int) -> None:
    part = st.sampled_from([0.0, 1.0, 1.00001, 1.001, -2.0])
    y = data.draw(hnp.arrays(np.float64, (size, 2), elements=part)).view(np.complex128)[:, 0]
    noise = data.draw(st.none() | st.sampled_from([0.0, 1e-6, 0.1]))
    sample = leaf(y, "complex64", noise)
    candidates = np.concatenate([y, [y.mean(), (y.real.min() + y.real.max() + 1j * (y.imag.min() + y.imag.max())) / 2]])
    if brute(sample, 32.0, candidates):
        assert constant_would_pass(sample, 32.0 * 1.5)
    if constant_would_pass(sample, 32.0):
        assert brute(sample, 33.0, candidates)


@pytest.mark.parametrize("op_class", [OpClass.COMPOSITE, OpClass.DISCONTINUOUS, OpClass.ELEMENTARY])
@pytest.mark.parametrize("noise", [None, 1e-9])
@pytest.mark.parametrize("precision", ["", "float32"])
def test_what_is_allowed_is_what_measures_within_the_limit(
    op_class: OpClass, noise: float | None, precision: str
) -> None:
    y, limit = np.array([1.0, -3.5, 1e6, 2e-3]), 16.0
    one = leaf(y, "float64", noise)
    most = bound_by_limit(one, op_class, limit, precision)
    for factor, within in ((0.9, True), (1.3, False)):
        found = compare_outputs([y + factor * most], [one], op_class, precision)
        measured = found.max_ulp if op_class in WITHOUT_NOISE else found.error_units
        assert measured is not None and (measured <= limit) is within
    integers = leaf([3, 4], "int64", noise=[0.0, 0.5])
    assert bound_by_limit(integers, OpClass.DISCONTINUOUS, 4.0).tolist() == [0.0, 2.0]


def test_the_usual_limit_is_the_default_policy_s_first() -> None:
    assert load_policy("error_units").limits[0].value == USUAL_UNITS


def test_constant_would_pass_of_exact_results() -> None:
    assert constant_would_pass(leaf([3, 3], "int64"), 32)
    assert not constant_would_pass(leaf([3, 4], "int64"), 32)
    assert constant_would_pass(leaf([3, 4], "int64", noise=[1, 1]), 32)
    assert constant_would_pass(leaf([True, False], "bool", noise=[1, 1]), 32)
    assert not constant_would_pass(leaf([True, False], "bool", noise=[0, 0]), 32)
    assert constant_would_pass(leaf(np.array(["a", "a"], dtype=object), "str"), 32)
    assert not constant_would_pass(leaf(np.array(["a", "b"], dtype=object), "str"), 32)
    assert constant_would_pass(Leaf("float32", (3,), None), 32)
    assert constant_would_pass(leaf(np.zeros((0, 2)), "float32"), 32)
    assert constant_would_pass(leaf([1e39, 1e40], "float32"), 32)  # both are Inf in float32
    assert not constant_would_pass(leaf([np.inf, 1.0], "float32"), 32)
    assert not constant_would_pass(leaf([np.inf, -np.inf], "float32"), 32)
