"""Training steps of a module and an optimiser that a script of the user's has made, on each of its ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tasks.training.networks.base import Network
from tasks.training.parallel import ParallelLoop, count_ranks, own_rank
from tasks.training.recipe import Recipe
from tasks.training.state import Places

#: compute(module, *batch) → the loss, a scalar.
Compute = Callable[..., Any]


class HookedLoop(ParallelLoop):
    """Steps of a module and an optimiser that are there. Each rank has some rows of a batch; ranks whose losses are means over as many rows
    together have that of the whole."""

    def __init__(self, module: Any, optimiser: Any, compute: Compute, recipe: Recipe, precision: str) -> None:
        super().__init__(Network(lambda: module, lambda rng: [], compute, recipe), recipe, precision)
        self._optimiser = optimiser

    def start(self, device: str, given: Mapping[str, Any] | None = None) -> None:
        self.holders, self.device = {}, device
        self.module = self.network.build().train()
        named = {name.removeprefix("module."): p for name, p in self.module.named_parameters() if p.requires_grad}
        shapes = {name: tuple(p.shape) for name, p in named.items()}
        buffers = {name: tuple(b.shape) for name, b in self.module.named_buffers() if b.is_floating_point()}
        self.places, self.named = Places(shapes, buffers), named
        self.optimiser, self._loss = self._optimiser, self.network.loss

    def step(self, args: Sequence[Any], own: Mapping[str, Any]) -> list[Any]:
        return super().step(args, {k: self.take_rows(x) if k.startswith("batch") else x for k, x in own.items()})

    def take_rows(self, x: Any) -> Any:
        """This rank's, of (micro-batches, rows, …)."""
        if x.shape[1] % count_ranks():
            raise ValueError(
                f"a batch of {x.shape[1]} rows cannot be shared by {count_ranks()} ranks: let the data yield a multiple"
            )
        return x[:, own_rank() :: count_ranks()]

    def accumulate(self, batches: Sequence[Sequence[Any]], taps: dict[str, Any]) -> Any:
        import torch.distributed as dist

        loss = super().accumulate(batches, taps).clone()
        taps.clear()  # of a rank's own rows
        dist.all_reduce(loss)
        return loss / count_ranks()
