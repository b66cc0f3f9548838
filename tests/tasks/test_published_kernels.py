"""Kernels as published packages have them: autograd.Functions, sizes computed of others, references in torch, Triton's interpreter."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tasks.catalogs.user import dims, drawn
from tasks.catalogs.user.ops import UserOp
from tasks.catalogs.user.schema import mistakes
from tasks.model import FUZZ, Group
from tests.tasks.test_user_catalog import FIELDS, declare, outcome, rows  # noqa: F401  declare is a fixture

GLU = """
def reference(qk, scale, n):
    a, b = qk[..., :n], qk[..., n:]
    return a * b * scale

class Glu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qk, scale, n, offset=0.0):
        ctx.save_for_backward(qk)
        ctx.scale, ctx.n = scale, n
        return qk[..., :n] * qk[..., n:] * scale + offset

    @staticmethod
    def backward(ctx, g):
        (qk,) = ctx.saved_tensors
        a, b = qk[..., : ctx.n], qk[..., ctx.n :]
        return torch.cat([g * b, SECOND], -1) * ctx.scale, None, None, None
"""
GIVEN: dict[str, Any] = {
    "kernel": "k.py:Glu",
    "inputs": {"qk": ["b", "2*n"]},
    "dims": {"b": [1, 3], "n": [2, 5]},
    "kwargs": {"scale": 0.5, "n": {"dim": "n"}},
    "gradient": ["qk"],
    "reference_framework": "torch",
    "op_class": "elementary",
}


@pytest.mark.parametrize(("second", "backward"), [("g * a", ("pass", "")), ("g * b", ("wrong", "numbers"))])
@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_an_autograd_function_is_judged_with_its_gradients(
    declare: Any,  # noqa: F811
    cache: Path,
    framework: str,
    second: str,
    backward: tuple[str, str],
) -> None:
    declare(GLU.replace("SECOND", second), **GIVEN | {"reference_framework": framework})
    assert outcome(cache) == {("pass", "")}
    assert outcome(cache, check="backward") == {backward}
    found = rows(cache, check="backward", distribution=FUZZ, count=3)
    # Where all values are nearly equal, no gradient tells a from b.
    assert {(r["status"], r["kind"]) for r in found} in ({backward}, {backward, ("pass", "")})
    assert all(r["choices"] for r in found)


def test_a_fuzzed_sample_is_its_seeds_alone() -> None:
    op = UserOp(**FIELDS | {"dims": {"n": [1, 5000]}})

    def made(seed: int, index: int, dtype: str = "float32") -> tuple[Any, Any]:
        sizes, arrays, _ = drawn.drawn(op, Group("user:op", "", dtype, 1, seed, "forward", FUZZ), index)
        return sizes, arrays["x"]

    for index in range(4):
        (sizes, x), (again, y) = made(3, index), made(3, index)
        assert sizes == again and x.tobytes() == y.tobytes()
        assert made(3, index, "float16")[0] == sizes != made(4, index)[0]
    # What a seed makes is public: these sizes change with the generator's version alone.
    assert (drawn.GENERATOR, [made(7, i)[0]["n"] for i in range(6)]) == (3, [3, 1, 3, 7, 393, 1520])


@pytest.mark.parametrize(("size", "value"), [(4, 4), ("n", 6), ("3*n+1", 19), ("(n-2)//2", 2), ("n*m", 12)])
def test_a_size_is_computed_of_others(size: Any, value: int) -> None:
    assert dims.size_of(size, {"n": 6, "m": 2}) == value


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"x": ["2*m"]}, "unknown dimension 'm'; valid: n"),
        ({"x": ["n**2"]}, "'n**2' is no size: only + - * //"),
        ({"x": ["n("]}, "'n(' is no size"),
        ({"x": ["f(n)"]}, "'f(n)' is no size"),
        ({"x": {"shape": ["n"], "data": "none.npy"}}, "no such file none.npy"),
    ],
)
def test_a_size_that_cannot_be_meant_is_told(inputs: Any, says: str) -> None:
    (found, *_) = [text for _, text in mistakes(UserOp(**FIELDS | {"inputs": inputs}))]
    assert says in found


TRITON = """
from triton import InterpreterError, builtin
def reference(x): return 2 * x
def wrapped(error):
    try: raise error
    except Exception as met: raise InterpreterError(repr(met)) from met
def scalar(x): wrapped(AttributeError("'float' object has no attribute 'to'"))
def driver(x): raise RuntimeError("0 active drivers ([]). There should only be one.")
def inside(x):
    try: builtin(x)
    except Exception as met: raise InterpreterError(repr(met)) from met
def own(x): wrapped(ZeroDivisionError("division by zero"))
def mistake(x): return (2.0).to(x.dtype)
"""


@pytest.mark.parametrize(
    ("kernel", "interpreted", "status"),
    [
        ("scalar", True, "unsupported"),
        ("driver", True, "unsupported"),
        ("inside", True, "unsupported"),
        ("own", True, "error"),  # the kernel's own
        ("mistake", True, "error"),  # of the function that launches it
        ("scalar", False, "error"),
        ("driver", False, "unsupported"),  # neither it nor a GPU is there
    ],
)
def test_what_the_interpreter_cannot_run_is_not_the_kernels_fault(
    declare: Any,  # noqa: F811
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kernel: str,
    interpreted: bool,
    status: str,
) -> None:
    file = tmp_path / "site" / "triton" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("class InterpreterError(Exception): pass\ndef builtin(x): raise TypeError('no such conversion')\n")
    fake = types.ModuleType("triton")
    fake.__file__ = str(file)
    exec(compile(file.read_text(), str(file), "exec"), fake.__dict__)
    monkeypatch.setitem(sys.modules, "triton", fake)
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreted else "0")
    declare(TRITON, kernel=f"k.py:{kernel}")
    found = rows(cache, count=1)
    assert [r["status"] for r in found] == [status], found[0]["error"]
    why = (
        "Triton's interpreter cannot run this kernel: "
        if interpreted
        else "Triton has no GPU here, and its interpreter is off"
    )
    assert found[0]["error"].startswith(why) == (status == "unsupported")
