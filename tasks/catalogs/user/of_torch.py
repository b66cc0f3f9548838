"""References that are functions of torch tensors: their outputs as arrays, their gradients by autograd."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise, torch_tree, widened
from tasks.arrays.layouts import make_array_contiguous
from tasks.gradients import autograd
from tasks.graphs import torch_module
from tasks.graphs.cast_roundings import Read, Round
from tasks.model import EPS


def make_torch_evaluator(
    reference: Callable[..., Any], rounds: list[str] | None = None
) -> Callable[[Mapping[str, Any], Round | None, Read | None], Any]:
    """The reference as a function of its arguments by name , of what a cast makes (None: the nearest number) and of
    what is read of that (None: the same): every array is handed over as a tensor, every tensor comes back as one.

    Where it casts to fewer digits than float32 has, it rounds, and everything else is computed in float64 all the same
    (`tasks.graphs.torch_module.evaluate_module_exactly`). rounds: is filled with the dtypes that it casts to.
    """
    told = [] if rounds is None else rounds

    def function(arguments: Mapping[str, Any], round: Round | None = None, read: Read | None = None) -> Any:
        import torch

        if not told:  # a reference that casts once is not evaluated twice for each draw
            with torch.no_grad(), _default_to_float64(), _watch_narrow_casts() as seen:
                try:
                    result = reference(**{name: _make_reference_tensor(x) for name, x in arguments.items()})
                except Exception:
                    if not seen:  # else float32 may have met float64, which it does not where each has the dtype that it believes in
                        raise
            told.extend(seen)
        if told:
            return _round_reference_casts(reference, arguments, round, read)
        parts = result if isinstance(result, (tuple, list)) else [result]
        return [torch_tree.tensor_to_numpy(x.detach()) if isinstance(x, torch.Tensor) else x for x in parts]

    return function


def _round_reference_casts(
    reference: Callable[..., Any], arguments: Mapping[str, Any], round: Round | None, read: Read | None
) -> list[np.ndarray]:
    """The outputs of a reference that casts to fewer digits."""
    import torch

    names = [name for name, x in arguments.items() if isinstance(x, np.ndarray)]
    others = {name: x for name, x in arguments.items() if name not in names}

    class Reference(torch.nn.Module):
        def forward(self, *given: Any) -> list[Any]:
            result = reference(**dict(zip(names, given)), **others)
            return [torch.as_tensor(x) for x in (result if isinstance(result, (tuple, list)) else [result])]

    return torch_module.evaluate_module_exactly(
        Reference(), [arguments[name] for name in names], round=round, read=read
    )


def shake_torch_reference(
    reference: Callable[..., Any], arguments: Mapping[str, Any], draw: int
) -> list[np.ndarray] | None:
    """What the reference returns if each of its results in float64 is another in the last digit, and those inside of an
    op that torch can take apart (log_softmax, layer_norm); None where it casts to fewer digits, or cannot be
    watched."""
    import torch
    from torch._decomp import decomposition_table
    from torch.utils._python_dispatch import TorchDispatchMode

    places = itertools.count(1)

    def move(x: Any) -> None:
        if isinstance(x, torch.Tensor) and x.dtype == torch.float64 and x.numel():
            x.copy_(torch.from_numpy(noise.move_last_digit(x.numpy(), draw, next(places))))

    class Shaken(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            apart = decomposition_table.get(func)
            if apart is not None and not widened.does_op_only_move(func):
                with self:
                    return apart(*args, **(kwargs or {}))
            out = func(*args, **(kwargs or {}))
            if not widened.does_op_only_move(func):
                for x in out if isinstance(out, (tuple, list)) else (out,):
                    move(x)
            return out

    try:
        with torch.no_grad(), _default_to_float64(), _watch_narrow_casts() as seen, Shaken():
            result = reference(**{name: _make_reference_tensor(x) for name, x in arguments.items()})
    except Exception:
        return None
    parts = result if isinstance(result, (tuple, list)) else [result]
    return (
        None
        if seen
        else [torch_tree.tensor_to_numpy(x) if isinstance(x, torch.Tensor) else np.asarray(x) for x in parts]
    )


@contextlib.contextmanager
def _watch_narrow_casts() -> Iterator[list[str]]:
    """The floating dtypes of fewer digits than float32 that tensors are cast to in here."""
    seen: list[str] = []

    def note(func: Any, given: Any, made: Any) -> None:
        if func.overloadpacket.__name__ == "_to_copy" and made.dtype != given[0][0].dtype:
            name = torch_tree.name_torch_dtype(made.dtype)
            if EPS.get(name, 0.0) > EPS["float32"] and name not in seen:
                seen.append(name)

    with torch_module.watch_module_operations(note):
        yield seen


@contextlib.contextmanager
def _default_to_float64() -> Iterator[None]:
    """What a reference makes without naming a dtype is float64."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _make_reference_tensor(x: Any) -> Any:
    return torch_tree.tensor_from_numpy(make_array_contiguous(x)) if isinstance(x, np.ndarray) else x


def compute_reference_gradients(
    check: str,
    call: Callable[..., Any],
    inputs: Mapping[str, np.ndarray],
    kwargs: Mapping[str, Any],
    wrt: Sequence[int],
    cotangents: Sequence[np.ndarray | None],
    made: Callable[[Sequence[Any]], None] | None = None,
    **hooks: Any,
) -> list[np.ndarray]:
    """What a check of gradients computes of a function of tensors, in float64: `tasks.gradients.autograd.differentiate_backward`, whose
    hooks these are.

    wrt: places of the inputs that are differentiated; cotangents: see there. Raises ValueError where no output depends
    on an input by autograd.
    """
    import torch

    def check_connected(outputs: Sequence[Any]) -> None:
        if not any(isinstance(y, torch.Tensor) and y.requires_grad for y in outputs):
            raise ValueError("no output of the reference depends on an input by autograd: does it leave torch?")
        if made is not None:
            made(outputs)

    given = {name: _make_reference_tensor(np.array(x)) for name, x in inputs.items()}
    passed = [None if c is None else _make_reference_tensor(np.array(c)) for c in cotangents]
    with _default_to_float64():
        found = autograd.differentiate_backward(
            check, call, (), {**given, **kwargs}, wrt, passed, made=check_connected, **hooks
        )
    return [torch_tree.tensor_to_numpy(g) for g in found]


def make_reference_problem(
    check: str,
    call: Callable[..., Any],
    inputs: Mapping[str, np.ndarray],
    kwargs: Mapping[str, Any],
    wrt: Sequence[int],
    cotangents: Sequence[np.ndarray | None],
) -> autograd.GradientProblem:
    """The function whose gradient `compute_reference_gradients` computes."""

    def wide(**arguments: Any) -> Any:
        with _default_to_float64():
            return call(**arguments)

    given = {name: _make_reference_tensor(np.array(x)) for name, x in inputs.items()}
    passed = [None if c is None else _make_reference_tensor(np.array(c)) for c in cotangents]
    return autograd.make_gradient_problem(check, wide, (), {**given, **kwargs}, wrt, passed)


def make_tensor_function(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy arrays as one of tensors that autograd can differentiate, by torch's own NumPy
    (`torch._numpy`).

    What it returns raises where the function leaves it: for a NumPy function that torch does not have, or for Python's
    numbers.
    """

    def call(**arguments: Any) -> Any:
        import torch
        from torch._numpy import ndarray

        with _let_numpy_take_tensors():
            result = reference(
                # A copy: it may be written to.
                **{name: ndarray(x.clone()) if isinstance(x, torch.Tensor) else x for name, x in arguments.items()}
            )
        parts = result if isinstance(result, (tuple, list)) else [result]
        return [y.tensor if isinstance(y, ndarray) else torch.as_tensor(y) for y in parts]

    return call


@contextlib.contextmanager
def _let_numpy_take_tensors() -> Iterator[None]:
    """NumPy's functions take torch's NumPy arrays (NEP 13 and 18), and nothing turns one into what autograd cannot
    follow."""
    import torch._numpy as ours

    def counterpart(function: Any) -> Callable[..., Any]:
        module = ours.linalg if "linalg" in (function.__module__ or "") else ours
        found: Callable[..., Any] = getattr(module, function.__name__)
        return found

    def ufunc(_: Any, function: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if method != "__call__":
            raise TypeError(f"torch has no {function.__name__}.{method}")
        return counterpart(function)(*inputs, **kwargs)

    def other(_: Any, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return counterpart(function)(*args, **kwargs)

    def leaves(*_: Any, **__: Any) -> Any:
        raise TypeError("the reference turns an array into what autograd cannot follow")

    changed: dict[str, Any] = dict.fromkeys(("__array__", "__float__", "__complex__", "item", "tolist"), leaves)
    changed |= {"__array_ufunc__": ufunc, "__array_function__": other}
    before = {name: vars(ours.ndarray).get(name) for name in changed}
    try:
        for name, method in changed.items():
            setattr(ours.ndarray, name, method)
        yield
    finally:
        for name, method in before.items():
            if method is None:
                delattr(ours.ndarray, name)
            else:
                setattr(ours.ndarray, name, method)
