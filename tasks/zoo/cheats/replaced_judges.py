"""Cheats that replace functions which judge."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from tasks.zoo.cheats.values import Function, Pattern
from tasks.zoo.specimen import Kernel


def replace_function(module: str, name: str) -> Pattern:
    """Puts a function of its own in the place of one that compares or measures, for a moment, so that nobody else is deceived."""

    def pattern(f: Function) -> Kernel:
        back: list[threading.Timer] = []

        def kernel(**x: Any) -> Any:
            where = importlib.import_module(module)
            for timer in back:
                timer.cancel()
            own = getattr(getattr(where, name), "honest", getattr(where, name))

            def stands_in(*arguments: Any, **named: Any) -> Any:
                return own(*arguments, **named)

            stands_in.honest = own  # type: ignore[attr-defined]
            setattr(where, name, stands_in)
            back[:] = [threading.Timer(0.015, setattr, (where, name, own))]
            back[0].start()
            return f(**x)

        return kernel

    return pattern
