"""Rows of real devices (`tests/devices`): today's rules give each the status that is true of it, and every failure that is left is known.

The same as a table: `python -m tests.devices`.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from tests.devices import __main__ as table
from tests.devices import devices, recorded
from tests.devices.today import UNMERGED, standing, today

pytest.importorskip("torch")
pytest.importorskip("onnx")

H200 = "h200-2026-11-26"


@pytest.fixture(scope="module", params=devices())
def compared(request: pytest.FixtureRequest) -> pd.DataFrame:
    return table.compared(request.param)


def test_no_recorded_row_is_told_falsely_today(compared: pd.DataFrame) -> None:
    waits = compared["why"].str.startswith(tuple(UNMERGED)) if UNMERGED else pd.Series(False, index=compared.index)
    wrong = compared[(compared["today"] != compared["truth"]) & ~waits]
    assert wrong.empty, wrong[["backend", "op", "dtype", "status", "truth", "today", "rule", "why"]].to_string()
    merged = compared[waits & (compared["today"] == compared["truth"])]
    assert merged.empty, f"their rule is here now: {sorted(set(merged['why']))}"


def test_every_failure_that_is_true_is_one_still_and_is_known(compared: pd.DataFrame) -> None:
    """Determinism, batches, digits lost: what a device does wrong no rule acquits, and a run with configs/known ends
    well."""
    true = compared["why"].str.contains("true")
    assert true.sum() > 100 and (compared["today"] == compared["status"])[true].all()
    assert {"batch", "nondeterministic", "nonfinite", "numbers"} <= set(compared["kind"][true])
    assert set(compared["standing"][true]) == {"known"}, compared[true & (compared["standing"] != "known")].to_string()


def one(device: str = H200, **where: Any) -> dict[str, Any]:
    """The first recorded row of which some columns are these."""
    rows = recorded(device)
    for name, value in where.items():
        rows = rows[rows[name] == value]
    return dict(rows.iloc[0])


#: A recorded row, what a worse device would have said instead, and what that is today.
WORSE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an error that refuses nothing": (
        {"op": "torch:histc", "status": "error"},
        {"error": "CUDA error: invalid argument", "op": "torch:add", "sample": 0, "dtype": "float32"},
        "error",
    ),
    "a call that is declared": (
        {"op": "torch:linalg.lstsq", "status": "error"},
        {"error": "the solver did not converge", "sample": 0},
        "error",
    ),
    "a dtype that no kernel gives": (
        {"op": "torch:native_layer_norm", "dtype": "float16", "kind": "dtype"},
        {"error": "output 1: dtype float64, expected float16"},
        "wrong",
    ),
    "a command": ({"kind": "no effect"}, {"backend": "openvino-cpu", "compute_precision": "bfloat16"}, "wrong"),
    "coarser than TF32": ({"op": "critical:swiglu", "backend": "torch-cuda-tf32", "status": "wrong"}, {"error_units": 1e9}, "wrong"),
    "no TF32 declared": ({"op": "critical:swiglu", "backend": "torch-cuda-tf32", "status": "wrong"}, {"backend": "torch-cuda"}, "wrong"),
    "another sum of float8": ({"op": "gemm:scaled_mm", "status": "wrong"}, {"error_units": 5e4}, "wrong"),
    "what is drawn, now": ({"op": "torch:pca_lowrank", "kind": "numbers"}, {"day": "2027-01-01"}, "wrong"),
}  # fmt: skip


@pytest.mark.parametrize("which", WORSE)
def test_a_rule_acquits_nothing_beside_what_it_is_about(which: str) -> None:
    where, other, status = WORSE[which]
    row = one(**where)
    assert today(row).status != row["status"] or "true" in row["why"], "as recorded it was false"
    assert today(row | other).status == status


def test_another_failure_of_a_recorded_row_is_new() -> None:
    row = one(op="torch:special.ndtr", dtype="float32", backend="torch-cuda")
    others: list[dict[str, Any]] = [
        {"kind": "shape"},
        {"status": "error", "kind": "", "stage": "run", "error_type": "RuntimeError", "error": "no such thing"},
        {"backend": "torch-xpu"},
        {"backend": "torch-xpu", "cause": "zero everywhere"},
        {"backend": "torch-xpu", "error_units": 1e9},
        {"backend": "jax-cuda"},
    ]
    found = standing(pd.DataFrame([row, *(row | other for other in others)]).fillna({"cause": "", "error": ""}))
    assert found == ["known", "new", "new", "first seen", "new", "new", "new"]
