"""How a public name goes: for one major version it works and says, where it is called, what takes its place."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Deprecation:
    """A public name that goes. name: as it is called; since: the version that warns first; until: the version that no
    longer has it; use: what takes its place."""

    name: str
    since: str
    until: str
    use: str

    def __str__(self) -> str:
        return f"{self.name} is deprecated since {self.since} and goes with {self.until}: use {self.use}"


#: Of every module that is imported; docs/stability.md has them as a table, and a test fails for one that is overdue.
KNOWN: list[Deprecation] = []


def deprecated(name: str, *, since: str, until: str, use: str) -> Callable[[_Function], _Function]:
    """Mark a function or class by its public name: each call gives a DeprecationWarning at the line that calls. Editors
    and type checkers read ``__deprecated__``, as of PEP 702."""
    said = Deprecation(name, since, until, use)
    KNOWN.append(said)

    def mark(function: _Function) -> _Function:
        @functools.wraps(function)
        def warn_and_call(*args: Any, **kwargs: Any) -> Any:
            warnings.warn(str(said), DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        warn_and_call.__deprecated__ = str(said)  # type: ignore[attr-defined]
        return cast(_Function, warn_and_call)

    return mark
