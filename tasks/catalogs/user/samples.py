"""Inputs of a kernel: sizes from its dimensions' candidates, arrays of the shapes that its schema builds from them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from tasks.arrays import inputs
from tasks.catalogs.user.dims import shape_of, size_of
from tasks.catalogs.user.ops import UserOp
from tasks.model import WITHOUT_NOISE, Group, is_complex, is_inexact, np_dtype


def sizes(
    op: UserOp, seed: int, count: int, fits: Callable[[Mapping[str, int]], bool] = lambda dims: True
) -> list[dict[str, int]]:
    """The sizes of the first ``count`` samples: all smallest, all largest, then every candidate of every dimension soon.

    No combination comes again before all have come; the list is the same whatever the dtype and the count. Only those
    that ``fits`` accepts are taken; if the smallest is not one of them, there are none.
    """
    found = _sizes(op, seed)
    return list(islice(filter(fits, found), count)) if fits(next(_sizes(op, seed))) else []


def _sizes(op: UserOp, seed: int) -> Iterator[dict[str, int]]:
    candidates = {name: sorted(set(values)) for name, values in op.dims.items()}
    total = 1
    for values in candidates.values():
        total *= len(values)
    g = np.random.default_rng([zlib.crc32(op.name.encode()), seed % 2**64])
    passes: dict[str, list[int]] = {name: [] for name in candidates}
    while True:
        seen: set[tuple[int, ...]] = set()
        for end in (0, -1):
            made = {name: values[end] for name, values in candidates.items()}
            if tuple(made.values()) not in seen:
                seen.add(tuple(made.values()))
                yield made
        while len(seen) < total:
            for name, values in candidates.items():
                passes[name] = passes[name] or [values[i] for i in g.permutation(len(values))]
            made = {name: passes[name].pop() for name in candidates}
            if tuple(made.values()) not in seen:
                seen.add(tuple(made.values()))
                yield made


def seed_of(group: Group, index: int) -> tuple[int, ...]:
    """Seed of a sample's arrays: of the op, dtype, distribution, place and the run's seed."""
    return (
        *(zlib.crc32(text.encode()) for text in (group.op, group.dtype, group.distribution)),
        index,
        group.seed % 2**64,
    )


def arrays(op: UserOp, dims: Mapping[str, int], group: Group, index: int) -> dict[str, np.ndarray]:
    """The inputs of a sample, in the dtypes that the kernel is given."""
    distribution = op.values if group.distribution == "own" else group.distribution
    theme = inputs.theme_of(distribution, index)
    mild = op.op_class not in WITHOUT_NOISE  # a square or a sum may overflow in every implementation
    g = np.random.default_rng(seed_of(group, index))
    made = {}
    for name, given in op.inputs.items():
        spec = given if isinstance(given, Mapping) else {"shape": given}
        dtype = spec.get("dtype") or group.dtype
        shape = shape_of(spec["shape"], dims)
        if "data" in spec:
            made[name] = np.resize(data(spec["data"]), shape).astype(np_dtype(dtype))
        elif "low" in spec:
            made[name] = uniform(shape, dtype, size_of(spec["low"], dims), size_of(spec["high"], dims), g)
        else:
            made[name] = inputs.fill(shape, dtype, distribution, g, theme, mild)
    return made


def data(given: Any) -> np.ndarray:
    """The values that an input is given: those of a list, or of an .npy file. Raises OSError, ValueError."""
    return np.load(given, allow_pickle=False) if isinstance(given, str) else np.asarray(given)


def elements(op: UserOp, dims: Mapping[str, int], names: Collection[str] | None = None) -> int:
    """How many elements the inputs have together, or those of ``names``."""
    total = 0
    for name, given in op.inputs.items():
        if names is None or name in names:
            shape = given["shape"] if isinstance(given, Mapping) else given
            total += int(np.prod(shape_of(shape, dims), dtype=np.int64))
    return total


def outside(op: UserOp, dims: Mapping[str, int], arrays: Mapping[str, np.ndarray]) -> str:
    """The first input with values that its ``low`` and ``high`` do not allow; "" where there is none."""
    for name, given in op.inputs.items():
        if isinstance(given, Mapping) and "low" in given:
            x = arrays[name]
            low, high = (np.asarray(size_of(given[end], dims)).astype(x.dtype) for end in ("low", "high"))
            parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
            if not all(((low <= y) & ((y < high) if x.dtype.kind in "iu" else (y <= high))).all() for y in parts):
                return name
    return ""


def uniform(shape: tuple[int, ...], dtype: str, low: Any, high: Any, g: np.random.Generator) -> np.ndarray:
    if is_complex(dtype):
        return (g.uniform(low, high, shape) + 1j * g.uniform(low, high, shape)).astype(np_dtype(dtype))
    if is_inexact(dtype):
        return np.asarray(g.uniform(low, high, shape)).astype(np_dtype(dtype))
    return np.asarray(g.integers(low, high, shape)).astype(np_dtype(dtype))
