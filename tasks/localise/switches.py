"""The last stage of a search: which setting of the backend makes the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.backends.base import Switch
from tasks.localise.asking import Ask, Clock, Ran, Search

#: Whether what a run returned is wrong; the model or piece that is run, as the search asks for it.
Wrong = Callable[[Ran], bool]


def blame(asked: Ask, wrong: Wrong, switches: Sequence[Switch], clock: Clock) -> Search[str]:
    """Name of the switch that makes ``asked`` right ("" if none does), with the smallest set of its parts that does."""
    for switch in switches:
        if clock.over:
            break
        heals = yield from _heals(asked, wrong, switch.options)
        if heals:
            parts = (yield from _smallest(asked, wrong, switch, clock)) if switch.of else []
            return f"{switch.culprit} {'+'.join(parts) or switch.name}"
    return ""


def _heals(asked: Ask, wrong: Wrong, options: Mapping[str, Any]) -> Search[bool]:
    ran = yield Ask(asked.model, asked.feeds, options)
    return ran.outputs is not None and not wrong(ran)


def _smallest(asked: Ask, wrong: Wrong, switch: Switch, clock: Clock) -> Search[list[str]]:
    """Parts of a switch without which nothing heals: halves, then quarters … are left out as long as the rest heals."""
    parts = list(switch.parts)
    size, of = len(parts) // 2, switch.of or dict
    while size:
        at = 0
        while at < len(parts) and len(parts) > 1 and not clock.over:
            rest = parts[:at] + parts[at + size :]
            if rest and (yield from _heals(asked, wrong, of(rest))):
                parts = rest
            else:
                at += size
        size //= 2
    return parts
