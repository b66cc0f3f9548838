"""NumPy arrays whose uses somebody is told of: a function of theirs is run as it is written (NEP 13 and 18)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


class WatchedRun:
    """One run of a function of arrays. A subclass says what becomes of the calls in it."""

    def call(self, function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What a ufunc, or another function of NumPy's, returns for arguments of which some are watched."""
        return self.wrap(function(*unwatch_array(list(args)), **unwatch_array(dict(kwargs))))

    def wrap(self, made: Any) -> Any:
        """What a call returned, its arrays watched."""
        if isinstance(made, (tuple, list)):
            return type(made)(map(self.wrap, made)) if type(made) in (tuple, list) else made
        return self.watch(made) if isinstance(made, np.ndarray) else made

    def watch(self, array: np.ndarray) -> Any:
        """The array, watched by this run."""
        view = array.view(WatchedArray)
        view.run = self
        return view


class WatchedArray(np.ndarray):
    """An array that tells its run what it is an argument of, as does whatever is made of it."""

    run: WatchedRun | None

    def __array_finalize__(self, other: Any) -> None:
        self.run = getattr(other, "run", None)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return (self.run or WatchedRun()).call(getattr(ufunc, method), ufunc.__name__, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return (self.run or WatchedRun()).call(func, _qualify_name(func), args, kwargs)

    def dot(self, other: Any, out: Any = None) -> Any:
        return np.dot(self, other)


def _qualify_name(func: Any) -> str:
    """A function's name; of linear algebra with the name of that module."""
    inside = str(getattr(func, "__module__", "")).startswith("numpy.linalg")
    return f"linalg.{func.__name__}" if inside else str(func.__name__)


def unwatch_array(x: Any) -> Any:
    """The same memory, unwatched."""
    if isinstance(x, WatchedArray):
        return np.ndarray.view(x, np.ndarray)
    if isinstance(x, dict):
        return {name: unwatch_array(y) for name, y in x.items()}
    return type(x)(map(unwatch_array, x)) if type(x) in (tuple, list) else x
