"""A formula that may be an op's, with what comes out where it is computed wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.diagnose.error_model import ErrorModel


@dataclass(frozen=True)
class WrongFormula:
    """exact: of float64 inputs; may raise ValueError for inputs that do not fit. wrong: its error models, on the same.
    single: each result is of the elements in its place."""

    exact: Callable[[Sequence[np.ndarray]], np.ndarray]
    wrong: Callable[[Sequence[np.ndarray]], Iterator[ErrorModel]]
    single: bool = False


@dataclass(frozen=True)
class SummedFormula:
    """Some elements of an output as sums: scale·Σ terms + added. terms: (terms of a sum, elements), float64, of some
    inputs; of: those of others."""

    terms: np.ndarray
    of: Callable[[Sequence[np.ndarray]], np.ndarray]
    scale: float = 1.0
    added: np.ndarray | float = 0.0

    def finish(self, totals: np.ndarray) -> np.ndarray:
        """The elements for sums of their terms."""
        return np.asarray(self.scale * totals + self.added)
