"""torch on the CPU with one planted reason, named by its device, why the same row or run does not give the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.backends.torch import TorchEager
from tasks.model import Form, Program, RuntimeInfo
from tasks.variables import count_compute_threads

_runs = [0]


def _nothing(outputs: list[np.ndarray]) -> list[np.ndarray]:
    return outputs


def _bit(outputs: list[np.ndarray], on: bool) -> list[np.ndarray]:
    """One bit of the last element of the first row, if ``on``."""
    made = [x.copy() for x in outputs]
    if on:
        made[0][0].reshape(-1)[-1:].view(np.uint32)[:] ^= 1
    return made


def _runs_differ(outputs: list[np.ndarray]) -> list[np.ndarray]:
    _runs[0] += 1
    return _bit(outputs, _runs[0] % 3 == 0)


def _batch(outputs: list[np.ndarray]) -> list[np.ndarray]:
    """Another kernel from 129 rows on."""
    return _bit(outputs, outputs[0].shape[0] > 128)


def _position(outputs: list[np.ndarray]) -> list[np.ndarray]:
    """The last row of an odd batch is the tail of a loop."""
    made = [x.copy() for x in outputs]
    rows = len(made[0])
    if rows % 2 and rows > 1:
        made[0][-1] *= np.float32(1 + 2.0**-20)
    return made


FAULTS: dict[str, Callable[[list[np.ndarray]], list[np.ndarray]]] = {
    "sound": _nothing,
    "runs": _runs_differ,
    "process": lambda outputs: _bit(outputs, "FARM_TWIN" in os.environ),
    "threads": lambda outputs: _bit(outputs, count_compute_threads() > 2),
    "batch": _batch,
    "position": _position,
    "onesize": _nothing,
    "bounded": _nothing,
    "dies": _nothing,
}


class Same(TorchEager):
    devices = tuple(FAULTS)

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, "cpu", options)
        self.fault, self.kept = FAULTS[device], device

    def probe(self) -> RuntimeInfo:
        if self.kept == "dies" and "FARM_TWIN" in os.environ:
            raise RuntimeError("the device is open in another process")
        return super().probe()

    def build(self, form: Form) -> Program:
        made = super().build(form)
        rows = form.arrays[0].shape[0]
        if self.kept == "onesize" and rows != 64:
            raise ValueError("it is made for 64 rows")

        def runner(run: Callable[[], Sequence[Any]]) -> Callable[[], Sequence[Any]]:
            return lambda: self.fault([np.array(x) for x in run()])

        def given(arrays: list[Any]) -> Callable[[], Sequence[Any]]:
            if self.kept == "onesize" and arrays[0].shape[0] != rows:
                raise ValueError("it is made for 64 rows")
            if self.kept == "bounded" and arrays[0].shape[0] > 15:
                raise ValueError("it is made for 15 rows at most")
            assert made.given is not None
            return runner(made.given(arrays))

        return replace(made, run=runner(made.run), given=given)
