"""Argument trees (nested lists, tuples, dicts, scalars, tensors) as JSON and back, without executing anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.model.dtypes import NATIVE


@dataclass(frozen=True)
class TensorSpec:
    """A tensor of an argument tree: array ``id``, seen through shape, strides and offset (in elements).

    ``strides`` None means the array as it is (contiguous). ``layout`` other than "strided" names how
    ``parts`` (ids of further arrays) make up the tensor, e.g. "sparse_coo" from indices and values. ``declared``: the
    dtype that it is declared with, where the array has another one.
    """

    id: int
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    offset: int = 0
    layout: str = "strided"
    parts: tuple[int, ...] = ()
    flags: str = ""
    declared: str = ""

    def view(self, array: np.ndarray, writeable: bool = False) -> np.ndarray:
        """The tensor's elements as a (possibly non-contiguous) numpy view of its stored ``array``.

        Raises ValueError for a view that reaches beyond the array.
        """
        if self.strides is None:
            return array
        shape = self.shape or ()
        reach = [(n - 1) * s for n, s in zip(shape, self.strides)]
        first, last = self.offset + sum(min(r, 0) for r in reach), self.offset + sum(max(r, 0) for r in reach)
        if (
            array.ndim != 1
            or len(shape) != len(self.strides)
            or (0 not in shape and not 0 <= first <= last < array.size)
        ):
            raise ValueError(
                f"a tensor of shape {shape} and strides {self.strides} does not fit its {array.size} elements"
            )
        size = array.dtype.itemsize
        # NumPy's array interface has no name for what ml_dtypes adds.
        plain = array.view(f"u{size}") if array.dtype.name not in NATIVE else array
        seen = np.lib.stride_tricks.as_strided(
            plain[self.offset :], self.shape, [s * size for s in self.strides], writeable=writeable
        )
        return seen if plain is array else seen.view(array.dtype)


@dataclass(frozen=True)
class KeptLeaf:
    """A leaf that only its framework can decode (a dtype of torch's), as it is encoded."""

    node: dict[str, Any]


class NotEncodable(TypeError):
    """A value of an argument tree that has no JSON form; the text names its type."""


def encode_argument_tree(value: Any, leaf: Callable[[Any], Any | None] = lambda x: None) -> Any:
    """JSON form of ``value``. ``leaf(x)`` returns the JSON form of what it knows (tensors, dtypes) or None;
    a `TensorSpec` and what `decode_tree_specs` kept need none.

    Raises NotEncodable for anything unknown (a callable, a generator …).
    """
    if value is None or value is True or value is False or isinstance(value, str):
        return value
    if type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    known = leaf(value)
    if known is not None:
        return known
    if isinstance(value, list):
        return [encode_argument_tree(x, leaf) for x in value]
    if isinstance(value, tuple):
        return {"$": "tuple", "v": [encode_argument_tree(x, leaf) for x in value]}
    if isinstance(value, dict):
        return {
            "$": "dict",
            "v": [[encode_argument_tree(k, leaf), encode_argument_tree(x, leaf)] for k, x in value.items()],
        }
    if isinstance(value, complex):
        return {"$": "complex", "v": [repr(float(value.real)), repr(float(value.imag))]}
    if isinstance(value, slice):
        return {"$": "slice", "v": [encode_argument_tree(x, leaf) for x in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"$": "ellipsis"}
    if isinstance(value, range):
        return {"$": "range", "v": [value.start, value.stop, value.step]}
    if isinstance(value, (np.floating, np.complexfloating)):  # item() of a long double is one again
        return encode_argument_tree(float(value) if isinstance(value, np.floating) else complex(value), leaf)
    if isinstance(value, (np.bool_, np.integer)):
        return encode_argument_tree(value.item(), leaf)
    if isinstance(value, TensorSpec):
        return encode_tensor_spec(value)
    if isinstance(value, KeptLeaf):
        return value.node
    raise NotEncodable(f"an argument of type {type(value).__module__}.{type(value).__qualname__} cannot be stored")


def encode_tensor_spec(spec: TensorSpec) -> dict[str, Any]:
    node: dict[str, Any] = {"$": "tensor", "id": spec.id}
    if spec.strides is not None:
        node |= {"shape": list(spec.shape or ()), "strides": list(spec.strides), "offset": spec.offset}
    if spec.layout != "strided":
        node |= {"layout": spec.layout, "parts": list(spec.parts), "shape": list(spec.shape or ())}
    node |= {key: getattr(spec, key) for key in ("flags", "declared") if getattr(spec, key)}
    return node


def decode_argument_tree(node: Any, leaf: Callable[[str, dict[str, Any]], Any]) -> Any:
    """Inverse of `encode_argument_tree`; ``leaf(kind, node)`` makes what is not plain Python ("tensor" nodes included)."""
    if not isinstance(node, dict):
        return [decode_argument_tree(x, leaf) for x in node] if isinstance(node, list) else node
    kind: str = node["$"]
    if kind == "tensor":
        return leaf(kind, node)
    v: Any = node.get("v")
    if kind == "tuple":
        return tuple([decode_argument_tree(x, leaf) for x in v])
    if kind == "dict":
        return {decode_argument_tree(k, leaf): decode_argument_tree(x, leaf) for k, x in v}
    if kind == "float":
        return float(v)
    if kind == "complex":
        return complex(float(v[0]), float(v[1]))
    if kind == "slice":
        return slice(*(decode_argument_tree(x, leaf) for x in v))
    if kind == "ellipsis":
        return Ellipsis
    if kind == "range":
        return range(*v)
    return leaf(kind, node)


def decode_tree_specs(node: Any) -> Any:
    """`decode_argument_tree` without a framework: a tensor is its `TensorSpec`, any other leaf is `KeptLeaf`."""
    return decode_argument_tree(node, lambda kind, leaf: read_tensor_spec(leaf) if kind == "tensor" else KeptLeaf(leaf))


def read_tensor_spec(node: dict[str, Any]) -> TensorSpec:
    """The TensorSpec of a "tensor" node."""
    if len(node) == 2:  # a whole array, as nearly all are
        return TensorSpec(node["id"])
    return TensorSpec(
        id=node["id"],
        shape=tuple(node["shape"]) if "shape" in node else None,
        strides=tuple(node["strides"]) if "strides" in node else None,
        offset=node.get("offset", 0),
        layout=node.get("layout", "strided"),
        parts=tuple(node.get("parts", ())),
        flags=node.get("flags", ""),
        declared=node.get("declared", ""),
    )


def list_tensor_specs(node: Any) -> list[TensorSpec]:
    """Every tensor of an encoded tree, in order of appearance."""
    found: list[TensorSpec] = []
    if isinstance(node, list):
        for x in node:
            found += list_tensor_specs(x)
    elif isinstance(node, dict):
        if node["$"] == "tensor":
            found.append(read_tensor_spec(node))
        elif node["$"] in ("tuple", "slice"):
            found += list_tensor_specs(node["v"])
        elif node["$"] == "dict":
            for _, x in node["v"]:
                found += list_tensor_specs(x)
    return found


def map_tree_tensors(node: Any, function: Callable[[dict[str, Any]], Any]) -> Any:
    """An encoded tree with its tensors' nodes as ``function`` makes them."""
    if isinstance(node, list):
        return [map_tree_tensors(x, function) for x in node]
    if not isinstance(node, dict):
        return node
    if node["$"] == "tensor":
        return function(node)
    return {**node, "v": map_tree_tensors(node["v"], function)} if "v" in node else node


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with everything that is in their tuples, lists and dicts changed; a tuple of a class of its own (a
    torch.Size) is changed as a whole."""
    if type(value) is tuple:
        return tuple([map_leaves(x, change) for x in value])
    if isinstance(value, list):
        return [map_leaves(x, change) for x in value]
    if isinstance(value, dict):
        return {k: map_leaves(x, change) for k, x in value.items()}
    return change(value)


def make_contiguous_tensor(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """The tensor that ``spec`` describes over its stored ``array``, as a contiguous array in the dtype that it is
    declared with."""
    made = np.ascontiguousarray(spec.view(array)).reshape(spec.shape if spec.shape is not None else array.shape)
    return made.astype(spec.declared) if spec.declared else made


def flatten_nested_lists(value: Any) -> list[Any]:
    """Nested lists as one flat list."""
    return [y for x in value for y in flatten_nested_lists(x)] if isinstance(value, (list, tuple)) else [value]
