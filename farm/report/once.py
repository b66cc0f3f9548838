"""Answers that are worked out once for each thing that they are of: a report, whom several faces ask, and its rows."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import pandas as pd

Answer = TypeVar("Answer")
Frame = TypeVar("Frame", bound=pd.DataFrame)

#: The frames that nobody changes in place, while they live, by their identity.
_SETTLED: weakref.WeakValueDictionary[int, pd.DataFrame] = weakref.WeakValueDictionary()


def freeze_frame(rows: Frame) -> Frame:
    """Remember that nobody changes a frame in place from now on."""
    _SETTLED[id(rows)] = rows
    return rows


def is_frame_frozen(rows: pd.DataFrame) -> bool:
    """Whether nobody changes a frame in place."""
    return _SETTLED.get(id(rows)) is rows


def once(make: Callable[..., Answer]) -> Callable[..., Answer]:
    """A function of one thing and of hashable arguments that works out once what is asked of the same thing again. The
    answers go with the thing, and nobody changes them. A frame that went through no `freeze_frame` is asked anew every
    time.

    What is asked is what it comes to: an argument by its name, or left to its default, is the same one."""
    signature = inspect.signature(make)
    kept: dict[int, dict[tuple[Hashable, ...], Answer]] = {}

    @functools.wraps(make)
    def get(whose: Any, *given: Hashable, **named: Hashable) -> Answer:
        bound = signature.bind(whose, *given, **named)
        bound.apply_defaults()
        asked = bound.args[1:]
        if isinstance(whose, pd.DataFrame) and not is_frame_frozen(whose):
            return make(whose, *asked)
        if id(whose) not in kept:
            kept[id(whose)] = {}
            weakref.finalize(whose, kept.pop, id(whose), None)
        answers = kept[id(whose)]
        if asked not in answers:
            answers[asked] = make(whose, *asked)
        return answers[asked]

    return get
