"""The share of the roofline: how near a call comes to what the device can do (Williams, Waterman, Patterson: Roofline, CACM 2009).

The bytes of a call are those of its inputs and outputs, once each; its operations are those of the products in the
reference, as torch counts them (`torch.utils.flop_counter`). A declaration may say either. The time that the device
takes for them at its ceilings, over the time of a call, is the share. Beyond 1 a call is faster than the device can be,
so that it did not do what it seems to have done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.arrays.tree import list_tensor_specs
from tasks.checks import paired_timing
from tasks.model import Form, is_inexact_dtype

MEMORY = "memory"
#: How far beyond the ceilings a call has to be before it is doubted: these were measured on the same machine, beside
#: whatever else it does.
MARGIN = 1.25
#: Elements of an input that are tried, whether the result depends on them.
TRIED = 8


@dataclass(frozen=True)
class CallWork:
    """What a call has to do. read: bytes of each stored input; written: of all outputs; operations: of its products,
    None where nobody counts them; declared: whether the user says so, and it is not counted."""

    read: tuple[float, ...]
    written: int
    operations: int | None = None
    declared_bytes: int | None = None
    declared_operations: bool = False

    @property
    def bytes(self) -> int:
        return int(sum(self.read)) + self.written if self.declared_bytes is None else self.declared_bytes


@dataclass(frozen=True)
class RooflineShare:
    """Of the roofline, with its interval. bound: the ceiling that it is a share of: MEMORY, or a dtype's products."""

    value: float
    low: float
    high: float
    bound: str


def count_call_work(
    form: Form,
    outputs: Sequence[np.ndarray],
    products: int | None,
    declared: tuple[int | None, int | None] = (None, None),
) -> CallWork:
    """The work of a form. products: operations of its products, as torch counts them; None where it does not. declared:
    see `Arm`."""
    sizes = [0.0] * len(form.arrays)
    for spec in list_tensor_specs([form.args, form.kwargs]):
        stored = form.arrays[spec.id]
        elements = stored.size if spec.shape is None else min(int(np.prod(spec.shape)), stored.size)
        sizes[spec.id] = max(sizes[spec.id], float(elements * stored.dtype.itemsize))
    told_bytes, told = declared
    operations = told if told is not None else products
    return CallWork(tuple(sizes), sum(map(_count_written_bytes, outputs)), operations, told_bytes, told is not None)


def _count_written_bytes(x: np.ndarray) -> int:
    """Bytes of an output; what is expanded lies in memory once."""
    return int(
        x.dtype.itemsize * np.prod([n for n, stride in zip(x.shape, x.strides) if stride or n < 2], dtype=np.int64)
    )


def find_roofline_share(
    work: CallWork, seconds: Sequence[float], dtype: str, ceiling: Callable[[str], float | None], spared: int = 0
) -> RooflineShare | None:
    """The share of calls that took so many seconds. spared: bytes that need not come from memory. None without a
    ceiling."""
    least: list[tuple[float, str]] = []
    if (moved := work.bytes - spared) > 0 and (speed := ceiling(MEMORY)):
        least.append((moved / speed, MEMORY))
    if work.operations and is_inexact_dtype(dtype) and (speed := ceiling(dtype)):
        least.append((work.operations / speed, dtype))
    if not least:
        return None
    shortest, bound = max(least)
    found = paired_timing.compute_speed_ratio([shortest] * len(seconds), seconds)
    return None if found is None else RooflineShare(found.value, found.low, found.high, bound)


def drop_unread_work(work: CallWork, form: Form, compute: Callable[[list[Any]], Sequence[Any]]) -> CallWork:
    """The work without the inputs, or the shares of them, that the result does not depend on: a call need not read
    them.

    compute: the outputs of other inputs, by what the program is timed against.
    """
    chance = np.random.default_rng(0)
    before = [np.array(x) for x in compute(list(form.arrays))]
    read = []
    for place, (stored, size) in enumerate(zip(form.arrays, work.read)):
        matter = 0
        for _ in range(TRIED if size else 0):
            other = np.array(stored)
            flat, at = other.reshape(-1), int(chance.integers(other.size))
            flat[at] = _make_other_element(flat, at)
            try:
                found = compute([*form.arrays[:place], other, *form.arrays[place + 1 :]])
            except Exception:  # not a valid input: nothing is known of it
                continue
            matter += any(a.tobytes() != np.asarray(b).tobytes() for a, b in zip(before, found))
        read.append(size * matter / TRIED)
    return replace(work, read=tuple(read))


def _make_other_element(flat: np.ndarray, at: int) -> Any:
    """Another value for an element, that is seen in a sum and in a maximum; of whole numbers another one of the
    input."""
    if not is_inexact_dtype(flat.dtype.name):
        others = flat[flat != flat[at]]
        return others[0] if others.size else flat[at]
    finite = np.abs(flat[np.isfinite(flat)])
    return flat.dtype.type(2 * finite.max() + 1 if finite.size else 1)
