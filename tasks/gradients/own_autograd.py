"""Autograd libraries of one's own: `@autograd` makes a function of their tensors into a kernel of NumPy arrays with a gradient."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.arrays.pack import name_numpy_dtype
from tasks.model import is_inexact_dtype


def autograd(
    tensor: Callable[..., Any], data: str = "data", grad: str = "grad", backward: str = "backward"
) -> Callable[..., Any]:
    """Decorate a function of a library's tensors: it becomes one of NumPy arrays, with its gradient as ``backward``.

    tensor: makes a tensor of an array, with ``requires_grad=True`` if it takes that; data, grad, backward: what a
    tensor calls its array, its gradient (an array or a tensor; None for 0) and the method that computes gradients. The
    function is called with tensors for floating arrays, and with everything else as it is; it returns a tensor or a
    tuple of them.

    ``backward`` is called with the output's gradient, an array, if it takes an argument; else, and for several outputs,
    on the sum of every output times its gradient, for which the library's tensors need ``*``, ``+`` and ``.sum()``.
    """
    try:
        flagged = "requires_grad" in inspect.signature(tensor).parameters
    except (TypeError, ValueError):  # a builtin does not say
        flagged = False
    make = functools.partial(tensor, requires_grad=True) if flagged else tensor

    def array(x: Any) -> Any:
        return x if isinstance(x, (np.ndarray, np.generic)) else getattr(x, data)

    def make_tensors(arguments: dict[str, Any]) -> dict[str, Any]:
        return {k: make(x) if _is_differentiable_dtype(x) else x for k, x in arguments.items()}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def kernel(*args: Any, **kwargs: Any) -> Any:
            named = inspect.signature(function).bind(*args, **kwargs).arguments
            result = function(**make_tensors(named))
            return tuple(map(array, result)) if isinstance(result, tuple) else array(result)

        def gradients(gradient: Any, **arguments: Any) -> dict[str, Any]:
            inputs = make_tensors(arguments)
            result = function(**inputs)
            if isinstance(result, tuple) or not _does_backward_take_argument(getattr(result, backward)):
                pairs = zip(result, gradient) if isinstance(result, tuple) else [(result, gradient)]
                result = functools.reduce(operator.add, [(y * tensor(np.array(g))).sum() for y, g in pairs])
                getattr(result, backward)()
            else:
                getattr(result, backward)(np.array(gradient))
            found = {k: getattr(x, grad) for k, x in inputs.items() if _is_differentiable_dtype(arguments[k])}
            return {k: None if g is None else array(g) for k, g in found.items()}

        kernel.backward = gradients  # type: ignore[attr-defined]
        return kernel

    return decorate


def _is_differentiable_dtype(x: Any) -> bool:
    return isinstance(x, np.ndarray) and is_inexact_dtype(name_numpy_dtype(x.dtype))


def _does_backward_take_argument(method: Callable[..., Any]) -> bool:
    return any(p.kind is not p.KEYWORD_ONLY for p in inspect.signature(method).parameters.values())
