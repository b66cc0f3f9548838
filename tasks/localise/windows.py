"""The second stage of a search: windows of the graph run by themselves on exact tensors, made smaller while they fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tasks.localise.dialogue import Ask, Clock, Search
from tasks.localise.searched import Searched

#: Nodes up to which a window is a culprit; a larger one says only that the failure needs nodes together.
WIDEST = 4
#: Nodes up to which one that is larger is shown, and can be written as a finding.
SHOWN = 32


@dataclass
class Window:
    """places: of the smallest run of nodes that was found to fail by itself; error: of the backend, where one raised;
    tried: how many were run."""

    places: list[int]
    errors: list[str] = field(default_factory=list)
    tried: int = 0


def fails(subject: Searched, places: Sequence[int]) -> Search[bool | None]:
    """Whether nodes make the model fail that are run by themselves on exact inputs; None where they do not run.

    What they return takes the place of the exact tensors in the float64 evaluation of all that follows. Their exact
    outputs must not fail in that place: else it is the rounding of tensors that the model does not bear.
    """
    part, inputs, outputs = subject.piece(places)
    if not outputs:
        return False
    ran = yield Ask(part, {name: subject.exact[name] for name in inputs})
    if ran.outputs is None:
        return None
    got = {name: subject.shaped(name, x) for name, x in zip(outputs, ran.outputs)}
    return subject.reaches(got) and not subject.reaches({name: subject.exact[name] for name in outputs})


def shrink(subject: Searched, clock: Clock) -> Search[Window]:
    """A small window that fails by itself: its first node as late, its last node as early as can be, then any node left
    out without which it still fails. All nodes, if no smaller window fails."""
    window = Window(subject.places)

    def failing(places: Sequence[int]) -> Search[bool]:
        if not places or clock.over:
            return False
        window.tried += 1
        return bool((yield from fails(subject, places)))

    # The whole model fails: that is what the search began with.
    low, high = 0, len(window.places)
    while high - low > 1:
        middle = (low + high) // 2
        if (yield from failing(window.places[middle:])):
            low = middle
        else:
            high = middle
    window.places = window.places[low:]
    low, high = 0, len(window.places)
    while high - low > 1:
        middle = (low + high) // 2
        if (yield from failing(window.places[:middle])):
            high = middle
        else:
            low = middle
    window.places = window.places[:high]
    yield from _without(window, failing)
    return window


def _without(window: Window, failing: Callable[[Sequence[int]], Search[bool]]) -> Search[None]:
    """Leave out nodes between the first and the last, many at a time at first."""
    size = len(window.places) // 2
    while size:
        at = 0
        while at < len(window.places) and len(window.places) > 1:
            rest = window.places[:at] + window.places[at + size :]
            if (yield from failing(rest)):
                window.places = rest
            else:
                at += size
        size //= 2
