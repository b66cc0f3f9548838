"""Words of the table that turn torch's arguments into NumPy's conventions; what they cannot turn raises Unsupported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.model import Unsupported


def refuse_argument(what: str) -> Any:
    """There is no counterpart of a call with this argument."""
    raise Unsupported(f"the counterpart has nothing for {what}")


def given(value: Any) -> Any:
    """An argument that the counterpart cannot do without."""
    return refuse_argument("an argument that is left out") if value is None else value


def bounds(least: Any, largest: Any) -> tuple[float, float]:
    """Two numbers in order."""
    if not isinstance(least, (int, float)) or not isinstance(largest, (int, float)) or least > largest:
        refuse_argument("bounds that are no two numbers in order")
    return least, largest


def require_numpy_equation(equation: str) -> str:
    """An equation of einsum that means the same everywhere: torch sums over an ellipsis that the output leaves out."""
    left, arrow, right = equation.partition("->")
    return (
        refuse_argument("an ellipsis that the output leaves out")
        if arrow and "..." in left and "..." not in right
        else equation
    )


def require_equal_axes(x: Any, other: Any, dims: Any) -> Any:
    """The axes of a tensordot, of equal sizes: torch broadcasts them."""
    if isinstance(dims, int):
        pairs = [(len(x.shape) - dims + i, i) for i in range(dims)]
    else:
        pairs = list(zip(*dims))
    return (
        dims
        if all(x.shape[a] == other.shape[b] for a, b in pairs)
        else refuse_argument("contracted axes of different sizes")
    )


def named(value: str, *allowed: str) -> str:
    """One of the values that mean the same on both sides."""
    return value if value in allowed else refuse_argument(repr(value))


def require_rank(x: Any, n: int) -> Any:
    """A tensor of that rank: torch takes one without a batch as well."""
    return x if len(x.shape) == n else refuse_argument(f"a tensor of rank {len(x.shape)}")


def require_axis(x: Any) -> Any:
    """A tensor that has an axis."""
    return x if len(x.shape) else refuse_argument("a tensor of rank 0")


def require_shape_of(x: Any, other: Any) -> Any:
    """A tensor of the other's shape: torch broadcasts."""
    return x if tuple(x.shape) == tuple(other.shape) else refuse_argument("tensors of different shapes")


def require_same_rank(tensors: Sequence[Any]) -> Sequence[Any]:
    """Tensors of one rank: torch's cat also takes an empty one of rank 1 among others."""
    return tensors if len({len(x.shape) for x in tensors}) == 1 else refuse_argument("tensors of different ranks")


def several_axes(dim: Any) -> tuple[int, ...] | None:
    """One axis or several, as several."""
    return (dim,) if isinstance(dim, int) else None if dim is None else tuple(dim)


def pair(dim: Any) -> tuple[int, ...]:
    """Two axes: torch's two-dimensional transforms take any number."""
    found = several_axes(dim)
    return found if found is not None and len(found) == 2 else refuse_argument("a transform over other than two axes")


def unpack_tensors(given_tensors: Sequence[Any]) -> Sequence[Any]:
    """Tensors given one by one or as one sequence."""
    return (
        given_tensors[0] if len(given_tensors) == 1 and isinstance(given_tensors[0], (tuple, list)) else given_tensors
    )


def require_vector(x: Any) -> Any:
    return require_rank(x, 1)


def axes(dim: Any) -> Any:
    """torch reduces over all axes for None and for no axis."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None


def ddof(unbiased: bool | None, correction: float | None) -> float:
    """Bessel's correction: 1 unless said otherwise."""
    if correction is not None:
        return correction
    return 1 if unbiased is None else int(unbiased)


def bessel(unbiased: bool | None, correction: float | None) -> bool:
    """The same as a boolean, where there is one."""
    found = ddof(unbiased, correction)
    return bool(found) if found in (0, 1) else refuse_argument(f"correction={found}")


def sizes(given_sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes given one by one or as one sequence."""
    if len(given_sizes) == 1 and isinstance(given_sizes[0], (tuple, list)):
        return tuple(given_sizes[0])
    return tuple(given_sizes)


def require_plain_numbers(value: Any) -> Any:
    """Numbers: a tensor that decides shapes is none of the inputs of a compiled function."""
    if isinstance(value, (int, tuple, list)):
        return value
    return refuse_argument("a tensor that decides the shape of the result")


def plain(value: Any, n: int) -> Any:
    """A window's numbers, one for all or one for each of ``n`` axes; None and words as they are."""
    if not isinstance(value, (tuple, list)):
        return value
    return list(value) * (n if len(value) == 1 else 1) or None


def repeat_for_axes(value: Any, n: int) -> list[int]:
    """One number for each of ``n`` axes."""
    if isinstance(value, (tuple, list)):
        if None in value:
            refuse_argument("a size of None")
        return [int(x) for x in value] * (n if len(value) == 1 else 1)
    return [int(value)] * n


def paddings(padding: Any, kernel: Sequence[int], dilation: Sequence[int], n: int) -> list[tuple[int, int]]:
    """(before, after) of each spatial axis; torch's "same" puts the odd one behind."""
    if padding == "valid":
        return [(0, 0)] * n
    if padding == "same":
        total = [d * (k - 1) for k, d in zip(kernel, dilation)]
        return [(t // 2, t - t // 2) for t in total]
    return [(p, p) for p in repeat_for_axes(padding, n)]


def pad_widths(x: Any, pad: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of every axis from torch's list, which begins with the last axis."""
    if min(pad, default=0) < 0:
        refuse_argument("negative padding")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return [(0, 0)] * (len(x.shape) - len(pairs)) + pairs[::-1]


def ones_of(x: Any, dim: Any) -> tuple[int, ...]:
    """The axes of length 1 among ``dim``: torch leaves the others alone."""
    rank_ = len(x.shape)
    asked = range(rank_) if dim is None else [dim] if isinstance(dim, int) else dim
    found = tuple(i % rank_ for i in asked if rank_ and x.shape[i] == 1)
    return found or refuse_argument("no axis to squeeze")


def expanded(x: Any, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape with its −1, which keep the size of an axis, replaced."""
    own = (1,) * (len(shape) - len(x.shape)) + tuple(x.shape)
    return tuple(o if s == -1 else s for o, s in zip(own, shape))


def fill_repeats(dims: Sequence[int], x: Any) -> list[int]:
    """Repeats of every axis; the leading ones that are not named are 1."""
    if len(dims) > len(x.shape):
        refuse_argument("more repeats than axes")
    return [1] * (len(x.shape) - len(dims)) + list(dims)


def swap_axes(x: Any, a: int, b: int) -> list[int]:
    """The permutation that swaps two axes."""
    order = list(range(len(x.shape)))
    if order:
        order[a], order[b] = order[b], order[a]
    return order


def split_sizes(x: Any, size: Any, dim: int) -> list[int]:
    """Lengths of the parts: of a given length, the last may be shorter."""
    if isinstance(size, (tuple, list)):
        return list(size)
    length = int(x.shape[dim])
    return [min(size, length - i) for i in range(0, length, size)] or [0]


def split_points(x: Any, size: Any, dim: int) -> list[int]:
    """Where the parts but the first begin."""
    return np.cumsum(split_sizes(x, size, dim))[:-1].tolist()


def require_even_chunks(chunks: int, x: Any, dim: int) -> int:
    return chunks if x.shape[dim] % chunks == 0 else refuse_argument("chunks of different lengths")


def require_rank_of_matrix(b: Any, a: Any) -> Any:
    """A right-hand side of the rank of the matrix: torch takes vectors and batches of them by rules of its own."""
    return (
        b
        if len(b.shape) == len(a.shape) and b.shape[:-2] == a.shape[:-2]
        else refuse_argument("a right-hand side of another rank or batch")
    )


def cut_to_index(x: Any, index: Any, dim: int | None) -> Any:
    """The part of ``x`` that ``index`` runs over on the axes other than ``dim`` (None: on all): torch allows a smaller
    index."""
    if len(x.shape) != len(index.shape):
        refuse_argument("an index of another rank")
    cut = tuple(
        slice(None) if dim is not None and i == dim % len(x.shape) else slice(int(n)) for i, n in enumerate(index.shape)
    )
    return x[cut] if cut else x


def output_sizes(x: Any, size: Any) -> tuple[int, ...]:
    """The sizes to resize to, one per spatial axis."""
    n = len(x.shape) - 2
    return tuple(repeat_for_axes(given(size), n))


def refuse_aligned_corners(align_corners: bool | None) -> None:
    if align_corners:
        refuse_argument("align_corners=True")


def reduction_of(value: str) -> str:
    return named(value, "none", "sum", "mean")


def affine(product: Any, bias: Any) -> Any:
    """A product with its bias, if it has one."""
    return product if bias is None else product + bias


def index_slices(x: Any, dim: int, index: Any) -> tuple[Any, ...]:
    """The index of ``.at`` for whole slices along one axis, in JAX and MLX."""
    return (slice(None),) * (dim % x.ndim) + (index,) if x.ndim else refuse_argument("a tensor of rank 0")


def divide_windows(x: Any, output_size: Any, n: int) -> list[int]:
    """The windows of an adaptive pooling over ``n`` spatial axes, where they divide these evenly."""
    to = repeat_for_axes(output_size, n)
    require_rank(x, n + 2)
    if any(a % b for a, b in zip(x.shape[2:], to)):
        refuse_argument("windows of different sizes")
    return [a // b for a, b in zip(x.shape[2:], to)]
