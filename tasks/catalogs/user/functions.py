"""Kernels as published code has them: `torch.autograd.Function`s and modules, which are called by position; functions of one tuple."""

from __future__ import annotations

import copy
import inspect
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from tasks.arrays import module_state


def find_callable_function(found: Any) -> Callable[..., Any]:
    """What is called for a function that a config names: of an autograd.Function its ``apply``, with arguments by name
    (`list_function_parameters`)."""
    if not _is_autograd_function(found):
        return found  # type: ignore[no-any-return]
    signature = inspect.signature(found.forward)
    parameters = list(signature.parameters.values())
    if _takes_forward_ctx(found):
        parameters = parameters[1:]
    taken = signature.replace(parameters=parameters)

    def apply(**arguments: Any) -> Any:
        bound = taken.bind(**arguments)
        bound.apply_defaults()
        return found.apply(*bound.args, *bound.kwargs.values())

    apply.__name__, apply.__qualname__, apply.__module__ = found.__name__, found.__qualname__, found.__module__
    apply.__signature__ = taken  # type: ignore[attr-defined]
    apply.__wrapped__ = found.forward  # type: ignore[attr-defined]
    _APPLIED.add(apply)
    return apply


#: What `find_callable_function` has made of autograd.Functions.
_APPLIED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def list_function_parameters(found: Callable[..., Any]) -> dict[str, Any] | None:
    """Of an autograd.Function's ``apply`` (`find_callable_function`), which is called by position: its parameters in their order,
    and their defaults. None of any other function."""
    if found not in _APPLIED:
        return None
    return {k: p.default for k, p in inspect.signature(found).parameters.items()}


def call_kernel_by_position(found: Callable[..., Any], names: Sequence[str], packed: bool) -> Callable[..., Any]:
    """A function that takes its arguments by name, of one that takes those of ``names`` by position, or all of them as
    one tuple."""

    def call(**arguments: Any) -> Any:
        given = [arguments.pop(name) for name in names]
        return found(tuple(given), **arguments) if packed else found(*given, **arguments)

    for name in ("__name__", "__qualname__", "__module__"):
        setattr(call, name, getattr(found, name, None) or type(found).__name__)
    return call


def is_torch_module_class(found: Any) -> bool:
    """Whether it is the class of a torch module."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, type) and issubclass(found, torch.nn.Module)


def make_kernel_of_module(found: Any, init: Sequence[Any]) -> Callable[..., Any]:
    """A function of tensors, of a torch module's class. The module is made of ``init`` at the first call, from seed 0,
    so that two classes that draw the same weights in the same order have the same; it is then in the dtype and on the
    device of the first floating tensor."""
    made: dict[tuple[Any, ...], Any] = {}

    def call(*given: Any, **named: Any) -> Any:
        import torch

        tensors = [x for x in (*given, *named.values()) if isinstance(x, torch.Tensor)]
        first = next((x for x in tensors if x.is_floating_point()), None)
        where = (first.device, first.dtype) if first is not None else (tensors[0].device if tensors else "cpu", None)
        if where not in made:
            # In float32, whatever the reference's process takes for its default: the weights are to be the same
            # numbers.
            default = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
            try:
                with module_state.seed_rng():
                    module = found(*copy.deepcopy(list(init)))
            finally:
                torch.set_default_dtype(default)
            made[where] = module.to(device=where[0], dtype=where[1])
        return made[where](*given, **named)

    call.__name__, call.__qualname__, call.__module__ = found.__name__, found.__qualname__, found.__module__
    return call


def call_kernel_in_order(found: Callable[..., Any]) -> Callable[..., Any]:
    """A function that takes its arguments by name; what takes some by position alone, as NumPy's ufuncs do, is given
    the first that are named."""
    if isinstance(found, np.ufunc):
        count = found.nin
    elif isinstance(found, FunctionType) and not vars(
        found
    ):  # asked of every case: a signature takes as long as a small kernel
        count = found.__code__.co_posonlyargcount
    else:
        try:
            kinds = [p.kind for p in inspect.signature(found).parameters.values()]
        except (TypeError, ValueError):
            return found  # a builtin does not say
        count = kinds.count(inspect.Parameter.POSITIONAL_ONLY)
    if not count:
        return found

    def call(*first: Any, **arguments: Any) -> Any:
        given = [*first, *(arguments.pop(name) for name in list(arguments)[: max(0, count - len(first))])]
        return found(*given, **arguments)

    for name in ("__name__", "__qualname__", "__module__"):
        setattr(call, name, getattr(found, name, None) or type(found).__name__)
    return call


def _is_autograd_function(found: Any) -> bool:
    torch = sys.modules.get("torch")  # whose class it is has been imported
    return torch is not None and isinstance(found, type) and issubclass(found, torch.autograd.Function)


def _takes_forward_ctx(found: Any) -> bool:
    """Whether ``forward`` takes the context: not where ``setup_context`` does."""
    torch = sys.modules["torch"]
    return found.setup_context is torch.autograd.Function.setup_context
