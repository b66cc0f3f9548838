"""A training loop with a change planted in it, and the places where a change can be put."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tasks.catalogs.training.catalog import WITHOUT_FLOAT8, make_loop_of_group
from tasks.model import Group
from tasks.training.loop import TrainingLoop
from tasks.training.recipe import FLOAT8

#: Changes a loop before it starts.
Plant = Callable[[TrainingLoop], None]


@dataclass(frozen=True)
class Planted:
    """A loop of the catalog's network with a change. kinds: the kinds of row that name it rightly, none for an honest
    twin; place: what the culprit begins with; dtypes: those in which it is a fault, empty for all."""

    name: str
    network: str
    plant: Plant
    kinds: tuple[str, ...] = ()
    place: str = ""
    variant: str = ""
    dtypes: tuple[str, ...] = ()

    def has(self, dtype: str) -> bool:
        """Whether it is one in this dtype."""
        if self.dtypes:
            return dtype in self.dtypes
        return dtype != FLOAT8 or self.network not in WITHOUT_FLOAT8

    def make(self, group: Group) -> TrainingLoop:
        loop = make_loop_of_group(group)
        self.plant(loop)
        return loop


def around(method: str, wrap: Callable[..., Any]) -> Plant:
    """In place of a method of the loop, ``wrap(loop, the method, *its arguments)``."""

    def plant(loop: TrainingLoop) -> None:
        own = getattr(loop, method)
        setattr(loop, method, functools.partial(wrap, loop, own))

    return plant


def in_module(change: Callable[[Any], None]) -> Plant:
    """Change the module once it is built."""

    def build(loop: TrainingLoop, own: Callable[[], Any]) -> Any:
        made = own()
        change(made)
        return made

    return around("build_module", build)


def in_part(path: str, change: Callable[[Any], None]) -> Plant:
    """Change a module inside."""
    return in_module(lambda module: change(module.get_submodule(path)))


def call_instead(path: str, call: Callable[..., Any], method: str = "forward") -> Plant:
    """In place of a method of a module inside, ``call(the module, *arguments)``."""
    return in_part(path, lambda part: setattr(part, method, functools.partial(call, part)))


def after_backward(change: Callable[[TrainingLoop], None]) -> Plant:
    """Change the gradients once all micro-batches have been through the backward pass."""

    def accumulate(loop: TrainingLoop, own: Callable[..., Any], batches: Any, taps: Any) -> Any:
        loss = own(batches, taps)
        change(loop)
        return loss

    return around("accumulate", accumulate)


def on_gradient(name: str, change: Callable[[Any], Any]) -> Plant:
    """In place of one parameter's gradient, what is made of it."""

    def replace(loop: TrainingLoop) -> None:
        p = loop.named[name]
        p.grad = change(p.grad)

    return after_backward(replace)


def change_recipe(**values: Any) -> Plant:
    """Another recipe for all that the loop does."""
    from dataclasses import replace

    def plant(loop: TrainingLoop) -> None:
        loop.recipe = replace(loop.recipe, **values)

    return plant
