"""A finding of torch's as a maintainer would type it: a screen of text that gives what it says, or none."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from farm.reproduction.call_script import MOST, write_call_script, write_tensor_source

PROGRAM = '''"""torch:log_softmax, as the case calls it."""

import torch

op = torch.log_softmax


def program(*x):
    return op(x[0], 2)


def tensors(arrays):
    """The inputs as the call takes them."""
    return [torch.from_numpy(x) for x in arrays]
'''
EAGER: dict[str, Any] = {"device": "cpu", "compiled": None, "threads": 1}
X = np.array([[[-8.0, 0.1]]], np.float16)


def write(program: str = PROGRAM, *arrays: np.ndarray, **settings: Any) -> str:
    results = {"expected": [np.zeros((1, 1, 2), np.float16)], "got": None}
    return write_call_script(program, arrays or (X,), EAGER | settings, (), "torch==2.13.0", results)


def run(text: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, "call.py", "exec"), {})
    return out.getvalue()


def test_a_call_is_a_screen_that_gives_what_the_case_gives() -> None:
    torch = pytest.importorskip("torch")
    text = write()
    assert text.splitlines() == [
        "import torch  # torch==2.13.0",
        "",
        "x = torch.tensor([[[-8.0, 0.1]]], dtype=torch.float16)",
        "print(torch.log_softmax(x, 2))",
        "# expected  float16 [[[0., 0.]]]",
    ]
    assert run(text) == f"{torch.log_softmax(torch.from_numpy(X), 2)}\n"


def test_a_call_of_a_kernel_imports_its_file() -> None:
    kernel = PROGRAM.replace("op = torch.log_softmax", "import kernels").replace(
        "    return op(x[0], 2)",
        "    found = kernels.softmax(x=x[0], dim=2)\n    several = (found,)\n    return [y for y in several if y is not None]",
    )
    assert write(kernel).splitlines()[:4] == [
        "import torch  # torch==2.13.0",
        "import kernels",
        "",
        "x = torch.tensor([[[-8.0, 0.1]]], dtype=torch.float16)",
    ]
    assert "print(kernels.softmax(x=x, dim=2))" in write(kernel)
    interpreted = 'os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.accelerator.is_available())))'
    lines = write(kernel.replace("import kernels", f"import os\n\n{interpreted}\nimport kernels")).splitlines()
    assert lines[1:4] == ["import os", interpreted.replace('"', "'"), "import kernels"]


def test_a_call_names_its_device_and_what_compiles_it() -> None:
    assert "device='cuda')" in write(device="cuda")
    compiled = write(compiled={"dynamic": False})
    assert "print(torch.compile(lambda x: torch.log_softmax(x, 2), dynamic=False)(x))" in compiled
    two = write(PROGRAM.replace("op(x[0], 2)", "op(x[0], dim=x[1])"), X, np.array(2))
    assert "x1 = torch.tensor(2, dtype=torch.int64)\nprint(torch.log_softmax(x0, dim=x1))" in two


@pytest.mark.parametrize(
    "program",
    [
        PROGRAM.replace("    return op", "    y = x[0]\n    return op"),
        PROGRAM.replace(
            "    return [torch", "    given = [torch.from_numpy(x) for x in arrays]\n    return given or [torch.as_"
        ),
        PROGRAM + "\n\ndef step(call, given):\n    return call(*given)\n",
        PROGRAM.replace("torch.from_numpy(x)", "torch.from_numpy(x).as_strided((1, 1, 2), (9, 9, 2), 0)"),
    ],
    ids=["statements", "views", "gradient", "gaps"],
)
def test_what_is_more_than_a_call_has_none(program: str) -> None:
    assert write() and not write(program)


def test_many_numbers_are_no_screen() -> None:
    assert write(PROGRAM, np.zeros((1, 1, MOST), np.float16)) and not write(
        PROGRAM, np.zeros((1, 1, MOST + 1), np.float16)
    )


@pytest.mark.parametrize(
    "x",
    [
        np.array([0.1, np.inf, -np.inf, np.nan, -0.0, 3e38], np.float32),
        np.array([0.1, np.nan, 1e30], ml_dtypes.bfloat16),
        np.array([65504.0, 6e-8], np.float16),
        np.array([[0.1], [1 / 3]]),
        np.array([True, False]),
        np.array([255, 0], np.uint8),
        np.array([1 + 2j, -1j], np.complex64),
        np.zeros((0, 3), np.int64),
        np.array(1.1, np.float32),
    ],
    ids=lambda x: f"{x.dtype}{list(x.shape)}",
)
def test_a_literal_has_the_values_to_the_bit(x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    made = eval(write_tensor_source(x), {"torch": torch})
    assert str(made.dtype) == f"torch.{x.dtype.name}" and tuple(made.shape) == x.shape
    bits = made.view(torch.int16).numpy().view(x.dtype) if x.dtype == ml_dtypes.bfloat16 else made.numpy()
    assert np.array_equal(np.signbit(bits.real), np.signbit(x.real)) and np.array_equal(
        bits, x, equal_nan=x.dtype.kind in "fcV"
    )
