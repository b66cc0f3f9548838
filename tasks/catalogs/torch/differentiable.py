"""An op as OpInfo's gradient tests call it: its inputs kept within its domain, its outputs made unique."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tasks.arrays import torch_tree
from tasks.catalogs.torch import declared
from tasks.catalogs.torch.samples import unwrap_seeded_op
from tasks.devices import TORCH_DEVICES


def has_op_gradient(info: Any, dtype: str) -> bool:
    """Whether op_db declares a gradient in a dtype for the CPU, or for any device."""
    on_cpu = map(torch_tree.name_torch_dtype, info.supported_backward_dtypes("cpu"))
    return dtype in on_cpu or any(
        dtype in (declared.list_declared_dtypes(info, device, True) or ()) for device in TORCH_DEVICES
    )


#: Keyword argument of `make_differentiable_op` calls: the name of a sample's own function of the outputs.
PROCESS = "output_process_fn_grad"


def make_differentiable_op(info: Any) -> Callable[..., Any]:
    """The op as OpInfo's gradient tests call it, but for the seed: inputs made hermitian, triangular, … inside, so that
    a small change of them stays within the op's domain; outputs defined up to a choice made unique by the sample's own
    function."""
    op = unwrap_seeded_op(info.op)

    def call(*args: Any, **kwargs: Any) -> Any:
        process = kwargs.pop(PROCESS, None)
        found = info.gradcheck_wrapper(op, *args, **kwargs)
        found = found if process is None else _list_processing_functions(info)[process](found)
        return ordered(found) if ordered else found

    ordered = ORDERED.get(info.name)
    call.__wrapped__ = op  # type: ignore[attr-defined]
    return call


def _sort_by_eigenvalue(found: Any) -> Any:
    """Eigenvalues, alone or with their vectors, in one order: LAPACK's own depends on the rounding."""
    import torch

    values = found[0] if isinstance(found, tuple) else found
    # Conjugate pairs have the same real part: the irrational share of the imaginary one tells them apart.
    order = (values.real + values.imag / 3**0.5).argsort(dim=-1)
    sorted_values = values.gather(-1, order)
    if not isinstance(found, tuple):
        return sorted_values
    return sorted_values, torch.take_along_dim(found[1], order.unsqueeze(-2), -1)


#: What makes the outputs of an op's gradient test unique where OpInfo's own function does not.
ORDERED = {"linalg.eig": _sort_by_eigenvalue, "linalg.eigvals": _sort_by_eigenvalue}


def name_output_processing(sample: Any) -> str | None:
    """Name of the sample's function of the outputs; None where it leaves them as they are."""
    name: str = sample.output_process_fn_grad.__qualname__
    return None if name.startswith(("SampleInput.", "OpInfo.")) else name


def make_output_processing(info: Any, name: str | None) -> Callable[..., Any]:
    """A sample's function of the outputs by its `name_output_processing`."""
    if name is not None:
        return _list_processing_functions(info)[name]

    def keep_result(found: Any) -> Any:
        return found

    keep_result.__qualname__ = "SampleInput.unchanged"
    return keep_result


def _list_processing_functions(info: Any) -> dict[str, Callable[..., Any]]:
    """By their names. They are found by making all samples of an op, hundreds for some: asked for where one is needed,
    and once."""
    import torch

    key = info.name, info.variant_test_name
    if key in _FUNCTIONS:
        return _FUNCTIONS[key]

    with warnings.catch_warnings(), torch.random.fork_rng(devices=()):
        warnings.simplefilter("ignore")
        made = info.sample_inputs("cpu", torch.float64, requires_grad=True)
        _FUNCTIONS[key] = {name: s.output_process_fn_grad for s in made if (name := name_output_processing(s))}
    return _FUNCTIONS[key]


#: What `_list_processing_functions` has found, by name and variant of the op.
_FUNCTIONS: dict[tuple[str, str], dict[str, Callable[..., Any]]] = {}
