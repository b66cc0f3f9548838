"""The "onnx" form as every runtime that takes it needs it: input names, values, element types, packed bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec, spec_of
from tasks.model import Form
from tasks.model.dtypes import DTYPE_OF_ELEMENT, ELEMENT_TYPE, PACKED_BITS, np_dtype

#: y = x + x on two float32 (IR 7, opset 13): what a probe runs to see whether a device works at all.
PROBE_MODEL = (
    b'\x08\x07:9\n\x0e\n\x01x\n\x01x\x12\x01y"\x03Add\x12\x05probeZ\x0f\n\x01x\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02'
    b"b\x0f\n\x01y\x12\n\n\x08\x08\x01\x12\x04\n\x02\x08\x02B\x04\n\x00\x10\r"
)


def one_add() -> Form:
    """The smallest model there is, on ones: its output is two twos."""
    return Form("onnx", "Add", "float32", [np.ones(2, np.float32)], model=PROBE_MODEL)


def input_values(form: Form) -> list[Any]:
    """The values of the graph's inputs, in the graph's order.

    Each is an array (C-contiguous, in the dtype of the form's array), a list of them for a sequence, or None for
    an empty optional. ``form.args`` is a tree over ``form.arrays`` with one node per graph input, as `TensorSpec`s
    or as `tasks.arrays.tree.encode` writes them; without it every array is one input. Raises ValueError for a form
    without a model, TypeError for any other node.
    """
    if form.model is None:
        raise ValueError(f"{form.op}: the onnx form holds no model")
    if form.args is None:
        return [contiguous(x) for x in form.arrays]
    values = _value(form.args, form)
    if not isinstance(values, list):
        raise TypeError(f"{form.op}: the arguments of an ONNX graph are a list with one node per input")
    return values


def _value(node: Any, form: Form) -> Any:
    if node is None:
        return None
    if isinstance(node, dict) and node.get("$") == "tensor":
        node = spec_of(node)
    elif isinstance(node, dict) and node.get("$") == "tuple":
        node = node["v"]
    if isinstance(node, TensorSpec):
        if node.layout != "strided":
            raise TypeError(f"{form.op}: an ONNX graph takes no tensor of layout {node.layout}")
        return contiguous(node.view(form.arrays[node.id]))
    if isinstance(node, (list, tuple)):
        return [_value(x, form) for x in node]
    raise TypeError(f"{form.op}: an input of an ONNX graph is a tensor, a list or None, not {type(node).__name__}")


def graph_inputs(model: bytes) -> list[str]:
    """Names of the inputs of a serialized ModelProto that have no default (initializer), in the graph's order.

    Read from the protobuf's bytes, because a runtime may drop unused inputs and an environment need not have
    onnx. Field numbers of onnx.proto: ModelProto.graph 7; GraphProto.initializer 5, input 11; TensorProto.name
    8; ValueInfoProto.name 1. Raises ValueError for damaged bytes.
    """
    graph = next((x for number, x in _fields(memoryview(model)) if number == 7), memoryview(b""))
    names: list[str] = []
    defaults = set()
    for number, message in _fields(graph):
        if number in (5, 11):
            wanted = 8 if number == 5 else 1
            name = next((bytes(x).decode() for n, x in _fields(message) if n == wanted), "")
            if number == 5:
                defaults.add(name)
            else:
                names.append(name)
    return [name for name in names if name not in defaults]


def graph_outputs(model: bytes) -> list[tuple[str, str]]:
    """(name, dtype) of the outputs of a serialized ModelProto in the graph's order; dtype "" for no tensor or none given.

    Field numbers of onnx.proto beside those of `graph_inputs`: GraphProto.output 12; ValueInfoProto.type 2;
    TypeProto.tensor_type 1; TypeProto.Tensor.elem_type 1. Raises ValueError for damaged bytes.
    """
    graph = next((x for number, x in _fields(memoryview(model)) if number == 7), memoryview(b""))
    found = []
    for message in (x for number, x in _fields(graph) if number == 12):
        parts = dict(_fields(message))
        tensor = dict(_fields(parts.get(2, memoryview(b"")))).get(1, memoryview(b""))
        number = _varint(tensor, 1)[0] if tensor[:1] == b"\x08" else 0
        found.append((bytes(parts.get(1, b"")).decode(), DTYPE_OF_ELEMENT.get(number, "")))
    return found


def with_constants(model: bytes, values: dict[str, np.ndarray]) -> bytes:
    """The model with ``values`` for inputs of these names, as initializers (GraphProto.initializer 5).

    A second part of a message is merged with the first when it is read, so nothing of the model is rewritten.
    TensorProto: dims 1, data_type 2, name 8, raw_data 9.
    """
    tensors = b""
    for name, value in values.items():
        dims = b"".join(b"\x08" + _as_varint(n) for n in value.shape)
        raw = (pack(value) if value.dtype.name in PACKED_BITS else contiguous(value)).tobytes()
        kind = b"\x10" + _as_varint(ELEMENT_TYPE[value.dtype.name])
        tensors += _message(5, dims + kind + _message(8, name.encode()) + _message(9, raw))
    return model + _message(7, tensors)


def _message(number: int, data: bytes) -> bytes:
    return _as_varint(number << 3 | 2) + _as_varint(len(data)) + data


def _as_varint(value: int) -> bytes:
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and bytes of every field of a protobuf message that is no integer."""
    return ((number, value) for number, value in fields(data) if not isinstance(value, int))


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of every field of a protobuf message: an integer for a varint, else its bytes.

    Raises ValueError for damaged bytes.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"the model is no protobuf (wire type {kind})")
        if at + size > end:
            raise ValueError("the model is truncated")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """(a protobuf varint, the place behind it). Raises ValueError where the message ends within."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise ValueError("the model is truncated")


def contiguous(array: np.ndarray) -> np.ndarray:
    """``array`` itself if it is C-contiguous, else a copy (np.ascontiguousarray would make a scalar 1-d)."""
    return array if array.flags.c_contiguous else array.copy(order="C")


def pack(array: np.ndarray) -> np.ndarray:
    """Bytes of a low-bit array (any shape, one element to a byte) as ONNX packs them: 1-d uint8."""
    bits = PACKED_BITS[array.dtype.name]
    per_byte = 8 // bits
    flat = array.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-flat.size // per_byte) * per_byte, dtype=np.uint8)
    padded[: flat.size] = flat
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    return np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(np.uint8)


def unpack(raw: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Inverse of `pack`: ``raw`` is 1-d uint8; returns an ml_dtypes array of ``shape``."""
    bits = PACKED_BITS[dtype]
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    size = int(np.prod(shape, dtype=np.int64))
    codes = ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:size]
    return codes.view(np_dtype(dtype)).reshape(shape)


def from_bytes(raw: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor's bytes (1-d uint8, as ONNX stores them) as an array of ``dtype`` and ``shape``."""
    if dtype in PACKED_BITS:
        return unpack(raw, dtype, shape)
    return raw.view(np_dtype(dtype)).reshape(shape)


def flatten(value: Any) -> list[Any]:
    """Nested lists as one flat list."""
    return [y for x in value for y in flatten(x)] if isinstance(value, (list, tuple)) else [value]
