"""What an ONNX model says of itself (inputs, outputs, ops), read from its bytes: an environment need not have onnx."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.backends.shared.onnx_form import fields
from tasks.model.dtypes import DTYPE_OF_ELEMENT


@dataclass(frozen=True)
class Value:
    """An input or output: name; kind ("tensor", "sequence", "optional", "map", "sparse tensor"); dtype, as the farm calls
    it ("" where the model gives none); shape, None for an axis of no fixed length (all of it None for no fixed rank)."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True)
class Node:
    """A node: op type (with its domain before a dot, if it is not ONNX's own), names of its inputs and outputs."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """A model's main graph: inputs without a default, outputs, nodes, each in the model's order."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    nodes: tuple[Node, ...]


def read(model: bytes) -> Graph:
    """The graph of a serialized ModelProto (field numbers of onnx.proto). Raises ValueError for damaged bytes."""
    graph = _last(memoryview(model), 7)
    defaults = {_text(_last(x, 8)) for x in _all(graph, 5)}
    inputs = [_value(x) for x in _all(graph, 11)]
    return Graph(
        tuple(x for x in inputs if x.name not in defaults),
        tuple(_value(x) for x in _all(graph, 12)),
        tuple(_node(x) for x in _all(graph, 1)),
    )


def _node(message: memoryview) -> Node:
    domain, op = _text(_last(message, 7)), _text(_last(message, 4))
    own = domain in ("", "ai.onnx")
    return Node(
        op if own else f"{domain}.{op}",
        tuple(_text(x) for x in _all(message, 1)),
        tuple(_text(x) for x in _all(message, 2)),
    )


#: TypeProto's members.
_KINDS = {1: "tensor", 4: "sequence", 5: "map", 8: "sparse tensor", 9: "optional"}


def _value(message: memoryview) -> Value:
    kind, inner = "", _last(message, 2)
    while True:
        found = next((name for number, name in _KINDS.items() if _all(inner, number)), "")
        kind = kind or found
        inner = next((_last(inner, number) for number, name in _KINDS.items() if name == found), memoryview(b""))
        if found not in ("sequence", "optional"):
            break
        inner = _last(inner, 1)  # the type of the elements
    element = next((x for n, x in fields(inner) if n == 1 and isinstance(x, int)), 0)
    shape = next((x for n, x in fields(inner) if n == 2 and not isinstance(x, int)), None)
    axes = None if shape is None else tuple(_length(x) for x in _all(shape, 1))
    return Value(_text(_last(message, 1)), kind, DTYPE_OF_ELEMENT.get(element, ""), axes)


def _length(dimension: memoryview) -> int | None:
    return next((x for n, x in fields(dimension) if n == 1 and isinstance(x, int)), None)


def _all(message: memoryview, number: int) -> list[memoryview]:
    return [x for n, x in fields(message) if n == number and not isinstance(x, int)]


def _last(message: memoryview, number: int) -> memoryview:
    """The field's bytes; none for a field that is not there."""
    return next(reversed(_all(message, number)), memoryview(b""))


def _text(data: memoryview) -> str:
    return bytes(data).decode(errors="replace")
