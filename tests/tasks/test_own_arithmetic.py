"""Results held against the passport of their backend: planted devices that do not add as it says are wrong, their sound twins imprecise with the reason."""

from __future__ import annotations

import functools
import itertools
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import wire
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Sample
from tasks.checks.two_orders import explain_two_orders, explain_two_runs
from tasks.judge import policy_files
from tasks.judging import Judgement, judge_outputs
from tasks.model import EPS, Flushes, Form, Group, Leaf, OpClass, RuntimeInfo, Status
from tasks.model.dtypes import get_numpy_dtype
from tasks.model.kind import CAUSE_ORDER, KIND_ACCUMULATOR, KIND_ARITHMETIC
from tasks.passport import ADDRESS, WARMED
from tasks.passport.adder import SumAdder
from tasks.passport.bounds import bound_device_sums
from tasks.passport.explain_sum import explain_gated_sum, explain_sum_elements, read_located_sum
from tasks.passport.known_passports import KnownSum, Passport, choose_passport
from tasks.passport.locate_sum import locate_gated_product, locate_order_terms, locate_sum_terms
from tasks.passport.own_arithmetic import OwnArithmetic, hold_to_bounds
from tasks.passport.predict_sum import SumModel
from tasks.passport.sum_reading import NodeRule, SumReading
from tasks.passport.sum_trees import (
    Tree,
    encode_tree,
    list_term_blocks,
    list_tree_nodes,
    list_tree_terms,
    make_fused_tree,
    make_pairwise_tree,
    make_sequential_tree,
)
from tasks.prepare.cases import PreparedGroup, PreparedSample, save_sample_alone

INFO, POLICY = RuntimeInfo("1", "cpu"), policy_files.load_policy("error_units")
ROWS, TERMS, COLUMNS = 8, 32, 6
Run = Callable[[list[Any]], list[np.ndarray]]


def in_order(count: int = TERMS) -> Tree:
    return make_sequential_tree(list(range(count)))


def device(
    tree: Tree,
    bits: int,
    output: str,
    rounding: str = "nearest even",
    drops: int = -1,
    rule: NodeRule | None = None,
    taken: int = 0,
    others: dict[int, NodeRule] | None = None,
) -> Run:
    """A device that multiplies matrices, each element's terms in this order, with products that are not rounded. drops:
    the number of a term that it forgets; others: steps that add otherwise, by their numbers."""
    count = TERMS
    adder = SumAdder(
        rule or NodeRule(bits, rounding),
        others or {},
        tuple(range(count)),
        taken=taken,
        taking="truncated" * bool(taken),
    )
    model = SumModel(tree, adder, output, "", count)

    def run(arrays: list[Any]) -> list[np.ndarray]:
        a, b = (np.array(x, np.float64) for x in arrays)
        if drops >= 0:
            a[:, drops] = 0.0
        pairs = np.broadcast_arrays(a[:, None, :], b.T[None])
        return [np.asarray(model.compute(*map(np.ascontiguousarray, pairs))).astype(get_numpy_dtype(output))]

    return run


def factors(dtype: str, rows: int = ROWS) -> list[np.ndarray]:
    g = np.random.default_rng(7)
    return [g.standard_normal(shape).astype(get_numpy_dtype(dtype)) for shape in ((rows, TERMS), (TERMS, COLUMNS))]


@functools.cache
def passport_of(run: Run, dtype: str) -> tuple[SumReading, ...]:
    arrays = factors(dtype)
    where = locate_sum_terms(arrays, run(arrays)[0])
    assert where is not None
    reading = read_located_sum(run, arrays, where, 0, "first")
    assert reading.known, reading.words
    return (reading,)


def judge(
    tmp_path: Path, run: Run, dtype: str, readings: Sequence[SumReading], noise: float = 1.0, asks: bool = True
) -> Judgement:
    """The judgement of a product of matrices by a device with a passport. noise: of the floor, in units of what
    rounding the factors makes."""
    arrays = factors(dtype)
    a, b = (x.astype(np.float64) for x in arrays)
    floor = noise * EPS[dtype] * np.sqrt(np.square(a) @ np.square(b))
    output = run(arrays)[0]
    leaf = Leaf(output.dtype.name, output.shape, a @ b, floor)
    made = Sample(0, (TensorSpec(0), TensorSpec(1)), {}, arrays, [leaf], OpClass.CONTRACTION)
    save_sample_alone(tmp_path / "x.pack", Group("critical:matmul", "", dtype, 1), made)
    one: PreparedSample = PreparedGroup(tmp_path / "x.pack").samples[0]
    own = OwnArithmetic(tuple(readings), run if asks else None) if readings else None
    form = Form("torch", op="critical:matmul", dtype=dtype, arrays=arrays)
    return judge_outputs(one, [[output]], POLICY, INFO, form, measure_flushes=lambda dtypes: Flushes(), own=own)


NARROW = device(in_order(), 8, "bfloat16")
WIDE = device(in_order(), 24, "bfloat16")


def test_a_sound_device_passes_and_its_row_says_how_near(tmp_path: Path) -> None:
    found = judge(tmp_path, WIDE, "bfloat16", passport_of(WIDE, "bfloat16"))
    assert found.status is Status.PASS
    assert 0 < found.columns["own_units"] <= found.columns["likely_units"] <= 1


def test_fewer_bits_than_the_passport_has_are_wrong_and_as_many_imprecise(tmp_path: Path) -> None:
    """The very same bytes: of a device that is known to add in 8 bits they are its arithmetic, of another one a
    fault."""
    fault = judge(tmp_path, NARROW, "bfloat16", passport_of(WIDE, "bfloat16"))
    assert (fault.status, fault.kind) == (Status.WRONG, KIND_ARITHMETIC)
    assert fault.columns["own_units"] > 1 and "in 8 bits, and its passport says 24" in fault.columns["error"]
    twin = judge(tmp_path, NARROW, "bfloat16", passport_of(NARROW, "bfloat16"))
    assert (twin.status, twin.kind) == (Status.IMPRECISE, KIND_ACCUMULATOR)
    assert twin.columns["own_units"] <= 1
    assert (
        "sequential, in bfloat16" in twin.columns["cause"]
        and f"{ROWS * COLUMNS} of {ROWS * COLUMNS} results to the bit" in twin.columns["cause"]
    )


def test_another_order_at_other_shapes_is_no_fault_and_another_rounding_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device whose order depends on what its passport did not ask: columns, threads, addresses. Of 64 positive terms
    one after the other leave more than the passport's pairs may."""
    module, count, drawn = sys.modules[__name__], 64, factors
    monkeypatch.setattr(module, "TERMS", count)
    monkeypatch.setattr(module, "factors", lambda dtype, rows=ROWS: [np.abs(x) for x in drawn(dtype, rows)])
    pairs = device(make_pairwise_tree(range(count)), 24, "float32", "truncated")
    one_by_one = device(in_order(count), 24, "float32", "truncated")
    readings = passport_of(pairs, "float32")
    found = judge(tmp_path, one_by_one, "float32", readings, noise=1e6)
    assert (found.status, found.kind) == (Status.PASS, "") and found.columns["own_units"] <= 1
    assert "sequential, in float32 truncated" in found.columns["cause"] and not found.columns["error"]
    gone = judge(tmp_path, one_by_one, "float32", readings, noise=1e6, asks=False)
    assert (gone.status, gone.kind) == (Status.WRONG, KIND_ARITHMETIC)
    nearest = passport_of(device(make_pairwise_tree(range(count)), 24, "float32"), "float32")
    other = judge(tmp_path, one_by_one, "float32", nearest, noise=1e6)
    assert (other.status, other.kind) == (Status.WRONG, KIND_ARITHMETIC)


@pytest.mark.parametrize("code", [ADDRESS, WARMED])
def test_a_passport_whose_order_is_that_of_some_calls_still_tells_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """A narrower device is wrong as with any passport; the order, which may be another one, is held against nothing."""
    unsure = KnownSum("matmul", "bfloat16", replace(*passport_of(WIDE, "bfloat16"), code=code, words="x"))
    readings = Passport("run", "1", "", "", "cpu", (unsure,)).find("critical:matmul", "bfloat16")
    fault = judge(tmp_path, NARROW, "bfloat16", readings, noise=0.002)
    assert (fault.status, fault.kind) == (Status.WRONG, KIND_ARITHMETIC)
    assert "in 8 bits, and its passport says 24" in fault.columns["error"]
    module, count, drawn = sys.modules[__name__], 64, factors
    monkeypatch.setattr(module, "TERMS", count)
    monkeypatch.setattr(module, "factors", lambda dtype, rows=ROWS: [np.abs(x) for x in drawn(dtype, rows)])
    one_by_one = device(in_order(count), 24, "float32", "truncated")
    (pairs,) = passport_of(device(make_pairwise_tree(range(count)), 24, "float32", "truncated"), "float32")
    for given, status in ((pairs, Status.WRONG), (replace(pairs, code=code, words="x"), Status.PASS)):
        assert judge(tmp_path, one_by_one, "float32", (given,), noise=1e6, asks=False).status is status


@pytest.mark.parametrize("noise", [1.0, 1e3, 1e6])
def test_some_steps_in_fewer_bits_are_no_other_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: float
) -> None:
    """A device that joins three of its blocks in 11 bits gives its results to the bit, as far off as those leave them:
    its passport has no such step, whatever most of its steps are."""
    module, count, drawn = sys.modules[__name__], 64, factors
    monkeypatch.setattr(module, "TERMS", count)
    monkeypatch.setattr(module, "factors", lambda dtype, rows=ROWS: [np.abs(x) for x in drawn(dtype, rows)])
    blocks = [make_sequential_tree(list(range(k, k + 8))) for k in range(32, count, 8)]
    tree = (make_sequential_tree(list(range(32))), make_sequential_tree(blocks))
    joins = [
        k for k, x in enumerate(list_tree_nodes(tree)) if len(list_tree_terms(x)) > 8 and min(list_tree_terms(x)) >= 32
    ]
    coarse = device(tree, 24, "float32", others=dict.fromkeys(joins, NodeRule(11, "nearest even")))
    (reading,) = passport_of(device(make_pairwise_tree(range(count)), 24, "float32"), "float32")
    found = judge(tmp_path, coarse, "float32", (reading,), noise=noise)
    assert (found.status, found.kind) == (Status.WRONG, KIND_ARITHMETIC) and found.columns["own_units"] > 100
    assert "some steps in 11 bits, and its passport says 24" in found.columns["error"]
    for bits, status in ((8, Status.WRONG), (11, Status.IMPRECISE if noise < 10 else Status.PASS)):
        elsewhere = replace(reading, rows=1, others=(0, bits))  # of another shape: steps in 11 bits are its own or not
        told = judge(tmp_path, coarse, "float32", (reading, elsewhere), noise=noise)
        assert told.status is status, bits


def test_of_a_device_that_is_not_there_its_passport_alone_tells(tmp_path: Path) -> None:
    """As where rows are judged again."""
    found = judge(tmp_path, NARROW, "bfloat16", passport_of(NARROW, "bfloat16"), noise=0.002, asks=False)
    assert (found.status, found.kind) == (Status.IMPRECISE, KIND_ACCUMULATOR) and found.columns["likely_units"] <= 1


def test_what_the_limit_calls_wrong_is_imprecise_where_the_passport_explains_it(tmp_path: Path) -> None:
    """Without a passport it is wrong: the floor says that these sums could be far better."""
    before = judge(tmp_path, NARROW, "bfloat16", (), noise=0.002)
    assert before.status is Status.WRONG
    after = judge(tmp_path, NARROW, "bfloat16", passport_of(NARROW, "bfloat16"), noise=0.002)
    assert (after.status, after.kind) == (Status.IMPRECISE, KIND_ACCUMULATOR)
    assert "results to the bit" in after.columns["cause"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_sum_that_drops_a_term_is_wrong_however_near_it_is(tmp_path: Path, dtype: str) -> None:
    sound, faulty = device(in_order(), 24, dtype), device(in_order(), 24, dtype, drops=TERMS - 1)
    readings = passport_of(sound, dtype)
    wide = 2000.0 if dtype == "float32" else 100.0  # a floor so wide that the limit says nothing of it
    near = judge(tmp_path, faulty, dtype, (), noise=wide * 1e3)
    assert near.status is not Status.WRONG
    fault = judge(tmp_path, faulty, dtype, readings, noise=wide * 1e3)
    assert (fault.status, fault.kind) == (Status.WRONG, KIND_ARITHMETIC)
    assert "32 ones add up to 31" in fault.columns["error"]
    assert judge(tmp_path, sound, dtype, readings, noise=wide * 1e3).status is Status.PASS


def test_factors_of_fewer_bits_than_the_passport_has_are_wrong_and_of_as_many_imprecise(tmp_path: Path) -> None:
    """TF32 that nobody declared: the very same bytes are a device's arithmetic, or a fault of one whose passport says
    float32. A term that is dropped is found in both."""
    coarse, full = device(in_order(), 24, "float32", taken=11), device(in_order(), 24, "float32")
    (reading,) = passport_of(coarse, "float32")
    assert (reading.taken, reading.taking, reading.predicted) == (11, "truncated", reading.unseen)
    assert judge(tmp_path, coarse, "float32", ()).status is Status.WRONG
    fault = judge(tmp_path, coarse, "float32", passport_of(full, "float32"))
    assert (fault.status, fault.kind) == (Status.WRONG, KIND_ARITHMETIC)
    assert "takes 11 bits of a factor, and its passport says all" in fault.columns["error"]
    twin = judge(tmp_path, coarse, "float32", (reading,))
    assert (twin.status, twin.kind) == (Status.IMPRECISE, KIND_ACCUMULATOR) and "factors of 11 bits" in twin.columns[
        "cause"
    ]
    dropped = judge(tmp_path, device(in_order(), 24, "float32", taken=11, drops=3), "float32", (reading,))
    assert (dropped.status, dropped.kind) == (Status.WRONG, KIND_ARITHMETIC)


def test_what_no_reading_reproduces_is_not_excused(tmp_path: Path) -> None:
    """A dropped term of a device that adds in 8 bits may lie within what it may leave: it is no more right than
    before."""
    faulty = device(in_order(), 8, "bfloat16", drops=3)
    before = judge(tmp_path, faulty, "bfloat16", (), noise=0.002)
    after = judge(tmp_path, faulty, "bfloat16", passport_of(NARROW, "bfloat16"), noise=0.002)
    assert before.status is after.status is Status.WRONG


@pytest.mark.parametrize(
    "run",
    [
        device(make_pairwise_tree(list(range(TERMS))), 24, "float32"),
        device(make_fused_tree(list(range(TERMS)), 8), 0, "float32", rule=NodeRule(24, "truncated", 25, "truncated")),
        device(in_order(), 16, "bfloat16"),
        device(in_order(), 24, "float32", "truncated"),
    ],
)  # fmt: skip
def test_a_device_never_leaves_its_own_bound(run: Run) -> None:
    """Neither by its tree nor, where another number of terms was read, in any order; nor what it leaves in all
    likelihood."""
    output = run(factors("bfloat16"))[0].dtype.name
    readings = passport_of(run, "bfloat16")
    g = np.random.default_rng(3)
    for _ in range(6):
        arrays = [
            (g.standard_normal(x.shape) * np.exp(2 * g.standard_normal(x.shape))).astype(x.dtype)
            for x in factors("bfloat16")
        ]
        a, b = (x.astype(np.float64) for x in arrays)
        terms = (a[:, None, :] * b.T[None]).reshape(-1, TERMS)
        exact = (a @ b).reshape(-1)
        for known in (readings, [replace(x, rows=1) for x in readings]):
            bounds = bound_device_sums(known, terms, exact, output, ROWS)
            far = np.abs(run(arrays)[0].astype(np.float64).reshape(-1) - exact)
            assert (far <= bounds.likely).all() and (bounds.likely <= bounds.certain).all()


# --- where terms lie ------------------------------------------------------------------------------------------------


def test_the_terms_of_an_output_are_told_from_its_numbers() -> None:
    g = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return g.standard_normal(shape).astype(np.float32)

    x, w, bias = draw(5, 40), draw(30, 40), draw(30)
    for arrays, output, terms, alone in (
        ([x, w, bias], x @ w.T + bias, 40, 2),
        ([bias, x, w.T.copy()], bias + x @ w.T, 40, 0),
        ([draw(3, 5, 7), draw(3, 7, 9)], None, 7, None),
    ):
        y = np.matmul(*arrays) if output is None else output
        found = locate_sum_terms(arrays, y)
        assert found is not None and (found.terms, found.alone) == (terms, alone)
        left, right = found.factors(arrays, np.arange(y.size))
        assert right is not None
        np.testing.assert_allclose((left * right).sum(1), y.reshape(-1), rtol=1e-3, atol=1e-4)
    mean = locate_sum_terms([x], x.mean(0))
    assert mean is not None and (mean.terms, mean.divided) == (5, True)
    assert locate_sum_terms([x], x.max(1)) is None and locate_sum_terms([x, w], x @ w.T + 40.0) is None
    gate = x @ w.T
    gated = locate_gated_product([x, w.T.copy(), -w.T], gate / (1 + np.exp(-gate)) * -gate)
    assert gated is not None and (gated.x, gated.w, gated.v) == (0, 1, 2)
    weights = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    softmax, norm = (
        locate_order_terms([x], weights, 3),
        locate_order_terms([x], (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True), 3),
    )
    assert softmax is not None and norm is not None and (softmax.of, norm.of) == ("exponentials", "deviations")
    assert locate_order_terms([x], np.tanh(x), 3) is None


def test_the_terms_of_a_convolution_are_told_from_its_numbers() -> None:
    torch = pytest.importorskip("torch")
    x, w, bias = torch.randn(2, 8, 10, 10), torch.randn(6, 4, 3, 3), torch.randn(6)
    y = torch.nn.functional.conv2d(x, w, bias, stride=2, padding=1, groups=2).numpy()
    arrays = [x.numpy(), w.numpy(), bias.numpy()]
    found = locate_sum_terms(arrays, y)
    assert found is not None and found.terms == 36
    left, right = found.factors(arrays, np.arange(y.size))
    assert right is not None
    np.testing.assert_allclose((left * right).sum(1), y.reshape(-1), rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="no numbers of an array"):
        found.at_element(0, 3)  # at the edge


def test_a_padded_convolution_is_read_beside_the_edge() -> None:
    """A place is read whose neighbours' windows lie beyond the edge; one of the edge itself is not."""
    torch = pytest.importorskip("torch")
    g = np.random.default_rng(0)
    arrays = [g.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 8, 8), (4, 4, 3, 3))]

    def run(given: Sequence[Any]) -> list[np.ndarray]:
        x, w = (torch.from_numpy(np.array(one)) for one in given)
        return [torch.nn.functional.conv2d(x, w, padding=1).numpy()]

    (output,) = run(arrays)
    where = locate_sum_terms(arrays, output)
    assert where is not None
    inner = [8 * row + column for row, column in itertools.product(range(1, 7), repeat=2)]
    beside = [where.list_elements_beside(place, output.size, len(arrays)) for place in inner]
    assert [some[0].output for some in beside] == inner
    for place in (9, 14, 27, 54):
        found = explain_sum_elements(run, arrays, output, where, place, np.array([place]))
        assert found.reading.bits == 24 and found.count == len(found.at), found.reading.words
    adder = SumAdder(NodeRule(12, "nearest even"), {}, tuple(range(36)))
    narrow = SumModel(in_order(36), adder, "float32", "", 36)

    def run_narrow(given: Sequence[Any]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            made = narrow.compute(*where.factors(given, np.arange(output.size)))
        return [np.asarray(made, np.float32).reshape(output.shape)]

    some = np.arange(0, output.size, 32)
    coarse = [x.astype(get_numpy_dtype("bfloat16")) for x in arrays]
    told = explain_sum_elements(run_narrow, coarse, run_narrow(coarse)[0], where, 9, some)
    assert told.reading.bits == 12 and told.count == len(told.at)  # a narrower accumulator is told, and not excused
    edge = explain_sum_elements(run, arrays, output, where, 0, np.array([0]))
    assert edge.reading.code == "beyond the edge"


def test_the_terms_of_running_sums_are_told_from_its_numbers() -> None:
    x = np.random.default_rng(0).standard_normal((3, 40, 2)).astype(np.float32)
    for axis in (0, 1, 2):
        found = locate_sum_terms([x], np.cumsum(x, axis))
        assert found is not None and found.terms == x.shape[axis]
        left, right = found.factors([x], np.arange(x.size))
        assert right is None
        np.testing.assert_allclose(left.sum(1), np.cumsum(x, axis).reshape(-1), rtol=1e-3, atol=1e-4)
    assert locate_sum_terms([x], np.tanh(x)) is None


# --- what is held ---------------------------------------------------------------------------------------------------


def compute_held(arrays: Sequence[np.ndarray], bits: int, drops: int = -1) -> np.ndarray:
    """What the located sum of these arrays is on a device that adds one term after another in so many bits. drops: a
    term that it forgets."""
    exact = HELD_CALLS[len(arrays)]([x.astype(np.float64) for x in arrays])
    where = locate_sum_terms(arrays, exact)
    assert where is not None
    left, right = where.factors(arrays, np.arange(exact.size))
    left = left.copy()
    left[:, drops] *= drops < 0
    count = left.shape[1]
    fused = () if right is None else tuple(range(count))
    model = SumModel(in_order(count), SumAdder(NodeRule(bits, "nearest even"), {}, fused), "float32", "", len(fused))
    return np.asarray(model.compute(left, right), np.float32).reshape(exact.shape)


def convolve(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """x (N, C, H, W) with w (M, C, 3, 3), no padding, in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(arrays[0], (3, 3), (2, 3))
    return np.einsum("nchwij,mcij->nmhw", windows, arrays[1])


#: Running sums of one array, convolutions of two.
HELD_CALLS: dict[int, Callable[[Sequence[np.ndarray]], np.ndarray]] = {1: lambda x: np.cumsum(x[0], 1), 2: convolve}


@pytest.mark.parametrize("shapes", [[(4, 33)], [(2, 4, 6, 6), (5, 4, 3, 3)]], ids=["cumsum", "conv"])
def test_a_narrow_adder_and_a_dropped_term_are_beyond_the_bound_and_the_sound_twin_within(shapes: Any) -> None:
    g = np.random.default_rng(2)
    arrays = [g.standard_normal(shape).astype(np.float32) for shape in shapes]
    exact = HELD_CALLS[len(arrays)]([x.astype(np.float64) for x in arrays])
    count = 33 if len(arrays) == 1 else 36
    reading = SumReading(
        terms=count, rows=shapes[0][0], made_of="terms" if len(arrays) == 1 else "products", predicted=100, unseen=100,
        tree=tuple(encode_tree(in_order(count))), bits=24, rounding="nearest even",
    )  # fmt: skip
    own = OwnArithmetic((reading,))
    sound, narrow, dropped = compute_held(arrays, 24), compute_held(arrays, 8), compute_held(arrays, 24, drops=5)
    held = [hold_to_bounds(own, arrays, output, exact) for output in (sound, narrow, dropped)]
    certain = [x.certain for x in held if x is not None]
    assert certain[0] <= 1 < min(certain[1:]) and len(certain) == 3


def test_an_operator_of_onnx_is_held_against_the_readings_of_its_kind_of_sum() -> None:
    (reading,) = passport_of(WIDE, "bfloat16")
    sums = [
        KnownSum("linear", "bfloat16", reading),
        KnownSum("sum", "bfloat16", replace(reading, made_of="terms", predicted=3)),
    ]
    passport = Passport("run", "1", "", "", "cpu", tuple(sums))
    assert passport.find("onnx:MatMul", "bfloat16") == (reading,)  # of sums one is not known: none of them counts
    assert passport.find("torch:mm", "bfloat16") == ()


# --- two orders -----------------------------------------------------------------------------------------------------


def test_two_orders_are_named_only_where_they_give_both_results() -> None:
    alone = device(in_order(), 24, "float32")
    split = device(make_pairwise_tree([make_sequential_tree(x) for x in list_term_blocks(TERMS, 8)]), 24, "float32")
    many = factors("float32", 17)
    one = [many[0][:1], many[1]]

    def explain(run: Run, output: np.ndarray) -> dict[str, str]:
        return explain_two_orders([(alone, one, alone(one), 0, "alone"), (run, many, [output], 0, "row 0 of 17")])

    found = explain(split, split(many)[0])
    assert found["cause_code"] == CAUSE_ORDER
    assert "alone: sequential, in float32" in found["cause"] and "row 0 of 17: 4 blocks of 8" in found["cause"]
    wide = [np.tile(x, (1, 40)) if k else x for k, x in enumerate(many)]  # of more elements than are looked at
    sides = [(alone, [wide[0][:1], wide[1]], 0, "alone"), (split, wide, 0, "row 0 of 17")]
    assert (
        explain_two_orders([(run, arrays, run(arrays), row, name) for run, arrays, row, name in sides])["cause_code"]
        == CAUSE_ORDER
    )
    assert explain(alone, alone(many)[0]) == {}  # the same bytes
    spoilt = split(many)[0].copy()
    spoilt[0] *= np.float32(1 + 2.0**-18)
    assert explain(split, spoilt) == {}  # two orders, and not those of these results


@pytest.mark.parametrize("fused", [range(1, TERMS, 2), range(TERMS), ()], ids=["every other", "all", "none"])
def test_a_gated_product_is_explained_whichever_of_its_products_are_fused(fused: Sequence[int]) -> None:
    model = SumModel(in_order(), SumAdder(NodeRule(24, "nearest even"), {}, tuple(fused)), "float32", "", TERMS)

    def run(arrays: list[Any]) -> list[np.ndarray]:
        x, w, v = (np.asarray(one, np.float64) for one in arrays)
        gate, value = (
            np.asarray(model.compute(*map(np.ascontiguousarray, np.broadcast_arrays(x[:, None, :], one.T[None]))))
            for one in (w, v)
        )
        gate, value = gate.astype(np.float32), value.astype(np.float32)
        with np.errstate(all="ignore"):
            return [gate / (1 + np.exp(-gate)) * value]

    x, w = factors("float32", 1)
    arrays = [x, w, np.ascontiguousarray(w[::-1, ::-1])]
    output = run(arrays)[0]
    where = locate_gated_product(arrays, output)
    assert where is not None
    found = explain_gated_sum(run, arrays, output, where, 2, np.arange(COLUMNS))
    assert found.count == COLUMNS and found.reading.kind == "sequential"


def test_two_runs_that_differ_are_named_by_the_two_orders_between_which_the_device_changes() -> None:
    pair = [
        device(in_order(), 24, "float32"),
        device(make_pairwise_tree([make_sequential_tree(x) for x in list_term_blocks(TERMS, 8)]), 24, "float32"),
    ]
    arrays, draw = factors("float32"), random.Random(5)

    def explain(run: Run) -> dict[str, str]:
        return explain_two_runs(run, arrays, [(pair[0](arrays), "run 1"), (pair[1](arrays), "run 2")])

    found = explain(lambda x: draw.choice(pair)(x))
    assert found["cause_code"] == CAUSE_ORDER
    assert "run 1: sequential, in float32" in found["cause"] and "run 2: 4 blocks of 8" in found["cause"]
    assert "to the bit" in found["cause"]
    for run in (pair[0], race_of(pair, draw)):  # no call adds as the second run did; no call is of one order
        assert explain(run) == {}


def race_of(pair: Sequence[Run], draw: random.Random) -> Run:
    """A device that adds each element by itself in one of two orders."""

    def run(arrays: list[Any]) -> list[np.ndarray]:
        first, second = (one(arrays)[0] for one in pair)
        return [np.where(np.random.default_rng(draw.randrange(10**6)).random(first.shape) < 0.5, first, second)]

    return run


def test_a_passport_travels_to_where_results_are_judged() -> None:
    readings = tuple(KnownSum("matmul", "bfloat16", x) for x in passport_of(WIDE, "bfloat16"))
    passport = Passport("run", "1", "", "", "cpu", readings)
    (there,) = wire.decode_wire_message(wire.encode_wire_message(wire.Hello(passports=(passport,)))).passports
    assert there == passport and choose_passport([there], INFO) is there
    assert choose_passport([there], replace(INFO, device="another")) is None
    assert there.find("torch:nn.functional.matmul", "bfloat16") and not there.find("torch:bmm", "bfloat16")
    unknown = replace(readings[0].reading, predicted=3)
    assert not replace(there, sums=(*readings, KnownSum("matmul", "bfloat16", unknown))).find("matmul", "bfloat16")
