"""A function named on a command line as an op of the user catalog: as it is declared, else judged by differences of itself."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farm.client.kernels import ClientError, Kernel, find_given_declaration, find_kernel, load_function
from farm.client.process import isolate_client_settings
from tasks.arrays import torch_tree
from tasks.catalogs.models import drawn_inputs
from tasks.catalogs.user import functions, kernel_samples, load_kernels, of_torch
from tasks.catalogs.user.ops import UserOp
from tasks.gradients import autograd
from tasks.model import EPS, Group, is_inexact_dtype
from tasks.nearest import suggest_nearest_names

#: Sizes of an input of which nobody says any.
SIZES = (3, 4)


@dataclass(frozen=True)
class NamedFunction:
    """op: what the user catalog calls it; dtype: under test; why: why it has no gradient to judge, "" where it has
    one."""

    op: str
    dtype: str
    why: str = ""


@contextlib.contextmanager
def lend_function(name: str, inputs: Sequence[str] = (), dtype: str = "") -> Iterator[NamedFunction]:
    """While this lasts, a function of the user's is an op of the user catalog, with a gradient.

    name: "file.py:function", "module:function" or an op of ./farm.yaml; inputs: as "x=float64[3,4]", instead of those
    of its declaration; dtype: under test ("": float64, or the first that it is declared in and that has one). Raises
    ClientError.
    """
    given = _parse_named_inputs(inputs)
    function = load_function(name) if ":" in name.removeprefix("user:") else name
    declared = find_given_declaration(function)
    floating = [one.dtype for one in given.values() if is_inexact_dtype(one.dtype)]
    known = list(declared.op.dtypes) if declared else []
    dtype = dtype or next((d for d in [*floating, *known] if d in EPS), "float64")
    why = ""
    if declared:
        if given and (missing := [x for x in declared.op.inputs if x not in given]):
            raise ClientError(
                f"--input: {missing[0]} is not given, and the sizes declared for it may not fit the others'"
            )
        fixed: dict[str, Any] = {"inputs": _make_input_specs(given), "dtypes": [dtype]} if given else {}
        kernel = find_kernel(function, backward=declared.op.gradient or True, **fixed)
    else:
        assert not isinstance(function, str)
        kernel, why = _make_unreferenced_op(name, function, given, dtype)
    with isolate_client_settings(), load_kernels.lend_op(kernel.op, kernel.root):
        yield NamedFunction(f"user:{kernel.op.name}", dtype, why)


def _parse_named_inputs(texts: Sequence[str]) -> dict[str, drawn_inputs.DrawnInput]:
    try:
        found = {one.name: one for one in map(drawn_inputs.parse_drawn_input, texts)}
    except ValueError as error:
        raise ClientError(f"--input: {error}") from None
    for text, one in zip(texts, found.values()):
        if not one.dtype or one.shape is None:
            raise ClientError(
                f"--input: {text!r} has no {'sizes' if one.dtype else 'dtype'}: write {drawn_inputs.FORM}"
            )
    return found


def _make_input_specs(given: Mapping[str, drawn_inputs.DrawnInput]) -> dict[str, Any]:
    """Inputs of a declaration; floating ones are of the dtype under test."""
    made: dict[str, Any] = {}
    for name, one in given.items():
        made[name] = {"shape": list(one.shape or ())}
        made[name] |= {} if is_inexact_dtype(one.dtype) else {"dtype": one.dtype}
        made[name] |= (
            {}
            if one.below is None
            else {"low": 0, "high": one.below if is_inexact_dtype(one.dtype) else int(one.below)}
        )
    return made


def _make_unreferenced_op(
    name: str, function: Any, given: Mapping[str, drawn_inputs.DrawnInput], dtype: str
) -> tuple[Kernel, str]:
    """(the op of a function that has no reference but itself, why it has no gradient)."""
    taken = _split_arguments(name, function, given)
    specs = {x: {"shape": list(SIZES)} for x in taken} | _make_input_specs(given)
    settings: dict[str, Any] = {"inputs": specs, "dtypes": [dtype], "backward": True}
    own = functions.find_callable_function(function)
    op = UserOp("op", own, own, specs)
    arrays = kernel_samples.make_sample_arrays(op, {}, Group("user:op", "", "float64", 1), 0)
    if not (said := _explain_refusal(own, arrays, _as_tensors)):
        return find_kernel(function, function, reference_framework="torch", **settings), ""
    if also := _explain_refusal(own, arrays, lambda x: x):
        hint = "" if given else f"; sizes are said by --input, e.g. --input '{taken[0]}=float64[3,4]'"
        raise ClientError(f"{name}: of tensors: {said}; of NumPy arrays: {also}{hint}")
    if hasattr(own, "backward"):
        return find_kernel(function, function, framework="numpy", **settings), ""

    @functools.wraps(own)
    def call_with_arrays(**inputs: Any) -> Any:
        outputs = of_torch.make_tensor_function(own)(**inputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    if not (why := _explain_refusal(call_with_arrays, arrays, _as_tensors)):
        return find_kernel(call_with_arrays, call_with_arrays, reference_framework="torch", **settings), ""

    def differences(gradient: Any, **inputs: Any) -> Any:
        wrt = [x for x, y in inputs.items() if is_inexact_dtype(y.dtype.name)]
        many = gradient if isinstance(gradient, tuple) else (gradient,)
        return dict(zip(wrt, autograd.differentiate_numpy(own, inputs, wrt, many)[0]))

    settings |= {"backward": differences, "framework": "numpy"}
    text = f"it has no backward, and autograd cannot follow it ({why}): give it one with @farm.autograd, or as {own.__name__}.backward"
    return find_kernel(function, function, **settings), text


def _split_arguments(name: str, function: Any, given: Mapping[str, Any]) -> list[str]:
    """The inputs of a function: those that are given, and its other arguments without a default. Raises ClientError."""
    known: Mapping[str, inspect.Parameter]
    try:
        known = inspect.signature(functions.find_callable_function(function)).parameters
    except (TypeError, ValueError):
        known = {}
    open_ended = not known or any(p.kind is p.VAR_KEYWORD for p in known.values())
    for x in given:
        if x not in known and not open_ended:
            raise ClientError(f"--input: {name} has no argument {x!r}{suggest_nearest_names(x, list(known))}")
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    asked = [x for x, p in known.items() if p.kind in kinds and (p.default is p.empty or x in given)]
    found = list(dict.fromkeys([*asked, *given]))
    if not found:
        raise ClientError(f"{name} names no arguments: give its inputs with --input 'x=float64[3,4]'")
    return found


def _as_tensors(x: np.ndarray) -> Any:
    made = torch_tree.tensor_from_numpy(x.copy())
    return made.requires_grad_() if made.is_floating_point() or made.is_complex() else made


def _explain_refusal(
    function: Callable[..., Any], arrays: Mapping[str, np.ndarray], argument: Callable[[np.ndarray], Any]
) -> str:
    """Why a function does not return what it is given, tensors or arrays; "" if it does."""
    given = {name: argument(x) for name, x in arrays.items()}
    try:
        with np.errstate(all="ignore"):
            result = torch_tree.list_output_tensors(function(**given))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    kinds = (
        (np.ndarray, np.generic)
        if isinstance(next(iter(given.values())), np.ndarray)
        else type(next(iter(given.values())))
    )
    wrong = next((x for x in result if not isinstance(x, kinds)), None if result else result)
    return "" if wrong is None else f"it returns a {type(wrong).__name__}"
