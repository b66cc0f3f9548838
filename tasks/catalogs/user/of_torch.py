"""References that are functions of torch tensors: their outputs as arrays, their gradients by autograd."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import torch_tree


def evaluated(reference: Callable[..., Any]) -> Callable[..., Any]:
    """The reference as a function of arrays: every array argument is handed over as a tensor, every tensor comes back as one."""

    def function(**arguments: Any) -> Any:
        import torch

        with torch.no_grad(), _wide():
            result = reference(**{name: _tensor(x) for name, x in arguments.items()})
        parts = result if isinstance(result, (tuple, list)) else [result]
        return [torch_tree.to_numpy(x.detach()) if isinstance(x, torch.Tensor) else x for x in parts]

    return function


@contextlib.contextmanager
def _wide() -> Iterator[None]:
    """What a reference makes without naming a dtype is float64."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _tensor(x: Any) -> Any:
    return torch_tree.from_numpy(np.ascontiguousarray(x).reshape(x.shape)) if isinstance(x, np.ndarray) else x


def vjp(
    reference: Callable[..., Any],
    inputs: Mapping[str, np.ndarray],
    kwargs: Mapping[str, Any],
    wrt: Sequence[str],
    floating: Sequence[int],
    cotangents: Sequence[np.ndarray],
    kept: Callable[[Any, int], Any] | None = None,
) -> list[np.ndarray]:
    """The gradients by autograd of Σ⟨cotangent, output⟩ with respect to the inputs ``wrt``, in float64; zeros where nothing
    depends on an input. floating: places of the outputs that cotangents are for; kept: applied to every tensor, with its
    number, that the forward pass keeps for the backward one."""
    import torch

    places = itertools.count()
    keep = torch.autograd.graph.saved_tensors_hooks
    hooks = keep(lambda x: kept(x, next(places)), lambda x: x) if kept else contextlib.nullcontext()
    given = {name: _tensor(np.array(x)) for name, x in inputs.items()}
    for name in wrt:
        given[name].requires_grad_()
    with torch.enable_grad(), _wide(), hooks:
        result = reference(**given, **kwargs)
        parts = result if isinstance(result, (tuple, list)) else [result]
        pairs = [(parts[i], _tensor(np.array(c))) for i, c in zip(floating, cotangents)]
        pairs = [(y, c) for y, c in pairs if y.requires_grad]
        if not pairs:
            raise ValueError("no output of the reference depends on an input by autograd: does it leave torch?")
        leaves = [given[name] for name in wrt]
        found = torch.autograd.grad([y for y, _ in pairs], leaves, [c for _, c in pairs], allow_unused=True)
    return [np.zeros(x.shape) if g is None else torch_tree.to_numpy(g) for x, g in zip(leaves, found)]
