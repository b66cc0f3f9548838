"""Sizes of a kernel's tensors: numbers, names of dimensions, and what is computed of them ("3*d", "n//2", "heads*width")."""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

#: What an expression may do with two sizes.
_DOES: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
#: Key of an argument that is a size: ``kwargs: {k: {dim: n//2}}``.
DIM = "dim"


@functools.lru_cache(maxsize=1024)
def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise ValueError(f"{text!r} is no size: a number, a dimension, or + - * // of them") from None
    for node in ast.walk(tree):
        whole = isinstance(node, ast.Constant) and type(node.value) is int
        computed = isinstance(node, ast.BinOp) and type(node.op) in _DOES
        if not (whole or computed or isinstance(node, (ast.Name, ast.Load, *_DOES))):
            raise ValueError(f"{text!r} is no size: only + - * // of numbers and dimensions are taken")
    return tree


def names(size: Any) -> list[str]:
    """The dimensions that a size is made of. Raises ValueError for what is no expression."""
    if not isinstance(size, str):
        return []
    return [node.id for node in ast.walk(_parsed(size)) if isinstance(node, ast.Name)]


def size_of(size: Any, dims: Mapping[str, int]) -> Any:
    """A size as a number, of these dimensions; what is no text is returned as it is.

    Raises ValueError, KeyError for an unknown dimension."""
    if not isinstance(size, str):
        return size
    return dims[size] if size in dims else _value(_parsed(size), dims)


def _value(node: ast.expr, dims: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return dims[node.id]
    if isinstance(node, ast.BinOp):
        return _DOES[type(node.op)](_value(node.left, dims), _value(node.right, dims))
    assert isinstance(node, ast.Constant)
    return int(node.value)  # type: ignore[arg-type]


def shape_of(shape: Any, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(size_of(size, dims) for size in shape)


def is_size(value: Any) -> bool:
    """Whether an argument is a size, {"dim": …}."""
    return isinstance(value, Mapping) and set(value) == {DIM}


def keywords(kwargs: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Any]:
    """The arguments, those that are sizes as numbers."""
    return {name: size_of(value[DIM], dims) if is_size(value) else value for name, value in kwargs.items()}


def dims_of(op: Any, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a `UserOp`'s inputs by dimension. Raises ValueError for shapes that its schema does not build from any."""
    found: dict[str, int] = {}
    told = []
    for name, given in op.inputs.items():
        shape = given["shape"] if isinstance(given, Mapping) else given
        if isinstance(given, Mapping) and "data" in given:
            continue  # these values were given as they are: of what sizes they could be, nobody said anything
        if len(shape) != arrays[name].ndim:
            raise ValueError(f"{op.name}: the input {name} has {len(shape)} dimensions, not {arrays[name].ndim}")
        told += [(name, size, n) for size, n in zip(shape, arrays[name].shape)]
    for _, size, n in told:
        if isinstance(size, str) and size in op.dims:
            found.setdefault(size, n)
    found = {name: min(values) for name, values in op.dims.items()} | found
    for name, size, n in told:
        if size_of(size, found) != n:
            raise ValueError(f"{op.name}: the dimension {size} of the input {name} cannot be {n}")
    return found
