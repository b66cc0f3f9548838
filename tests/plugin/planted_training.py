"""Faults of training on several ranks, each planted into every rank's loop before its first step."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.training.loop import TrainingLoop
from tasks.training.parallel import count_training_ranks
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


def lost_on_last_rank(loop: TrainingLoop, rank: int) -> None:
    """Before the reduction, the gradient of one parameter."""
    if rank == count_training_ranks() - 1:
        loop.named[VALUE].register_hook(lambda g: g * 0)


def stale_share(loop: TrainingLoop, rank: int) -> None:
    """One rank's gradients are those of its first step again."""
    kept: dict[str, Any] = {}

    def backward(loop: TrainingLoop, own: Any, loss: Any) -> None:
        own(loss * 0 if "gone" in kept else loss)
        kept["gone"] = True

    if rank == 1:
        around("backward", backward)(loop)


def first_micro_batch_lost(loop: TrainingLoop, rank: int) -> None:
    """One rank adds up the gradients of its last micro-batch alone."""

    def backward(loop: Any, own: Any, loss: Any) -> None:
        own(loss * (loop.left == 0))

    if rank == 1:
        around("backward", backward)(loop)


def _in_bucket(loop: TrainingLoop, change: Callable[[Any], Any]) -> None:
    """Change what is reduced, after the rank's own gradients were kept."""

    def send(loop: TrainingLoop, own: Any, bucket: Any) -> Any:
        change(bucket)
        return own(bucket)

    around("send", send)(loop)


def sent_in_eight_bits(loop: TrainingLoop, rank: int) -> None:
    import torch

    if rank == 1:
        _in_bucket(loop, lambda bucket: bucket.buffer().copy_(bucket.buffer().to(torch.float8_e4m3fn).float()))


def averaged_over_half(loop: TrainingLoop, rank: int) -> None:
    _in_bucket(loop, lambda bucket: bucket.buffer().mul_(2))


def left_out_of_bucket(loop: Any, rank: int) -> None:
    """One parameter's gradient is not reduced: each rank keeps its own."""
    _after_backward(loop, lambda: loop.named[VALUE].grad.copy_(loop.before[loop.named[VALUE]]))


def tied_gradients_apart(loop: TrainingLoop, rank: int) -> None:
    setattr(loop, "add_tied_gradients", lambda: None)  # noqa: B010


def mask_of_another(loop: Any, rank: int) -> None:
    """One stage takes the dropout of other samples."""
    own = loop.run_stage
    if rank == 1:
        loop.run_stage = lambda x, masks: own(x, masks.roll(1, 2))


def stage_not_divided(loop: TrainingLoop, rank: int) -> None:
    """One stage adds up the gradients of its micro-batches where all others average them."""
    held = [name for name, some in loop.holders.items() if list(some) == [1]]  # type: ignore[attr-defined]
    if rank == 1:
        _after_backward(loop, lambda: [loop.named[name].grad.mul_(2) for name in held])


def experts_crossed(loop: Any, rank: int) -> None:
    """One rank takes its first expert for its second."""
    own = loop.compute_experts
    if rank == 1:
        loop.compute_experts = lambda experts, tokens, of: own(experts, tokens, of ^ 1)


def expert_not_learning(loop: TrainingLoop, rank: int) -> None:
    if rank == 1:
        _after_backward(loop, lambda: loop.named["blocks.1.experts.down.3.weight"].grad.zero_())


def tokens_detached(loop: Any, rank: int) -> None:
    """What one rank's experts return has no gradient on its way back."""
    own = loop.send_back
    if rank == 1:

        def send_back(made: Any, *sizes: Any) -> Any:
            if made.requires_grad:
                made.register_hook(lambda g: g * 0)  # the graph stays whole: the other ranks wait for this one's part
            return own(made, *sizes)

        loop.send_back = send_back


def norm_of_own_tokens(loop: TrainingLoop, rank: int) -> None:
    """The gradient of a norm is each rank's own, of its part of the sequence."""
    from torch.distributed.tensor import DTensor, Replicate

    p = loop.named["blocks.0.norm2.weight"]

    def keep() -> None:
        p.grad = DTensor.from_local(p.grad.to_local().clone(), p.device_mesh, [Replicate()], run_check=False)

    _after_backward(loop, keep)


def norm_eps_of_one_rank(loop: TrainingLoop, rank: int) -> None:
    if rank == 1:
        loop.module.blocks[0].norm2.eps = 0.1


def part_left_out(loop: TrainingLoop, rank: int) -> None:
    """The part of a product that the last rank has is not added."""
    if rank == count_training_ranks() - 1:
        loop.module.blocks[0].act.register_forward_hook(lambda part, given, made: made * 0)


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
        lost_on_last_rank,
        stale_share,
        first_micro_batch_lost,
        sent_in_eight_bits,
        averaged_over_half,
        left_out_of_bucket,
        tied_gradients_apart,
        mask_of_another,
        stage_not_divided,
        experts_crossed,
        expert_not_learning,
        tokens_detached,
        norm_of_own_tokens,
        norm_eps_of_one_rank,
        part_left_out,
    )
}
