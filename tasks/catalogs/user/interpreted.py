"""Triton's interpreter, where there is no GPU: what of a kernel it takes as the compiler does, and what it cannot run."""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

#: What the interpreter says of what it cannot run, wherever it is raised: without a GPU there is no driver to ask.
NO_DRIVER = "active drivers"
#: Errors that Triton's own files raise for what they do not take, such as a Python number where they want a tensor.
NOT_TAKEN = (AttributeError, TypeError, NotImplementedError, AssertionError)
#: Functions of the interpreter that compute: it keeps bfloat16 as integers of 16 bits, and computes with those.
COMPUTES = ("unary_op", "binary_op", "ternary_op")


class NotInterpreted(Exception):
    """What the interpreter would compute wrongly, though a GPU would not."""


def interprets() -> bool:
    """Whether Triton's kernels are interpreted in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1" and "triton" in sys.modules


def prepared() -> None:
    """Make the interpreter take a Python float as the compiler does, as a float32, and refuse to compute in bfloat16.

    Where another version of Triton has not what is changed here, it stays as it is.
    """
    if interprets() and (module := sys.modules.get("triton.runtime.interpreter")) is not None:
        _mended(module)


@functools.cache
def _mended(module: Any) -> None:
    import numpy as np

    language = sys.modules["triton.language"]
    convert, builder = getattr(module, "_implicit_cvt", None), getattr(module, "InterpreterBuilder", None)
    if convert is not None and hasattr(module, "TensorHandle"):

        def converted(argument: Any) -> Any:
            if type(argument) is not float:
                return convert(argument)
            handle = module.TensorHandle(np.array([argument], dtype=np.float32), language.float32)
            return language.tensor(handle, language.float32)

        module._implicit_cvt = converted
    for name in COMPUTES:
        if builder is not None and hasattr(builder, name):
            setattr(builder, name, _refusing(getattr(builder, name), language.bfloat16))


def _refusing(compute: Callable[..., Any], bfloat16: Any) -> Callable[..., Any]:
    @functools.wraps(compute)
    def checked(self: Any, *arguments: Any) -> Any:
        if any(getattr(getattr(x, "dtype", None), "scalar", None) == bfloat16 for x in arguments):
            raise NotInterpreted("it computes with the bits of bfloat16 as if they were integers; a GPU does not")
        return compute(self, *arguments)

    return checked


def not_interpreted(error: BaseException) -> str:
    """What Triton's interpreter, not the kernel, cannot do, or that there is neither it nor a GPU; "" where the error is another one."""
    if not interprets():
        # A script that imports its kernels has imported Triton before anybody could switch the interpreter on.
        none = "triton" in sys.modules and NO_DRIVER in str(error)
        return f"Triton has no GPU here, and its interpreter is off: set TRITON_INTERPRET=1 ({error})" if none else ""
    said = f"Triton's interpreter cannot run this kernel: {type(error).__name__}: {error}"
    if NO_DRIVER in str(error):
        return said
    last: BaseException = error
    while last.__cause__ is not None:  # the interpreter wraps what it meets
        last = last.__cause__
    if isinstance(last, NotInterpreted):
        return f"Triton's interpreter cannot run this kernel: {last}"
    if last is error or type(error).__name__ != "InterpreterError" or not isinstance(last, NOT_TAKEN):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(last.__traceback__)]
    own = Path(str(sys.modules["triton"].__file__)).parent
    inside = Path(frames[-1].f_code.co_filename).is_relative_to(own)
    number = re.match(r"'(float|int|bool)' object has no attribute", str(last)) is not None
    nothing = "NoneType" in str(last) and _asks_libdevice(frames[-1])
    return said if inside or number or nothing else ""


def _asks_libdevice(frame: FrameType) -> bool:
    """Whether the code calls a function of the device's library, which returns nothing where there is no device."""
    used = (frame.f_globals.get(name) for name in frame.f_code.co_names)
    return any("libdevice" in str(getattr(x, "__module__", "") or getattr(x, "__name__", "")) for x in used)
