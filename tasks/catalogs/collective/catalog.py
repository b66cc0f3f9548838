"""The `collective` catalog: all_reduce, reduce_scatter, all_gather, all_to_all and broadcast of several ranks, at sizes around chunks."""

from __future__ import annotations

import importlib.metadata
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.arrays.tree import TensorSpec
from tasks.catalogs.base import Catalog, Entry, Failure, Sample, spread_sample_indices
from tasks.model import EPS, Group, Leaf, OpClass, get_numpy_dtype, is_inexact_dtype

CATALOG_VERSION = "1"
#: Ranks whose data a sample has; a backend with another number of them does not take it.
RANKS = 4
#: The rank that broadcasts.
ROOT = 1
DTYPES = ("float32", "float16", "bfloat16", "float64", "int32", "int64", "int8")
#: Op → its reductions.
OPS: dict[str, tuple[str, ...]] = {
    "all_gather": ("",),
    "all_reduce": ("sum", "max"),
    "all_to_all": ("",),
    "broadcast": ("",),
    "reduce_scatter": ("sum", "max"),
}
#: Elements of a rank: about the number of ranks, a cache line, a page, and the chunks that gloo and NCCL cut data into.
#: What is scattered has so many for every rank.
SIZES = (
    *(1, RANKS - 1, RANKS, RANKS + 1, 15, 16, 17, 127, 129, 1023, 1024, 1025, 4095, 4096, 4097),
    *(65535, 65536, 65537, 262143, 262145),
)


class Collective(Catalog):
    """The data of a rank is a row of a sample's one array, and so is what it is to receive."""

    name = "collective"
    forms = ("collective",)

    def version(self) -> str:
        return f"{CATALOG_VERSION}+numpy{importlib.metadata.version('numpy')}"

    def entries(self) -> list[Entry]:
        return [Entry(f"{self.name}:{name}", v, DTYPES) for name, variants in OPS.items() for v in variants]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        if group.variant not in OPS.get(group.op_name, ()) or group.dtype not in DTYPES:
            raise ValueError(f"the catalog collective has no op {group.label!r} in {group.dtype}")
        places = spread_sample_indices(len(SIZES), group.samples)
        return (Sample(i) if k in skip else _make_collective_sample(group, i, draws) for k, i in enumerate(places))

    def call(self, group: Group) -> Callable[..., Any]:
        return lambda *args: None  # a backend reads op and reduction off the form


def _make_collective_sample(group: Group, index: int, draws: int) -> Sample:
    seed = (zlib.crc32(group.label.encode()), zlib.crc32(group.dtype.encode()), index, group.seed % 2**64)
    rng = np.random.default_rng(seed)
    size = SIZES[index] * (RANKS if group.op_name in ("reduce_scatter", "all_to_all") else 1)
    if is_inexact_dtype(group.dtype):
        data = rng.standard_normal((RANKS, size)).astype(get_numpy_dtype(group.dtype))
    else:
        data = rng.integers(-30, 31, (RANKS, size)).astype(group.dtype)  # of which no sum leaves int8
    try:
        return _build_collective_sample(group, index, data, draws)
    except Exception as error:
        return Sample(index, failure=Failure.of(error, "reference"))


def _build_collective_sample(group: Group, index: int, data: np.ndarray, draws: int) -> Sample:
    sums = group.variant == "sum" and is_inexact_dtype(group.dtype)
    reference = _compute_received(group, data.astype(np.float64) if is_inexact_dtype(group.dtype) else data)
    floor = None
    if sums:
        exact = data.astype(np.float64)

        def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray]]:
            for draw in drawn:
                places = itertools.count(1)
                yield [_compute_received(group, noise.perturb_by_noise(exact, EPS[group.dtype], draw, next(places)))]

        (floor,) = noise.compute_noise_floor([reference], evaluate, OpClass.REDUCTION, draws, data.size)
    return Sample(
        index,
        (TensorSpec(0), group.variant),
        arrays=[data],
        expected=[Leaf(group.dtype, reference.shape, reference, floor)],
        op_class=OpClass.REDUCTION if sums else OpClass.EXACT,
        oracle="numpy-float64" if sums else "exact",
    )


def _compute_received(group: Group, data: np.ndarray) -> np.ndarray:
    """What each rank receives, a row each."""
    ranks = len(data)
    if group.op_name in ("all_reduce", "reduce_scatter"):
        made = data.sum(0, dtype=data.dtype) if group.variant == "sum" else data.max(0)
        return np.tile(made, (ranks, 1)) if group.op_name == "all_reduce" else made.reshape(ranks, -1)
    if group.op_name == "all_gather":
        return np.tile(data.reshape(-1), (ranks, 1))
    if group.op_name == "broadcast":
        return np.tile(data[ROOT], (ranks, 1))
    return np.ascontiguousarray(data.reshape(ranks, ranks, -1).swapaxes(0, 1)).reshape(ranks, -1)
