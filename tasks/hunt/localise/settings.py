"""The last stage of a search: which setting of the backend makes the difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tasks.ddmin import thin_out_items
from tasks.hunt.dialogue import Ask, Ran, Search
from tasks.hunt.localise.question import SearchClock


@dataclass(frozen=True)
class BackendSettings:
    """What of a backend can be turned off: names of its `levels` below its own, of its `passes`; precise: whether it
    can be told to compute in the dtype itself."""

    levels: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    precise: bool = False


NOTHING = BackendSettings()
#: Whether what a run returned is wrong.
Wrong = Callable[[Ran], bool]


def blame_setting(asked: Ask, wrong: Wrong, settings: BackendSettings, clock: SearchClock) -> Search[str]:
    """The culprit that a setting gives away, "" if none makes ``asked`` right: "precision", "optimiser PASS", where no
    pass does "optimiser level LEVEL, right at level LOWER", the lowest level that is wrong and the one below it."""

    def heals(setting: str) -> Search[bool]:
        if clock.over:
            return False
        ran = yield replace(asked, setting=setting)
        return ran.outputs is not None and not wrong(ran)

    def without(passes: Sequence[str]) -> Search[bool]:
        return heals(f"without {','.join(passes)}")

    if settings.precise and (yield from heals("precise")):
        return "precision as it was asked for"
    if settings.passes and (yield from without(settings.passes)):
        passes = yield from thin_out_items(settings.passes, without)
        return f"optimiser {'+'.join(passes)}"
    above = settings.levels[1:]
    for lower, level in zip(reversed(settings.levels[:-1]), reversed(above)):
        if (yield from heals(f"level {lower}")):
            return f"optimiser level {level}, right at level {lower}"
    return ""
