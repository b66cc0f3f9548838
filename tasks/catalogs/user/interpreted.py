"""Triton's interpreter, where there is no GPU: what of a kernel it takes as the compiler does, and what it cannot run."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np

from tasks.catalogs.user import watched_accesses
from tasks.catalogs.user.watched_accesses import LaunchWatch, watching
from tasks.model.errors import list_error_causes

#: What is said where there is no GPU to ask, wherever it is raised: by Triton's driver, by torch.
NO_GPU = re.compile(
    "active drivers|not compiled with (CUDA|XPU) enabled|Expected a cuda device|No (CUDA|HIP|XPU) (GPUs|devices) are available|"
    "Found no NVIDIA driver"
)
#: Errors that Triton's own files raise for what they do not take, such as a Python number where they want a tensor.
NOT_TAKEN = (AttributeError, TypeError, NotImplementedError, AssertionError)
#: What a function of a vendor's device library says outside the compiler.
OUTSIDE = "must be provided outside of JIT functions"
#: Functions of the interpreter that compute: it keeps bfloat16 as integers of 16 bits, and computes with those.
COMPUTES = ("unary_op", "binary_op", "ternary_op", "create_dot", "create_fma")
#: Functions of a vendor's device library that NumPy has too; outside the compiler they return None.
LIBRARY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in "tanh exp exp2 expm1 log log2 log1p sqrt sin cos floor ceil".split()},
    "abs": np.abs,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
#: Those that compute in memory.
ATOMICS = ("create_atomic_rmw", "create_atomic_cas")


class NotInterpreted(Exception):
    """What the interpreter would compute wrongly, though a GPU would not."""


def is_triton_interpreted() -> bool:
    """Whether Triton's kernels are interpreted in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules


@contextlib.contextmanager
def prepare_triton_interpreter() -> Iterator[LaunchWatch]:
    """Around the call of a kernel: make the interpreter compute as a GPU would, without NumPy's warnings, and watch its
    accesses.

    It takes a Python float as a float32, as the compiler does; it computes in bfloat16, to which it rounds to nearest;
    the device library's functions are NumPy's; an autotuned kernel has the first of its configurations. What another
    version of Triton does not have of what is changed here stays as it is.
    """
    if not is_triton_interpreted() or (module := sys.modules.get("triton.runtime.interpreter")) is None:
        yield LaunchWatch()
        return
    _mend_interpreter_once(module)
    with np.errstate(all="ignore"), watching() as watch:
        yield watch


@functools.cache
def _mend_interpreter_once(module: Any) -> None:
    with contextlib.suppress(
        AttributeError, KeyError, TypeError, ValueError
    ):  # another version: once, or each call would wrap again
        _mend_interpreter(module)
    with contextlib.suppress(AttributeError):
        watched_accesses.watch_interpreter_accesses(module)


def _mend_interpreter(module: Any) -> None:
    language = sys.modules["triton.language"]
    convert, builder = getattr(module, "_implicit_cvt", None), getattr(module, "InterpreterBuilder", None)
    tuner: Any = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    if hasattr(tuner, "_bench"):
        tuner._bench = lambda *arguments, **named: [0.0, 0.0, 0.0]
    if not hasattr(module, "TensorHandle"):
        return
    if convert is not None:

        def convert_argument(argument: Any) -> Any:
            if type(argument) is not float:
                return convert(argument)
            handle = module.TensorHandle(np.array([argument], dtype=np.float32), language.float32)
            return language.tensor(handle, language.float32)

        module._implicit_cvt = convert_argument
    if (library := sys.modules.get("triton.language.extra.libdevice")) is not None:
        _complete_device_library(library, module.TensorHandle, language)
    bfloat16 = _InterpretedBfloat16(module.TensorHandle, language)
    for names, change in ((("cast_impl",), bfloat16.casts), (COMPUTES, bfloat16.computes), (ATOMICS, bfloat16.refuses)):
        for name in names:
            if hasattr(builder, name):
                setattr(builder, name, change(getattr(builder, name)))
    if (reducing := getattr(module, "ReduceScanOpInterface", None)) is not None:
        reducing.apply = bfloat16.refuses(reducing.apply, "a reduction or scan")


def _complete_device_library(library: Any, handle: Callable[..., Any], language: Any) -> None:
    """Give the functions of the device library a body: kernels that have imported one by name hold the function
    itself."""

    def compute_float(name: str, x: Any) -> Any:
        if x.dtype.scalar not in (language.float32, language.float64):
            raise NotInterpreted(f"the device library's {name} is of float32 and float64")
        made = LIBRARY[name](x.handle.data).astype(x.handle.data.dtype)
        return language.tensor(handle(made, x.dtype.scalar), x.type)

    library.__dict__["computed"] = compute_float
    for name in LIBRARY:
        if callable(getattr(library, name, None)):
            made: dict[str, Any] = {}
            exec(f"def {name}(x): return computed({name!r}, x)", library.__dict__, made)
            getattr(library, name).__code__ = made[name].__code__


@dataclass(frozen=True)
class _InterpretedBfloat16:
    """Functions of the interpreter made right for bfloat16. handle: makes a value of an array and a dtype."""

    handle: Callable[..., Any]
    language: Any

    def _is(self, x: Any) -> bool:
        return getattr(getattr(x, "dtype", None), "scalar", None) == self.language.bfloat16

    def _wide(self, x: Any) -> Any:
        if not self._is(x):
            return x
        return self.handle((x.data.astype(np.uint32) << 16).view(np.float32), self.language.float32)

    def _narrow(self, x: Any) -> Any:
        return self.handle(x.data.astype(ml_dtypes.bfloat16).view(np.uint16), self.language.bfloat16)

    def casts(self, cast: Callable[..., Any]) -> Callable[..., Any]:
        """Through float32, rounded to nearest even."""

        @functools.wraps(cast)
        def round_cast(builder: Any, given: Any, to: Any) -> Any:
            if to.scalar != self.language.bfloat16:
                return cast(builder, self._wide(given), to)
            return given if self._is(given) else self._narrow(cast(builder, given, self.language.float32))

        return round_cast

    def computes(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """In float32, and rounded once, unless a float32 is added to; what compares has no dtype of its own."""

        @functools.wraps(compute)
        def compute_in_float32(builder: Any, *arguments: Any) -> Any:
            floating = [x for x in arguments if hasattr(x, "data") and x.dtype.scalar.is_floating()]
            made = compute(builder, *map(self._wide, arguments))
            narrow = floating and all(map(self._is, floating)) and made.data.dtype == np.float32
            return self._narrow(made) if narrow else made

        return compute_in_float32

    def refuses(self, compute: Callable[..., Any], what: str = "an atomic operation") -> Callable[..., Any]:
        @functools.wraps(compute)
        def refuse_bfloat16(builder: Any, *arguments: Any) -> Any:
            given = arguments[0] if arguments and isinstance(arguments[0], tuple) else arguments
            if any(map(self._is, given)):
                raise NotInterpreted(f"{what} in bfloat16 takes its bits as integers; a GPU does not")
            return compute(builder, *arguments)

        return refuse_bfloat16


def explain_not_interpreted(error: BaseException) -> str:
    """What Triton's interpreter, not the kernel, cannot do, or that there is neither it nor a GPU; "" where the error
    is another one."""
    if not is_triton_interpreted():
        # A script that imports its kernels has imported Triton before anybody could switch the interpreter on.
        none = "triton" in sys.modules and "active drivers" in str(error)
        return f"Triton has no GPU here, and its interpreter is off: set TRITON_INTERPRET=1 ({error})" if none else ""
    said = f"Triton's interpreter cannot run this kernel: {type(error).__name__}: {error}"
    if NO_GPU.search(str(error)):
        return said
    last = list_error_causes(error)[-1]  # the interpreter wraps what it meets
    if isinstance(last, NotInterpreted):
        return f"Triton's interpreter cannot run this kernel: {last}"
    if last is error or type(error).__name__ != "InterpreterError":
        return ""
    if OUTSIDE in str(last):
        return said
    if not isinstance(last, NOT_TAKEN):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(last.__traceback__)]
    own = Path(str(sys.modules["triton"].__file__)).parent
    inside = Path(frames[-1].f_code.co_filename).is_relative_to(own)
    number = re.match(r"'(float|int|bool)' object has no attribute", str(last)) is not None
    nothing = "NoneType" in str(last) and _does_kernel_ask_libdevice(frames[-1])
    return said if inside or number or nothing else ""


def _does_kernel_ask_libdevice(frame: FrameType) -> bool:
    """Whether the code calls a function of the device's library, which returns nothing where there is no device."""
    used = (frame.f_globals.get(name) for name in frame.f_code.co_names)
    return any("libdevice" in str(getattr(x, "__module__", "") or getattr(x, "__name__", "")) for x in used)
