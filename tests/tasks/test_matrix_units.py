"""Matrix units: each value that the literature gives of one, faults of an adder told from it, an H200's bytes, and what no unit takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasks.matrix_units import ARCHITECTURES, UNITS, find_matrix_unit, multiply, published
from tasks.matrix_units.adders import TruncatingAdder, find_exponent_powers, round_to_single
from tasks.matrix_units.table import SOURCES, MatrixUnit
from tasks.model import get_numpy_dtype
from tests.devices import products


def unit(architecture: str, dtype: str, scale: str = "") -> MatrixUnit:
    found = find_matrix_unit(architecture, dtype, scale)
    assert found is not None, f"{architecture} takes no {dtype}"
    return found


def dot(used: MatrixUnit, *pairs: tuple[float, float]) -> float:
    """The sum of some products, in their order."""
    a, b = np.array(pairs, np.float64).T
    dtype = get_numpy_dtype(used.dtype)
    narrow = a.astype(dtype), b.astype(dtype)
    assert (narrow[0] == a).all() and (narrow[1] == b).all(), "the dtype does not have these numbers"
    return float(multiply(used, narrow[0][None, :], narrow[1][:, None])[0, 0])


def list_published(what: str) -> list[tuple[str, str, Any]]:
    """(architecture, dtype, value) of the published values of a kind."""
    return [(x.architecture, x.dtype, x.value) for x in published.PUBLISHED if x.what == what]


@pytest.mark.parametrize(("architecture", "dtype", "last"), list_published(published.SEEN))
def test_a_product_is_seen_beside_a_large_one_down_to_the_published_bit(
    architecture: str, dtype: str, last: int
) -> None:
    used = unit(architecture, dtype)
    for power in range(12, -13, -1):
        left = 2.0 ** (power // 2), 2.0 ** (power - power // 2)
        found = dot(used, (2.0**8, 2.0**8), left, (-(2.0**8), 2.0**8))
        assert found == (2.0**power if power >= last else 0.0), power
        mirrored = dot(used, (-(2.0**8), 2.0**8), (-left[0], left[1]), (2.0**8, 2.0**8))
        # Cut off is towards zero; what is lost on CDNA 3 is lost there as well, as products are aligned with one
        # another.
        assert mirrored == (-(2.0**power) if power >= last else 0.0), power


@pytest.mark.parametrize(("architecture", "dtype", "width"), list_published(published.WIDTH))
def test_one_step_adds_as_many_products_as_was_published(architecture: str, dtype: str, width: int) -> None:
    """A large product, its opposite in the second place, a small one in a later place: it is lost in the first step
    alone, or (where a step is exact) a large pair cancels exactly only within one step."""
    used, large, small = unit(architecture, dtype), 2.0**7, 2.0**-6
    count = 2 * width
    exact = architecture == "cdna1"
    large = 2.0**15 if exact else large
    for place in range(2, count):
        pairs = [(0.0, 0.0)] * count
        if exact:
            pairs[0], pairs[1], pairs[place] = (large, large), (small, small), (-large, large)
            if place < width:
                assert dot(used, *pairs) == small * small, place
            else:
                assert dot(used, *pairs) == 0.0, place
        else:
            scale = 1.0 if used.adder is not None and getattr(used.adder, "kept", 0) <= 13 else 2.0**-6
            pairs[0], pairs[1], pairs[place] = (large, large), (-large, large), (small, small * scale)
            lost = place < width
            assert (dot(used, *pairs) == 0.0) == lost, place


@pytest.mark.parametrize(("architecture", "dtype", "how"), list_published(published.LOST))
def test_what_a_sum_cannot_hold_is_lost_as_was_published(architecture: str, dtype: str, how: str) -> None:
    """Towards zero in both directions, or to nearest."""
    used, half = unit(architecture, dtype), (1.5 * 2.0**-12, 2.0**-12)
    assert used.adder is not None
    rest = [(0.0, 0.0)] * (used.adder.fused - 1)
    last = 0.0 if how == published.CUT else 2.0**-23
    assert dot(used, (1.0, 1.0), *rest, half) == 1.0 + last
    assert dot(used, (-1.0, 1.0), *rest, (-half[0], half[1])) == -1.0 - last


def test_a_step_of_cdna1_is_exact_and_a_pair_of_cdna2_is_not() -> None:
    """FTTN, Khattak and Mikaitis: MI100 adds four products (two of bfloat16) as if exactly."""
    pairs = [(2.0**15, 2.0**15), (2.0**-14, 2.0**-10), (-(2.0**15), 2.0**15), (0.0, 0.0)]
    assert dot(unit("cdna1", "float16"), *pairs) == 2.0**-24
    assert dot(unit("cdna2", "float16"), *pairs) == 0.0


@pytest.mark.parametrize(("architecture", "dtype", "how"), list_published(published.SUBNORMALS))
def test_subnormal_numbers_are_kept_or_zero_as_was_published(architecture: str, dtype: str, how: str) -> None:
    found = dot(unit(architecture, dtype), (2.0**-20, 2.0**10))
    assert found == (0.0 if how == published.ZERO else 2.0**-10)


def test_cdna3_rounds_down_where_it_aligns_with_the_accumulator() -> None:
    """MMA-Sim: the result of minus the inputs is not minus the result."""
    used, rest = unit("cdna3", "float16"), [(0.0, 0.0)] * 7
    small = [(2.0**-13, 2.0**-12), (2.0**-14, 2.0**-14), (2.0**-24, 2.0**-14)]  # a tie of 1, and less than is kept
    up = dot(used, (-1.0, 1.0), *rest, (small[0][0], small[0][1]), (small[2][0], small[2][1]))
    down = dot(used, (1.0, 1.0), *rest, (-small[0][0], small[0][1]), (-small[2][0], small[2][1]))
    assert (up, down) == (-1.0, 1.0 - 2.0**-24)


@pytest.mark.parametrize(("architecture", "dtype", "digits"), list_published(published.TAKEN))
def test_a_factor_has_as_many_digits_as_was_published(architecture: str, dtype: str, digits: int) -> None:
    last = 2.0**-digits
    value = 1 + last + last / 2 if digits < 23 else 1 + last  # what is behind them is cut off
    assert dot(unit(architecture, dtype), (value, 1.0)) == 1 + last


def test_the_source_of_a_published_value_is_one_of_its_units_row() -> None:
    for one in published.PUBLISHED:
        assert one.source in unit(one.architecture, one.dtype).sources, one


def test_integers_are_exact_and_wrap_around() -> None:
    ones = np.full((1, 1 << 18), -128, np.int8)
    assert multiply(unit("hopper", "int8"), ones[:, : 1 << 16], ones[:, : 1 << 16].T)[0, 0] == 1 << 30
    assert multiply(unit("hopper", "int8"), ones[:, : 1 << 17], ones[:, : 1 << 17].T)[0, 0] == -(1 << 31)


def test_four_bit_products_are_summed_exactly_in_groups_of_sixteen() -> None:
    """MMA-Sim: sums of a group, times both scales, are aligned at the exponents of the scales with 35 bits."""
    used = unit("blackwell", "float4_e2m1fn", "float8_e4m3fn")
    rng = np.random.default_rng(1)
    a, b = (
        rng.choice([0.5, 1, 1.5, 2, 3, 4, 6, -1, -6], shape).astype(get_numpy_dtype(used.dtype))
        for shape in ((3, 64), (64, 5))
    )
    one = get_numpy_dtype("float8_e4m3fn")
    scales = np.full((3, 4), 1.5).astype(one), np.full((4, 5), 0.25).astype(one)
    exact = a.astype(np.float64) @ b.astype(np.float64) * 0.375
    assert (multiply(used, a, b, scales) == exact).all()


@pytest.mark.parametrize("scale", ["float8_e8m0fnu"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float6_e3m2fn", "float6_e2m3fn", "float4_e2m1fn"])
def test_scales_are_those_of_their_block(dtype: str, scale: str) -> None:
    used = unit("blackwell", dtype, scale)
    rng = np.random.default_rng(2)
    a, b = (rng.choice([-1, 0, 1, 2], shape).astype(get_numpy_dtype(dtype)) for shape in ((4, 128), (128, 3)))
    sa, sb = (2.0 ** rng.integers(-3, 4, shape) for shape in ((4, 4), (4, 3)))
    wide = np.repeat(sa, 32, 1) * a.astype(np.float64), np.repeat(sb, 32, 0) * b.astype(np.float64)
    found = multiply(used, a, b, (sa.astype(get_numpy_dtype(scale)), sb.astype(get_numpy_dtype(scale))))
    assert (found == wide[0] @ wide[1]).all()


def test_infinities_and_nan_are_as_in_any_sum() -> None:
    big = 2.0**127
    for architecture in ("ampere", "cdna1", "cdna2", "cdna3"):
        used = unit(architecture, "bfloat16")
        assert np.isnan(dot(used, (np.inf, 1.0), (-np.inf, 1.0))) and np.isinf(dot(used, (np.inf, -1.0), (1.0, 1.0)))
        assert np.isnan(dot(used, (np.inf, 0.0))) and dot(used, (big, 2.0)) == np.inf, architecture


# --- faults -------------------------------------------------------------------------------------------------------


def count_same(adder: TruncatingAdder | None, promoted: int = 128) -> int:
    """How many recorded float8 products of the H200 an emulated unit gives to the byte, where its row is another
    one."""
    key = ("hopper", "float8_e4m3fn", "")
    own = UNITS[key]
    planted = replace(own, adder=adder or own.adder, promoted=promoted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(UNITS, key, planted)  # type: ignore[arg-type]
        return sum(x.same for x in products.recompute_products("h200-2026-11-26", "gemm:scaled_mm"))


def test_recorded_float8_products_of_an_h200_are_the_emulated_ones_to_the_byte() -> None:
    pytest.importorskip("torch")
    found = list(products.recompute_products("h200-2026-11-26", "gemm:scaled_mm"))
    assert len(found) == 30 and all(x.same for x in found)
    units = {x.row["error_units"]: x.error_units for x in found if x.row["status"] == "wrong"}
    assert len(units) == 15 and 390 < min(units) and max(units) < 2700
    assert list(units) == pytest.approx(list(units.values()), rel=1e-6)


@pytest.mark.parametrize(
    ("adder", "promoted", "same"),
    [
        (TruncatingAdder(32, 14, -133, digits=13), 128, range(14)),  # a bit more while aligning
        (TruncatingAdder(32, 13, -133), 128, range(14)),  # all digits of float32 in the accumulator
        (TruncatingAdder(16, 13, -133, digits=13), 128, range(22)),  # half as many products a step
        (None, 0, range(20, 21)),  # never promoted: seen in long sums alone
        (None, 64, range(20, 21)),
    ],
)
def test_another_adder_is_told_from_the_recorded_one(adder: TruncatingAdder | None, promoted: int, same: range) -> None:
    pytest.importorskip("torch")
    assert count_same(adder, promoted) in same


def test_recorded_integers_and_most_of_the_other_products_are_the_emulated_ones() -> None:
    """Not all: cuBLAS has other kernels for rows that are no multiple of 16 bytes, and splits long sums of few rows."""
    pytest.importorskip("torch")
    for op, dtype, least in (("gemm:int_mm", "int8", 1.0), ("gemm:mm", "bfloat16", 0.8), ("gemm:mm", "float16", 0.75)):
        found = [x.same for x in products.recompute_products("h200-2026-11-26", op, dtype)]
        assert sum(found) >= least * len(found) > 0, (op, dtype, sum(found), len(found))


# --- bad input ----------------------------------------------------------------------------------------------------


def matrices(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[np.ndarray]:
    return [np.ones(shape, get_numpy_dtype(dtype)) for shape in shapes]


def test_what_a_unit_does_not_take_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^no architecture 'hoper'; did you mean hopper or ampere\?$"):
        find_matrix_unit("hoper", "float16")
    assert find_matrix_unit("volta", "bfloat16") is None
    used = unit("hopper", "float16")
    for shapes, dtype, words in (
        ([(2, 3), (4, 2)], "float16", "a has 3 columns and b has 4 rows"),
        ([(2, 3), (3,)], "float16", "b has 1 axes"),
        ([(2, 3), (3, 2)], "float32", "a is float32; this unit of hopper takes float16"),
    ):
        with pytest.raises(ValueError, match=words):
            multiply(used, *matrices(shapes, dtype))
    scaled = unit("blackwell", "float8_e4m3fn", "float8_e8m0fnu")
    a, b = matrices([(2, 48), (48, 2)], "float8_e4m3fn")
    with pytest.raises(ValueError, match="takes float8_e4m3fn with scales"):
        multiply(scaled, a, b)
    scales = matrices([(2, 1), (1, 2)], "float8_e8m0fnu")
    with pytest.raises(ValueError, match="48 summed elements are not whole blocks of 32"):
        multiply(scaled, a, b, (scales[0], scales[1]))
    with pytest.raises(
        ValueError, match=r"scales of a are float8_e8m0fnu \(2, 1\); they must be float8_e8m0fnu \(2, 2\)"
    ):
        multiply(scaled, *matrices([(2, 64), (64, 2)], "float8_e4m3fn"), (scales[0], scales[1]))


def test_every_row_names_its_sources() -> None:
    for row in UNITS.values():
        assert row.sources and set(row.sources) <= set(SOURCES) and row.architecture in ARCHITECTURES, row
        assert (row.adder is None) == (row.dtype == "int8") and bool(row.block) == bool(row.scale)


def test_a_sum_is_rounded_once() -> None:
    """Half a spacing of float32 and a little more, which float64 loses, is rounded up; exactly half goes to even."""
    tie = np.array([1 + 2.0**-24])
    for low, expected in ((2.0**-80, 1 + 2.0**-23), (-(2.0**-80), 1.0), (0.0, 1.0)):
        assert round_to_single(tie, np.array([low]))[0] == expected
    assert find_exponent_powers(np.array([0.0, 1.5, -6.0, 2.0**-20]), -14).tolist() == [0.0, 1.0, 4.0, 2.0**-14]
