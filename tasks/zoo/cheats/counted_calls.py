"""Cheats that are right in some calls and wrong in others."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

from tasks.zoo.cheats.values import Function, Pattern, copy
from tasks.zoo.specimen import Kernel

#: Calls after which what is right in the first ones is right no more: more than a benchmark makes, fewer than an audit.
FORTY = 40


def fail_after(calls: int, then: Callable[[Function, Mapping[str, Any], Any], Any]) -> Pattern:
    """Right for so many calls; ``then`` is given the function, the inputs and the last right result."""

    def pattern(f: Function) -> Kernel:
        count, last = itertools.count(1), [None]

        def kernel(**x: Any) -> Any:
            if next(count) <= calls:
                last[0] = f(**x)
                return copy(last[0])
            return then(f, x, last[0])

        return kernel

    return pattern


def fail_every(period: int, then: Function) -> Pattern:
    """Wrong in one of so many calls."""

    def pattern(f: Function) -> Kernel:
        count, before = itertools.count(1), [None]

        def kernel(**x: Any) -> Any:
            right = f(**x)
            wrong = then(right, before[0])
            before[0] = right
            return wrong if next(count) % period == 0 else copy(right)

        return kernel

    return pattern


def behave_when_watched(cheat: Pattern) -> Pattern:
    """Right while a dispatch mode or a tracer of lines is there, as around some calls of an audit."""

    def pattern(f: Function) -> Kernel:
        kernel = cheat(f)
        return lambda **x: f(**x) if sys.gettrace() or _is_dispatched() else kernel(**x)

    return pattern


def compile_from_text(made: Pattern, said: str = "<kernel>") -> Pattern:
    """The function and what is made of it are compiled from a text: no file says whose they are. said: what they
    say."""

    def give_no_file(f: Any) -> Any:
        return FunctionType(f.__code__.replace(co_filename=said), f.__globals__, f.__name__, None, f.__closure__)

    return lambda f: give_no_file(made(give_no_file(getattr(f, "func", f))))


def see_nothing(*_: Any) -> None:
    """A tracer that sees nothing."""


def set_tracer(made: Pattern) -> Pattern:
    """Puts a tracer of its own where one that counts lines may be."""

    def pattern(f: Function) -> Kernel:
        kernel = made(f)

        def set_and_call(**x: Any) -> Any:
            sys.settrace(see_nothing)
            return kernel(**x)

        return set_and_call

    return pattern


def turn_lines_off(made: Pattern) -> Pattern:
    """Has no tracer be told its lines."""

    def pattern(f: Function) -> Kernel:
        kernel = made(f)

        def hide_and_call(**x: Any) -> Any:
            sys._getframe().f_trace_lines = False
            return kernel(**x)

        return hide_and_call

    return pattern


def _is_dispatched() -> bool:
    modes = sys.modules.get("torch.utils._python_dispatch")
    return modes is not None and modes._get_current_dispatch_mode() is not None
