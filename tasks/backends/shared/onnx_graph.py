"""What an ONNX model says of itself (inputs, outputs, ops), read from its bytes: an environment need not have onnx."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.model.dtypes import DTYPE_OF_ELEMENT


@dataclass(frozen=True)
class OnnxValue:
    """An input or output: name; kind ("tensor", "sequence", "optional", "map", "sparse tensor"); dtype, as the farm
    calls it ("" where the model gives none); shape, None for an axis of no fixed length (all of it None for no fixed
    rank)."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class OnnxNode:
    """A node: op type (with its domain before a dot, if it is not ONNX's own), names of its inputs and outputs."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class OnnxGraph:
    """A model's main graph: inputs without a default, outputs, nodes, each in the model's order."""

    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    nodes: tuple[OnnxNode, ...]


def read_onnx_graph(model: bytes) -> OnnxGraph:
    """The graph of a serialized ModelProto (field numbers of onnx.proto). Raises ValueError for damaged bytes."""
    graph = get_last_field(memoryview(model), 7)
    defaults = {read_text_field(get_last_field(x, 8)) for x in list_field_bytes(graph, 5)}
    inputs = [_read_value_info(x) for x in list_field_bytes(graph, 11)]
    return OnnxGraph(
        tuple(x for x in inputs if x.name not in defaults),
        tuple(_read_value_info(x) for x in list_field_bytes(graph, 12)),
        tuple(read_onnx_node(x) for x in list_field_bytes(graph, 1)),
    )


def list_onnx_input_names(model: bytes) -> list[str]:
    """Names of the main graph's inputs without a default, in its order; nothing else is read. Raises ValueError for
    damaged bytes."""
    defaults, names = set(), []
    for number, value in walk_message_fields(get_last_field(memoryview(model), 7)):
        if number == 5 and not isinstance(value, int):
            defaults.add(read_text_field(get_last_field(value, 8)))
        elif number == 11 and not isinstance(value, int):
            names.append(read_text_field(get_last_field(value, 1)))
    return [name for name in names if name not in defaults]


def put_onnx_shapes(model: bytes, shapes: Mapping[str, Sequence[int | str]], forget: bool = False) -> bytes:
    """The model with these shapes of its inputs, by name, a word for a dimension that is open: nothing else of it is
    read.

    forget: what it says of the shapes of all other tensors is left out, as it may hold for the old ones alone. Raises
    ValueError for damaged bytes.
    """
    parts = []
    for number, data in walk_message_fields(memoryview(model)):
        if number != 7 or isinstance(data, int):
            parts.append(_encode_onnx_field(number, data))
            continue
        inside = []
        for inner, value in walk_message_fields(data):
            if inner == 13 and forget:
                continue
            if (
                inner == 11
                and not isinstance(value, int)
                and (name := read_text_field(get_last_field(value, 1))) in shapes
            ):
                value = memoryview(_encode_value_info(value, name, shapes[name]))
            if inner == 12 and not isinstance(value, int) and forget:
                value = memoryview(_encode_value_info(value, read_text_field(get_last_field(value, 1)), None))
            inside.append(_encode_onnx_field(inner, value))
        parts.append(encode_onnx_message(7, b"".join(inside)))
    return b"".join(parts)


def _encode_value_info(value: memoryview, name: str, shape: Sequence[int | str] | None) -> bytes:
    """A ValueInfoProto of a tensor with another shape; None for one that is not said."""
    element = next(
        (
            x
            for n, x in walk_message_fields(get_last_field(get_last_field(value, 2), 1))
            if n == 1 and isinstance(x, int)
        ),
        0,
    )
    sizes = b"".join(
        encode_onnx_message(1, encode_onnx_message(2, x.encode()) if isinstance(x, str) else b"\x08" + encode_varint(x))
        for x in shape or ()
    )
    said = b"" if shape is None else encode_onnx_message(2, sizes)
    return encode_onnx_message(1, name.encode()) + encode_onnx_message(
        2, encode_onnx_message(1, b"\x08" + encode_varint(element) + said)
    )


def _encode_onnx_field(number: int, value: int | memoryview) -> bytes:
    """A field of a message none of whose own fields are numbers of fixed length, as of a model and a graph."""
    return (
        encode_varint(number << 3) + encode_varint(value)
        if isinstance(value, int)
        else encode_onnx_message(number, value)
    )


def encode_onnx_message(number: int, data: bytes | memoryview) -> bytes:
    """A field that is a message, text or bytes."""
    return b"".join((encode_varint(number << 3 | 2), encode_varint(len(data)), data))


def encode_varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def read_onnx_node(data: memoryview) -> OnnxNode:
    """A NodeProto."""
    domain, op = read_text_field(get_last_field(data, 7)), read_text_field(get_last_field(data, 4))
    own = domain in ("", "ai.onnx")
    return OnnxNode(
        op if own else f"{domain}.{op}",
        tuple(read_text_field(x) for x in list_field_bytes(data, 1)),
        tuple(read_text_field(x) for x in list_field_bytes(data, 2)),
    )


#: TypeProto's members.
_KINDS = {1: "tensor", 4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}


def _read_value_info(message: memoryview) -> OnnxValue:
    kind, inner = "", get_last_field(message, 2)
    while True:
        found = next((name for number, name in _KINDS.items() if list_field_bytes(inner, number)), "")
        kind = kind or found
        inner = next(
            (get_last_field(inner, number) for number, name in _KINDS.items() if name == found), memoryview(b"")
        )
        if found not in ("sequence", "optional"):
            break
        inner = get_last_field(inner, 1)  # the type of the elements
    element = next((x for n, x in walk_message_fields(inner) if n == 1 and isinstance(x, int)), 0)
    shape = next((x for n, x in walk_message_fields(inner) if n == 2 and not isinstance(x, int)), None)
    axes = None if shape is None else tuple(_read_onnx_dimension(x) for x in list_field_bytes(shape, 1))
    return OnnxValue(read_text_field(get_last_field(message, 1)), kind, DTYPE_OF_ELEMENT.get(element, ""), axes)


def _read_onnx_dimension(dimension: memoryview) -> int | None:
    return next((x for n, x in walk_message_fields(dimension) if n == 1 and isinstance(x, int)), None)


def list_field_bytes(message: memoryview, number: int) -> list[memoryview]:
    """The bytes of a field each time that it is there. Raises ValueError for damaged bytes."""
    return [x for n, x in walk_message_fields(message) if n == number and not isinstance(x, int)]


def get_last_field(message: memoryview, number: int) -> memoryview:
    """The field's bytes; none for a field that is not there."""
    return next(reversed(list_field_bytes(message, number)), memoryview(b""))


def read_text_field(data: memoryview) -> str:
    """A field's bytes as text."""
    return bytes(data).decode(errors="replace")


def read_packed_varints(data: memoryview) -> Iterator[int]:
    """Numbers that a field holds packed. Raises ValueError for damaged bytes."""
    at = 0
    while at < len(data):
        value, at = _read_protobuf_varint(data, at)
        yield value


def walk_message_fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of every field of a protobuf message: an integer for a varint, else its bytes.

    Raises ValueError for damaged bytes.
    """
    at, end = 0, len(data)
    while at < end:
        key = data[at]
        at += 1
        if key > 127:
            key, at = _read_protobuf_varint(data, at - 1)
        kind = key & 7
        if kind == 0:
            value, at = _read_protobuf_varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size = data[at] if at < end else 128
            at += 1
            if size > 127:
                size, at = _read_protobuf_varint(data, at - 1)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"the model is no protobuf (wire type {kind})")
        if at + size > end:
            raise ValueError("the model is truncated")
        yield key >> 3, data[at : at + size]
        at += size


def _read_protobuf_varint(data: memoryview, at: int) -> tuple[int, int]:
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
