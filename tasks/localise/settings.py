"""The last stage of a search: which setting of the backend makes the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tasks.localise.dialogue import Ask, Clock, Ran, Search, Settings

#: Whether what a run returned is wrong.
Wrong = Callable[[Ran], bool]


def blame(asked: Ask, wrong: Wrong, settings: Settings, clock: Clock) -> Search[str]:
    """The culprit that a setting gives away, "" if none makes ``asked`` right: "precision", "optimiser PASS", where no pass
    does "optimiser level LEVEL, right at level LOWER", the lowest level that is wrong and the one below it."""

    def heals(setting: str) -> Search[bool]:
        if clock.over:
            return False
        ran = yield replace(asked, setting=setting)
        return ran.outputs is not None and not wrong(ran)

    if settings.precise and (yield from heals("precise")):
        return "precision as it was asked for"
    if settings.passes and (yield from heals(f"without {','.join(settings.passes)}")):
        return f"optimiser {'+'.join((yield from _fewest(settings.passes, heals)))}"
    above = settings.levels[1:]
    for lower, level in zip(reversed(settings.levels[:-1]), reversed(above)):
        if (yield from heals(f"level {lower}")):
            return f"optimiser level {level}, right at level {lower}"
    return ""


def _fewest(passes: Sequence[str], heals: Callable[[str], Search[bool]]) -> Search[list[str]]:
    """Passes none of which can be let on again: halves, quarters … are let on as long as the rest still heals."""
    left = list(passes)
    size = len(left) // 2
    while size:
        at = 0
        while at < len(left) and len(left) > 1:
            rest = left[:at] + left[at + size :]
            if rest and (yield from heals(f"without {','.join(rest)}")):
                left = rest
            else:
                at += size
        size //= 2
    return left
