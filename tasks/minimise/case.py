"""What a search makes smaller: a case taken apart into arrays, integers and parts, and put together again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from tasks.catalogs.base import Sample
from tasks.model import Group


class Unfit(Exception):
    """The reference does not take a case: it is no valid one."""


class Case(Protocol):
    """A case that can be made smaller; never changed, only made again."""

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """Its tensors by name: inputs, and what weights it holds."""

    def with_arrays(self, arrays: Mapping[str, np.ndarray]) -> Case:
        """The case with other arrays in the place of some."""

    @property
    def integers(self) -> dict[str, int]:
        """The whole numbers beside its tensors that may follow their sizes, by place."""

    def with_integers(self, integers: Mapping[str, int]) -> Case:
        """The case with other numbers in some of those places."""

    def simpler(self) -> Iterator[tuple[str, Case]]:
        """Cases with one attribute, argument, input or output less, and what that was."""

    @property
    def names(self) -> tuple[str, ...]:
        """What an error may call its parts."""

    @property
    def ops(self) -> tuple[str, ...]:
        """Its operations."""

    def made(self) -> tuple[Group, Sample]:
        """The case with its reference, as a backend is given it. Raises Unfit."""

    def key(self) -> Any:
        """Equal for equal cases."""


def elements(case: Case) -> int:
    """Numbers in its tensors."""
    return sum(x.size for x in case.arrays.values())
