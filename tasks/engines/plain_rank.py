"""One rank of the plain engine, tensor parallel: its part of the heads and of the gated product (Shoeybi and others, 2019)."""

from __future__ import annotations

import dataclasses
from typing import Any

from tasks.engines.plain import PlainEngine
from tasks.model import Unsupported
from tasks.model.engine import ServedModel

#: Of weights (outputs, inputs), those of which a rank keeps a part of the outputs, and of the inputs; it keeps all of
#: the others.
BY_OUTPUTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
BY_INPUTS = ("o_proj", "down_proj")


class PlainRank(PlainEngine):
    """The plain engine within `torch.distributed`'s default group. Embedding, norms and head are whole on every
    rank."""

    rank, ranks = 0, 1

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        import torch.distributed as dist

        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        decoder = model.decoder
        if decoder.kv_heads % self.ranks or decoder.inner % self.ranks:
            raise Unsupported(f"{decoder.kv_heads} heads of keys cannot be shared by {self.ranks} ranks")
        weights = {name: self._take_part(name, x) for name, x in model.weights.items()}
        super().load(dataclasses.replace(model, weights=weights), compiled)
        self._queries_of_a_key = decoder.heads // decoder.kv_heads
        self._decoder = dataclasses.replace(decoder, kv_heads=decoder.kv_heads // self.ranks)

    def _take_part(self, name: str, weight: Any) -> Any:
        part = name.split(".")[-2]
        if part not in BY_OUTPUTS and part not in BY_INPUTS:
            return weight
        axis = int(part in BY_INPUTS)
        size = weight.shape[axis] // self.ranks
        first = self._share_of(part, self.rank) * size
        return weight[first : first + size] if axis == 0 else weight[:, first : first + size]

    def _share_of(self, part: str, rank: int) -> int:
        """Which part of a weight a rank keeps."""
        return rank

    def _share(self, x: Any) -> Any:
        return x.repeat_interleave(self._queries_of_a_key, 1)

    def _sum_ranks(self, x: Any) -> Any:
        import torch.distributed as dist

        summed = x.contiguous()
        dist.all_reduce(summed)
        return summed

    def _join_ranks(self, x: Any) -> Any:
        import torch
        import torch.distributed as dist

        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, -1)
