"""Drawn cases of tests have structured inputs, the same as `farm fuzz` draws from the same seed, and shrink to the smallest."""

from __future__ import annotations

from typing import Any

import hypothesis
import numpy as np
import pytest
import torch

import farm
from farm.client.cases import Case, Cases
from tasks.catalogs.user import catalog, load_kernels
from tasks.model import FUZZ, Group

INPUTS = {"x": ["n", 4], "expert": {"shape": ["n"], "dtype": "int64", "is": "index", "low": 0, "below": 8}}
HOW: dict[str, Any] = {"inputs": INPUTS, "dims": {"n": [2, 64]}, "dtypes": ["float32"]}


def right(x: np.ndarray, expert: np.ndarray) -> np.ndarray:
    made = np.zeros((8, x.shape[1]))
    np.add.at(made, expert, x)
    return made


def honest(x: Any, expert: Any) -> Any:
    return torch.zeros(8, x.shape[1]).index_add_(0, expert, x)


def full(x: Any, expert: Any) -> Any:
    """An expert takes three fair shares of tokens, and no more."""
    most = max(1, 3 * len(expert) // 8)
    kept = torch.nn.functional.one_hot(expert, 8).cumsum(0).gather(1, expert[:, None])[:, 0] <= most
    return torch.zeros(8, x.shape[1]).index_add_(0, expert[kept], x[kept])


def failing(kernel: Any, cases: int = 60) -> list[Case]:
    found = []
    for case in Cases.of(kernel, right, cases=cases, op_class="reduction", **HOW):
        try:
            case.check(kernel(**case.inputs))
        except AssertionError:
            found.append(case)
    return found


def test_a_fault_at_equal_indices_is_found_by_a_tests_cases_and_its_twin_passes() -> None:
    found = failing(full)
    assert found and any(case.structure.startswith("expert=") for case in found)
    assert not failing(honest)


def test_a_case_of_a_test_is_the_sample_that_fuzz_draws_from_its_seed() -> None:
    cases = Cases.of(honest, right, cases=30, seed=5, op_class="reduction", **HOW)
    group = Group(f"user:{cases.kernel.op.name}", "", "float32", 30, 5, "forward", FUZZ)
    with load_kernels.lend_op(cases.kernel.op, cases.kernel.root) as one:
        drawn = [catalog._build_fuzzed_sample(one, group, i, 0) for i in range(30)]
    structures = set()
    for case, sample in zip(cases, drawn):
        structures.add(case.structure)
        assert case.structure == sample.columns.get("structure", "") and case.choices.taken == sample.columns["choices"]
        for name, x in case.arrays.items():
            spec = sample.kwargs[name]
            np.testing.assert_array_equal(spec.view(sample.arrays[spec.id]), x)
    assert len(structures) > 4 and "" in structures


def test_a_structure_that_the_reference_does_not_take_is_left_out() -> None:
    def strict(x: np.ndarray, expert: np.ndarray) -> np.ndarray:
        if len(np.unique(expert)) == 1:
            raise ValueError("all tokens on one expert")
        return right(x, expert)

    inputs = {"x": ["n", 4], "expert": {"shape": ["n"], "dtype": "int64", "low": 0, "below": 8}}
    how = HOW | {"inputs": inputs, "dims": {"n": [40, 64]}}
    for case in Cases.of(honest, strict, cases=40, op_class="reduction", **how):
        assert len(np.unique(case.arrays["expert"])) != 1


def test_hypothesis_shrinks_to_the_smallest_case_that_has_the_structure() -> None:
    last: list[Case] = []

    @hypothesis.settings(max_examples=300, database=None, deadline=None, derandomize=True)
    @hypothesis.given(farm.strategies.cases(full, reference=right, op_class="reduction", **HOW))
    def test(case: Case) -> None:
        last.append(case)
        case.check(full(**case.inputs))

    with pytest.raises(AssertionError):
        test()
    smallest = last[-1]
    assert smallest.dims["n"] <= 4 and smallest.structure in ("", "expert=all equal")
