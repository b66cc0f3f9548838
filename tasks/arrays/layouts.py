"""How a tensor lies in memory: the layouts that kernels are tried with, each as strides over a storage that holds the same values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tasks.arrays.tree import TensorSpec
from tasks.model.dtypes import is_inexact_dtype, name_numpy_dtype

#: Elements: distance of neighbours in a row of "steps", between rows of "row_gaps", before the first of "offset".
STEP, GAP, LEAD = 2, 3, 5
#: Most elements before a tensor that a storage keeps; one far inside its memory begins at its own elements.
MOST_LEAD = 64
CONTIGUOUS = "contiguous"
EXPANDED = "expanded"
REVERSED = "reversed"
OTHER_WIDTH = "other_width"
#: Whole numbers of the other width, and the values that products of two of them still fit.
WIDTHS, MOST_WIDE = {"int64": "int32", "int32": "int64"}, 1 << 15

Shape = Sequence[int]
#: Strides, and the offset of the first element, in elements.
Place = tuple[tuple[int, ...], int]


@dataclass(frozen=True)
class ArrayLayout:
    """words: what a tensor in it has or is, after its name; about: in a line of the manual; place: strides and offset
    of a shape; fits: whether a shape has it: it moves some element, and is none of the others then."""

    name: str
    words: str
    about: str
    place: Callable[[Shape], Place]
    fits: Callable[[Shape], bool]


def dense(shape: Shape) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(itertools.accumulate(shape[:0:-1], lambda a, n: a * n, initial=1))[::-1] if shape else ()


def _compute_layout_strides(shape: Shape, order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps whose axes lie in memory in some order, the outermost first."""
    made = [0] * len(shape)
    for axis, stride in zip(order, dense([shape[axis] for axis in order])):
        made[axis] = stride
    return tuple(made)


def _lay_transposed(shape: Shape) -> Place:
    *outer, rows, columns = range(len(shape))
    return _compute_layout_strides(shape, (*outer, columns, rows)), 0


def _lay_with_row_gaps(shape: Shape) -> Place:
    return dense((*shape[:-1], shape[-1] + GAP)), 0


def _lay_in_steps(shape: Shape) -> Place:
    return tuple(STEP * s for s in dense(shape)), 0


def _lay_at_offset(shape: Shape) -> Place:
    return dense(shape), LEAD


def _lay_expanded(shape: Shape) -> Place:
    return (0, *dense(shape)[1:]), 0


def _lay_channels_last(shape: Shape) -> Place:
    return _compute_layout_strides(shape, (0, *range(2, len(shape)), 1)), 0


def _lay_reversed(shape: Shape) -> Place:
    return (*dense(shape)[:-1], -1), shape[-1] - 1


#: By name, the most telling first. A size of 1 has no stride that anything depends on.
LAYOUTS: dict[str, ArrayLayout] = {
    x.name: x
    for x in (
        ArrayLayout(
            "row_gaps",
            "a gap between its rows",
            f"{GAP} elements of something else between the rows, as a slice of a wider tensor has",
            _lay_with_row_gaps,
            lambda shape: len(shape) > 1 and math.prod(shape[:-1]) > 1,
        ),
        ArrayLayout(
            "transposed",
            "its last two axes transposed in memory",
            "the last two axes lie the other way round, as after `.t()` or `.mT`",
            _lay_transposed,
            lambda shape: len(shape) > 1 and min(shape[-2:]) > 1,
        ),
        ArrayLayout(
            "channels_last",
            "the memory format channels_last",
            "torch's memory format of 4 or 5 axes",
            _lay_channels_last,
            lambda shape: len(shape) in (4, 5) and shape[1] > 1 and math.prod(shape[2:]) > 1,
        ),
        ArrayLayout(
            "steps",
            "a gap between its elements",
            "every other element of a storage twice as long, as `x[..., ::2]` is",
            _lay_in_steps,
            lambda shape: math.prod(shape) > 1,
        ),
        ArrayLayout(
            "offset",
            "a storage that begins before it",
            f"contiguous, but {LEAD} elements into its storage, so that it is not aligned; the one layout of 0-d tensors",
            _lay_at_offset,
            lambda shape: True,
        ),
        ArrayLayout(
            EXPANDED,
            "stride 0 along its first axis",
            "one index of the first axis stands for all of it (stride 0), as after `.expand`; of floating inputs in the dtype under test, "
            "and of none that is written to",
            _lay_expanded,
            lambda shape: bool(shape) and shape[0] > 1,
        ),
        ArrayLayout(
            REVERSED,
            "a negative stride along its last axis",
            "its last axis runs backwards in memory, as `x[..., ::-1]` does; of NumPy arrays alone, and of kernels without a gradient",
            _lay_reversed,
            lambda shape: bool(shape) and shape[-1] > 1,
        ),
        ArrayLayout(
            OTHER_WIDTH,
            "another width than declared",
            "contiguous, in int32 where int64 is declared and the other way round; of inputs with a dtype of their own and values below "
            f"{MOST_WIDE}, of kernels that return no such numbers",
            lambda shape: (dense(shape), 0),
            lambda shape: False,  # it is no matter of the shape
        ),
    )
}
NAMES = (CONTIGUOUS, *LAYOUTS)


def list_fitting_layouts(shape: Shape) -> list[str]:
    """The layouts that a shape can have, but for the contiguous one. None of a tensor without elements."""
    return [] if 0 in shape else [name for name, layout in LAYOUTS.items() if layout.fits(shape)]


def lay_out_array(x: np.ndarray, layout: str, number: int = 0) -> tuple[np.ndarray, TensorSpec]:
    """(the storage, the view of it) of a tensor with the values of ``x`` in a layout; ``x`` itself where its shape has
    none such.

    Of "expanded" these are the values of the first index of the first axis, for all of it: the one layout that changes
    them. ``number`` is that of the storage. What lies between the elements is NaN: a kernel that reads it will show it.
    """
    if layout == CONTIGUOUS or 0 in x.shape or not LAYOUTS[layout].fits(x.shape):
        return x, TensorSpec(number)
    return store_strided_array(x, *LAYOUTS[layout].place(x.shape), number)


def store_strided_array(
    x: np.ndarray, strides: Sequence[int], offset: int, number: int = 0
) -> tuple[np.ndarray, TensorSpec]:
    """As `lay_out_array`, with these strides and this offset, in elements. Elements at one address have the value of the
    first of them."""
    spec = TensorSpec(number, tuple(x.shape), tuple(strides), offset)
    seen = x[tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)]
    last = offset + sum(max((n - 1) * s, 0) for n, s in zip(x.shape, strides))
    storage = np.full(last + 1, _make_poison_value(x.dtype), x.dtype)
    replace(spec, shape=seen.shape).view(storage, writeable=True)[...] = seen
    return storage, spec


def read_array_layout(x: np.ndarray) -> TensorSpec:
    """How an array lies in memory; one whose strides are no whole elements is taken as contiguous."""
    size = max(x.itemsize, 1)
    if not x.size or any(s % size for s in x.strides):
        return TensorSpec(0)
    lead = 0
    if isinstance(x.base, np.ndarray):
        lead = (np.lib.array_utils.byte_bounds(x)[0] - np.lib.array_utils.byte_bounds(x.base)[0]) // size
    return make_layout_spec(x.shape, [s // size for s in x.strides], lead)


def make_layout_spec(shape: Shape, strides: Sequence[int], lead: int) -> TensorSpec:
    """The view of a tensor in a storage of its own; strides None of one that is contiguous. lead: elements of its
    memory before the first that it touches, of which few are kept."""
    lead = lead if 0 <= lead <= MOST_LEAD else 0
    strides = [d if n == 1 else s for n, s, d in zip(shape, strides, dense(shape))]
    if tuple(strides) == dense(shape) and not lead:
        return TensorSpec(0)
    return TensorSpec(0, tuple(shape), tuple(strides), lead - sum((n - 1) * min(s, 0) for n, s in zip(shape, strides)))


def _make_poison_value(dtype: np.dtype) -> object:
    """What must not be read: NaN, or a number that stands out; of a dtype that has neither, 1."""
    name = name_numpy_dtype(dtype)
    if is_inexact_dtype(name):
        return math.nan
    return 77 if dtype.kind in "iu" else 1


def lay_out_like(x: np.ndarray, like: TensorSpec) -> tuple[np.ndarray, TensorSpec]:
    """As `lay_out_array`, in the layout that ``like`` has, a view of as many axes: their order in memory and the gaps
    between them."""
    assert like.shape is not None and like.strides is not None
    if 0 in x.shape:
        return x, TensorSpec(like.id)
    if like.declared:
        storage, spec = store_strided_array(x.astype(WIDTHS[like.declared]), dense(x.shape), 0, like.id)
        return storage, replace(spec, declared=like.declared)
    made, reach, old_reach = [0] * x.ndim, 1, 1
    for axis in sorted(range(x.ndim), key=lambda k: (abs(like.strides[k]), -k)):  # type: ignore[index]
        size, stride = like.shape[axis], like.strides[axis]
        if size == 1 or stride == 0:
            made[axis] = 0 if stride == 0 else reach
            continue
        made[axis] = int(math.copysign(reach + max(abs(stride) - old_reach, 0), stride))
        reach, old_reach = abs(made[axis]) * x.shape[axis], abs(stride) * size
    backwards = sum((n - 1) * -s for n, s in zip(x.shape, made) if s < 0)
    before = like.offset - sum((n - 1) * -s for n, s in zip(like.shape, like.strides) if s < 0)
    return store_strided_array(x, made, backwards + before, like.id)


def identify_layout(spec: TensorSpec) -> str:
    """The name of the layout of a view; "" for one that has none."""
    if spec.declared:
        return OTHER_WIDTH
    if spec.strides is None or spec.shape is None:
        return CONTIGUOUS
    moves = tuple(s for n, s in zip(spec.shape, spec.strides) if n > 1)
    plain = tuple(s for n, s in zip(spec.shape, dense(spec.shape)) if n > 1)
    if moves == plain:
        return "offset" if spec.offset else CONTIGUOUS
    if 0 in moves:
        return EXPANDED
    if min(moves) < 0:
        return REVERSED
    for name in ("transposed", "channels_last"):
        layout = LAYOUTS[name]
        if layout.fits(spec.shape) and moves == tuple(
            s for n, s in zip(spec.shape, layout.place(spec.shape)[0]) if n > 1
        ):
            return name
    if list(moves) == sorted(moves, reverse=True):
        return "steps" if spec.shape[-1] > 1 and spec.strides[-1] > 1 else "row_gaps"
    return ""


def describe_layout(name: str, spec: TensorSpec) -> str:
    """What a tensor of this name has that a contiguous one has not, in words; "" for a contiguous one."""
    layout = identify_layout(spec)
    if layout == CONTIGUOUS:
        return ""
    words = LAYOUTS[layout].words if layout else "strides of its own"
    shape, strides = (list(x or ()) for x in (spec.shape, spec.strides))
    if spec.declared:
        return f"{name} has {words} ({WIDTHS[spec.declared]} for {spec.declared})"
    where = f"offset {spec.offset}" if layout == "offset" else f"strides {strides} of shape {shape}"
    return f"{name} has {words} ({where})"


def make_array_contiguous(array: np.ndarray) -> np.ndarray:
    """``array`` itself if it is C-contiguous, else a copy (np.ascontiguousarray would make a scalar 1-d)."""
    return array if array.flags.c_contiguous else array.copy(order="C")
