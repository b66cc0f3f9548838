"""How the outputs of a training step lie: of which phase they are, which modules were looked into, and which rank holds what alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class StepLayout:
    """counts: the phases in order, with how many outputs each has; taps: the names of those of the first; owners: of
    each parameter that not all ranks hold, the first that does. It is the first output of a step, as bytes of JSON: a
    rank's answer is arrays alone."""

    counts: Mapping[str, int]
    taps: tuple[str, ...] = ()
    owners: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> np.ndarray:
        return np.frombuffer(json.dumps(asdict(self)).encode(), np.uint8).copy()

    @classmethod
    def decode(cls, array: Any) -> StepLayout:
        """Raises ValueError for what is none."""
        try:
            found = json.loads(bytes(np.asarray(array, np.uint8)))
            return cls(found["counts"], tuple(found["taps"]), found["owners"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"no layout of a training step: {error!r}") from None

    @property
    def size(self) -> int:
        """How many outputs follow."""
        return sum(self.counts.values())

    def owner_of(self, place: str) -> int | None:
        """The rank that alone holds a parameter, or the module with that name; None where all do, or several have parts
        of it."""
        if place in self.owners:
            return self.owners[place]
        within = {rank for name, rank in self.owners.items() if name.startswith(f"{place}.")}
        return within.pop() if len(within) == 1 else None
