"""Training on several ranks of gloo: right in each way of spreading it, and each planted fault named, to the rank where one rank has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.training_ranks import CASES, FoundOnRanks, RanksCase, judge_ranks

pytest.importorskip("torch")

TWO, FOUR = ([case for case in CASES if case.ranks == ranks] for ranks in (2, 4))


@pytest.fixture(scope="module")
def two(cache: Path) -> dict[RanksCase, FoundOnRanks]:
    return {found.case: found for found in judge_ranks(TWO, cache)}


def check(found: FoundOnRanks) -> None:
    assert found.named if found.case.fault else not found.caught, found.words


@pytest.mark.parametrize("case", TWO, ids=lambda x: f"{x.way} {x.variant} {x.fault}")
def test_two_ranks(two: dict[RanksCase, FoundOnRanks], case: RanksCase) -> None:
    check(two[case])


@pytest.mark.nightly  # more of the same mechanism
def test_four_ranks(cache: Path) -> None:
    for found in judge_ranks(FOUR, cache):
        check(found)
