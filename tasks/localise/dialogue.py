"""What a search and whoever runs models for it say to each other, and what it ends with."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from tasks.searches import PATIENCE

T = TypeVar("T")


@dataclass(frozen=True)
class Ask:
    """A model to be run on the backend. model: a ModelProto, None for the case as it was run; feeds: its inputs by name;
    setting: of the backend (`tasks.backends.base.Backend.at`)."""

    model: Any = None
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    setting: str = ""


@dataclass(frozen=True)
class Ran:
    """What it returned, flat and in the order of its outputs; None where it raised, died or was refused: ``error``."""

    outputs: Sequence[np.ndarray] | None = None
    error: str = ""


#: A part of a search: yields Ask, is sent Ran, returns what it found.
Search = Generator[Ask, Ran, T]


class NotFailing(Exception):
    """There is nothing to localise; the text says why."""


@dataclass(frozen=True)
class Found:
    """What a search ends with.

    culprit: text of the column; "" where none can be named; effect: the column ``probe_effect``; node_units: own error
    units by node, in the graph's order, NaN where a node was not judged; places: of the culprit's nodes in the model's
    graph; units: its own; alone: whether it fails by itself as well, None where that was not tried; feeds: of its piece;
    why: how it is known, a sentence a line.
    """

    culprit: str = ""
    effect: str = ""
    node_units: tuple[float, ...] = ()
    places: tuple[int, ...] = ()
    units: float | None = None
    alone: bool | None = None
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    why: tuple[str, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What of a backend can be turned off: names of its `levels` below its own, of its `passes`; precise: whether it can be
    told to compute in the dtype itself."""

    levels: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    precise: bool = False


NOTHING = Settings()


class Clock:
    """Seconds of CPU of this process that a search may take, which do not depend on what else the machine does; by the
    clock no more than PATIENCE times as many."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._cpu, self._wall = time.process_time() + seconds, time.monotonic() + PATIENCE * seconds

    @property
    def over(self) -> bool:
        return time.process_time() > self._cpu or time.monotonic() > self._wall
