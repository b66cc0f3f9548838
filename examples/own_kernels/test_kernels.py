"""The kernels under the farm's judgement, as tests: pytest"""

from pathlib import Path

import pytest
from kernels import rms_norm, softmax

import farm
from farm import lake
from farm.launch import main

HERE = Path(__file__).parent


def test_kernels(tmp_path):
    """What farm.yaml asks for."""
    code = main([str(HERE / "farm.yaml"), "--on", "inline", "--samples", "3", "--results", str(tmp_path)])
    rows = lake.read(tmp_path)
    bad = rows[~rows["status"].isin(["pass", "imprecise"])]
    assert code == 0, bad[["case_id", "status", "kind", "error_units", "error"]].to_string()


@pytest.mark.farm(softmax, dims={"rows": (1, 8), "columns": (1, 600)}, cases=6)
def test_softmax(farm_case):
    """A test per case, of any size: pytest --farm-cases 200 --farm-seed 7"""
    farm_case.check(softmax(**farm_case.inputs))


def test_rms_norm():
    """Against a reference of its own."""

    def exact(x, weight, eps):
        return x / (((x * x).mean(-1, keepdims=True) + eps) ** 0.5) * weight

    inputs, dims = {"x": ["batch", "width"], "weight": ["width"]}, {"batch": (1, 4), "width": (1, 300)}
    settings = {"kwargs": {"eps": 1e-6}, "op_class": "normalisation", "results": None}
    farm.fuzz(rms_norm, exact, inputs, dims, dtypes=["float32", "bfloat16"], cases=10, **settings).check()
