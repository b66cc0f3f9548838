"""Pipeline parallelism with torch's own stages and GPipe schedule: each rank has some of the GPT's blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.training.parallel import ParallelLoop, count_training_ranks, find_training_rank

#: The parts of the first and of the last stage that are no block.
FIRST, LAST = ("words", "places"), ("norm",)


class PipelineLoop(ParallelLoop):
    """The embedding, the blocks and the head are dealt out in turn; the tied embedding is on the first and on the last
    stage, whose gradients are added up. A rank's module is whole, and of its stage alone are gradients."""

    def spread(self, module: Any) -> Any:
        ranks = count_training_ranks()
        units = ["", *(f"blocks.{k}" for k in range(len(module.blocks))), *LAST]
        if len(units) % ranks:
            raise ValueError(f"{len(units)} parts of the network cannot be shared by {ranks} ranks")
        each = len(units) // ranks
        self.stages = {unit: place // each for place, unit in enumerate(units)} | dict.fromkeys(FIRST, 0)
        for name in self.places.parameters:
            part = next(unit for unit in (*units[1:], *FIRST) if name.startswith(f"{unit}."))
            self.holders[name] = [self.stages[part]]
        self.tied = "words.weight"
        self.holders[self.tied] = [0, ranks - 1]
        self.numbers = [k for k in range(len(module.blocks)) if self.stages[f"blocks.{k}"] == find_training_rank()]
        return module

    def run_stage(self, x: Any, masks: Any) -> Any:
        """What this rank computes: of tokens on the first stage, of activations on the others; logits on the last."""
        import torch
        from torch.nn.functional import linear

        module, rank = self.module, find_training_rank()
        if rank == 0:
            x = module.words(x) + module.places(torch.arange(x.shape[1], device=x.device))
        for k in self.numbers:
            x = module.blocks[k](x, masks[:, k])
        return linear(module.norm(x), module.words.weight) if rank == count_training_ranks() - 1 else x

    def accumulate(self, batches: Sequence[Sequence[Any]], taps: dict[str, Any]) -> Any:
        import torch
        import torch.distributed as dist
        from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

        from tasks.training.watching import watch_modules

        loop, rank, ranks = self, find_training_rank(), count_training_ranks()

        class Stage(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.part = loop.module

            def forward(self, x: Any, masks: Any) -> Any:
                return loop.run_stage(x, masks)

        tokens, masks, targets = (torch.cat(some) for some in zip(*batches))
        one = batches[0][0]
        width = self.module.words.weight.shape[1]
        between = torch.empty(*one.shape, width, device=one.device, requires_grad=True)
        logits = torch.empty(*one.shape, self.module.words.weight.shape[0], device=one.device, requires_grad=True)
        stage = PipelineStage(
            Stage(),
            rank,
            ranks,
            one.device,
            input_args=(one if rank == 0 else between,),
            output_args=(logits if rank == ranks - 1 else between,),
        )
        schedule = ScheduleGPipe(stage, len(batches), loss_fn=self.compute_stage_loss)
        losses: list[Any] = []
        seen: dict[str, Any] = {}
        with watch_modules(self.module, seen):
            given = (tokens,) if rank == 0 else ()
            last = {"target": targets, "losses": losses} if rank == ranks - 1 else {}
            schedule.step(*given, masks=masks, **last)
        self.add_tied_gradients()
        loss = torch.stack(losses).detach().mean() if losses else torch.zeros((), device=one.device)
        dist.broadcast(loss, ranks - 1)
        taps |= _exchange_stage_taps(seen)
        return loss

    def compute_stage_loss(self, logits: Any, targets: Any) -> Any:
        """Of a micro-batch, on the last stage."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def add_tied_gradients(self) -> None:
        """The embedding has a gradient on the first stage and one on the last."""
        import torch
        import torch.distributed as dist

        p = self.named[self.tied]
        whole = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(whole)
        if find_training_rank() in self.holders[self.tied]:
            p.grad = whole

    def clip_gradients(self) -> None:
        self.clip_by_whole_norm()

    def evaluate(self, tensors: Sequence[Any]) -> Any:
        """Of the network put together again."""
        import torch

        with torch.no_grad():
            for p, whole in zip(self.named.values(), self._exchange([p.detach() for p in self.named.values()])):
                p.copy_(whole)
        return super().evaluate(tensors)


def _exchange_stage_taps(seen: Mapping[str, Any]) -> dict[str, Any]:
    """What all ranks saw, stage by stage."""
    import torch
    import torch.distributed as dist

    told: list[Any] = [None] * count_training_ranks()
    dist.all_gather_object(told, {name: list(x.shape) for name, x in seen.items()})
    found = {}
    for rank, shapes in enumerate(told):
        for name, shape in shapes.items():
            x = seen[name].contiguous() if rank == find_training_rank() else torch.empty(shape)
            dist.broadcast(x, rank)
            found[name] = x
    return found
