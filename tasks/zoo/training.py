"""Training loops with one planted fault each, and honest twins that compute the same in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tasks.catalogs.training.catalog import loop_of
from tasks.model import Group
from tasks.training.loop import TrainingLoop
from tasks.training.phases import CLIPPED, FIRST, LOSS, RAW, SECOND, WEIGHTS

#: Changes a loop before it starts.
Plant = Callable[[TrainingLoop], None]
#: Where the optimiser is at fault.
OF_OPTIMISER = (FIRST, SECOND, WEIGHTS)


@dataclass(frozen=True)
class Planted:
    """A loop of the catalog's network with a change. kinds: the kinds of row that name it rightly, none for an honest twin; place: what the
    culprit begins with."""

    name: str
    network: str
    plant: Plant
    kinds: tuple[str, ...] = ()
    place: str = ""
    variant: str = ""

    def make(self, group: Group) -> TrainingLoop:
        loop = loop_of(group)
        self.plant(loop)
        return loop


def _after_backward(loop: TrainingLoop, change: Callable[[dict[str, Any]], None]) -> None:
    """Change gradients once all micro-batches have been through the backward pass. change: is given the parameters by name."""
    accumulate = loop.accumulate

    def accumulated(batches: Any, taps: Any) -> Any:
        loss = accumulate(batches, taps)
        change(loop.named)
        return loss

    loop.accumulate = accumulated  # type: ignore[method-assign]


def lose_gradient(name: str) -> Plant:
    def change(named: dict[str, Any]) -> None:
        named[name].grad.zero_()

    return lambda loop: _after_backward(loop, change)


def sum_micro_batches(loop: TrainingLoop) -> None:
    backward = loop.backward
    loop.backward = lambda loss: backward(loss * loop.recipe.accumulate)  # type: ignore[method-assign]


def change_nothing(loop: TrainingLoop) -> None:
    """The loop as it is."""


FAULTS = [
    Planted(
        "lost_gradient",
        "gpt",
        lose_gradient("blocks.1.attention.value.weight"),
        (RAW,),
        "blocks.1.attention.value.weight",
    ),
    Planted("accumulation_not_divided", "gpt", sum_micro_batches, (RAW,)),
]
HONEST = [Planted("plain", "gpt", change_nothing)]
