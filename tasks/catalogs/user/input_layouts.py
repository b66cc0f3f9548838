"""In which layouts a kernel's inputs are given (`tasks.arrays.layouts`): those of its declaration, or all of them in turn."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays import layouts
from tasks.arrays.layouts import CONTIGUOUS, EXPANDED, LAYOUTS, MOST_WIDE, OTHER_WIDTH, REVERSED, WIDTHS
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.user.dims import evaluate_dim_size
from tasks.catalogs.user.ops import UserOp
from tasks.draw.choices import DrawnChoices
from tasks.model import DISTRIBUTIONS, EXHAUSTIVE, Group, is_inexact_dtype
from tasks.model.dtypes import PACKED_BITS, name_numpy_dtype

Arrays = Mapping[str, np.ndarray]
#: Inputs that are not contiguous, by name: shape, strides and offset.
Places = Mapping[str, TensorSpec]
#: Of a kernel's inputs, which are given how.
Lay = Callable[[Arrays], Places]
#: One of so many fuzzed cases has inputs that are not contiguous; and one, of a kernel that declares its layouts,
#: another than these.
LAID_OUT, OTHERS = 2, 16


def build_declared_places(op: UserOp, arrays: Arrays, dims: Mapping[str, int]) -> Places:
    """Inputs whose strides are given. Raises ValueError for strides that do not fit."""
    found = {}
    for name, given in op.inputs.items():
        if isinstance(given, Mapping) and "strides" in given:
            strides = tuple(evaluate_dim_size(size, dims) for size in given["strides"])
            shape = arrays[name].shape
            if len(strides) != len(shape):
                raise ValueError(f"the input {name} has {len(strides)} strides and {len(shape)} axes")
            found[name] = TensorSpec(0, shape, strides, evaluate_dim_size(given.get("offset", 0), dims))
    return found


def choose_layouts_in_turn(op: UserOp, group: Group, index: int) -> Lay:
    """Of sample ``index``: the first one of a group is contiguous; then each input has each of its layouts, beside
    others of the others.

    What is declared not to be taken is given once, to all inputs at a time; then the declared ones take turns.
    """

    def lay(arrays: Arrays) -> Places:
        if not index or group.distribution == EXHAUSTIVE:
            return {}
        names = {name: x for name, x in arrays.items() if not _has_fixed_layout(op, name, x)}
        offered = {name: list(_list_layouts_of_input(op, name, x)) for name, x in names.items()}
        chosen: dict[str, str] = {}
        if op.layouts is None:
            turn = _choose_first_turn(op, group) + index
            for number, (name, options) in enumerate(offered.items()):
                options = [*options, CONTIGUOUS]
                chosen[name] = options[(turn + number) % len(options)]
        else:
            others = [x for x in LAYOUTS if x not in op.layouts and any(x in options for options in offered.values())]
            for number, (name, options) in enumerate(offered.items()):
                taken = [x for x in options if x in op.layouts] + [CONTIGUOUS]
                other = others[index - 1] if index <= len(others) else ""
                chosen[name] = other if other in options else taken[(index + number) % len(taken)]
        return _lay_out_declared(arrays, chosen)

    return lay


def _choose_first_turn(op: UserOp, group: Group) -> int:
    """The turn that a group begins with: other dtypes and distributions of an op go on where one of four samples
    ends."""
    dtype, distribution = list(op.dtypes).index(group.dtype), DISTRIBUTIONS.index(group.distribution)
    return zlib.crc32(op.name.encode()) + group.seed + 3 * dtype + 5 * distribution


def draw_layouts(op: UserOp, choose: DrawnChoices) -> Lay:
    """As choices decide, the last of a case: contiguous is the simplest of each."""

    def lay(arrays: Arrays) -> Places:
        chosen: dict[str, str] = {}
        with choose.span("layouts"):
            own = op.layouts is None or not choose.chance(1, OTHERS)
            plain = own and not choose.chance(1, LAID_OUT)
            for name, x in arrays.items():
                if not plain and not _has_fixed_layout(op, name, x):
                    options = _list_layouts_of_input(op, name, x)
                    fit = [y for y in options if op.layouts is None or (y in op.layouts) is own]
                    chosen[name] = choose.of([CONTIGUOUS, *fit])
        return _lay_out_declared(arrays, chosen)

    return lay


def exclude_expanded_layouts(lay: Lay, only: str = "") -> Lay:
    """The same, but for tensors whose elements would lie at one address: these are contiguous. only: the one of this
    name."""
    return lambda arrays: {
        name: spec for name, spec in lay(arrays).items() if 0 not in (spec.strides or ()) or (only and name != only)
    }


def keep_layouts_of_own_width(lay: Lay) -> Lay:
    """The same, but for whole numbers of another width than declared."""
    return lambda arrays: {name: spec for name, spec in lay(arrays).items() if not spec.declared}


def build_kernel_storages(
    arrays: Arrays, places: Places
) -> tuple[list[np.ndarray], dict[str, TensorSpec], dict[str, np.ndarray]]:
    """(storages, views of them by name, the values that these have) of inputs."""
    storages, specs = [], {}
    for number, (name, x) in enumerate(arrays.items()):
        spec = places.get(name)
        x = x.astype(WIDTHS[spec.declared]) if spec and spec.declared else x
        storage, specs[name] = (
            (x, TensorSpec(number))
            if spec is None
            else layouts.store_strided_array(x, spec.strides or (), spec.offset, number)
        )
        if spec and spec.declared:
            specs[name] = replace(specs[name], declared=spec.declared)
        storages.append(storage)
    values = {
        name: np.array(spec.view(storages[spec.id]), dtype=spec.declared or None, order="C")
        for name, spec in specs.items()
        if name in places
    }
    return storages, specs, {**arrays, **values}


def describe_input_layouts(arrays: Arrays, places: Places) -> str:
    """How inputs lie in memory, in words; "" where all are contiguous and have elements."""
    empty = [f"{name} has no elements (shape {list(x.shape)})" for name, x in arrays.items() if not x.size]
    return "; ".join([*empty, *filter(None, (layouts.describe_layout(name, spec) for name, spec in places.items()))])


def are_layouts_accepted(op: UserOp, places: Places) -> bool:
    """Whether the declaration says that the kernel takes all of these layouts: to refuse one is an error."""
    given = {name for name, x in op.inputs.items() if isinstance(x, Mapping) and "strides" in x}
    return bool(places) and all(
        name in given or layouts.identify_layout(spec) in (op.layouts or ()) for name, spec in places.items()
    )


def _has_fixed_layout(op: UserOp, name: str, x: np.ndarray) -> bool:
    given: Any = op.inputs[name]
    return (isinstance(given, Mapping) and "strides" in given) or name_numpy_dtype(x.dtype) in PACKED_BITS


def _list_layouts_of_input(op: UserOp, name: str, x: np.ndarray) -> Iterator[str]:
    """The layouts that an input can have here. torch has no negative strides, nor has its autograd; elements at one
    address hold one value, which neither given values have, nor integers that say which of something, nor what is
    written to."""
    given: Any = op.inputs[name]
    of_arrays = op.framework == "numpy" and not op.gradient
    free = is_inexact_dtype(name_numpy_dtype(x.dtype)) and name not in op.mutates
    free = free and not (isinstance(given, Mapping) and ("data" in given or "dtype" in given))
    for layout in layouts.list_fitting_layouts(x.shape):
        if (layout != REVERSED or of_arrays) and (layout != EXPANDED or free):
            yield layout
    own = isinstance(given, Mapping) and given.get("dtype") in WIDTHS and name not in op.mutates
    if own and x.size and np.abs(x.astype(np.int64)).max() < MOST_WIDE:
        yield OTHER_WIDTH


def _lay_out_declared(arrays: Arrays, chosen: Mapping[str, str]) -> Places:
    found = {}
    for name, layout in chosen.items():
        if layout != CONTIGUOUS:
            declared = arrays[name].dtype.name if layout == OTHER_WIDTH else ""
            shape = arrays[name].shape
            found[name] = TensorSpec(0, shape, *LAYOUTS[layout].place(shape), declared=declared)
    return found
