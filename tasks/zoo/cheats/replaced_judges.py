"""Cheats that replace functions which judge."""

from __future__ import annotations

import importlib
import threading
import time
from typing import Any

from tasks.zoo.cheats.values import Function, Pattern
from tasks.zoo.specimen import Kernel

#: Seconds of the processor for which a function is replaced, and of the clock at the most. By the clock alone a busy
#: machine would have it back before anybody looks.
MOMENT_S, LONGEST_S = 0.015, 1.0


def replace_function(module: str, name: str) -> Pattern:
    """Puts a function of its own in the place of one that compares or measures, for a moment, so that nobody else is
    deceived."""

    def pattern(f: Function) -> Kernel:
        replaced: list[threading.Event] = []

        def kernel(**x: Any) -> Any:
            where = importlib.import_module(module)
            for again in replaced:
                again.set()
            own = getattr(getattr(where, name), "honest", getattr(where, name))

            def stands_in(*arguments: Any, **named: Any) -> Any:
                return own(*arguments, **named)

            stands_in.honest = own  # type: ignore[attr-defined]
            setattr(where, name, stands_in)
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
