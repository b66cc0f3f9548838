"""The "onnx" form as every runtime that takes it needs it: input names, values, element types, packed bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.layouts import make_array_contiguous
from tasks.arrays.low_bits import pack_low_bits, unpack_low_bits
from tasks.arrays.tree import TensorSpec, read_tensor_spec
from tasks.backends.shared import onnx_graph
from tasks.model import Form, Unsupported
from tasks.model.dtypes import ELEMENT_TYPE, PACKED_BITS, get_numpy_dtype

#: y = x + x on two float32 (IR 7, opset 13): what a probe runs to see whether a device works at all.
PROBE_MODEL = (
    b'\x08\x07:9\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x05probeZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02B\x04\n\x00\x10\r"
)


def make_probe_form() -> Form:
    """The smallest model there is, on ones: its output is two twos."""
    return Form("onnx", "Add", "float32", [np.ones(2, np.float32)], model=PROBE_MODEL)


def list_onnx_input_values(form: Form) -> list[Any]:
    """The values of the graph's inputs, in the graph's order.

    Each is an array (C-contiguous, in the dtype of the form's array), a list of them for a sequence, or None for
    an empty optional. ``form.args`` is a tree over ``form.arrays`` with one node per graph input, as `TensorSpec`s
    or as `tasks.arrays.tree.encode_argument_tree` writes them; without it every array is one input. Raises ValueError for a form
    without a model, TypeError for any other node.
    """
    if form.model is None:
        raise ValueError(f"{form.op}: the onnx form holds no model")
    if form.args is None:
        return [make_array_contiguous(x) for x in form.arrays]
    values = _make_graph_input(form.args, form)
    if not isinstance(values, list):
        raise TypeError(f"{form.op}: the arguments of an ONNX graph are a list with one node per input")
    return values


def _make_graph_input(node: Any, form: Form) -> Any:
    if node is None:
        return None
    if isinstance(node, dict) and node.get("$") == "tensor":
        node = read_tensor_spec(node)
    elif isinstance(node, dict) and node.get("$") == "tuple":
        node = node["v"]
    if isinstance(node, TensorSpec):
        if node.layout != "strided":
            raise TypeError(f"{form.op}: an ONNX graph takes no tensor of layout {node.layout}")
        return make_array_contiguous(node.view(form.arrays[node.id]))
    if isinstance(node, (list, tuple)):
        return [_make_graph_input(x, form) for x in node]
    raise TypeError(f"{form.op}: an input of an ONNX graph is a tensor, a list or None, not {type(node).__name__}")


def name_onnx_inputs(form: Form) -> dict[str, Any]:
    """`list_onnx_input_values` by the names of the graph's inputs. Raises ValueError if they are not as many."""
    values = list_onnx_input_values(form)
    names = onnx_graph.list_onnx_input_names(form.model or b"")
    if len(names) != len(values):
        raise ValueError(f"{form.op}: the graph has {len(names)} inputs ({', '.join(names)}), the form {len(values)}")
    return dict(zip(names, values))


def name_onnx_tensors(form: Form, who: str) -> dict[str, np.ndarray]:
    """`name_onnx_inputs` for a runtime, ``who``, that takes only tensors. Raises Unsupported for any other input."""
    named = name_onnx_inputs(form)
    for name, value in named.items():
        if not isinstance(value, np.ndarray):
            what = "sequence" if isinstance(value, list) else "empty optional"
            raise Unsupported(f"{who} takes no {what} as an input ({name})")
    return named


def fix_onnx_sizes(form: Form) -> Form:
    """The form with a model whose inputs have the shapes of their values."""
    shapes = {name: x.shape for name, x in name_onnx_inputs(form).items() if isinstance(x, np.ndarray)}
    return replace(form, model=onnx_graph.put_onnx_shapes(form.model or b"", shapes))


def open_onnx_rows(form: Form) -> Form:
    """The form with a model that leaves the first dimension of its ``batched`` arrays open, and says nothing of the
    shapes of tensors that it computes."""
    shapes: dict[str, list[int | str]] = {}
    for place, (name, x) in enumerate(name_onnx_inputs(form).items()):
        if isinstance(x, np.ndarray):
            shapes[name] = ["rows", *x.shape[1:]] if place in form.batched else list(x.shape)
    return replace(form, model=onnx_graph.put_onnx_shapes(form.model or b"", shapes, forget=True))


def put_onnx_constants(model: bytes, values: dict[str, np.ndarray]) -> bytes:
    """The model with ``values`` for inputs of these names, as initializers (GraphProto.initializer 5).

    A second part of a message is merged with the first when it is read, so nothing of the model is rewritten.
    TensorProto: dims 1, data_type 2, name 8, raw_data 9.
    """
    tensors = b""
    for name, value in values.items():
        dims = b"".join(b"\x08" + onnx_graph.encode_varint(n) for n in value.shape)
        raw = (pack_low_bits(value) if value.dtype.name in PACKED_BITS else make_array_contiguous(value)).tobytes()
        kind = b"\x10" + onnx_graph.encode_varint(ELEMENT_TYPE[value.dtype.name])
        tensors += onnx_graph.encode_onnx_message(
            5, dims + kind + onnx_graph.encode_onnx_message(8, name.encode()) + onnx_graph.encode_onnx_message(9, raw)
        )
    return model + onnx_graph.encode_onnx_message(7, tensors)


def read_onnx_tensor_bytes(raw: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor's bytes (1-d uint8, as ONNX stores them) as an array of ``dtype`` and ``shape``."""
    if dtype in PACKED_BITS:
        return unpack_low_bits(raw, dtype, shape)
    return raw.view(get_numpy_dtype(dtype)).reshape(shape)
