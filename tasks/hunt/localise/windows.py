"""The second stage of a search: windows of the graph run by themselves on exact tensors, made smaller while they fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasks.ddmin import bisect_smallest, thin_out_items
from tasks.hunt.dialogue import Ask, Search
from tasks.hunt.localise.question import CulpritQuestion

#: Nodes up to which a window is a culprit; a larger one says only that the failure needs nodes together.
WIDEST = 4
#: Nodes up to which one that is larger is shown, and can be written as a finding.
SHOWN = 32


@dataclass
class NodeWindow:
    """places: of the smallest run of nodes that was found to fail by itself; error: of the backend, where one raised;
    tried: how many were run."""

    places: list[int]
    errors: list[str] = field(default_factory=list)
    tried: int = 0


def does_window_fail(question: CulpritQuestion, places: Sequence[int]) -> Search[bool | None]:
    """Whether nodes make the model fail that are run by themselves on exact inputs; None where they do not run.

    What they return takes the place of the exact tensors in the float64 evaluation of all that follows. Their exact
    outputs must not fail in that place: else it is the rounding of tensors that the model does not bear.
    """
    piece = question.program.piece(places)
    if not piece.outputs:
        return False
    ran = yield Ask(piece)
    if ran.outputs is None:
        return None
    got = {name: question.shaped(name, x) for name, x in zip(piece.outputs, ran.outputs)}
    return question.reaches(got) and not question.reaches(
        {name: question.program.exact[name] for name in piece.outputs}
    )


def shrink_failing_window(question: CulpritQuestion) -> Search[NodeWindow]:
    """A small window that fails by itself: its first node as late, its last node as early as can be, then any node left
    out without which it still fails. All nodes, if no smaller window fails."""
    window = NodeWindow(question.program.places)

    def failing(places: Sequence[int]) -> Search[bool]:
        if not places or question.clock.over:
            return False
        window.tried += 1
        return bool((yield from does_window_fail(question, places)))

    def passing(start: int) -> Search[bool]:
        return not (yield from failing(window.places[start:]))

    # The whole model fails: that is what the search began with.
    window.places = window.places[(yield from bisect_smallest(0, len(window.places), passing)) - 1 :]
    end = yield from bisect_smallest(0, len(window.places), lambda end: failing(window.places[:end]))
    window.places = yield from thin_out_items(window.places[:end], failing)
    return window
