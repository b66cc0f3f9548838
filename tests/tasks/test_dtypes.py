"""The table of dtypes says what numpy, ml_dtypes, torch and ONNX say; one more row is one more dtype."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tasks
from tasks.model.dtypes import (
    DTYPES,
    ELEMENT_TYPE,
    EPS,
    LARGEST,
    PACKED_BITS,
    PART,
    SMALLEST_NORMAL,
    TABLE,
    get_integer_range,
    get_numpy_dtype,
    get_wide_dtype,
    is_complex_dtype,
    is_inexact_dtype,
    round_to_dtype,
)

FLOATS = [name for name in DTYPES if TABLE[name].family == "float"]


@pytest.mark.parametrize("name", FLOATS)
def test_ranges_are_those_of_the_library_that_has_the_dtype(name: str) -> None:
    info = np.finfo(name) if TABLE[name].numpy == "own" else ml_dtypes.finfo(get_numpy_dtype(name))
    assert (EPS[name], SMALLEST_NORMAL[name], LARGEST[name]) == tuple(map(float, (info.eps, info.tiny, info.max)))
    assert info.bits == TABLE[name].bits


@pytest.mark.parametrize("name", [name for name in DTYPES if TABLE[name].family in ("signed", "unsigned")])
def test_integers_reach_as_far_as_their_library_says(name: str) -> None:
    info = np.iinfo(name) if TABLE[name].numpy == "own" else ml_dtypes.iinfo(get_numpy_dtype(name))
    assert get_integer_range(name) == (int(info.min), int(info.max)) and (name in PACKED_BITS) == (TABLE[name].bits < 8)


def test_complex_numbers_have_parts_of_half_their_size() -> None:
    assert PART == {"complex128": "float64", "complex64": "float32", "complex32": "float16"}
    for name, part in PART.items():
        assert is_complex_dtype(name) and get_wide_dtype(name) == "complex128"
        for fact in (EPS, SMALLEST_NORMAL, LARGEST):
            assert fact[name] == fact[part]


def test_element_types_are_those_of_onnx() -> None:
    from onnx import TensorProto

    for name, number in ELEMENT_TYPE.items():
        row = TABLE[name]
        assert row.onnx is not None and TensorProto.DataType.Value(row.onnx[0]) == number


def test_a_compute_precision_is_no_dtype_of_arrays() -> None:
    assert "tfloat32" not in DTYPES and is_inexact_dtype("tfloat32") and "tfloat32" not in LARGEST


@pytest.mark.parametrize("name", FLOATS)
def test_rounding_is_that_of_the_library(name: str) -> None:
    g = np.random.default_rng(0)
    near = LARGEST[name] * (1 + EPS[name] * np.linspace(-1, 2, 4001))
    ties = g.integers(0, 2**16, 4000).astype(np.uint32).__lshift__(np.uint32(16)).view(np.float32).astype(np.float64)
    values = np.concatenate(
        [near, -near, ties, ties * (1 + 2.0**-8), g.normal(size=4000), [0, np.inf, -np.inf, np.nan]]
    )
    with np.errstate(all="ignore"):
        wanted = values.astype(get_numpy_dtype(name)).astype(np.float64)
        np.testing.assert_array_equal(round_to_dtype(values, name), wanted)
        assert round_to_dtype(np.array(2.0), name) == np.array(2.0).astype(get_numpy_dtype(name))


ROW = '        Dtype("float8_e3m4", "float", 8, 4, -2, 15.5, numpy=_ML),\n'
USE = """
import numpy as np
from pathlib import Path
from tasks.arrays.inputs import fill_array
from tasks.arrays.pack import ArrayPack, save_pack
from tasks.judge import policy_files
from tasks.judge.error_metrics import compare_outputs
from tasks.judge.policy import judge_by_policy
from tasks.model import DTYPES, Leaf, OpClass, get_numpy_dtype, get_wide_dtype

name = "float8_e3m4"
assert name in DTYPES
x = fill_array((50,), name, "boundary", np.random.default_rng(0))
save_pack(Path("x.pack"), {}, [x])
a = ArrayPack(Path("x.pack")).array(0)
assert a.dtype == get_numpy_dtype(name) and np.array_equal(a.astype(float), x.astype(float))
leaf = Leaf(name, a.shape, x.astype(get_wide_dtype(name)))
policy = policy_files.load_policy("error_units")
for planted, status in ((a, "pass"), (-a, "wrong")):
    metrics = compare_outputs([planted], [leaf], OpClass.EXACT)
    assert judge_by_policy(metrics, policy, "user:x", "exact", name, "float64")[0].value == status, metrics
assert get_numpy_dtype(name).itemsize == 1 and a.max().astype(float) == 15.5
"""


def test_one_more_row_is_one_more_dtype(tmp_path: Path) -> None:
    shutil.copytree(Path(tasks.__file__).parent, tmp_path / "tasks", ignore=shutil.ignore_patterns("__pycache__"))
    table = tmp_path / "tasks" / "model" / "dtypes.py"
    text = table.read_text()
    row = next(line for line in text.splitlines(keepends=True) if 'Dtype("float8_e5m2"' in line)
    table.write_text(text.replace(row, ROW + row))
    done = subprocess.run([sys.executable, "-c", USE], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
