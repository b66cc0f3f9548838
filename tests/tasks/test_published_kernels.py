"""Kernels as published packages have them: autograd.Functions, sizes computed of others, references in torch, Triton's interpreter."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.catalogs.user import dims, fuzzed_samples, interpreted
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import UserOp
from tasks.draw.choices import DrawnChoices
from tasks.model import FUZZ
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


def test_an_output_that_was_not_asked_for_is_none(declare: Any, cache: Path) -> None:  # noqa: F811
    several = GLU.replace("* scale + offset", "* scale + offset, None, None").replace("ctx, g)", "ctx, g, *others)")
    declare(several.replace("SECOND", "g * a"), **GIVEN)
    assert outcome(cache) == outcome(cache, check="backward") == {("pass", "")}
    none = several.replace("return qk[..., :n] * qk[..., n:] * scale + offset, None", "return None, None")
    declare(none.replace("SECOND", "g * a"), **GIVEN)
    assert outcome(cache) == {("wrong", "structure")}


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
        choose = DrawnChoices.from_seed(fuzzed_samples.derive_kernel_case_seed(seed, index))
        made = fuzzed_samples.draw_fuzzed_kernel_case(
            op, dtype, "forward", choose, lambda dims, arrays: 1 / 0
        )  # no input may be empty
        return made.dims, (made.structured.arrays if made.structured else made.plain)["x"]

    for index in range(4):
        (sizes, x), (again, y) = made(3, index), made(3, index)
        assert sizes == again and x.tobytes() == y.tobytes()
        assert made(3, index, "float16")[0] == sizes != made(4, index)[0]
    # Small enough for an epsilon beside a sum of squares, and for one beside its root.
    sizes = [float(np.abs(x).max()) for x in (made(3, index)[1] for index in range(60)) if x.size > 4]
    assert any(1e-4 < size < 1e-2 for size in sizes) and any(1e-12 < size < 1e-7 for size in sizes)
    # What a seed makes is public: these sizes change with the generator's version alone.
    assert (fuzzed_samples.GENERATOR, [made(7, i)[0]["n"] for i in range(6)]) == (7, [3, 1, 3, 7, 393, 1520])


@pytest.mark.parametrize(("size", "value"), [(4, 4), ("n", 6), ("3*n+1", 19), ("(n-2)//2", 2), ("n*m", 12)])
def test_a_size_is_computed_of_others(size: Any, value: int) -> None:
    assert dims.evaluate_dim_size(size, {"n": 6, "m": 2}) == value


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
    (found, *_) = [text for _, text in list_declaration_mistakes(UserOp(**FIELDS | {"inputs": inputs}))]
    assert says in found


TRITON = """
from triton import InterpreterError, builtin
def reference(x): return 2 * x
def wrapped(error):
    try: raise error
    except Exception as met: raise InterpreterError(repr(met)) from met
def scalar(x): wrapped(AttributeError("'float' object has no attribute 'to'"))
def driver(x): raise RuntimeError("0 active drivers ([]). There should only be one.")
def device(x): return x + 0 * torch.cuda.get_device_properties(0).multi_processor_count
def guard(x):
    with torch.cuda.device(x.device): return 2 * x
def library(x): wrapped(ValueError("Did you forget to add @triton.jit ? (`_semantic` argument must be provided outside of JIT functions.)"))
def inside(x):
    try: builtin(x)
    except Exception as met: raise InterpreterError(repr(met)) from met
class Late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return 2 * x
    @staticmethod
    def backward(ctx, g): scalar(g)
def own(x): wrapped(ZeroDivisionError("division by zero"))
def mistake(x): return (2.0).to(x.dtype)
"""


@pytest.mark.parametrize(
    ("kernel", "interpreted", "status"),
    [
        ("scalar", True, "unsupported"),
        ("driver", True, "unsupported"),
        ("device", True, "unsupported"),
        ("guard", True, "unsupported"),
        ("library", True, "unsupported"),
        ("inside", True, "unsupported"),
        ("late", True, "unsupported"),  # in its backward pass
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
    late = kernel == "late"
    declare(TRITON, gradient=["x"], kernel="k.py:Late" if late else f"k.py:{kernel}")
    why = (
        "Triton's interpreter cannot run this kernel: "
        if interpreted
        else "Triton has no GPU here, and its interpreter is off"
    )
    for check in ("backward",) if late else ("forward", "backward"):
        (found,) = rows(cache, count=1, check=check)
        assert found["status"] == status, found["error"]
        assert found["error"].startswith(why) == (status == "unsupported")
        assert max(found["error"].count(text) for text in (why, "k.py:")) == 1  # also of a backward pass


class _Dtype:
    """As Triton has them."""

    def __init__(self, floating: bool = True) -> None:
        self.scalar, self.is_floating = self, lambda: floating


@dataclass
class _Handle:
    data: np.ndarray
    dtype: _Dtype


@dataclass
class _Tensor:
    handle: _Handle
    type: _Dtype

    @property
    def dtype(self) -> _Dtype:
        return self.type.scalar


def test_the_interpreter_computes_in_bfloat16_and_takes_the_first_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    float32, bfloat16, ran = _Dtype(), _Dtype(), []

    class InterpreterBuilder:
        """What Triton's own does: bfloat16 are integers of 16 bits, which it truncates to."""

        def cast_impl(self, given: Any, to: Any) -> Any:
            return _Handle((given.data.view(np.uint32) >> 16).astype(np.uint16) if to is bfloat16 else given.data, to)

        def binary_op(self, a: Any, b: Any, op: Any) -> Any:
            return _Handle(op(a.data, b.data), a.dtype)

        def create_dot(self, a: Any, b: Any, d: Any, *how: Any) -> Any:
            return _Handle(np.matmul(a.data, b.data, dtype=np.float32) + d.data, d.dtype)

        def create_atomic_rmw(self, op: Any, where: Any, x: Any) -> Any:
            return ran.append(x)

    class ReduceScanOpInterface:
        def apply(self, given: Any) -> Any:
            return self.apply((given,))[0] if not isinstance(given, tuple) else given

    class Autotuner:
        def _bench(self, *given: Any, config: Any) -> Any:
            raise RuntimeError("0 active drivers")

    for name, has in {
        "": {},
        ".language": {"float32": float32, "float64": _Dtype(), "bfloat16": bfloat16, "tensor": _Tensor},
        ".language.extra.libdevice": {},
        ".runtime.interpreter": {
            "InterpreterBuilder": InterpreterBuilder,
            "TensorHandle": _Handle,
            "ReduceScanOpInterface": ReduceScanOpInterface,
        },
        ".runtime.autotuner": {"Autotuner": Autotuner},
    }.items():
        module = types.ModuleType(f"triton{name}")
        module.__dict__.update(has)
        monkeypatch.setitem(sys.modules, f"triton{name}", module)
    library: Any = sys.modules["triton.language.extra.libdevice"]
    exec("def rsqrt(arg0):\n    ...\ndef brev(arg0):\n    ...", library.__dict__)
    rsqrt = library.rsqrt  # as a kernel's file has imported it
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    builder: Any = InterpreterBuilder()
    with interpreted.prepare_triton_interpreter():

        def half(*values: float) -> Any:
            return builder.cast_impl(_Handle(np.array(values, np.float32), float32), bfloat16)

        def exact(x: Any) -> Any:
            return builder.cast_impl(x, float32).data.tolist()

        assert exact(half(1 + 2**-8, 1 + 2**-8 + 2**-12, -3.1415927)) == [1.0, 1.0078125, -3.140625]
        assert exact(builder.binary_op(half(1.0, 256.0), half(2.5, 1.0), np.add)) == [3.5, 256.0]
        assert builder.binary_op(half(1.0, -2.0), half(0.0, 0.0), np.less).data.tolist() == [False, True]
        zero = _Handle(np.zeros((), np.float32), float32)
        made = builder.create_dot(half(1.5, 2.0), half(3.0, 4.0), zero)
        assert made.dtype is float32 and made.data.tolist() == 12.5
        builder.create_atomic_rmw("add", None, zero)
        quarter = _Tensor(_Handle(np.array([16.0], np.float32), float32), float32)
        assert rsqrt(quarter).handle.data.tolist() == [0.25] and library.brev(quarter) is None
        summed: Any = ReduceScanOpInterface()
        assert summed.apply(quarter) is quarter
        half_one = _Tensor(half(1.0), bfloat16)
        for refused in (
            lambda: builder.create_atomic_rmw("add", None, half(1.0)),
            lambda: summed.apply(half_one),
            lambda: summed.apply((quarter, half_one)),
            lambda: rsqrt(half_one),
        ):
            with pytest.raises(interpreted.NotInterpreted):
                refused()
    assert ran == [zero] and Autotuner()._bench(config={}) == Autotuner()._bench(config={"B": 2})
