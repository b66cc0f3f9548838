"""What a search asks of whoever runs cases on the backend for it, and what it is told."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from tasks.catalogs.base import Sample
from tasks.model import Group
from tasks.model.row import Row

T = TypeVar("T")


class Runnable(Protocol):
    """A case with its reference."""

    def make_sample(self) -> tuple[Group, Sample]:
        """As a backend is given it. Raises Unfit."""


@dataclass(frozen=True)
class DialoguePiece:
    """Some nodes of a program, to be run by themselves. program: a ModelProto, or a `tasks.graphs.traced_program.ProgramPart` of the
    torch program; feeds: its inputs by name; outputs: names."""

    program: Any
    feeds: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Ask:
    """What is to be run on the backend. case: None for the stored one, as it was run; setting: of the backend
    (`tasks.backends.base.Backend.at`); before: which of the earlier cases of its process, by number, are to be run
    before it in a process of their own; fresh: in a new process; patient: one that hangs is given its whole deadline;
    explained: its row says why it is off, as far as the device tells."""

    case: Runnable | DialoguePiece | None = None
    setting: str = ""
    before: tuple[int, ...] = ()
    fresh: bool = False
    patient: bool = False
    explained: bool = False


@dataclass(frozen=True)
class Ran:
    """What came of it. outputs: flat and in the order of the program's outputs, of a search that looks at them itself;
    None where it raised, died or was refused: ``error``; row: what it was judged to be, of a search that goes by
    that."""

    outputs: Sequence[np.ndarray] | None = None
    error: str = ""
    row: Row | None = None


#: A search, or a part of one: yields Ask, is sent Ran, returns what it found.
Search = Generator[Ask, Ran, T]


class Unfit(Exception):
    """The reference does not take a case: it is no valid one."""


class NotFailing(Exception):
    """There is nothing to search for; the text says why."""
