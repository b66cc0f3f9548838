"""Softmaxes, norms, variances, attention and losses held against the arithmetic of their device: planted faults beyond it are wrong, narrow sums imprecise, sound twins pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.catalogs.critical import reference as ref
from tasks.judge import policy_files
from tasks.judging import Judgement, judge_outputs
from tasks.model import EPS, Flushes, Form, Group, Leaf, OpClass, RuntimeInfo, Status
from tasks.model.dtypes import TABLE, get_numpy_dtype
from tasks.model.kind import CAUSE_ARITHMETIC, KIND_ACCUMULATOR, KIND_ARITHMETIC
from tasks.passport.adder import SumAdder
from tasks.passport.bounded_arrays import BoundedArray, BoundedSteps
from tasks.passport.bounds import find_share_of_sum
from tasks.passport.composites import find_composite_formula
from tasks.passport.explain_sum import read_sum_order
from tasks.passport.locate_sum import locate_order_terms
from tasks.passport.own_arithmetic import OwnArithmetic, hold_to_bounds
from tasks.passport.predict_sum import SumModel
from tasks.passport.sum_reading import NodeRule, SumReading
from tasks.passport.sum_trees import encode_tree, make_sequential_tree
from tasks.prepare.cases import PreparedGroup, PreparedSample, save_sample_alone

INFO, POLICY = RuntimeInfo("1", "cpu"), policy_files.load_policy("error_units")
ROWS, TERMS = 8, 64
Run = Callable[[Sequence[Any]], list[np.ndarray]]
#: What was read of another sum of a device that adds in float32.
FLOAT32 = SumReading(
    terms=TERMS, rows=ROWS, made_of="products", bits=24, rounding="nearest even", predicted=100, unseen=100
)


def add_terms(terms: np.ndarray, bits: int = 24, drops: int = -1) -> np.ndarray:
    """Sums along the last axis, which is kept: one term after another, in so many bits. drops: a term that is
    forgotten."""
    some = np.array(terms, np.float64)
    some[..., drops] *= drops < 0
    count = some.shape[-1]
    model = SumModel(
        make_sequential_tree(list(range(count))), SumAdder(NodeRule(bits, "nearest even"), {}, ()), "float32", "", 0
    )
    return np.asarray(model.compute(some), np.float32)[..., None]


def softmax(bits: int = 24, drops: int = -1, far: float = 0.0) -> Run:
    """A device that takes exponentials in float32 and adds them in so many bits. far: by which share its results are
    off."""

    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        (x,) = arrays
        e = np.exp(x - x.max(-1, keepdims=True))
        with np.errstate(all="ignore"):  # the one that is forgotten may be the only one
            return [e / add_terms(e, bits, drops) * np.float32(1 + far)]

    return run


def norm(bits: int = 24, drops: int = -1) -> Run:
    """A layer norm in float32, by the mean of squares less the square of the mean."""

    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        x, weight, bias = arrays
        count = np.float32(x.shape[-1])
        mean = add_terms(x, bits, drops) / count
        variance = add_terms(x * x, bits, drops) / count - mean * mean
        return [(x - mean) / np.sqrt(variance + np.float32(1e-5)) * weight + bias]

    return run


def root_mean_square(bits: int = 24, drops: int = -1) -> Run:
    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        x, weight = arrays
        return [x / np.sqrt(add_terms(x * x, bits, drops) / np.float32(x.shape[-1]) + np.float32(1e-6)) * weight]

    return run


def variance(bits: int = 24, drops: int = -1) -> Run:
    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        (x,) = arrays
        apart = x - add_terms(x, bits) / np.float32(x.shape[-1])
        return [(add_terms(apart * apart, bits, drops) / np.float32(x.shape[-1] - 1))[..., 0]]

    return run


def attention(bits: int = 24, drops: int = -1) -> Run:
    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        q, k, v = arrays
        scores = (q @ k.swapaxes(-1, -2)).astype(np.float32) / np.float32(np.sqrt(q.shape[-1]))
        e = np.exp(scores - scores.max(-1, keepdims=True))
        return [(e / add_terms(e, bits, drops)) @ v]

    return run


def cross_entropy(bits: int = 24, drops: int = -1) -> Run:
    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        x, labels = arrays
        kept = np.flatnonzero(labels >= 0)
        some = x[kept] - x[kept].max(-1, keepdims=True)
        each = np.log(add_terms(np.exp(some), bits, drops))[..., 0] - some[np.arange(kept.size), labels[kept]]
        return [np.asarray(add_terms(each, bits)[..., 0] / np.float32(kept.size))]

    return run


def mean_square(bits: int = 24, drops: int = -1) -> Run:
    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        apart = (arrays[0] - arrays[1]).reshape(-1)
        return [np.asarray(add_terms(apart * apart, bits, drops)[0] / np.float32(apart.size))]

    return run


def draw(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    g = np.random.default_rng(5)
    return [g.standard_normal(shape).astype(np.float32) for shape in shapes]


LABELS = np.where(np.arange(ROWS) % 5 == 3, -100, np.arange(ROWS) * 7 % TERMS)
#: By name: the formula as it is called, a device of it, arrays, the reference.
OPS: dict[str, tuple[str, Callable[..., Run], list[Any], Callable[..., np.ndarray]]] = {
    "softmax": ("softmax", softmax, draw((ROWS, TERMS)), lambda x: ref.softmax(x, -1)),
    "layer_norm": ("norm by mean and variance", norm, draw((ROWS, TERMS), (TERMS,), (TERMS,)), lambda x, w, b: ref.layer_norm(x, (TERMS,), w, b, 1e-5)),
    "rms_norm": ("norm by the root mean square", root_mean_square, draw((ROWS, TERMS), (TERMS,)), lambda x, w: ref.rms_norm(x, (TERMS,), w, 1e-6)),
    "var": ("variance", variance, draw((ROWS, TERMS)), lambda x: ref.var(x, -1, 1)),
    "attention": ("attention", attention, draw((1, 2, 5, 16), (1, 2, TERMS, 16), (1, 2, TERMS, 16)), ref.attention),
    "cross_entropy": ("cross entropy", cross_entropy, [*draw((ROWS, TERMS)), LABELS], lambda x, t: ref.cross_entropy(x, t, -100)),
    "mse_loss": ("mean square", mean_square, draw((4, 24), (4, 24)), ref.mse_loss),
}  # fmt: skip


def compute_exact(name: str) -> np.ndarray:
    _, _, arrays, exact = OPS[name]
    return np.asarray(exact(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays)))


@pytest.mark.parametrize("name", OPS)
def test_what_adds_otherwise_is_beyond_the_bound_of_its_formula_and_the_sound_twin_within(name: str) -> None:
    called, make, arrays, _ = OPS[name]
    exact = compute_exact(name)
    found = find_composite_formula(arrays, exact)
    assert found is not None and found.of == called
    own = OwnArithmetic((), None, (), (FLOAT32,))
    held = [hold_to_bounds(own, arrays, run(arrays)[0], exact) for run in (make(), make(8), make(drops=11))]
    certain = [x.certain for x in held if x is not None]
    assert len(certain) == 3 and certain[0] <= 1 < min(certain[1:]), certain
    assert held[0] is not None and held[0].likely <= 1


@pytest.mark.parametrize("name", OPS)
def test_no_sound_device_leaves_the_bound_of_any_formula(name: str) -> None:
    """On other numbers: large ones, a large mean, many near 0."""
    _, make, arrays, exact = OPS[name]
    g = np.random.default_rng(9)
    own = OwnArithmetic((), None, (), (FLOAT32,))
    for loc, scale in ((0.0, 6.0), (40.0, 1.0), (0.0, 1e-3)):
        some = [
            (loc + scale * g.standard_normal(x.shape)).astype(np.float32) if x.dtype == np.float32 else x
            for x in arrays
        ]
        y = np.asarray(exact(*(x.astype(np.float64) if x.dtype == np.float32 else x for x in some)))
        held = hold_to_bounds(own, some, make()(some)[0], y)
        assert held is None or (held.certain <= 1 and held.likely <= 1), (loc, scale, held)


def test_an_output_that_no_formula_gives_is_not_held() -> None:
    x = draw((ROWS, TERMS))
    for made in (np.tanh(x[0]), np.maximum(x[0], 0.0), x[0].max(-1)):
        assert find_composite_formula(x, made.astype(np.float64)) is None
    assert find_composite_formula(x, ref.softmax(x[0].astype(np.float64), 0)) is not None  # along another axis
    own = OwnArithmetic((), None, (), (FLOAT32,))
    infinite = np.exp(x[0].astype(np.float64))
    infinite[0, 0] = np.inf
    assert find_composite_formula(x, infinite) is None, "one infinite number does not leave all others near"
    exact, unread = compute_exact("softmax"), np.full((ROWS, TERMS), np.nan, np.float32)
    assert hold_to_bounds(own, x, unread, exact) is None, "of what is no number nothing is said"
    sharp = [20 * x[0]]  # nearly all of it is 0, along either axis
    exact = ref.softmax(sharp[0].astype(np.float64), 0)
    sound = softmax()([sharp[0].T])[0].T
    held = hold_to_bounds(own, sharp, sound, exact)
    assert held is not None and held.certain <= 1


def test_a_formula_is_bounded_by_the_tree_of_its_sum_where_it_was_read_at_its_shape() -> None:
    x = draw((ROWS, TERMS))
    exact = compute_exact("softmax")
    parts = passport_of(softmax(), x)
    shallow = replace(parts[0], tree=tuple(encode_tree(((0, 1, 2, 3), *range(4, TERMS)))))
    bounds = []
    for known in ((), parts, (shallow,)):
        steps = BoundedSteps("float32", known, (FLOAT32,), ROWS)
        found = find_composite_formula(x, exact)
        assert found is not None
        bounds.append(np.asarray(found.compute([BoundedArray.make(x[0], steps)]).off[0]).max())
    assert bounds[2] < bounds[1] <= bounds[0]


# --- verdicts --------------------------------------------------------------------------------------------------------


def passport_of(run: Run, arrays: Sequence[np.ndarray]) -> tuple[SumReading, ...]:
    """What is read of the sum of exponentials of a device."""
    terms = locate_order_terms(arrays, ref.softmax(arrays[0].astype(np.float64), -1), 0)
    assert terms is not None
    reading = read_sum_order(run, arrays, terms, "first")
    assert reading.bits and reading.made_of == "exponentials", reading
    return (reading,)


def judge(tmp_path: Path, run: Run, parts: Sequence[SumReading], noise: float = 1.0, asks: bool = True) -> Judgement:
    """The judgement of a softmax by a device with a passport. noise: of the floor, in units of what rounding its input
    makes."""
    arrays = draw((ROWS, TERMS))
    exact = ref.softmax(arrays[0].astype(np.float64), -1)
    leaf = Leaf("float32", exact.shape, exact, noise * EPS["float32"] * np.abs(exact))
    save_sample_alone(
        tmp_path / "x.pack",
        Group("critical:softmax", "", "float32", 1),
        Sample(0, (TensorSpec(0),), {"dim": -1}, arrays, [leaf], OpClass.NORMALISATION),
    )
    one: PreparedSample = PreparedGroup(tmp_path / "x.pack").samples[0]
    own = OwnArithmetic((), run if asks else None, tuple(parts), (*parts, FLOAT32)) if parts else None
    form = Form("torch", op="critical:softmax", dtype="float32", arrays=arrays)
    return judge_outputs(one, [run(arrays)], POLICY, INFO, form, measure_flushes=lambda dtypes: Flushes(), own=own)


def test_a_sound_softmax_passes_and_its_row_says_how_near(tmp_path: Path) -> None:
    found = judge(tmp_path, softmax(), passport_of(softmax(), draw((ROWS, TERMS))))
    assert found.status is Status.PASS
    assert 0 < found.columns["own_units"] <= found.columns["likely_units"] <= 1


def test_a_fault_beyond_its_own_bound_is_wrong_however_near_it_is(tmp_path: Path) -> None:
    """The limit, by a floor that excuses nearly all, says nothing of a term that is dropped, nor of a factor of
    1.0002."""
    parts = passport_of(softmax(), draw((ROWS, TERMS)))
    for faulty in (softmax(drops=3), softmax(far=2e-4)):
        assert judge(tmp_path, faulty, (), noise=1e7).status is Status.PASS
        fault = judge(tmp_path, faulty, parts, noise=1e7)
        assert (fault.status, fault.kind) == (Status.WRONG, KIND_ARITHMETIC) and fault.columns["own_units"] > 1
    assert judge(tmp_path, softmax(), parts, noise=1e7).status is Status.PASS


@pytest.mark.parametrize("asks", [True, False], ids=["asked again", "not asked again"])
def test_fewer_bits_are_imprecise_with_the_reason_where_the_passport_has_them_and_wrong_where_not(
    tmp_path: Path, asks: bool
) -> None:
    narrow, x = softmax(10), draw((ROWS, TERMS))
    assert judge(tmp_path, narrow, ()).status is Status.WRONG
    twin = judge(tmp_path, narrow, passport_of(narrow, x), asks=asks)
    assert (twin.status, twin.kind) == (Status.IMPRECISE, KIND_ACCUMULATOR)
    if asks:
        assert twin.columns["cause_code"] == CAUSE_ARITHMETIC and "sequential, in 10 bits" in twin.columns["cause"]
    fault = judge(tmp_path, narrow, passport_of(softmax(), x), asks=asks)
    assert (fault.status, fault.kind) == (Status.WRONG, KIND_ARITHMETIC)


def test_a_dropped_term_of_a_narrow_device_is_not_excused(tmp_path: Path) -> None:
    found = judge(tmp_path, softmax(10, drops=3), passport_of(softmax(10), draw((ROWS, TERMS))))
    assert found.status is Status.WRONG and "term 3 changes nothing" in found.columns["error"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("count", [64, 256])
def test_a_formula_whose_sum_was_not_read_has_a_finite_bound_in_16_bits(dtype: str, count: int) -> None:
    """Of any order of additions in the dtype. One that adds in it, one after another, is within; a result of another
    size is not; where nothing finite follows (a variance as a difference of squares may leave nothing of itself), it
    says so."""
    x = np.random.default_rng(3).standard_normal((8, count)).astype(get_numpy_dtype(dtype))
    wide = x.astype(np.float64)
    digits = (TABLE[dtype].digits or 0) + 1
    total = add_terms(np.square(wide).astype(x.dtype), digits)
    exact = wide / np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-5)
    own = OwnArithmetic((), None, (), (FLOAT32,))
    narrow = hold_to_bounds(own, [x], (wide / np.sqrt(total / count + 1e-5)).astype(x.dtype), exact)
    assert narrow is not None and narrow.is_bounded and 0 < narrow.certain <= 1
    off = hold_to_bounds(own, [x], np.full_like(x, np.finfo(np.float16).max), exact)
    assert off is not None and (off.certain > 1 or count > 64)
    centered = wide - wide.mean(-1, keepdims=True)
    other = centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + 1e-5)
    layer = hold_to_bounds(own, [x], other.astype(x.dtype), other)
    assert layer is not None and layer.is_bounded == (dtype == "float16" and count == 64)


def test_any_order_of_additions_is_within_the_share_of_its_format() -> None:
    """Also where n·u is beyond 1; ones in bfloat16 stop at 256, 7/8 of 2,048 of them are lost, and the bound is no
    less."""
    reading = replace(FLOAT32, bits=8)
    for count in (64, 256, 2048, 1 << 20):
        certain, likely = find_share_of_sum(reading, count, exactly=False).off
        lost = 1 - min(count, 256) / count
        assert lost <= certain <= count / 256 and 0 < likely <= certain
    down = find_share_of_sum(replace(reading, rounding="down"), 2048, exactly=False)
    assert np.isfinite(down.off).all() and min(down.least) > 0


@pytest.mark.parametrize(
    "coarse", [{"bits": 1, "rounding": "down"}, {"aligned": 1}, {"bits": 1, "taken": 1}, {"taken": 1}]
)
def test_of_steps_that_may_lose_all_that_they_add_nothing_is_likely(coarse: dict[str, Any]) -> None:
    tree = tuple(encode_tree(make_sequential_tree([0, 1])))
    for count in (2, 64):
        found = find_share_of_sum(replace(FLOAT32, tree=tree, **coarse), count, exactly=False)
        assert found.off[0] == found.off[1] >= count - 1 and found.least == (0.0, 0.0)
