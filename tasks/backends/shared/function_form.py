"""Forms that call a framework's functions (`tasks.counterparts`): arguments for them, and their outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays.tree import decode_argument_tree, list_tensor_specs, make_contiguous_tensor
from tasks.backends.shared.network import read_onnx_network
from tasks.counterparts import Counterpart
from tasks.model import Form, Unsupported


def list_function_inputs(form: Form) -> list[np.ndarray]:
    """Every tensor of the call as a contiguous array, in order of appearance; then the weights of a whole network.
    Raises Unsupported for a sparse one."""
    specs = list_tensor_specs(form.args) + list_tensor_specs(form.kwargs)
    for spec in specs:
        if spec.layout != "strided":
            raise Unsupported(f"the table of counterparts is for dense tensors, not for {spec.layout}")
    weights = read_onnx_network(form.kind, form.model).weights if form.model is not None else []
    return [*(make_contiguous_tensor(form.arrays[spec.id], spec) for spec in specs), *weights]


def invoke_counterpart(form: Form, tensors: Sequence[Any], dtype_of: Callable[[str], Any]) -> list[Any]:
    """The outputs, flat, of the form's counterpart called with ``tensors`` in the places of `list_function_inputs`.

    ``dtype_of`` gives the framework's dtype by the farm's name of it.
    """
    if form.model is not None:
        return read_onnx_network(form.kind, form.model)(*tensors)
    given = iter(tensors)

    def leaf(kind: str, node: dict[str, Any]) -> Any:
        if kind == "tensor":
            return next(given)
        if kind == "torch.dtype":
            return dtype_of(node["name"])
        return None  # layouts, memory formats and devices say where a tensor is, not what

    args = decode_argument_tree(form.args, leaf)
    kwargs = decode_argument_tree(form.kwargs, leaf)
    assert form.call is not None
    return list(list_output_leaves(form.call(*args, **kwargs)))


def list_output_leaves(value: Any) -> Iterator[Any]:
    """The outputs of a call, flat; None left out."""
    if isinstance(value, (list, tuple)):
        for x in value:
            yield from list_output_leaves(x)
    elif value is not None:
        yield value


def describe_framework_call(form: Form) -> str:
    """Which call of the framework a row speaks of."""
    call = form.call
    if form.model is not None:
        return "composed=onnx_graph"
    if not isinstance(call, Counterpart):
        return ""
    return f"{'composed' if call.composed else 'function'}={call.text.replace(' ', '')}"
