"""Structure of inputs as a user meets it: said in words, kept when a case is made small, and asked of what is handed over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import farm
import tasks
from farm.client.kernels import ClientError
from farm.report.tables.failing_structures import find_only_failing_structure


def routed(x: Any, w: Any, expert: Any) -> Any:
    return np.einsum("td,tdk->tk", x, w[expert])


@tasks.op(
    reference=routed,
    inputs={"x": ["t", 8], "w": ["e", 8, 4], "expert": {"shape": ["t"], "dtype": "int64", "low": 0, "high": "e"}},
    dims={"t": [64, 256], "e": [4, 8]},
    op_class="contraction",
)
def moe_with_little_room(x: Any, w: Any, expert: Any) -> Any:
    """Drops the tokens of an expert beyond three fair shares."""
    y = torch.zeros(x.shape[0], w.shape[-1], dtype=x.dtype)
    for e in range(w.shape[0]):
        rows = (expert == e).nonzero().flatten()[: 3 * x.shape[0] // w.shape[0]]
        y[rows] = x[rows] @ w[e]
    return y


@tasks.op(
    reference=lambda x, order: x[order],
    inputs={"x": ["n", 2], "order": {"shape": ["n"], "dtype": "int64", "is": "permutation"}},
    dims={"n": [5, 40]},
    op_class="exact",
)
def permuted(x: Any, order: Any) -> Any:
    return x[order]


def test_fuzz_says_what_it_takes_and_minimising_keeps_it(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = farm.fuzz(moe_with_little_room, cases=40, seed=1)
    (finding,) = found.findings
    assert "; wrong only where expert is all equal" in finding.message
    small = finding.minimal
    # With fewer tokens there is no room for any, whatever the routing: that is another fault.
    assert len(small.inputs["expert"]) > 1 and len(set(small.inputs["expert"].tolist())) == 1
    assert any("it takes that expert is" in text for text in small.told)


def test_a_sound_kernel_passes_and_what_is_handed_over_is_of_its_kind() -> None:
    assert farm.fuzz(permuted, cases=30, results=None).failed == 0
    x = torch.randn(5, 2)
    farm.assert_correct(permuted, {"x": x, "order": torch.tensor([4, 3, 2, 1, 0])})
    with pytest.raises(ClientError, match="order is declared as permutation, and does not have each of 0 to 4 once"):
        farm.assert_correct(permuted, {"x": x, "order": torch.tensor([0, 0, 1, 2, 3])})


def rows(*told: tuple[str, str]) -> pd.DataFrame:
    cell = {"check": "forward", "op": "user:f", "variant": "", "dtype": "float32", "backend": "torch-cpu"}
    return pd.DataFrame([cell | {"structure": structure, "status": status} for structure, status in told])


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ([("", "pass"), ("i=all_equal", "wrong"), ("i=sorted", "pass")], "only where i is all equal"),
        ([("", "pass"), ("i=all_equal", "wrong"), ("i=all_equal", "pass")], "only where i is all equal"),
        ([("", "pass"), ("i=all_equal", "wrong"), ("x=ties", "wrong")], ""),
        ([("", "wrong"), ("i=all_equal", "wrong"), ("i=sorted", "pass")], ""),
        ([("i=all_equal", "wrong")], ""),
        ([("", "wrong"), ("i=all_equal", "pass")], ""),
    ],
)  # fmt: skip
def test_what_a_failure_takes_is_said_only_where_ordinary_values_pass(told: list[tuple[str, str]], says: str) -> None:
    frame = rows(*told)
    found = find_only_failing_structure(frame)
    assert set(found[frame["status"] == "wrong"]) == {says}
    assert set(found[frame["status"] == "pass"]) <= {""}
