"""The question of a search for a culprit: does what a part of the model gives make the whole of it fail?"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.graphs.widening import NoOracle
from tasks.hunt.program import HuntProgram
from tasks.searches import PATIENCE

#: How many times as far off as the failing model its outputs may be by the error that explains it.
FURTHER = 16.0


class SearchClock:
    """Seconds of CPU of this process that a search may take, which do not depend on what else the machine does; by the
    clock no more than PATIENCE times as many."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._cpu, self._wall = time.process_time() + seconds, time.monotonic() + PATIENCE * seconds

    @property
    def over(self) -> bool:
        return time.process_time() > self._cpu or time.monotonic() > self._wall


@dataclass
class CulpritQuestion:
    """fails: whether outputs, in the program's order and dtypes, are beyond the limit; clock: when nothing more is to
    be asked; precision: what the backend declares that it computes in ("" for the dtype); failing: what the backend
    returned for the whole; the search sets it."""

    program: HuntProgram
    fails: Callable[[Sequence[np.ndarray]], bool]
    clock: SearchClock
    precision: str = ""
    failing: Sequence[np.ndarray] | None = None

    def shaped(self, name: str, x: np.ndarray) -> np.ndarray:
        """A tensor that a backend was asked for, in its own shape if it differs by dimensions of 1 alone: some runtimes
        give an intermediate tensor in as many dimensions as they keep all in."""
        shape = np.shape(self.program.exact[name])
        lone = [n for n in shape if n != 1] == [n for n in x.shape if n != 1]
        return x.reshape(shape) if lone and name not in self.program.outputs else x

    def reaches(self, values: Mapping[str, np.ndarray]) -> bool:
        """Whether the model fails when these tensors have these values, and all else is exact, and no further off than
        the backend was: a tensor may be wrong only where it is asked for, or in a part, and then it explains
        nothing."""
        if not self.program.outputs:  # nobody can take it apart
            return False
        try:
            outputs = self.program.with_values(values)
        except Exception:  # a shape that what follows cannot take, an index out of range: no such output is right
            return True
        return self.fails(outputs) and not self._further(outputs)

    def _further(self, outputs: Sequence[np.ndarray]) -> bool:
        """Whether an output is FURTHER times as far off as the backend's, in the mean."""
        for name, made, got in zip(self.program.outputs, outputs, self.failing or ()):
            exact = np.asarray(self.program.exact[name])
            if exact.dtype.kind != "f" or not exact.shape == made.shape == got.shape:
                continue
            here, there = (_measure_culprit_error(np.asarray(x), exact) for x in (made, got))
            if np.isfinite(there) and not here <= FURTHER * there:
                return True
        return False

    def reaches_all(self, values: Sequence[Mapping[str, np.ndarray]]) -> bool:
        """Whether the model fails when tensors are off by as much as these values of them are, wherever the others
        lead."""
        errors = {
            name: value.astype(np.float64) - self.program.exact[name].astype(np.float64)
            for one in values
            for name, value in one.items()
            if value.dtype.kind == "f" and value.shape == self.program.exact[name].shape
        }

        def moved(name: str, x: np.ndarray) -> np.ndarray:
            return x + errors[name] if name in errors and x.shape == errors[name].shape else x

        try:
            return self.fails(self.program.with_moves(moved))
        except NoOracle:
            return True


def _measure_culprit_error(x: np.ndarray, exact: np.ndarray) -> float:
    """Root mean square of the differences."""
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.mean(np.square(x.astype(np.float64) - exact))))
