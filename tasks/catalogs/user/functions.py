"""Kernels as published code has them: `torch.autograd.Function`s, which are called by position; Triton's interpreter."""

from __future__ import annotations

import inspect
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


def callable_of(found: Any) -> Callable[..., Any]:
    """What is called for a function that a config names: of an autograd.Function its ``apply``, with arguments by name."""
    if not _is_autograd_function(found):
        return found  # type: ignore[no-any-return]
    signature = inspect.signature(found.forward)
    parameters = list(signature.parameters.values())
    if _has_ctx(found):
        parameters = parameters[1:]
    taken = signature.replace(parameters=parameters)

    def apply(**arguments: Any) -> Any:
        bound = taken.bind(**arguments)
        bound.apply_defaults()
        return found.apply(*bound.args, *bound.kwargs.values())

    apply.__name__, apply.__qualname__, apply.__module__ = found.__name__, found.__qualname__, found.__module__
    apply.__signature__ = taken  # type: ignore[attr-defined]
    apply.__wrapped__ = found.forward  # type: ignore[attr-defined]
    return apply


def _is_autograd_function(found: Any) -> bool:
    torch = sys.modules.get("torch")  # whose class it is has been imported
    return torch is not None and isinstance(found, type) and issubclass(found, torch.autograd.Function)


def _has_ctx(found: Any) -> bool:
    """Whether ``forward`` takes the context: not where ``setup_context`` does."""
    torch = sys.modules["torch"]
    return found.setup_context is torch.autograd.Function.setup_context


def not_interpreted(error: BaseException) -> str:
    """What Triton's interpreter, not the kernel, cannot do; "" where the error is another one, or nothing is interpreted."""
    if os.environ.get("TRITON_INTERPRET") != "1" or "triton" not in sys.modules:
        return ""
    said = f"Triton's interpreter cannot run this kernel: {type(error).__name__}: {error}"
    if NO_DRIVER in str(error):
        return said
    last: BaseException = error
    while last.__cause__ is not None:  # the interpreter wraps what it meets
        last = last.__cause__
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
