"""Planted arithmetics: stand-in devices that add in an order, a width and a rounding of their own, which have to be read off exactly."""

from __future__ import annotations

import functools
import itertools
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.catalogs.critical.sums import SCALE
from tasks.checks.arithmetic import Arithmetic
from tasks.matrix_units import UNITS, multiply
from tasks.matrix_units.adders import TruncatingAdder
from tasks.matrix_units.table import MatrixUnit
from tasks.model.dtypes import get_numpy_dtype
from tasks.passport import DeviceSum, NotReadable, SumTerms
from tasks.passport.adder import SumAdder
from tasks.passport.predict_sum import SumModel
from tasks.passport.read_sum import make_sum_model, read_device_sum, read_sums_alike
from tasks.passport.reveal_tree import reveal_sum_tree
from tasks.passport.sum_reading import NodeRule, SumReading
from tasks.passport.sum_trees import (
    Tree,
    decode_tree,
    draw_tree_as_svg,
    draw_tree_text,
    encode_tree,
    list_term_blocks,
    list_term_lanes,
    list_tree_terms,
    make_folded_tree,
    make_fused_tree,
    make_halved_tree,
    make_pairwise_tree,
    make_sequential_tree,
    name_tree_kind,
    order_tree,
)

NEAREST = NodeRule(24, "nearest even")


@dataclass(frozen=True)
class Planted:
    """An arithmetic: its tree, what its steps keep, and whether its products are rounded first."""

    name: str
    tree: Tree
    kind: str
    rule: NodeRule = NEAREST
    fused: bool = False
    dtype: str = "float32"
    output: str = ""
    products: bool = True


def blocks(count: int, size: int, inner: Any, outer: Any) -> Tree:
    return outer([inner(x) for x in list_term_blocks(count, size)])


def lanes(count: int, many: int, outer: Any, inner: Any = make_sequential_tree) -> Tree:
    return outer([inner(x) for x in list_term_lanes(count, many)])


N = 32
terms = list(range(N))
SEQUENTIAL = make_sequential_tree(terms)
TRUNCATED = NodeRule(24, "truncated")
PLANTED = (
    Planted("sequential", SEQUENTIAL, "sequential"),
    Planted("sequential, FMA", SEQUENTIAL, "sequential", fused=True),
    Planted("reversed", make_sequential_tree(terms[::-1]), "reversed"),
    Planted("pairwise", make_pairwise_tree(terms), "pairwise"),
    Planted("pairwise, FMA", make_pairwise_tree(terms), "pairwise", fused=True),
    Planted("halves of 27", make_halved_tree(list(range(27))), "halves"),
    Planted("folded", make_folded_tree(terms), "folded"),
    Planted("4 lanes", lanes(N, 4, make_sequential_tree), "lanes"),
    Planted("8 lanes folded", lanes(N, 8, make_folded_tree), "lanes"),
    Planted("8 lanes pairwise", lanes(N, 8, make_pairwise_tree), "lanes", fused=True),
    Planted("blocked by 8", blocks(N, 8, make_sequential_tree, make_sequential_tree), "blocks"),
    Planted("blocked by 4, pairwise within", blocks(N, 4, make_pairwise_tree, make_sequential_tree), "blocks"),
    Planted("split-K 2", blocks(N, 16, make_sequential_tree, make_pairwise_tree), "blocks", fused=True),
    Planted("split-K 4 at 17 rows", blocks(64, 16, make_sequential_tree, make_pairwise_tree), "blocks"),
    Planted("5 blocks of 7 with a smaller last", blocks(33, 7, make_sequential_tree, make_sequential_tree), "blocks"),
    Planted("pairs swapped", make_sequential_tree([t ^ 1 for t in terms]), "swapped"),
    Planted("a tail", make_sequential_tree([lanes(28, 4, make_folded_tree), 28, 29, 30, 31]), "tail"),
    Planted("bfloat16 accumulator", SEQUENTIAL, "sequential", NodeRule(8, "nearest even"), dtype="bfloat16", fused=True),
    Planted("bfloat16 in, float32 kept", SEQUENTIAL, "sequential", dtype="bfloat16", fused=True, output="float32"),
    Planted("float16 accumulator", SEQUENTIAL, "sequential", NodeRule(11, "nearest even"), dtype="float16", fused=True),
    Planted("float16 in float32", lanes(N, 2, make_sequential_tree), "lanes", dtype="float16", fused=True),
    Planted("13 bits", SEQUENTIAL, "sequential", NodeRule(13, "truncated"), dtype="bfloat16", fused=True, output="float32"),
    Planted("truncated", make_pairwise_tree(terms), "pairwise", TRUNCATED),
    Planted("rounded down", SEQUENTIAL, "sequential", NodeRule(24, "down")),
    Planted("rounded up", SEQUENTIAL, "sequential", NodeRule(24, "up")),
    Planted("ties away", SEQUENTIAL, "sequential", NodeRule(24, "nearest away")),
    Planted("float64 accumulator", SEQUENTIAL, "sequential", NodeRule(53, "nearest even"), fused=True),
    Planted("float64", lanes(N, 4, make_folded_tree), "lanes", NodeRule(53, "nearest even"), dtype="float64", fused=True),
    Planted("groups of 4", make_fused_tree(terms, 4), "fused", NodeRule(24, "truncated", 24, "truncated"), dtype="bfloat16", fused=True, output="float32"),
    Planted("groups of 8, 25 bits", make_fused_tree(terms, 8), "fused", NodeRule(24, "truncated", 25, "truncated"), dtype="bfloat16", fused=True, output="float32"),
    Planted("groups of 16, 13 bits", make_fused_tree(terms, 16), "fused", NodeRule(13, "truncated", 14, "truncated"), dtype="bfloat16", fused=True, output="float32"),
    Planted("a plain sum in lanes", lanes(N, 8, make_folded_tree), "lanes", products=False),
    Planted("a plain sum in bfloat16 in 16 bits", make_pairwise_tree(terms), "pairwise", NodeRule(16, "nearest even"), dtype="bfloat16", products=False),
)  # fmt: skip


def device_of(planted: Planted) -> DeviceSum:
    """A device that computes as planted."""
    count = len(encode_tree(planted.tree)) - sum(1 for _ in _steps(planted.tree))
    places = tuple(range(count))
    fused = places if planted.fused and planted.products else ()
    output = planted.output or planted.dtype
    model = SumModel(planted.tree, SumAdder(planted.rule, {}, fused), output, "", count if planted.products else 0)

    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        wide = [np.asarray(x, np.float64) for x in arrays]
        with np.errstate(all="ignore"):
            found = model.compute(wide[0], wide[1] if planted.products else None)
        return [np.asarray(found).astype(get_numpy_dtype(output)).reshape(1)]

    kind = get_numpy_dtype(planted.dtype)
    arrays = [np.ones(count, kind)] * (1 + planted.products)
    right = (1, places) if planted.products else ()
    return DeviceSum(run, arrays, SumTerms(0, (0, places), right, fill=(1.0, 1.0), where="first"), planted.dtype)


def _steps(tree: Tree) -> Any:
    if isinstance(tree, tuple):
        for child in tree:
            yield from _steps(child)
        yield tree


@pytest.mark.parametrize("planted", PLANTED, ids=lambda p: p.name)
def test_a_planted_arithmetic_is_recovered_exactly(planted: Planted) -> None:
    found = read_device_sum(device_of(planted))
    assert (found.code, found.words) == ("", None)
    assert decode_tree(found.tree or ()) == order_tree(planted.tree)
    assert (found.kind_code, found.bits, found.rounding) == (planted.kind, planted.rule.bits, planted.rule.rounding)
    assert (found.aligned, found.alignment) == (planted.rule.aligned, planted.rule.alignment)
    assert found.predicted == found.unseen == 100


def make_sum(run: Any, count: int = 32, dtype: str = "float32", divided: bool = False) -> DeviceSum:
    """A device that sums one array in a way of its own. run: of the terms in float64, the result."""

    def compute(arrays: Sequence[Any]) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(run(np.asarray(arrays[0], np.float64))).astype(get_numpy_dtype(dtype)).reshape(1)]

    arrays = [np.ones(count, get_numpy_dtype(dtype))]
    return DeviceSum(compute, arrays, SumTerms(0, (0, tuple(range(count))), fill=(1.0,), divided=divided), dtype)


def compute_in(tree: Tree, rule: NodeRule = NEAREST) -> Any:
    return SumModel(tree, SumAdder(rule), "float32").compute


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "other", [make_pairwise_tree(terms), lanes(N, 2, make_sequential_tree)], ids=["pairwise", "lanes"]
)
def test_an_order_that_changes_from_run_to_run_is_said(other: Tree, seed: int) -> None:
    turns = [compute_in(other), compute_in(SEQUENTIAL)]
    draw = random.Random(seed)
    found = read_device_sum(make_sum(lambda x: draw.choice(turns)(x)))
    assert (found.code, found.bits, found.tree) == ("changes", None, None)


def test_an_order_that_changes_once_it_is_known_is_said() -> None:
    device = make_sum(lambda x: compute_in(SEQUENTIAL if device.calls < 60 else make_pairwise_tree(terms))(x))
    found = read_device_sum(device)
    assert found.code == "changes" and found.tree is None


def test_a_question_that_is_refused_when_asked_again_leaves_the_first_refusal() -> None:
    """A device that overflows from some call on: what its first mask has shown before is said."""

    def run(x: np.ndarray) -> float:
        return math.fsum(x) if device.calls <= 32 else math.inf

    device = make_sum(run)
    assert read_device_sum(device).code == "wider than the masks"


@pytest.mark.parametrize(
    ("run", "code"),
    [(lambda x: x.max(), "not a sum"), (lambda x: 0.0, "not a sum"), (lambda x: math.fsum(x), "wider than the masks")],
    ids=["largest", "nothing", "exact"],
)
def test_what_is_no_sum_or_loses_nothing_is_said_and_no_order_invented(run: Any, code: str) -> None:
    found = read_device_sum(make_sum(run))
    assert found.code == code and found.tree is None and found.words


def test_a_dtype_with_too_few_values_asks_a_shorter_sum() -> None:
    found = read_device_sum(make_sum(lambda x: x.sum(), 64, "float8_e4m3fn"))
    assert found.code == "too few values" and "16" in str(found.words) and "shorter" in str(found.words)


def test_whole_numbers_have_no_order() -> None:
    with pytest.raises(NotReadable, match="exactly in any order"):
        reveal_sum_tree(make_sum(lambda x: x.sum(), 8, "int32"), random.Random(0))


def test_a_device_that_flushes_is_told_from_its_twin() -> None:
    def flush(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < 2.0**-126, 0.0, x)

    add = compute_in(SEQUENTIAL)
    flushing, sound = read_device_sum(make_sum(lambda x: flush(add(flush(x))))), read_device_sum(make_sum(add))
    assert (flushing.flushes_inputs, flushing.flushes_results) == (True, True)
    assert (sound.flushes_inputs, sound.flushes_results) == (False, False)
    assert flushing.tree == sound.tree and flushing.known and sound.known


def flush(x: Any) -> np.ndarray:
    return np.where(np.abs(x) < 2.0**-126, 0.0, x)


def add_one_by_one(step: Any) -> Any:
    """A sum that begins with nothing and takes one term after the other. step: the next sum."""
    return lambda x: functools.reduce(step, x, 0.0)


@pytest.mark.parametrize(
    ("run", "flushes"),
    [
        (lambda x: compute_in(SEQUENTIAL)(flush(x)), (True, False)),
        (add_one_by_one(lambda a, b: float(flush(np.float32(a + b)))), (False, True)),
        (add_one_by_one(lambda a, b: float(np.float32(a + b))), (False, False)),
    ],
    ids=["inputs", "results", "nothing"],
)
def test_of_a_plain_sum_it_is_told_whether_inputs_or_results_are_flushed(run: Any, flushes: tuple[bool, bool]) -> None:
    found = read_device_sum(make_sum(run))
    assert (found.flushes_inputs, found.flushes_results) == flushes and found.known


@pytest.mark.parametrize(
    ("inputs", "flushes"),
    [((0,), (True, False)), ((1,), (True, False)), ((0, 1), (True, False)), ((), (False, False))],
    ids=["left", "right", "both", "none"],
)
def test_a_device_that_flushes_one_of_two_factors_is_told(inputs: tuple[int, ...], flushes: tuple[bool, bool]) -> None:
    device = device_of(PLANTED[1])
    sound = device._run
    device._run = lambda given: sound([flush(x) if k in inputs else x for k, x in enumerate(given)])
    found = read_device_sum(device)
    assert (found.flushes_inputs, found.flushes_results) == flushes and found.known


def saturate(x: Any) -> Any:
    """Huawei's and others' numbers beyond the largest: that itself; Inf stays Inf."""
    return np.clip(x, -65504.0, 65504.0) if np.isfinite(x) else x


@pytest.mark.parametrize(
    ("run", "bits", "overflow"),
    [
        (add_one_by_one(lambda a, b: float(np.float16(a + b))), 11, "inf inf"),
        (add_one_by_one(lambda a, b: float(np.float16(saturate(a + b)))), 11, "less less"),
        (add_one_by_one(lambda a, b: float(np.float32(a + b))), 24, "inf held"),
        (lambda x: saturate(add_one_by_one(lambda a, b: float(np.float32(a + b)))(x)), 24, "less held"),
    ],
    ids=["float16", "float16, saturating", "float32", "float32, the result saturating"],
)
def test_what_a_sum_beyond_the_largest_number_becomes_is_told(run: Any, bits: int, overflow: str) -> None:
    """All of them give each of 100 unseen results."""
    found = read_device_sum(make_sum(run, dtype="float16"))
    assert (found.known, found.bits, found.overflow, found.specials) == (True, bits, overflow, "inf nan nan")


def read_program_sums(add: Any, count: int = 64) -> tuple[SumReading, ...]:
    """What the check arithmetic reads of a program that sums the rows of a matrix. add: of a row in float32, where it
    begins in memory (bytes past a cache line), and the number of the call."""
    calls = itertools.count()

    def again(arrays: list[Any]) -> list[np.ndarray]:
        number = next(calls)
        with np.errstate(all="ignore"):
            return [np.array([np.ravel(add(row, row.ctypes.data % 64, number))[0] for row in arrays[0]], np.float32)]

    x = np.random.default_rng(3).standard_normal((8, count)).astype(np.float32)
    terms = [
        SumTerms(
            k, (0, tuple(range(k * count, k * count + count))), fill=(1.0,), where={0: "first", 7: "last"}.get(k, "")
        )
        for k in range(8)
    ]
    form: Any = SimpleNamespace(arrays=[x], terms=terms, dtype="float32", op="critical:sum", summed_shape=(8,))
    program: Any = SimpleNamespace(again=again, fallback=None, placement="", flags="", readings=())
    session: Any = SimpleNamespace(step=lambda: again([x]))
    assert len(list(Arithmetic().observe(session, program, form))) == 1
    return tuple(program.readings)


IN_A_ROW, IN_LANES = compute_in(make_sequential_tree(range(64))), compute_in(lanes(64, 4, make_folded_tree))


@pytest.mark.parametrize(
    ("add", "code"),
    [
        (lambda row, past, call: (IN_LANES if past % 16 else IN_A_ROW)(row.astype(np.float64)), "another address"),
        (lambda row, past, call: (IN_LANES if call < 2 else IN_A_ROW)(row.astype(np.float64)), "another first call"),
        (lambda row, past, call: IN_A_ROW(row.astype(np.float64)), ""),
    ],
    ids=["address", "first calls", "sound"],
)
def test_an_order_that_holds_for_some_calls_only_is_said(add: Any, code: str) -> None:
    """As that of vectors which have to begin at whole lines, and of a kernel that a runtime compiles once it is hot."""
    found = read_program_sums(add)
    assert [x.code for x in found] == [code, code]
    assert all(decode_tree(x.tree or ()) == make_sequential_tree(range(64)) and x.known == (not code) for x in found)


@pytest.mark.parametrize("turn", ["by call", "by chance"])
def test_elements_that_change_by_themselves_say_nothing_of_those_that_do_not(turn: str) -> None:
    """A race in rows between the first and the last, which are read and sound, is no address."""
    rows, draw = itertools.count(), random.Random(1)

    def add(row: np.ndarray, past: int, call: int) -> Any:
        other = next(rows) % 8 not in (0, 7) and (call % 2 if turn == "by call" else draw.random() < 0.5)
        return (IN_LANES if other else IN_A_ROW)(row.astype(np.float64))

    found = read_program_sums(add)
    assert [(x.code, x.known) for x in found] == [("", True)] * 2


def test_a_sum_that_changes_where_its_arrays_begin_past_a_line_changes() -> None:
    """It is read at whole lines alone; that it is another one past them in some calls is no address."""
    draw = random.Random(1)

    def add(row: np.ndarray, past: int, call: int) -> Any:
        return (IN_LANES if past % 16 and draw.random() < 0.5 else IN_A_ROW)(row.astype(np.float64))

    assert {x.code for x in read_program_sums(add)} == {"changes"}


def test_a_mean_is_told_by_its_division() -> None:
    add = compute_in(make_pairwise_tree(terms))
    found = read_device_sum(make_sum(lambda x: np.float32(add(x)) / np.float32(32), divided=True))
    assert found.known and found.kind == "pairwise" and found.finish in ("divide", "reciprocal")


def test_a_second_width_in_the_last_steps_is_found() -> None:
    """split-K whose blocks are kept in float32 and joined in bfloat16."""
    tree = order_tree(blocks(32, 8, make_sequential_tree, make_sequential_tree))
    nodes = list(_steps(tree))
    narrow = {k: NodeRule(8, "nearest even") for k, node in enumerate(nodes) if all(isinstance(x, tuple) for x in node)}
    model = SumModel(tree, SumAdder(NEAREST, narrow), "float32")
    found = read_device_sum(make_sum(model.compute))
    assert found.known and found.bits == 24
    seen = dict(zip(found.others[::2], found.others[1::2]))  # type: ignore[index]
    assert seen == dict.fromkeys(narrow, 8)


def test_the_model_of_a_reading_computes_what_was_read() -> None:
    planted = PLANTED[1]
    device = device_of(planted)
    found = read_device_sum(device)
    rng = np.random.default_rng(7)
    left, right = (rng.standard_normal((1000, N)).astype(np.float32).astype(np.float64) for _ in range(2))
    model = make_sum_model(found, "float32", N)
    assert np.array_equal(model.compute(left, right), [device.add(a, b) for a, b in zip(left, right)])


def test_what_adds_as_one_that_is_known_is_asked_less_and_what_does_not_is_read_anew() -> None:
    like = read_device_sum(make_sum(compute_in(SEQUENTIAL)))
    longer = read_device_sum(make_sum(compute_in(make_sequential_tree(range(64))), 64), likes=[like])
    assert longer.known and longer.kind_code == "sequential" and (longer.calls or 0) < (like.calls or 0) / 2
    # The last two of 32 terms are added to each other first: pairs drawn at random may miss it, results do not.
    late = order_tree((make_sequential_tree(range(30)), (30, 31)))
    for tree in (late, make_pairwise_tree(terms)):
        found = read_device_sum(make_sum(compute_in(tree)), likes=[like])
        assert found.known and decode_tree(found.tree or ()) == order_tree(tree)
    narrow = SumModel(
        SEQUENTIAL, SumAdder(NEAREST, {k: NodeRule(20, "nearest even") for k in range(10, 20)}), "float32"
    )
    other = read_device_sum(make_sum(narrow.compute), likes=[like])
    assert decode_tree(other.tree or ()) == order_tree(SEQUENTIAL) and (other.code == "not predicted" or other.others)
    cut = read_device_sum(make_sum(compute_in(SEQUENTIAL, NodeRule(24, "truncated"))), likes=[like])
    assert cut.known and cut.rounding == "truncated"


def make_rows(trees: Sequence[Tree], dtype: str, made: str = "", add: Any = None) -> Any:
    """Sums of the rows of a matrix, each in an order of its own, or as ``add`` does: makes the first of them beside
    some others."""
    count = len(list_tree_terms(trees[0]))
    shape = (len(trees), count)

    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        x = np.asarray(arrays[0], np.float64)
        with np.errstate(all="ignore"):
            x = np.exp(x).astype(np.float32).astype(np.float64) if made else x
            found = np.array([(add or compute_in(tree))(row) for tree, row in zip(trees, x)])
            return [(np.float32(1) / np.float32(found) if made else found).astype(get_numpy_dtype(dtype))]

    def make(beside: Sequence[int], together: bool = False) -> DeviceSum:
        rows = [
            SumTerms(
                k,
                (0, tuple(range(k * count, k * count + count))),
                fill=(0.0 if made else 1.0,),
                of=made,
                outputs=(k,) * bool(made),
            )
            for k in (0, *beside)
        ]
        return DeviceSum(
            run, [np.ones(shape, get_numpy_dtype(dtype))], rows[0], dtype, beside=rows[1:], together=together
        )

    return make


@pytest.mark.parametrize(("dtype", "made"), [("float32", ""), ("bfloat16", ""), ("float32", "exponentials")])
def test_sums_that_add_alike_are_asked_in_the_same_calls_and_one_that_does_not_is_told(dtype: str, made: str) -> None:
    order, other = lanes(16, 4, make_folded_tree), make_pairwise_tree(range(16))
    besides = [(1, 2, 3, 4, 5, 6, 7), (7,), ()]
    alone, _ = read_sums_alike(make_rows([order] * 8, dtype, made), [()], 8, [])
    found, beside = read_sums_alike(make_rows([order] * 8, dtype, made), besides, 8, [])
    assert beside == besides[0] and (found.calls or 0) < (alone.calls or 0) / (1 if made else 3)
    assert found.tree == alone.tree and (found.code, found.bits, found.rounding) == (
        alone.code,
        alone.bits,
        alone.rounding,
    )
    for at, right, likes in ((0, other, []), (3, order, []), (7, order, [alone])):
        trees = [other if k == at else order for k in range(8)]
        apart, beside = read_sums_alike(make_rows(trees, dtype, made), besides, 8, likes)
        assert decode_tree(apart.tree or ()) == order_tree(right) and apart.code == alone.code
        assert beside == (besides[1] if at == 3 else ())


def test_sums_that_none_can_read_are_read_once() -> None:
    """As each is asked in every call: read anew, they would cost a slow device its deadline."""
    besides, orders = [(1, 2, 3, 4, 5, 6, 7), (7,), ()], [SEQUENTIAL] * 8
    alone, _ = read_sums_alike(make_rows(orders, "float32", add=math.fsum), [()], 8, [])
    found, beside = read_sums_alike(make_rows(orders, "float32", add=math.fsum), besides, 8, [])
    assert found.code == alone.code == "wider than the masks" and beside == besides[0]
    assert (found.calls or 0) < 2 * (alone.calls or 0)


def test_rows_that_add_in_two_orders_by_turns_are_each_read() -> None:
    """As those that begin at odd addresses do: the term that fills no lane is the last in one row, and the first in the
    next."""
    one = make_sequential_tree([lanes(32, 4, make_folded_tree), 32])
    other = (0, make_folded_tree([make_sequential_tree(range(k, 33, 4)) for k in range(1, 5)]))
    for orders in ([one, other], [other, one]):
        found, beside = read_sums_alike(make_rows(orders * 4, "float32"), [(1, 2, 3, 4, 5, 6, 7), (7,), ()], 8, [])
        assert (found.code, beside) == ("", ()) and decode_tree(found.tree or ()) == order_tree(orders[0])


def test_a_model_that_misses_some_results_is_tried_on_more() -> None:
    """Of 100 results one may be missed by chance; of 300 not three."""
    add, rare = compute_in(SEQUENTIAL), random.Random(5)
    found = read_device_sum(make_sum(lambda x: add(x) * (1 + 2.0**-20 * (rare.random() < 0.03 and x.max() < 100))))
    assert found.code in ("not predicted", "changes", "not a sum")
    assert found.code != "not predicted" or found.unseen == 300


def test_a_tree_survives_its_numbers_and_is_drawn() -> None:
    tree = order_tree(lanes(64, 8, make_folded_tree))
    assert decode_tree(encode_tree(tree)) == tree
    assert str(name_tree_kind(tree)) == "8 lanes, joined folded"
    assert max(map(len, draw_tree_text(tree).splitlines())) <= 100 and "(0→56 by 8)" in draw_tree_text(tree)
    assert draw_tree_as_svg(tree).count("M") == len(encode_tree(tree)) - 1  # a line for each but the last
    with pytest.raises(ValueError, match="no tree"):
        decode_tree([1, 0])


def make_positive(
    tree: Tree,
    made: str = "exponentials",
    rule: NodeRule = NEAREST,
    show: Any = lambda sum_: np.float32(1.0) / np.float32(sum_),
    dtype: str = "float32",
) -> DeviceSum:
    """A device that adds exponentials or squares of its inputs as planted; show: of the sum, what is seen of it."""
    model = SumModel(tree, SumAdder(rule), "float64" if rule.bits > 24 else "float32")
    count = len(list_tree_terms(tree))

    def compute(arrays: Sequence[Any]) -> list[np.ndarray]:
        x = np.asarray(arrays[0], np.float64)
        with np.errstate(all="ignore"):
            terms = np.exp(x).astype(np.float32) if made == "exponentials" else np.square(x)
            return [np.asarray(show(model.compute(terms.astype(np.float64)))).astype(get_numpy_dtype(dtype)).reshape(1)]

    places = tuple(range(count))
    found = SumTerms(0, (0, places), fill=(0.0,), of=made, outputs=(0,), scale=64.0 if made == "squares" else 1.0)
    return DeviceSum(compute, [np.zeros(count, get_numpy_dtype(dtype))], found, dtype)


POSITIVE = [p for p in PLANTED if p.rule == NEAREST and not p.fused and p.dtype == "float32"]


@pytest.mark.parametrize("made", ["exponentials", "squares"])
@pytest.mark.parametrize("planted", POSITIVE, ids=lambda p: p.name)
def test_the_order_of_a_sum_without_negative_terms_is_recovered(planted: Planted, made: str) -> None:
    root = (lambda s: s - 64.0) if made == "squares" else (lambda s: np.float32(1.0) / np.float32(s))
    found = read_device_sum(make_positive(planted.tree, made, show=root))
    assert found.code == "order alone" and found.unseen is None
    assert decode_tree(found.tree or ()) == order_tree(planted.tree)
    assert (found.kind_code, found.bits, found.rounding) == (planted.kind, 24, "nearest even")


@pytest.mark.parametrize("rule", [NodeRule(24, "truncated"), NodeRule(11, "nearest even"), NodeRule(13, "truncated")])
def test_the_bits_of_a_sum_without_negative_terms_are_read(rule: NodeRule) -> None:
    found = read_device_sum(make_positive(lanes(N, 4, make_folded_tree), rule=rule))
    assert (found.bits, found.rounding) == (rule.bits, rule.rounding)
    assert decode_tree(found.tree or ()) == order_tree(lanes(N, 4, make_folded_tree))


def test_groups_that_one_step_takes_are_groups_without_negative_terms_too() -> None:
    tree = make_fused_tree(terms, 4)
    found = read_device_sum(make_positive(tree, rule=NodeRule(24, "truncated", 24, "truncated")))
    assert decode_tree(found.tree or ()) == order_tree(tree)


def test_an_order_of_more_steps_than_python_has_levels_is_read() -> None:
    """As XLA adds a softmax of 2,048."""
    device = make_positive(make_pairwise_tree(range(1500)))
    device._run = lambda given: [np.float32(1) / np.cumsum(np.exp(given[0]).astype(np.float32), dtype=np.float32)[-1:]]
    limit = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(1000)
        assert read_device_sum(device).kind_code == "sequential"
    finally:
        sys.setrecursionlimit(limit)


def test_a_guess_is_confirmed_and_a_wrong_one_is_not_taken() -> None:
    right = read_device_sum(make_positive(lanes(N, 4, make_folded_tree)))
    again = read_device_sum(make_positive(lanes(N, 4, make_folded_tree)), likes=[right])
    assert again.tree == right.tree and (again.calls or 0) < (right.calls or 0)
    swapped = make_sequential_tree([lanes(N, 4, make_folded_tree), 32])  # as many but one
    for other in (lanes(N, 8, make_folded_tree), make_pairwise_tree(terms), swapped):
        assert decode_tree(read_device_sum(make_positive(other), likes=[right]).tree or ()) == order_tree(other)


def test_a_sum_whose_result_has_fewer_bits_is_said_to_be_rounded_away() -> None:
    """A softmax in float16 that adds in float32: 1 and 1 + 2^-23 are one number of it."""
    found = read_device_sum(make_positive(SEQUENTIAL, dtype="float16"))
    assert found.code == "rounded away" and found.tree is None and "fewer bits" in str(found.words)


def test_an_exact_sum_of_exponentials_loses_nothing() -> None:
    exact = make_positive(SEQUENTIAL, rule=NodeRule(24, "nearest even"), show=lambda s: s)
    exact._run = lambda arrays: [np.array([float(sum(map(Fraction, np.exp(np.asarray(arrays[0], np.float64)))))])]
    assert read_device_sum(exact).code in ("wider than the masks", "rounded away")


def test_an_order_of_exponentials_that_changes_is_said() -> None:
    draw, one, other = random.Random(3), make_positive(SEQUENTIAL), make_positive(make_pairwise_tree(terms))
    device = make_positive(SEQUENTIAL)
    device._run = lambda arrays: draw.choice((one, other))._run(arrays)
    found = read_device_sum(device)
    assert found.code in ("changes", "not a sum", "rounded away") and found.tree is None


def make_standardised(mean: Any, dtype: str = "float32", count: int = N) -> DeviceSum:
    """A device that standardises; mean: of its inputs, in float64."""

    def compute(arrays: Sequence[Any]) -> list[np.ndarray]:
        x, weight = (np.asarray(a, np.float64) for a in arrays)
        middle = mean(x)
        root = np.sqrt(np.square(x - middle).mean())
        with np.errstate(over="ignore"):
            return [((x - middle) / root * weight).astype(get_numpy_dtype(dtype))]

    places = tuple(range(count))
    found = SumTerms(0, (0, places), fill=(1.0, SCALE), of="deviations", outputs=places, scale=SCALE)
    return DeviceSum(compute, [np.ones(count, get_numpy_dtype(dtype))] * 2, found, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("planted", POSITIVE, ids=lambda p: p.name)
def test_the_order_of_a_mean_is_read_through_a_norm(planted: Planted, dtype: str) -> None:
    count = len(list_tree_terms(planted.tree))
    model = SumModel(planted.tree, SumAdder(NEAREST), "float32")
    found = read_device_sum(make_standardised(lambda x: np.float32(model.compute(x)) / np.float32(count), dtype, count))
    assert found.code == "order alone", found.words
    assert decode_tree(found.tree or ()) == order_tree(planted.tree)


def test_a_running_mean_is_no_sum_and_a_short_dtype_says_so() -> None:
    def run(x: np.ndarray) -> float:
        middle = np.float32(0.0)
        for k, value in enumerate(x.astype(np.float32)):
            middle += (value - middle) / np.float32(k + 1)
        return float(middle)

    found = read_device_sum(make_standardised(run))
    assert found.code in ("not a sum", "wider than the masks") and found.tree is None
    long = read_device_sum(make_standardised(lambda x: x.mean(), "bfloat16", 256))
    assert long.code == "too few values" and "shorter" in str(long.words)


#: A unit of so many bits that its dtype has no M beside which a one is lost.
NARROW = ("blackwell", "float8_e4m3fn")
#: Units of GPUs whose products are cut off while they are aligned.
UNITS_READ = [
    unit
    for unit in UNITS.values()
    if isinstance(unit.adder, TruncatingAdder) and not unit.scale and (unit.architecture, unit.dtype) != NARROW
]


@pytest.mark.parametrize("unit", UNITS_READ, ids=lambda u: f"{u.architecture} {u.dtype}")
def test_the_passport_of_an_emulated_unit_gives_its_results_to_the_bit(unit: MatrixUnit) -> None:
    """Also of one that takes float32 for TF32: its factors are cut off to 11 bits."""
    count = 64
    places, kind = tuple(range(count)), get_numpy_dtype(unit.dtype)

    def run(arrays: Sequence[Any]) -> list[np.ndarray]:
        return [multiply(unit, arrays[0][None, :], arrays[1][:, None])]

    terms = SumTerms(0, (0, places), (1, places), fill=(1.0, 1.0))
    found = read_device_sum(DeviceSum(run, [np.ones(count, kind)] * 2, terms, unit.dtype))
    assert isinstance(unit.adder, TruncatingAdder)
    assert (found.code, found.predicted, found.unseen) == ("", 100, 100)
    assert (found.kind_code, found.size, found.aligned) == ("fused", unit.adder.fused, unit.adder.kept + 1)
    assert (found.taken, found.taking) == ((11, "truncated") if unit.taken else (0, ""))
