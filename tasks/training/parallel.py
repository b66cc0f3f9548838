"""Training loops of several ranks, each in a process of its own: data parallel, fully sharded, tensor parallel.

What a rank returns is whole: gradients, moments and weights that are sharded are gathered. So each rank is held to the
single process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.training.loop import TrainingLoop


class ParallelLoop(TrainingLoop):
    """Every rank computes all micro-batches; a subclass says what is spread. Made within a process group."""

    #: The networks of the catalog that can be spread so.
    networks: tuple[str, ...] = ("gpt",)
    #: Whether linear layers may multiply in FP8.
    float8 = False

    def start(self, device: str, given: Mapping[str, Any] | None = None) -> None:
        #: Of a parameter that not all ranks hold, those that do; of its gradient and moments the others have nothing of
        #: their own.
        self.holders: dict[str, Sequence[int]] = {}
        super().start(device, given)

    def build_module(self) -> Any:
        return self.spread(super().build_module())

    def spread(self, module: Any) -> Any:
        """The module as the ranks hold it."""
        raise NotImplementedError

    def step(self, args: Sequence[Any], own: Mapping[str, Any]) -> list[Any]:
        ranks = count_training_ranks()
        if self.reduces:
            if self.recipe.accumulate % ranks:
                raise ValueError(
                    f"{self.recipe.accumulate} micro-batches cannot be shared by {ranks} ranks: accumulate a multiple"
                )
            own = {k: x[find_training_rank() :: ranks] if k.startswith("batch") else x for k, x in own.items()}
        return super().step(args, own)

    def accumulate(self, batches: Sequence[Sequence[Any]], taps: dict[str, Any]) -> Any:
        """The loss of all ranks together. Where the data is spread, taps are the first rank's, which has the first
        micro-batch."""
        import torch.distributed as dist

        loss = super().accumulate(batches, taps)
        for name, x in taps.items():
            taps[name] = self.gather_tap(name, _gather_from_ranks(x).contiguous())
        if self.reduces:
            loss = loss.clone()
            dist.all_reduce(loss)
            loss /= count_training_ranks()
        return loss

    def gather_tap(self, name: str, x: Any) -> Any:
        """The whole output of a module."""
        import torch.distributed as dist

        dist.broadcast(x, 0)
        return x

    def load_state(self, number: int, own: Mapping[str, Any]) -> None:
        super().load_state(number, own)
        for p in self.named.values():
            kept = self.optimiser.state[p]
            for name, x in kept.items():
                if name != "step":
                    kept[name] = _spread_over_ranks(x, p)

    def copy_weight(self, p: Any, value: Any) -> None:
        p.copy_(_spread_over_ranks(value, p))

    def read_gradients(self) -> list[Any]:
        return self._exchange(super().read_gradients())

    def read_state(self) -> tuple[list[Any], list[Any], list[Any]]:
        first, second, weights = (self._exchange(some) for some in super().read_state())
        return first, second, weights

    def list_owners(self) -> dict[str, int]:
        return {name: some[0] for name, some in self.holders.items() if len(some) == 1}

    def _exchange(self, values: Sequence[Any]) -> list[Any]:
        """Whole tensors of all parameters: a rank without one has that of the first that holds it."""
        import torch.distributed as dist

        found = []
        for name, x in zip(self.named, values):
            whole = _gather_from_ranks(x).contiguous()
            if holders := self.holders.get(name):
                first = whole.clone()
                dist.broadcast(first, holders[0])
                whole = whole if find_training_rank() in holders else first
            found.append(whole)
        return found

    def clip_by_whole_norm(self) -> None:
        """By the norm of the whole gradients: torch's own takes neither a mixture of sharded and other ones, nor those
        of several ranks."""
        if self.recipe.clip:
            norm = float(sum(g.double().square().sum() for g in self.read_gradients()) ** 0.5)
            for p in self.named.values():
                if p.grad is not None:
                    p.grad.mul_(self.recipe.clip_factor(norm))


class DataParallel(ParallelLoop):
    """DistributedDataParallel: gradients are added up over a rank's micro-batches, and averaged over the ranks with the
    last."""

    reduces = True
    networks = ("gpt", "llama")
    float8 = True

    def spread(self, module: Any) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        made = DistributedDataParallel(module)
        made.register_comm_hook(None, lambda _, bucket: self.reduce(bucket))
        return made

    def reduce(self, bucket: Any) -> Any:
        """Reduce a bucket of gradients, which are kept as they were before."""
        for p, g in zip(bucket.parameters(), bucket.gradients()):
            self.before[p] = g.detach().clone()
        return self.send(bucket)

    def send(self, bucket: Any) -> Any:
        """torch's own ways."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        hook = default_hooks.bf16_compress_hook if self.recipe.compress == "bfloat16" else default_hooks.allreduce_hook
        return hook(None, bucket)

    def accumulate(self, batches: Sequence[Sequence[Any]], taps: dict[str, Any]) -> Any:
        self.before: dict[Any, Any] = {}
        self.left = len(batches)
        return super().accumulate(batches, taps)

    def compute_loss(self, tensors: Sequence[Any]) -> Any:
        """Ranks wait for one another in the backward pass of the last micro-batch alone; whether they do is settled in
        the forward pass."""
        self.left -= 1
        with self.module.no_sync() if self.left > 0 else contextlib.nullcontext():
            return super().compute_loss(tensors)

    def read_shares(self) -> list[Any]:
        """What was given to the reduction; nothing where there was none."""
        return [self.before[p] for p in self.named.values()] if self.before else []

    def watched(self) -> Any:
        return self.module.module

    def name_of(self, name: str) -> str:
        return name.removeprefix("module.")


class FullySharded(ParallelLoop):
    """`fully_shard` (FSDP2): parameters, gradients and moments are sharded over the ranks."""

    reduces = True

    def spread(self, module: Any) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device, (count_training_ranks(),))
        for block in module.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(module, mesh=mesh)

    def load_state(self, number: int, own: Mapping[str, Any]) -> None:
        """The whole weights that the last forward pass has left in memory are given up: the next would compute with
        them."""
        for part in (*self.module.blocks, self.module):
            part.reshard()
        super().load_state(number, own)


class TensorParallel(ParallelLoop):
    """`parallelize_module`: the first product of a feed-forward part by columns, the second by rows."""

    #: Modules of which each rank has some columns of the output.
    by_columns = ("up", "act")

    def spread(self, module: Any) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        mesh = init_device_mesh(self.device, (count_training_ranks(),))
        for block in module.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return module

    def gather_tap(self, name: str, x: Any) -> Any:
        import torch
        import torch.distributed as dist

        if name.rpartition(".")[2] not in self.by_columns:
            return x
        parts = [torch.empty_like(x) for _ in range(count_training_ranks())]
        dist.all_gather(parts, x)
        return torch.cat(parts, -1)

    def clip_gradients(self) -> None:
        self.clip_by_whole_norm()


class SequenceParallel(TensorParallel):
    """As that, and the norm before it by tokens: each rank normalises its part of the sequence, which is gathered for
    the first product."""

    def spread(self, module: Any) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        class Scattered(SequenceParallel):
            """torch's own takes a tensor for the rank's part; this one for the whole."""

            @staticmethod
            def _prepare_input_fn(sharding: Any, mod: Any, inputs: Any, mesh: Any) -> Any:
                whole = DTensor.from_local(inputs[0], mesh, [Replicate()], run_check=False)
                return whole.redistribute(placements=sharding)

        mesh = init_device_mesh(self.device, (count_training_ranks(),))
        plan = {"norm2": Scattered(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()}
        for block in module.blocks:
            parallelize_module(block, mesh, plan)
        return module


def count_training_ranks() -> int:
    import torch.distributed as dist

    return dist.get_world_size()


def find_training_rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


def _spread_over_ranks(value: Any, like: Any) -> Any:
    """A whole tensor as a parameter of several ranks is spread."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements) if isinstance(like, DTensor) else value


def _gather_from_ranks(x: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x
