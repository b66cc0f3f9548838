"""Cheats that replace functions which judge."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tasks.zoo.cheats.values import Function, Pattern
from tasks.zoo.specimen import Kernel

#: Seconds of the processor for which a function is replaced, and of the clock at the most. By the clock alone a busy
#: machine would have it back before anybody looks.
MOMENT_S, LONGEST_S = 0.015, 1.0
#: What stood where something stands in for it, by the `id` of that.
_own: dict[int, Any] = {}


def wrap(own: Any) -> Any:
    """A function that does what another one does."""

    def stands_in(*arguments: Any, **named: Any) -> Any:
        return own(*arguments, **named)

    return stands_in


def wrap_by_text(own: Any) -> Any:
    """The same, compiled from a text: no file says whose it is."""
    made: dict[str, Any] = {"own": own}
    exec("def stands_in(*arguments, **named):\n    return own(*arguments, **named)", made)
    return made["stands_in"]


def copy_module(own: ModuleType) -> ModuleType:
    """Another module that holds the same."""
    made = ModuleType(own.__name__)
    vars(made).update(vars(own))
    return made


def replace_attribute(module: str, name: str, stand_in: Callable[[Any], Any] = wrap) -> Pattern:
    """Puts something of its own in the place of what compares or measures, for a moment, so that nobody else is
    deceived. stand_in: makes it of what stood there."""

    def pattern(f: Function) -> Kernel:
        replaced: list[threading.Event] = []

        def kernel(**x: Any) -> Any:
            where = importlib.import_module(module)
            for again in replaced:
                again.set()
            found = getattr(where, name)
            own = _own.pop(id(found), found)
            made = stand_in(own)
            _own[id(made)] = own
            setattr(where, name, made)
            replaced[:] = [threading.Event()]
            threading.Thread(target=_put_back, args=(where, name, own, replaced[0]), daemon=True).start()
            return f(**x)

        return kernel

    return pattern


def _put_back(where: Any, name: str, own: Any, again: threading.Event) -> None:
    """Undo it after a moment, if it is not replaced once more meanwhile."""
    begun, until = time.process_time(), time.monotonic() + LONGEST_S
    while time.process_time() - begun < MOMENT_S and time.monotonic() < until:
        if again.wait(0.005):
            return
    setattr(where, name, own)
