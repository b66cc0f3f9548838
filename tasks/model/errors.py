"""What a backend, a catalog or a kernel may raise, and what the farm makes of it."""

from __future__ import annotations

import numpy as np


class Unavailable(Exception):
    """The backend cannot run in this process; the text says why."""


class Unsupported(Exception):
    """The backend says that it does not implement this case."""


class Fallback(Exception):
    """The backend could run this case only somewhere else than asked (and did not)."""


class Vacuous(Exception):
    """There is nothing to compute or to compare in this case."""


class Misbehaviour(Exception):
    """The kernel broke a promise beside its numbers; ``kind`` is the row's: "mutation", "aliasing", "invariant", …

    outputs: what it returned all the same, flat, to be measured; None where there is nothing to measure.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.outputs: list[np.ndarray] | None = None


class Invalid(Exception):
    """The case itself is bad: it cannot be made, widened to float64, or its reference raises."""
