"""Sizes of a kernel's tensors: numbers, names of dimensions, and what is computed of them ("3*d", "n//2", "heads*width")."""

from __future__ import annotations

import ast
import bisect
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

#: What an expression may do with two sizes.
_DOES: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
#: Up to which number a dimension is looked for of which a size is told; and where the size does not grow with it.
MOST, _FALLING = 1 << 32, 4096
#: Key of an argument that is a size: ``kwargs: {k: {dim: n//2}}``.
DIM = "dim"


@functools.lru_cache(maxsize=1024)
def _parse_size_expression(text: str) -> ast.expr:
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


def list_size_names(size: Any) -> list[str]:
    """The dimensions that a size is made of. Raises ValueError for what is no expression."""
    if not isinstance(size, str):
        return []
    return [node.id for node in ast.walk(_parse_size_expression(size)) if isinstance(node, ast.Name)]


def evaluate_dim_size(size: Any, dims: Mapping[str, int]) -> Any:
    """A size as a number, of these dimensions; what is no text is returned as it is.

    Raises ValueError, KeyError for an unknown dimension."""
    if not isinstance(size, str):
        return size
    return dims[size] if size in dims else _evaluate_size(_parse_size_expression(size), dims)


def _evaluate_size(node: ast.expr, dims: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return dims[node.id]
    if isinstance(node, ast.BinOp):
        return _DOES[type(node.op)](_evaluate_size(node.left, dims), _evaluate_size(node.right, dims))
    assert isinstance(node, ast.Constant)
    return int(node.value)  # type: ignore[arg-type]


def evaluate_dim_shape(shape: Any, dims: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(evaluate_dim_size(size, dims) for size in shape)


def is_size_argument(value: Any) -> bool:
    """Whether an argument is a size, {"dim": …}."""
    return isinstance(value, Mapping) and set(value) == {DIM}


def evaluate_keyword_sizes(kwargs: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Any]:
    """The arguments, those that are sizes as numbers."""
    return {
        name: evaluate_dim_size(value[DIM], dims) if is_size_argument(value) else value
        for name, value in kwargs.items()
    }


def collect_kernel_dims(op: Any) -> set[str]:
    """The dimensions that a `UserOp`'s sizes are made of. Raises ValueError for what is no expression."""
    specs = [given if isinstance(given, Mapping) else {"shape": given} for given in op.inputs.values()]
    specs += [given for given in op.outputs if isinstance(given, Mapping)]  # the others are dtypes
    told = [size for x in specs for size in (*x.get("shape", ()), x.get("low"), x.get("high"), x.get("below"))]
    told += [value[DIM] for value in op.kwargs.values() if is_size_argument(value)]
    return {name for size in told for name in list_size_names(size)}


def find_smallest_kernel_dims(op: Any) -> dict[str, int]:
    """The smallest candidate of every dimension."""
    return {name: min(values) for name, values in op.dims.items()}


def find_dims_beyond(op: Any) -> dict[str, int]:
    """The least sizes larger than every candidate that divide as the candidates do (`_list_sizes_dividing_alike`). Empty where
    there are no dimensions."""
    return {
        name: next(n for n in _list_sizes_dividing_alike(values) if n > max(values)) for name, values in op.dims.items()
    }


def find_kernel_dims_between(op: Any) -> dict[str, int]:
    """Sizes that lie between candidates, are none, and divide as these do: of each dimension the least, or its least
    candidate where there are none. Empty where no dimension has one."""

    def first(values: Sequence[int]) -> int:
        inside = itertools.takewhile(lambda n: n < max(values), _list_sizes_dividing_alike(values))
        return next((n for n in inside if n > min(values) and n not in values), min(values))

    found = {name: first(values) for name, values in op.dims.items()}
    return found if any(n not in op.dims[name] for name, n in found.items()) else {}


def _list_sizes_dividing_alike(values: Sequence[int]) -> Iterator[int]:
    """Sizes that divide as some candidates do, in ascending order: powers of two where all of them are, else multiples
    of their greatest common divisor. What a kernel may expect of a size without saying so (a block, a power of two) is
    true of them."""
    if min(values) > 0 and all(n & (n - 1) == 0 for n in values):
        return (1 << k for k in itertools.count())
    step = max(math.gcd(*values), 1)
    return itertools.count(step, step)


def solve_kernel_dims(op: Any, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The sizes of a `UserOp`'s inputs by dimension; those that no shape tells are the smallest candidates.

    Raises ValueError for shapes that its schema does not build from any."""
    told = []
    for name, given in op.inputs.items():
        shape = given["shape"] if isinstance(given, Mapping) else given
        if isinstance(given, Mapping) and "data" in given:
            continue  # these values were given as they are: of what sizes they could be, nobody said anything
        if len(shape) != arrays[name].ndim:
            raise ValueError(f"{op.name}: the input {name} has {len(shape)} dimensions, not {arrays[name].ndim}")
        told += list(zip(shape, arrays[name].shape))
    candidates = {name: sorted(values) for name, values in op.dims.items()}
    found = _solve_dims_of_sizes(told, {}, candidates)
    if found is None:
        shapes = ", ".join(f"{name} {list(arrays[name].shape)}" for name in op.inputs)
        raise ValueError(f"{op.name}: no sizes of its dimensions give these inputs: {shapes}")
    return {name: values[0] for name, values in candidates.items()} | found


def _solve_dims_of_sizes(
    told: Sequence[tuple[Any, int]], known: dict[str, int], candidates: Mapping[str, Sequence[int]]
) -> dict[str, int] | None:
    """The dimensions of which (size, number) are ``told``, with those that are known; None where there are none. A size
    of several that nobody tells has the smallest candidates that fit."""
    found, open_sizes = dict(known), list(told)
    while True:
        unknown = [{x for x in list_size_names(size) if x not in found} for size, _ in open_sizes]
        if any(not left and evaluate_dim_size(size, found) != n for left, (size, n) in zip(unknown, open_sizes)):
            return None
        open_sizes = [x for left, x in zip(unknown, open_sizes) if left]
        if not open_sizes:
            return found
        unknown = [left for left in unknown if left]
        if (k := next((k for k, left in enumerate(unknown) if len(left) == 1), None)) is None:
            break
        (name,), (size, n) = unknown[k], open_sizes[k]
        if (value := _invert_size_expression(size, n, name, found)) is None:
            return None
        found[name] = value
    name = min(unknown[0])
    tries = (_solve_dims_of_sizes(open_sizes, found | {name: value}, candidates) for value in candidates[name])
    return next((made for made in tries if made is not None), None)


def _invert_size_expression(size: str, n: int, name: str, known: Mapping[str, int]) -> int | None:
    """The least number of at least 0 of the dimension ``name`` of which a size is ``n``; None where there is none up to
    `MOST`."""

    def value(x: int) -> int:
        try:
            return evaluate_dim_size(size, {**known, name: x})
        except ZeroDivisionError:
            return -1

    if value(n) == n and value(n - 1) != n:  # the name alone
        return n
    least = bisect.bisect_left(range(MOST), n, key=value)  # of what grows with it
    if least < MOST and value(least) == n:
        return least
    return next((x for x in range(_FALLING) if value(x) == n), None)
