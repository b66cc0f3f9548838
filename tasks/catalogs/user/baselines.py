"""What a kernel of the user's is timed against: its reference as a program of its own, or a function that the declaration names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.tree import decode_tree_specs, make_contiguous_tensor
from tasks.catalogs.base import CatalogError
from tasks.catalogs.user import dims, of_torch
from tasks.catalogs.user.ops import BASELINES, COMPILED, EAGER, ITEMSIZE, NUMPY, UserOp
from tasks.model import Baseline, Form, Unsupported, get_numpy_dtype, is_complex_dtype, is_inexact_dtype

if TYPE_CHECKING:
    from tasks.catalogs.user.load_kernels import DeclaredKernel


def find_kernel_baseline(one: DeclaredKernel, dtype: str) -> Baseline:
    """What a kernel is timed against in a dtype. Raises Unsupported, with what to declare, where there is nothing."""
    op = one.op
    in_torch = op.reference_framework == "torch"
    try:
        reference = None if one.script is not None else one.function("reference")
        of_torch_tensors = reference if in_torch or reference is None else of_torch.make_tensor_function(reference)
        if (own := one.own_baseline) is not None:
            name = op.baseline if isinstance(op.baseline, str) else f"{own.__module__}:{own.__qualname__}"
            of_arrays = op.framework == "numpy"
            call = make_tensor_baseline(own) if of_arrays else own
            return Baseline(name, call, own_copies=of_arrays, counted=of_torch_tensors)
    except CatalogError as error:
        raise Unsupported(str(error)) from None
    if reference is None or of_torch_tensors is None:
        raise Unsupported(
            "the reference is a script, which cannot be timed: name a function (baseline: module:function)"
        )
    name = op.baseline if op.baseline in BASELINES else EAGER if in_torch else NUMPY
    if name == NUMPY:
        call = make_tensor_baseline(reference)
        return Baseline(name, call, _finish_baseline(call, op, dtype), own_copies=True, counted=of_torch_tensors)
    call = of_torch_tensors
    return Baseline(name, call, _finish_baseline(call, op, dtype), compiled=name == COMPILED, counted=call)


def find_declared_work(op: UserOp, form: Form) -> tuple[int | None, int | None]:
    """(bytes that a call on a form has to move, operations that it has to do), as they are declared; None of what is
    not.

    Raises ValueError for inputs that the declaration does not build from any sizes."""
    if not op.moved and not op.flops:
        return None, None
    specs = decode_tree_specs(form.kwargs)
    arrays = {name: make_contiguous_tensor(form.arrays[specs[name].id], specs[name]) for name in op.inputs}
    known = dims.solve_kernel_dims(op, arrays) | {ITEMSIZE: get_numpy_dtype(form.dtype).itemsize}
    moved, operations = (None if not x else int(dims.evaluate_dim_size(x, known)) for x in (op.moved, op.flops))
    return moved, operations


def make_tensor_baseline(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of NumPy arrays as one of torch's tensors in the CPU's memory; neither inputs nor results are
    copied."""

    def call(**arguments: Any) -> Any:
        import torch

        given = {k: torch_tree.tensor_to_numpy(x) if isinstance(x, torch.Tensor) else x for k, x in arguments.items()}
        found = function(**given)
        return [_array_to_tensor(x) for x in (found if isinstance(found, (tuple, list)) else [found])]

    return call


def _array_to_tensor(x: Any) -> Any:
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    array = np.asarray(x)
    return torch_tree.tensor_from_numpy(
        array if min(array.strides, default=0) >= 0 else array.copy()
    )  # torch has no others


def _finish_baseline(call: Callable[..., Any], op: UserOp, dtype: str) -> Callable[..., Any]:
    """A reference, which computes in float64 elsewhere, as a program: what it leaves wider than the kernel's outputs
    are is rounded to these."""
    declared = [x.get("dtype", "") if isinstance(x, Mapping) else x for x in op.outputs]

    @functools.wraps(call)
    def finished(**arguments: Any) -> Any:
        found = call(**arguments)
        parts = found if isinstance(found, (tuple, list)) else [found]
        return [
            _cast_to_dtype(x, declared[i] if i < len(declared) and declared[i] else dtype) for i, x in enumerate(parts)
        ]

    return finished


def _cast_to_dtype(x: Any, dtype: str) -> Any:
    import torch

    name = torch_tree.name_torch_dtype(x.dtype) if isinstance(x, torch.Tensor) else ""
    widened = (
        name
        and name != dtype
        and is_inexact_dtype(name)
        and is_inexact_dtype(dtype)
        and is_complex_dtype(name) == is_complex_dtype(dtype)
    )
    return x.to(getattr(torch, dtype)) if widened else x
