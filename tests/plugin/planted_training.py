"""Faults of training on several ranks, each planted into every rank's loop before its first step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.training.loop import TrainingLoop
from tasks.zoo.training.planted import around

#: Variable with the path of a file that names the fault.
FAULT = "PLANTED_TRAINING"
VALUE = "blocks.1.attention.value.weight"


def plant(loop: TrainingLoop) -> None:
    """The fault that the file names; none where it is empty."""
    import torch.distributed as dist

    if name := Path(os.environ[FAULT]).read_text():
        FAULTS[name](loop, dist.get_rank())


def _after_backward(loop: TrainingLoop, change: Callable[[], Any]) -> None:
    def accumulate(loop: TrainingLoop, own: Any, batches: Any, taps: Any) -> Any:
        loss = own(batches, taps)
        change()
        return loss

    around("accumulate", accumulate)(loop)


def sum_for_mean(loop: TrainingLoop, rank: int) -> None:
    import torch.distributed as dist

    _after_backward(loop, lambda: [p.grad.mul_(dist.get_world_size()) for p in loop.named.values()])


def no_all_reduce(loop: TrainingLoop, rank: int) -> None:
    def accumulate(loop: TrainingLoop, own: Any, batches: Any, taps: Any) -> Any:
        with loop.module.no_sync():
            return own(batches, taps)

    around("accumulate", accumulate)(loop)


def lost_on_one_rank(loop: TrainingLoop, rank: int) -> None:
    if rank == 1:
        _after_backward(loop, lambda: loop.named[VALUE].grad.zero_())


def lost_before_reduction(loop: TrainingLoop, rank: int) -> None:
    if rank == 1:
        loop.named[VALUE].register_hook(lambda g: g * 0)


def same_data(loop: TrainingLoop, rank: int) -> None:
    def step(loop: TrainingLoop, own: Any, args: Any, given: Any) -> Any:
        return own(
            args, {k: x[:1].repeat(2, *[1] * (x.ndim - 1)) if k.startswith("batch") else x for k, x in given.items()}
        )

    around("step", step)(loop)


def bias_twice(loop: TrainingLoop, rank: int) -> None:
    """Each rank adds the bias of a product whose parts are added up."""
    from torch.distributed.tensor import DTensor

    def add(part: Any, _: Any, made: Any) -> Any:
        bias = part.bias.to_local() if isinstance(part.bias, DTensor) else part.bias
        return made + bias

    loop.module.blocks[0].down.register_forward_hook(add)


def late_schedule(loop: TrainingLoop, rank: int) -> None:
    if rank == 1:
        around("set_rate", lambda loop, own, number: own(max(0, number - 1)))(loop)


def skipped_parameter(loop: TrainingLoop, rank: int) -> None:
    """One rank does not step one of its parameters."""

    def apply(loop: TrainingLoop, own: Any, number: int) -> None:
        p = loop.named[VALUE]
        kept, p.grad = p.grad, None
        own(number)
        p.grad = kept

    if rank == 1:
        around("apply_optimiser", apply)(loop)


def clipped_alone(loop: TrainingLoop, rank: int) -> None:
    """One rank clips by another norm."""
    if rank == 1:
        around("clip_gradients", lambda loop, own: [p.grad.mul_(0.5) for p in loop.named.values()])(loop)


def broken_bias_gradient(loop: TrainingLoop, rank: int) -> None:
    _after_backward(loop, lambda: loop.named["blocks.0.up.bias"].grad.mul_(2))


FAULTS: dict[str, Callable[[TrainingLoop, int], None]] = {
    x.__name__: x
    for x in (
        sum_for_mean,
        no_all_reduce,
        lost_on_one_rank,
        lost_before_reduction,
        same_data,
        bias_twice,
        late_schedule,
        skipped_parameter,
        clipped_alone,
        broken_bias_gradient,
    )
}
