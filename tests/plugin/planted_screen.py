"""Stand-in devices for `farm node screen`: NumPy computes, and a planted fault spoils what one datapath of one device gives.

$FARM_FAULTS: JSON, {number of a device: fields of a `Fault`}.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.backends.base import Backend
from tasks.devices import BY_LABEL
from tasks.model import Form, Program, RuntimeInfo
from tasks.screen.exercises import CORE, list_screen_exercises

#: Threads of a warp, and of a block.
WARP, BLOCK = 32, 1024


@dataclass(frozen=True)
class Fault:
    """A fault of the datapath ``unit`` in ``dtype``.

    where: "element" (``place`` among the outputs), "lane" (one of 32 of each warp), "warp" (one of 32 of each block),
    "any" (an operation, by chance); bit: which bit of the output it touches, how: "flip", or stuck at "0" or "1";
    "narrow": none is, but what is probed is computed in float32; "crash": the process dies; rate: share of passes that
    an element, lane or warp is faulty in, or, by chance, the rate per operation; after_s: seconds until it is hot.
    """

    unit: str = "matrix"
    dtype: str = "float32"
    where: str = "element"
    place: int = 0
    bit: int = 0
    how: str = "flip"
    rate: float = 1.0
    after_s: float = 0.0

    def touches(self, unit: str, dtype: str) -> bool:
        return (unit, dtype) == (self.unit, self.dtype)

    def find(self, size: int) -> np.ndarray:
        """Which outputs it touches where it strikes, by place."""
        every = np.arange(size)
        if self.where == "lane":
            return every[every % WARP == self.place % WARP]
        if self.where == "warp":
            return every[every % BLOCK // WARP == self.place % max(min(size, BLOCK) // WARP, 1)]
        return every[[self.place % size]]

    def spoil(self, output: np.ndarray, steps: int, draw: np.random.Generator, at_s: float = 0.0) -> np.ndarray:
        """An output as the device gives it at that time. steps: operations behind each element."""
        if at_s < self.after_s:
            return output
        if self.where == "any":
            count = draw.binomial(output.size * steps, self.rate)
            places = draw.integers(0, output.size, count)
        elif draw.random() < self.rate:
            places = self.find(output.size)
        else:
            return output
        made = np.ascontiguousarray(output).copy()
        bits = made.reshape(-1).view(f"u{made.dtype.itemsize}")
        mask = bits.dtype.type(1) << bits.dtype.type(self.bit % (8 * made.dtype.itemsize))
        bits[places] = {"flip": bits[places] ^ mask, "0": bits[places] & ~mask, "1": bits[places] | mask}[self.how]
        return made


@functools.cache
def units() -> dict[tuple[str, str], tuple[str, int]]:
    """(datapath, operations behind an element) of each exercise, by name and dtype."""
    return {(x.name, x.dtype): (x.unit, x.steps) for x in list_screen_exercises(CORE)}


def compute(form: Form, wide: type = np.float64) -> np.ndarray:
    """What a sound device gives: computed in ``wide``, and once rounded."""
    assert form.call is not None
    exact = form.arrays[0].dtype.kind in "iu"
    with np.errstate(over="ignore"):
        made = form.call(*(x if exact else x.astype(wide) for x in form.arrays))
    return np.asarray(made).astype(form.arrays[0].dtype)


class Screened(Backend):
    """``screened-nvidia`` and others: a device of that vendor's."""

    forms = ("torch",)
    emulated = True  # in so far as sizes go
    resource = "GPU"

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        super().__init__(name, device, options)
        self.vendor = self.device_vendor = device
        visible = BY_LABEL[device].visible if device in BY_LABEL else ()
        self.given = os.environ.get(visible[0] if visible else "", "0").rpartition(":")[2]
        told = json.loads(os.environ.get("FARM_FAULTS", "{}")).get(self.given)
        self.fault = Fault(**told) if told else None
        self.began, self.draw = time.monotonic(), np.random.default_rng(int(self.given or 0))

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("screened 1", f"Screened {self.device}")

    def canary(self, form: Form) -> Program:
        if form.op.startswith("probe"):
            unit = {"probe_product": "matrix", "probe_single": "vector"}[form.op]
            narrow = bool(self.fault and self.fault.how == "narrow" and self.fault.touches(unit, form.dtype))
            return Program(lambda: [compute(form, np.float32 if narrow else np.float64)])
        unit, steps = units().get((form.op, form.dtype), ("", 0))
        fault = self.fault if self.fault and self.fault.touches(unit, form.dtype) else None

        def give(arrays: list[np.ndarray]) -> Callable[[], list[np.ndarray]]:
            right = compute(replace(form, arrays=arrays))
            at_s = time.monotonic() - self.began
            if fault and fault.how == "crash":
                os.abort()
            return lambda: [fault.spoil(right, steps, self.draw, at_s) if fault else right.copy()]

        return Program(lambda: give(form.arrays)(), placement=f"visible {self.given}", given=give)

    def build(self, form: Form) -> Program:
        return self.canary(form)
