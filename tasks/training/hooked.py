"""Training steps of a module and an optimiser that a script of the user's has made, on each of its ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.training.networks.base import Network
from tasks.training.parallel import ParallelLoop
from tasks.training.recipe import TrainingRecipe
from tasks.training.state import StatePlaces

#: compute(module, *batch) → the loss, a scalar.
Compute = Callable[..., Any]


class HookedLoop(ParallelLoop):
    """Steps of a module and an optimiser that are there, within a process group. Each rank has its part of the
    micro-batches."""

    reduces = True

    def __init__(self, module: Any, optimiser: Any, compute: Compute, recipe: TrainingRecipe, precision: str) -> None:
        super().__init__(Network(lambda: module, lambda rng: [], compute, recipe), recipe, precision)
        self._optimiser = optimiser

    def start(self, device: str, given: Mapping[str, Any] | None = None) -> None:
        self.holders, self.device = {}, device
        self.module = self.network.build().train()
        named = {name.removeprefix("module."): p for name, p in self.module.named_parameters() if p.requires_grad}
        shapes = {name: tuple(p.shape) for name, p in named.items()}
        buffers = {name: tuple(b.shape) for name, b in self.module.named_buffers() if b.is_floating_point()}
        self.places, self.named = StatePlaces(shapes, buffers), named
        self.optimiser, self._loss = self._optimiser, self.network.loss
        self.before: dict[str, Any] = {}
        for name, p in named.items():
            p.register_hook(functools.partial(self._keep, name))

    def _keep(self, name: str, g: Any) -> None:
        """A gradient as the backward pass of this rank has it, before anybody reduces it."""
        self.before[name] = self.before[name] + g if name in self.before else g.detach().clone()

    def accumulate(self, batches: Sequence[Sequence[Any]], taps: dict[str, Any]) -> Any:
        self.before.clear()
        return super().accumulate(batches, taps)

    def read_shares(self) -> list[Any]:
        """Nothing where a gradient is sharded before the module's own parameter has it (`fully_shard`)."""
        whole = [self.before.get(name) for name in self.named]
        seen = [
            x for x, shape in zip(whole, self.places.parameters.values()) if x is not None and tuple(x.shape) == shape
        ]
        return seen if len(seen) == len(whole) else []

    def watched(self) -> Any:
        return getattr(self.module, "module", self.module)
