"""Choices: one generator driven by a seed, by a list and by Hypothesis; seeds as other languages make them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.draw import seeds
from tasks.draw.choices import MOST, DrawnChoices, TooMany


def test_the_seeds_are_those_of_other_languages() -> None:
    """Vectors from the description of the generator that tools in other languages share."""
    assert (seeds.mix_seed(42), seeds.mix_seed(43)) == (13679457532755275413, 13432527470776545160)
    generator = seeds.SeededGenerator(42)
    assert [generator.next() for _ in range(5)] == [
        14921385303349856026,
        836881716698787820,
        2679325795615653720,
        15230690181549778750,
        17419016854217654406,
    ]
    assert seeds.derive_seed(42, "test") == 11905773293262258603
    assert seeds.derive_seed(42, "iter_0") == 8039093521837583556
    assert seeds.SeededGenerator(42).float64() == 0.8088899181192595


@pytest.mark.parametrize("seed", [0, 42, 2**63, 2**64 - 1])
def test_many_words_are_those_of_one_after_the_other(seed: int) -> None:
    made = seeds.draw_seed_words(seed, 5).tolist()
    assert made == [seeds.mix_seed(seed + place * 0x9E3779B97F4A7C15) for place in range(5)]


def _case(choose: DrawnChoices) -> Any:
    """What a generator does with choices: nested, of lengths that depend on earlier ones."""
    made: list[Any] = []
    for _ in range(choose.int(1, 5)):
        with choose.span("dim"):
            made.append(choose.weighted([(1, 1), (choose.int(2, 9), 3)]))
    made.append(choose.order(len(made)))
    made.append(choose.some("abcd", 1, 3))
    made.append((choose.chance(1, 4), choose.of(["x", "y"]), choose.int(-7, -7)))
    return made


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_a_list_makes_the_case_of_its_seed_again(seed: int) -> None:
    first = DrawnChoices.from_seed(seed)
    made = _case(first)
    again = DrawnChoices.from_list(first.taken)
    assert _case(again) == made
    assert (again.taken, again.bounds, again.spans) == (first.taken, first.bounds, first.spans)


@settings(deadline=None)
@given(st.data())
def test_hypothesis_drives_the_same_code(data: Any) -> None:
    choose = DrawnChoices.from_hypothesis(data.draw)
    made = _case(choose)
    assert _case(DrawnChoices.from_list(choose.taken)) == made


@settings(deadline=None)
@given(st.lists(st.integers(-3, 2**70)))
def test_any_list_makes_a_case(taken: list[int]) -> None:
    choose = DrawnChoices.from_list(taken)
    _case(choose)
    assert all(0 <= x <= bound for x, bound in zip(choose.taken, choose.bounds))
    assert len(choose.taken) == len(choose.bounds)


def test_the_empty_list_makes_the_simplest_case() -> None:
    assert _case(DrawnChoices.from_list([])) == [1, [0], ["a"], (False, "x", -7)]


def test_spans_say_which_choices_belong_together() -> None:
    choose = DrawnChoices.from_list([1, 3, 5, 0])
    _case(choose)
    assert choose.spans[0] == ("dim", 1, 3) and choose.spans[1][0] == "dim"


def test_draws_are_spread_evenly() -> None:
    choose = DrawnChoices.from_seed(7)
    counts = [0] * 4
    for _ in range(4000):
        counts[choose.int(0, 3)] += 1
    assert min(counts) > 900


def test_what_does_not_end_is_ended() -> None:
    choose = DrawnChoices.from_list([])
    with pytest.raises(TooMany, match=str(MOST)):
        while True:
            choose.int(0, 1)
    with pytest.raises(ValueError, match="no number from 3 to 2"):
        choose.int(3, 2)


def test_other_processes_and_hash_seeds_make_the_same_choices() -> None:
    code = "from tests.tasks.test_choices import _case, DrawnChoices; print(*[_case(DrawnChoices.from_seed(x)) for x in range(50)])"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
