"""Honest twins: the same training step, computed in another way."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tasks.training import networks
from tasks.training.loop import TrainingLoop
from tasks.training.networks.parts import NetworkAttention
from tasks.zoo.training.optimiser_faults import by_hand
from tasks.zoo.training.planted import Planted, around, change_recipe, in_module


def change_nothing(loop: TrainingLoop) -> None:
    """The loop as it is."""


def _fused_attention(module: Any) -> None:
    def attend(part: Any) -> Any:
        return lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=part.causal)

    for part in module.modules():
        if isinstance(part, NetworkAttention):
            part.attend = attend(part)  # type: ignore[method-assign]


def _norms_by_hand(module: Any) -> None:
    """Layer and RMS norms as sums."""

    def normalise(part: Any, centred: bool) -> Any:
        def call(x: Any) -> Any:
            y = x - x.mean(-1, keepdim=True) if centred else x
            y = y * (y.square().mean(-1, keepdim=True) + part.eps).rsqrt() * part.weight
            return y + part.bias if centred else y

        return call

    for part in module.modules():
        if isinstance(part, (torch.nn.LayerNorm, torch.nn.RMSNorm)):
            part.forward = normalise(part, isinstance(part, torch.nn.LayerNorm))


def _linear_in_halves(module: Any) -> None:
    """Products added up in two parts."""

    def multiply(part: Any) -> Any:
        def call(x: Any) -> Any:
            half = part.in_features // 2
            made = functional.linear(x[..., :half], part.weight[:, :half]) + functional.linear(
                x[..., half:], part.weight[:, half:], part.bias
            )
            return made

        return call

    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            part.forward = multiply(part)


def _convolutions_unfolded(module: Any) -> None:
    """Convolutions as products of patches."""

    def multiply(part: Any) -> Any:
        def call(x: Any) -> Any:
            patches = functional.unfold(x, part.kernel_size, 1, part.padding, part.stride)
            made = part.weight.flatten(1) @ patches
            made = made if part.bias is None else made + part.bias[:, None]
            side = (x.shape[-1] + 2 * part.padding[0] - part.kernel_size[0]) // part.stride[0] + 1
            return made.unflatten(-1, (side, side))

        return call

    for part in module.modules():
        if isinstance(part, torch.nn.Conv2d):
            part.forward = multiply(part)


def _one_backward(loop: TrainingLoop, own: Any, batches: Any, taps: Any) -> Any:
    """The micro-batches' losses added up before one backward pass."""
    losses: list[Any] = []
    backward = loop.backward
    setattr(loop, "backward", losses.append)  # noqa: B010
    try:
        total = own(batches, taps)
    finally:
        setattr(loop, "backward", backward)  # noqa: B010
    loop.backward(sum(losses))
    return total


def _clip_by_hand(loop: TrainingLoop, own: Any) -> None:
    if loop.recipe.clip:
        norm = torch.sqrt(sum(p.grad.double().square().sum() for p in loop.named.values()))
        for p in loop.named.values():
            p.grad.mul_(min(1.0, loop.recipe.clip / (float(norm) + 1e-6)))


def _clip_one_at_a_time(loop: TrainingLoop, own: Any) -> None:
    if loop.recipe.clip:
        torch.nn.utils.clip_grad_norm_(list(loop.named.values()), loop.recipe.clip, foreach=False)


WITH_ATTENTION = ("gpt", "llama", "experts", "vision")
ADAM = ("gpt", "llama", "experts", "vision")

HONEST = [
    *(Planted("plain", x, change_nothing) for x in networks.BUILT_IN),
    *(Planted("foreach", x, change_recipe(way="foreach")) for x in networks.BUILT_IN),
    *(Planted("fused", x, change_recipe(way="fused")) for x in networks.BUILT_IN),
    *(Planted("one_backward", x, around("accumulate", _one_backward)) for x in networks.BUILT_IN),
    *(Planted("linear_in_halves", x, in_module(_linear_in_halves)) for x in networks.BUILT_IN),
    *(Planted("fused_attention", x, in_module(_fused_attention)) for x in WITH_ATTENTION),
    *(Planted("norms_by_hand", x, in_module(_norms_by_hand)) for x in WITH_ATTENTION),
    *(Planted("optimiser_by_hand", x, by_hand()) for x in ADAM),
    *(
        Planted("convolutions_unfolded", x, in_module(_convolutions_unfolded))
        for x in ("convolution", "diffusion", "vision")
    ),
    *(Planted("clip_by_hand", x, around("clip_gradients", _clip_by_hand)) for x in ("gpt", "llama", "vision")),
    Planted("clip_one_at_a_time", "gpt", around("clip_gradients", _clip_one_at_a_time)),
    Planted("checkpointed", "gpt", change_recipe(checkpoint=True)),
]
