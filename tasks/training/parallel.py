"""Training loops of several ranks, each in a process of its own: data parallel, fully sharded, tensor parallel.

What a rank returns is whole: gradients, moments and weights that are sharded are gathered. So each rank is held to the single process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.training import networks
from tasks.training.loop import TrainingLoop
from tasks.training.recipe import Recipe


class ParallelLoop(TrainingLoop):
    """Every rank computes all micro-batches; a subclass says what is spread. Made within a process group."""

    #: Whether each rank has its part of the micro-batches.
    of_data = False

    def build_module(self) -> Any:
        return self.spread(super().build_module())

    def spread(self, module: Any) -> Any:
        """The module as the ranks hold it."""
        raise NotImplementedError

    def step(self, args: Sequence[Any], own: Mapping[str, Any]) -> list[Any]:
        import torch.distributed as dist

        ranks = dist.get_world_size()
        if self.of_data:
            if self.recipe.accumulate % ranks:
                raise ValueError(f"{self.recipe.accumulate} micro-batches cannot be shared by {ranks} ranks")
            own = {k: x[dist.get_rank() :: ranks] if k.startswith("batch") else x for k, x in own.items()}
        return super().step(args, own)

    def accumulate(self, batches: Sequence[Sequence[Any]], taps: dict[str, Any]) -> Any:
        """The loss of all ranks together. Where the data is spread, taps are the first rank's, which has the first micro-batch."""
        import torch.distributed as dist

        loss = super().accumulate(batches, taps)
        for name, x in taps.items():
            taps[name] = self.gather_tap(name, _gather(x).contiguous())
        if self.of_data:
            loss = loss.clone()
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
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
                    kept[name] = _share(x, p)

    def copy_weight(self, p: Any, value: Any) -> None:
        p.copy_(_share(value, p))

    def read_gradients(self) -> list[Any]:
        return [_gather(x) for x in super().read_gradients()]

    def read_state(self) -> tuple[list[Any], list[Any], list[Any]]:
        first, second, weights = super().read_state()
        return [_gather(x) for x in first], [_gather(x) for x in second], [_gather(x) for x in weights]


class DataParallel(ParallelLoop):
    """DistributedDataParallel: gradients are averaged over the ranks."""

    of_data = True

    def spread(self, module: Any) -> Any:
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(module)

    def watched(self) -> Any:
        return self.module.module

    def name_of(self, name: str) -> str:
        return name.removeprefix("module.")


class FullySharded(ParallelLoop):
    """`fully_shard` (FSDP2): parameters, gradients and moments are sharded over the ranks."""

    of_data = True

    def spread(self, module: Any) -> Any:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(self.device, (_ranks(),))
        for block in module.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(module, mesh=mesh)

    def load_state(self, number: int, own: Mapping[str, Any]) -> None:
        """The whole weights that the last forward pass has left in memory are given up: the next would compute with them."""
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

        mesh = init_device_mesh(self.device, (_ranks(),))
        for block in module.blocks:
            parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        return module

    def gather_tap(self, name: str, x: Any) -> Any:
        import torch
        import torch.distributed as dist

        if name.rpartition(".")[2] not in self.by_columns:
            return x
        parts = [torch.empty_like(x) for _ in range(_ranks())]
        dist.all_gather(parts, x)
        return torch.cat(parts, -1)

    def clip_gradients(self) -> None:
        """By the norm of the whole gradients: torch's own takes no mixture of sharded and other ones."""
        norm = float(sum(g.double().square().sum() for g in self.read_gradients()) ** 0.5)
        for p in self.named.values():
            p.grad.mul_(self.recipe.clip_factor(norm))


KINDS: dict[str, type[ParallelLoop]] = {"ddp": DataParallel, "fsdp": FullySharded, "tensor": TensorParallel}


def open_loop(kind: str, network: str, recipe: Mapping[str, Any], precision: str, device: str) -> ParallelLoop:
    """A rank's loop, started."""
    loop = KINDS[kind](networks.get(network), Recipe.read(dict(recipe)), precision)
    loop.device = device
    loop.start(device)
    return loop


def _ranks() -> int:
    import torch.distributed as dist

    return dist.get_world_size()


def _share(value: Any, like: Any) -> Any:
    """A whole tensor as a parameter of several ranks is spread."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements) if isinstance(like, DTensor) else value


def _gather(x: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return x.full_tensor() if isinstance(x, DTensor) else x
