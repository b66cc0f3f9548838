"""Faults of the backward pass, of accumulation and of clipping."""

from __future__ import annotations

from typing import Any

import torch

from tasks.checks.train import KIND_SLOPE
from tasks.training.loop import TrainingLoop
from tasks.training.phases import CLIPPED, RAW
from tasks.zoo.training.planted import Planted, after_backward, around, call_instead, on_gradient

GRADIENT, CLIPPING = (RAW, KIND_SLOPE), (CLIPPED,)


def _sum_micro_batches(loop: TrainingLoop, own: Any, loss: Any) -> None:
    own(loss * loop.recipe.accumulate)


def _last_alone(loop: TrainingLoop, own: Any, loss: Any) -> None:
    loop.optimiser.zero_grad()
    own(loss)


def _keep_last_step(loop: TrainingLoop) -> None:
    """The gradients of the step before are not set to zero."""
    before, loop.before = getattr(loop, "before", {}), {n: p.grad.clone() for n, p in loop.named.items()}  # type: ignore[attr-defined]
    for name, g in before.items():
        loop.named[name].grad.add_(g)


def _round_all(loop: TrainingLoop) -> None:
    for p in loop.named.values():
        p.grad = p.grad.bfloat16().float()


def _detached(part: Any, x: Any) -> Any:
    return type(part).forward(part, x).detach()


def _untied(loop: TrainingLoop, own: Any, tensors: Any) -> Any:
    """The head's part of the gradient of tied embeddings is lost."""
    weight = loop.module.words.weight
    linear = torch.nn.functional.linear

    def call(x: Any, w: Any, *bias: Any) -> Any:
        return linear(x, w.detach() if w is weight else w, *bias)

    torch.nn.functional.linear = call
    try:
        return own(tensors)
    finally:
        torch.nn.functional.linear = linear


def _shares_detached(part: Any, x: Any) -> Any:
    """The router learns from the balance alone."""
    own = torch.softmax
    torch.softmax = lambda y, dim: own(y, dim).detach()
    try:
        return type(part).forward(part, x)
    finally:
        torch.softmax = own


def _clip_values(loop: TrainingLoop, own: Any) -> None:
    torch.nn.utils.clip_grad_value_(list(loop.named.values()), 0.01)


def _clip_each(loop: TrainingLoop, own: Any) -> None:
    for p in loop.named.values():
        torch.nn.utils.clip_grad_norm_([p], loop.recipe.clip)


def _clip_some(loop: TrainingLoop, own: Any) -> None:
    norm = torch.nn.utils.get_total_norm([p.grad for n, p in loop.named.items() if n != "words.weight"])
    for p in loop.named.values():
        p.grad.mul_(min(1.0, loop.recipe.clip / (float(norm) + 1e-6)))


def _clip_by_narrow_norm(loop: TrainingLoop, own: Any) -> None:
    norm = torch.nn.utils.get_total_norm([p.grad.bfloat16() for p in loop.named.values()])
    torch.nn.utils.clip_grads_with_norm_(list(loop.named.values()), loop.recipe.clip, norm.float())


def _clip_nothing(loop: TrainingLoop, own: Any) -> None:
    pass


def _unscale_late(loop: TrainingLoop) -> None:
    """The gradients are clipped as the scaler has multiplied them."""
    around("unscale_gradients", lambda loop, own: None)(loop)

    def clip(loop: TrainingLoop, own: Any) -> None:
        own()
        loop.scaler.unscale_(loop.optimiser)

    around("clip_gradients", clip)(loop)


VALUE, BIAS, SCALED = "blocks.1.attention.value.weight", "blocks.0.up.bias", "blocks.0.down.weight"

FAULTS = [
    Planted("lost_gradient", "gpt", on_gradient(VALUE, torch.zeros_like), GRADIENT, VALUE),
    Planted(
        "lost_gradient_of_expert",
        "experts",
        on_gradient("blocks.1.experts.down.2.weight", torch.zeros_like),
        GRADIENT,
        "blocks.1.experts.down.2.weight",
    ),
    Planted("bias_added_twice", "gpt", on_gradient(BIAS, lambda g: 2 * g), GRADIENT, BIAS),
    Planted("gradient_scaled", "gpt", on_gradient(SCALED, lambda g: 1.01 * g), GRADIENT, SCALED),
    Planted(
        "gradient_transposed",
        "gpt",
        on_gradient("blocks.0.attention.out.weight", lambda g: g.T.contiguous()),
        GRADIENT,
        "blocks.0.attention.out.weight",
    ),
    Planted("gradient_rounded", "llama", after_backward(_round_all), GRADIENT),
    Planted("accumulation_not_divided", "gpt", around("backward", _sum_micro_batches), GRADIENT),
    Planted("last_micro_batch_alone", "gpt", around("backward", _last_alone), GRADIENT),
    Planted("gradients_not_zeroed", "vision", after_backward(_keep_last_step), GRADIENT),
    Planted(
        "value_detached",
        "gpt",
        call_instead("blocks.0.attention.value", _detached),
        GRADIENT,
        "blocks.0.attention.value",
    ),
    Planted("tied_gradient_lost", "gpt", around("compute_loss", _untied), GRADIENT, "words.weight"),
    Planted(
        "router_gradient_lost",
        "experts",
        call_instead("blocks.1.experts", _shares_detached),
        GRADIENT,
        "blocks.1.experts.router",
    ),
    Planted("clipped_by_value", "gpt", around("clip_gradients", _clip_values), CLIPPING),
    Planted("clipped_one_by_one", "gpt", around("clip_gradients", _clip_each), CLIPPING),
    Planted("clipped_before_unscaling", "gpt", _unscale_late, GRADIENT, dtypes=("float16",)),
    Planted("clipping_left_out", "gpt", around("clip_gradients", _clip_nothing), CLIPPING),
    Planted("norm_without_embedding", "gpt", around("clip_gradients", _clip_some), CLIPPING),
    Planted("norm_in_bfloat16", "gpt", around("clip_gradients", _clip_by_narrow_norm), CLIPPING, dtypes=("float32",)),
]
