"""What the user's own file says of a model: the module, what it is made with, and the inputs that it is called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import module_state, torch_tree
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user import load_kernels
from tasks.graphs.given_model import GivenError
from tasks.model import errors
from tasks.model.dtypes import NATIVE, name_numpy_dtype
from tasks.nearest import suggest_nearest_names

#: Functions of a file, as KernelBench has them: the arguments of the model's class, and those of its forward.
INIT, INPUTS = "get_init_inputs", "get_inputs"
#: A list (or a mapping by name) of inputs at the top of a file.
LIST = "inputs"

Arrays = dict[str, np.ndarray]


def make_module_of_file(source: str, root: str) -> Any:
    """The torch module that a name stands for: the module itself, or what a class or a function makes with a seed, a
    class with the arguments of get_init_inputs(). Raises GivenError."""
    import torch

    try:
        found = load_kernels.resolve_user_name(source, root)
    except CatalogError as error:
        raise GivenError(str(error)) from None
    if callable(found) and not isinstance(found, torch.nn.Module):
        is_class = isinstance(found, type) and issubclass(found, torch.nn.Module)
        arguments = list(_call_function_of_file(INIT, source, root, 0) or ()) if is_class else []
        _check_call_arguments(
            found, arguments, f"{source}: {found.__name__}", f"; let {INIT}() in its file return them" * is_class
        )
        try:
            with module_state.seed_rng():
                found = found(*arguments)
        except Exception as error:
            raise GivenError(f"{source}: {errors.describe_error_with_place(error)}") from None
    if not isinstance(found, torch.nn.Module):
        raise GivenError(
            f"{source}: a torch.nn.Module, or a class or function without arguments that makes one is needed, not {found!r:.80}"
        )
    return found


def _call_function_of_file(function: str, source: str, root: str, seed: int) -> Any:
    """What a function of the model's file returns; None where there is none. Raises GivenError."""
    found = _read_module_names(source, root).get(function)
    if found is None:
        return None
    try:
        with module_state.seed_rng(seed):
            return found()
    except Exception as error:
        raise GivenError(f"{source}: {function}(): {errors.describe_error_with_place(error)}") from None


def _read_module_names(source: str, root: str) -> Mapping[str, Any]:
    """What the model's file has at its top, by name. Raises GivenError."""
    try:
        return vars(load_kernels.load_user_module(source.rpartition(":")[0], root, ()))
    except CatalogError as error:
        raise GivenError(str(error)) from None


def count_given_samples(source: str, root: str, forward: Callable[..., Any]) -> int | None:
    """How many samples the model's file has inputs for: None for as many as are asked for, 0 for none. Raises
    GivenError."""
    there = _read_module_names(source, root)
    if INPUTS in there:
        first, second = (read_given_inputs(source, root, forward, index, 0) or {} for index in (0, 1))
        same = first.keys() == second.keys() and all(np.array_equal(first[x], second[x]) for x in first)
        return 1 if same else None
    return int(_read_inputs_at_top(there, forward) is not None)


def read_given_inputs(source: str, root: str, forward: Callable[..., Any], index: int, seed: int) -> Arrays | None:
    """The inputs of sample ``index`` as the model's file has them; None where it has none. Raises GivenError.

    They are what get_inputs() returns when it is called once, with a seed of the run's seed and the sample; else the
    list ``read_given_inputs``, else the tensors at the top of the file that are called as forward's arguments.
    """
    found, where = (
        _call_function_of_file(INPUTS, source, root, 1000 * (seed % 2**40) + index),
        f"{source}: {INPUTS}()",
    )
    if found is None and INPUTS in _read_module_names(source, root):
        raise GivenError(f"{where} returned nothing: let it return a list of forward's inputs")
    if found is None:
        found, where = (
            _read_inputs_at_top(_read_module_names(source, root), forward),
            f"{source}: the inputs at the top of the file",
        )
    if found is None:
        return None
    if not isinstance(found, (Mapping, Sequence)) or isinstance(found, str):
        found = [found]
    if not found:
        _check_call_arguments(forward, [], f"{where} returned nothing: forward")
    if isinstance(found, Mapping):
        return order_model_inputs(
            {name: _read_given_array(x, name, where) for name, x in found.items()}, forward, where
        )
    values = [_read_given_array(x, str(place), where) for place, x in enumerate(found)]
    names = list_forward_parameters(forward)
    fitting = names[: len(values)] if len(names) >= len(values) else [f"input_{k}" for k in range(len(values))]
    return order_model_inputs(dict(zip(fitting, values)), forward, where, strict=False)


def _read_inputs_at_top(there: Mapping[str, Any], forward: Callable[..., Any]) -> Any:
    """Inputs that stand at the top of a file; None where there are none."""
    import torch

    if isinstance(there.get(LIST), (list, tuple, Mapping)):
        return there[LIST]
    tensors = {
        name: there[name] for name in list_forward_parameters(forward) if isinstance(there.get(name), torch.Tensor)
    }
    return tensors or None


def _read_given_array(x: Any, name: str, where: str) -> np.ndarray:
    import torch

    what = f"{where}: input {name} is"
    if isinstance(x, torch.Tensor):
        if x.layout is not torch.strided or x.is_quantized or x.device.type == "meta":
            kind = "on meta" if x.device.type == "meta" else "quantised" if x.is_quantized else f"of {x.layout}"
            raise GivenError(f"{what} a tensor {kind}: give a dense one, and let forward make it what it needs")
        return np.array(torch_tree.tensor_to_numpy(x.detach().cpu().contiguous()), order="C")
    if isinstance(x, (np.ndarray, np.generic)):
        made = np.array(x, order="C")
        if name_numpy_dtype(made.dtype) not in (*NATIVE, *torch_tree.AS_INTEGER):
            raise GivenError(f"{what} an array of {made.dtype}, which no tensor holds: give numbers")
        return made
    if isinstance(x, (bool, int, float)):  # a tensor of no dimension computes the same
        try:
            return np.array(x, bool if isinstance(x, bool) else np.float32 if isinstance(x, float) else np.int64)
        except OverflowError:
            raise GivenError(f"{what} {x}, which int64 does not hold") from None
    raise GivenError(
        f"{where}: input {name} is a {type(x).__name__}, no tensor and no number: let the module hold it, as an argument of its __init__"
    )


def list_forward_parameters(forward: Callable[..., Any]) -> list[str]:
    """The names of the arguments that a forward takes by position."""
    taken = _read_forward_signature(forward)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, x in taken.parameters.items() if x.kind in kinds] if taken else []


def _read_forward_signature(forward: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(forward)
    except (TypeError, ValueError):  # a builtin does not say
        return None


def order_model_inputs(given: Arrays, forward: Callable[..., Any], where: str, strict: bool = True) -> Arrays:
    """The inputs in the order of forward's arguments. strict: a name that forward does not have is a mistake; else, if
    it has none of them, they are taken in their own order. Raises GivenError for what it does not have, and for what is
    missing."""
    taken, names = _read_forward_signature(forward), list_forward_parameters(forward)
    unknown = [name for name in given if name not in names]
    variadic = taken is None or any(x.kind is x.VAR_POSITIONAL for x in taken.parameters.values())
    if variadic or (unknown and not strict and len(unknown) == len(given)):
        _check_call_arguments(forward, list(given), f"{where}: forward")
        return given
    if unknown:
        said = f"{where}: forward has no argument {unknown[0]!r}"
        raise GivenError(f"{said}{suggest_nearest_names(unknown[0], names)}" if names else f"{said}: it has none")
    last = max((names.index(name) for name in given), default=-1)
    if lacking := [name for name in names[:last] if name not in given]:
        raise GivenError(
            f"{where}: forward{taken} is called without {lacking[0]!r}, which comes before {names[last]!r}"
        )
    _check_call_arguments(forward, [name for name in names if name in given], f"{where}: forward")
    return {name: given[name] for name in names if name in given}


def _check_call_arguments(function: Callable[..., Any], given: Sequence[Any], where: str, fix: str = "") -> None:
    """Raise GivenError unless a function can be called with so many arguments."""
    taken = _read_forward_signature(function)
    try:
        if taken is not None:
            taken.bind(*given)
    except TypeError as error:
        told = ", ".join(map(str, given)) or "nothing"
        raise GivenError(f"{where}{taken} is called with {told}: {error}{fix}") from None
