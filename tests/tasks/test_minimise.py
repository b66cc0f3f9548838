"""What makes cases smaller: choices, ddmin, what is the same failure, and graphs put together again from their parts."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import numpy as np
import pytest

from tasks.ddmin import bisect_smallest, shrink_to_fewest, thin_out_items
from tasks.draw.choices import DrawnChoices
from tasks.hunt.case import count_searched_elements
from tasks.hunt.dialogue import Ran, Unfit
from tasks.hunt.minimise.choices import search_simplest_choices
from tasks.hunt.minimise.same import StoredFailure
from tasks.model import Group, Leaf
from tasks.model.errors import mask_error_details, shorten_error
from tasks.model.row import Row

T = TypeVar("T")


def ran(search: Generator[Any, Any, T]) -> T:
    """The result of a search that asks nobody."""
    try:
        asked = next(search)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError(f"it asked {asked}")


def asked(failing: Callable[[list[int]], Any], runs: list[int]) -> Callable[[list[int]], Any]:
    def fails(items: list[int]) -> Generator[Any, Any, Any]:
        runs[0] += 1
        return failing(items)
        yield

    return fails


@pytest.mark.parametrize("cause", [{3}, {0, 7}, {2, 3}, {1, 4, 6}, set(range(8))])
def test_ddmin_leaves_the_cause_alone(cause: set[int]) -> None:
    runs = [0]
    assert set(ran(shrink_to_fewest(range(8), asked(lambda items: cause <= set(items), runs)))) == cause


def test_ddmin_of_a_long_list_takes_few_runs() -> None:
    runs = [0]
    assert ran(shrink_to_fewest(range(20), asked(lambda items: {4, 17} <= set(items), runs))) == [4, 17]
    assert runs[0] <= 40


def test_what_is_not_needed_is_left_out_in_long_runs_first() -> None:
    runs = [0]
    assert ran(thin_out_items(range(16), asked(lambda items: {3, 4, 12} <= set(items), runs))) == [3, 4, 12]
    assert runs[0] <= 20
    assert ran(thin_out_items([7], asked(lambda items: True, runs))) == [7]


def test_the_smallest_that_fails_is_found_between_one_that_does_not_and_one_that_does() -> None:
    for threshold in range(1, 20):

        def fails(number: int, threshold: int = threshold) -> Generator[Any, Any, bool]:
            return number >= threshold
            yield

        assert ran(bisect_smallest(0, 19, fails)) == threshold


def generated(choose: DrawnChoices) -> list[int]:
    """A list of numbers, as a generator makes one."""
    found = []
    with choose.span("length"):
        count = choose.int(0, 12)
    for _ in range(count):
        with choose.span("item"):
            found.append(choose.int(0, 1000))
    return found


@pytest.mark.parametrize(
    ("fails", "smallest"),
    [
        (lambda xs: any(x >= 137 for x in xs), [137]),
        (lambda xs: len(xs) >= 4, [0, 0, 0, 0]),
        (lambda xs: sum(xs) > 500 and len(xs) > 1, None),
    ],
)
def test_choices_become_the_simplest_that_fail(fails: Callable[[list[int]], bool], smallest: list[int] | None) -> None:
    counts = []
    for seed in range(40):
        choose = DrawnChoices.from_seed(seed)
        if not fails(generated(choose)):
            continue
        runs = [0]

        def taken(items: list[int]) -> DrawnChoices | None:
            again = DrawnChoices.from_list(items)
            return again if fails(generated(again)) else None

        best = ran(search_simplest_choices(choose, asked(taken, runs)))
        made = generated(DrawnChoices.from_list(best.taken))
        assert fails(made) and len(best.taken) <= len(choose.taken)
        assert made == smallest if smallest is not None else sum(made) == 501
        counts.append(runs[0])
    assert len(counts) > 5 and sorted(counts)[len(counts) // 2] < 120


# --- the same failure ----------------------------------------------------------------------------------------------


def row(**values: Any) -> Row:
    return Row.of({"op": "onnx:Relu", "dtype": "float32", "started_at": 0.0, "status": "wrong"} | values)


def test_errors_are_the_same_but_for_numbers_names_and_addresses() -> None:
    assert mask_error_details("no kernel for 'x1' of tensor<4x6xf32> at 0x7f12") == mask_error_details(
        "no kernel for 'y' of tensor<1xf32> at 0x1"
    )
    assert mask_error_details("no kernel for foo in conv_a", ["conv_a"]) == mask_error_details(
        "no kernel for foo in bar", ["bar"]
    )
    assert mask_error_details("no kernel") != mask_error_details("no memory")


def test_a_long_error_ends_with_what_caused_it() -> None:
    raised = RuntimeError("pass " * 20)
    assert shorten_error(raised, 50) == str(raised), "nothing caused it"
    raised.__cause__ = ValueError("LOGICAL_OR takes bool")
    assert shorten_error(raised, 500) == str(raised), "there is room for it"
    assert len(shorten_error(raised, 80)) == 80 and shorten_error(raised, 80).endswith(
        "… caused by: LOGICAL_OR takes bool"
    )


def test_a_failure_must_not_slide_into_noise() -> None:
    far = {"kind": "numbers", "error_units": 32_000.0, "limit": 32.0, "op_class": "composite"}
    wanted = StoredFailure.of(row(**far))
    assert wanted.again(StoredFailure.of(row(**far | {"error_units": 321.0})))
    assert not wanted.again(StoredFailure.of(row(**far | {"error_units": 200.0})))
    near = StoredFailure.of(row(**far | {"error_units": 64.0}))
    assert near.again(StoredFailure.of(row(**far | {"error_units": 64.0})))
    assert not near.again(StoredFailure.of(row(**far | {"error_units": 60.0})))
    ulps = {"kind": "numbers", "max_ulp": 400.0, "limit": 4.0, "op_class": "elementary", "error_units": 3.0}
    assert StoredFailure.of(row(**ulps)).times == 100
    assert StoredFailure.of(row(**far | {"kind": "cast"})).again(wanted), "numbers with an explanation are numbers"


def test_another_status_kind_or_reference_is_another_failure() -> None:
    wanted = StoredFailure.of(row(kind="nonfinite"), [Leaf("float32", (1,), np.ones(1))])
    assert not wanted.again(StoredFailure.of(row(kind="shape"), [Leaf("float32", (1,), np.ones(1))]))
    some = StoredFailure.of(row(kind="nonfinite"), [Leaf("float32", (1,), np.full(1, np.nan))])
    assert not wanted.again(some) and some.again(wanted), "Inf and NaN of the reference may go, and may not come"
    crash = StoredFailure.of(row(status="crash", kind="SIGSEGV", stage="run", error="at 0x1"))
    assert crash.again(StoredFailure.of(row(status="crash", kind="SIGSEGV", stage="run", error="something else")))
    assert not crash.again(StoredFailure.of(row(status="crash", kind="SIGABRT", stage="run")))


@pytest.mark.parametrize(("op_class", "left"), [("model", "Tanh"), ("composite", "")])
def test_what_makes_a_model_wrong_may_be_imprecise_of_its_parts(op_class: str, left: str) -> None:
    from tasks.hunt.minimise.search import search_minimal_case

    off = {"kind": "numbers", "error_units": 3200.0, "limit": 32.0, "op_class": "composite"}
    searched = search_minimal_case(
        row(**off | {"op_class": op_class}), lambda: graph_case("a = Neg(x)", "y = Tanh(a)"), "graph", 60
    )
    asked = next(searched)
    try:
        while True:  # the whole graph is imprecise, and Tanh alone is wrong
            whole, ops = asked.case is None, asked.case.ops if asked.case else ()
            status = "wrong" if whole or ops == ("Tanh",) else "imprecise" if "Tanh" in ops else "pass"
            judged = row(**off | {"status": status, "op_class": op_class if whole else "composite"})
            asked = searched.send(Ran(row=judged))
    except StopIteration as end:
        found = end.value
    assert (found.by_parts, "+".join(found.case.ops) if found.case else "") == ("" if left else "imprecise", left)
    assert found.failure.status == "wrong"


# --- graphs --------------------------------------------------------------------------------------------------------


def graph_case(*lines: str, **weights: Any) -> Any:
    pytest.importorskip("onnx")
    from planted_small import graph

    from tasks.hunt.graph_case import GraphCase

    model = graph(*lines, **weights)
    random_ = np.random.default_rng(1)
    feeds = {x.name: random_.uniform(-1, 1, (4, 6)).astype(np.float32) for x in model.graph.input}
    return GraphCase(model, feeds, Group("onnx:test", "", "float32", 1), 4)


def test_a_part_of_a_graph_has_the_true_values_of_what_is_cut() -> None:
    case = graph_case("a = Tanh(x)", "b = Mul(a, a)", "y = Add(b, x)")
    part = case.of([1], case.values())
    _, sample = part.make_sample()
    assert part.ops == ("Mul",) and list(part.feeds) == ["a"]
    np.testing.assert_allclose(sample.expected[0].reference, np.tanh(case.feeds["x"].astype(float)) ** 2, rtol=1e-6)


@pytest.mark.parametrize("hangs", [True, False])
def test_what_takes_long_and_ends_when_it_is_small_is_left_as_it_is(hangs: bool) -> None:
    """What is not given its whole deadline does not end; the smaller case does end in that."""
    from tasks.hunt.minimise.search import search_minimal_case

    hung, passed = row(status="timeout", kind="timeout", stage="run"), row(status="pass")
    searched = search_minimal_case(hung, lambda: graph_case("y = Tanh(x)"), "binary-search-dims", 60)
    asked = next(searched)
    try:
        while True:
            left = hangs or asked.case is None or not asked.patient
            asked = searched.send(Ran(row=hung if left else passed))
    except StopIteration as end:
        found = end.value
    assert (found.case is None) is not hangs and not found.flaky
    assert ("left as is" in " ".join(found.why)) is not hangs


def test_a_generated_case_whose_parts_do_not_fail_by_themselves_is_left_to_its_choices() -> None:
    from tasks.catalogs.fuzz.catalog import VARIANT, Fuzz
    from tasks.hunt.chosen_case import ChosenCase
    from tasks.hunt.minimise.search import search_minimal_case

    group = Group("fuzz:Elu", VARIANT, "float32", 1)
    (sample,) = Fuzz().samples(group, 4)
    wrong = row(kind="numbers", error_units=np.inf, limit=32.0, op_class="elementary")
    searched = search_minimal_case(wrong, lambda: ChosenCase(sample.columns["choices"], group, 4), "shrink-all", 60)
    asked = next(searched)
    try:
        while True:
            whole = asked.case is None or isinstance(asked.case, ChosenCase)
            asked = searched.send(Ran(row=wrong if whole else row(status="pass")))
    except StopIteration as end:
        found = end.value
    assert isinstance(found.case, ChosenCase) and found.failed == found.tried == 2


def test_what_the_reference_or_the_specification_forbids_is_no_case() -> None:
    case = graph_case("y = MatMul(x, w)", w=np.ones((6, 3), np.float32))
    with pytest.raises(Unfit):
        case.with_arrays({"x": np.ones((4, 5), np.float32)}).make_sample()
    with pytest.raises(Unfit):
        case.with_arrays({"x": np.ones((0, 6), np.float32)}).make_sample()
    attribute = graph_case("y = Softmax(x; axis=1)")
    with pytest.raises(Unfit):
        attribute.with_integers({"0.axis.0": 5}).make_sample()


def test_sizes_that_are_bound_to_each_other_shrink_together() -> None:
    from tasks.hunt.minimise.question import MinimiseQuestion
    from tasks.hunt.minimise.sizes import minimise_dims

    case = graph_case("h = MatMul(x, w)", "y = Reshape(h, s)", w=np.ones((6, 5), np.float32), s=np.int64([5, 4]))
    wrong = row(kind="numbers", error_units=np.inf, limit=32.0, op_class="composite")

    question = MinimiseQuestion(StoredFailure.of(wrong), case, 200)
    search = minimise_dims(question)
    try:
        next(search)
        while True:
            search.send(Ran(row=wrong))
    except StopIteration:
        pass
    shapes = {name: x.shape for name, x in question.best.arrays.items()}
    assert shapes["x"] == (1, 1) and shapes["w"] == (1, 1)
    assert count_searched_elements(question.best) <= 4 and question.runs <= 30


def test_seeds_of_random_lists_shrink_within_their_bounds() -> None:
    """Whatever a list is cut to, the generator takes it: there is no list that is none."""
    for seed in range(20):
        items = [random.Random(seed).randrange(5000) for _ in range(9)]
        assert len(generated(DrawnChoices.from_list(items))) <= 12


def test_a_size_or_step_of_0_is_no_case_whatever_a_reference_makes_of_it() -> None:
    case = graph_case("y = Tile(x, r)", r=np.int64([2, 1]))
    case.make_sample()
    with pytest.raises(Unfit, match="does not say"):
        case.with_arrays({"r": np.int64([0, 1])}).make_sample()
