"""Faults of the forward pass and of the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tasks.checks.train import KIND_FORWARD, KIND_SLOPE
from tasks.training.loop import TrainingLoop
from tasks.training.phases import BUFFERS, LOSS
from tasks.zoo.training.planted import Plant, Planted, around, call_instead, in_part

FORWARD = (KIND_FORWARD, KIND_SLOPE)


def _attend(part: Any, q: Any, k: Any, v: Any, scale: float = 1.0, above: int = 1, narrow: bool = False) -> Any:
    """As `Attention.attend`. above: the first diagonal that is hidden; narrow: whether the softmax is in bfloat16."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 * scale
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(above)
    scores = scores.masked_fill(hidden, float("-inf"))
    return torch.softmax(scores.bfloat16() if narrow else scores, -1).to(v.dtype) @ v


def _attention(block: int, **how: Any) -> Plant:
    return call_instead(f"blocks.{block}.attention", lambda part, q, k, v: _attend(part, q, k, v, **how), "attend")


def _set(path: str, **values: Any) -> Plant:
    def change(part: Any) -> None:
        for name, x in values.items():
            setattr(part, name, x)

    return in_part(path, change)


def _on_targets(change: Any) -> Plant:
    """Change the last tensor that the loss is given."""

    def compute(loop: TrainingLoop, own: Any, tensors: Any) -> Any:
        return own([*tensors[:-1], change(tensors[-1])])

    return around("compute_loss", compute)


def _mean_of_all(loop: TrainingLoop, own: Any, tensors: Any) -> Any:
    return own(tensors) * (tensors[-1] != -100).float().mean()


def _mask_of_first(part: Any, x: Any, mask: Any) -> Any:
    return type(part).forward(part, x, mask.roll(1, 1))


def _without_residual(part: Any, x: Any, mask: Any) -> Any:
    x = part.attention(part.norm1(x)) * mask
    return x + part.down(part.act(part.up(part.norm2(x))))


def _place_before(part: Any, tokens: Any) -> Any:
    return functional.embedding((tokens - 1).clamp(min=0), part.weight)


def _repeat_whole(part: Any, x: Any) -> Any:
    return x.repeat(1, part.heads // part.groups, 1, 1)


def _rotate_pairs(part: Any, x: Any) -> Any:
    """Neighbours as pairs, where the network has halves, of the queries alone (of both it would be the same function
    for other weights)."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)


def _experts(
    part: Any, x: Any, chosen: int = 2, renormalise: bool = True, crossed: bool = False, balance: float = 1.0
) -> Any:
    shares = torch.softmax(part.router(x), -1)
    best, places = shares.topk(chosen, -1)
    weights = torch.zeros_like(shares).scatter(-1, places, best / best.sum(-1, keepdim=True) if renormalise else best)
    downs = list(part.down)[::-1] if crossed else part.down
    outputs = torch.stack([down(functional.gelu(up(x))) for up, down in zip(part.up, downs)], -1)
    used = (weights > 0).to(shares.dtype).flatten(0, 1).mean(0)
    part.balance = balance * 4 * (used * shares.flatten(0, 1).mean(0)).sum()
    return (outputs * weights.unsqueeze(-2)).sum(-1)


def _experts_of(block: int, **how: Any) -> Plant:
    return call_instead(f"blocks.{block}.experts", lambda part, x: _experts(part, x, **how))


def _biased_variance(part: Any, x: Any) -> Any:
    """As a batch norm, its running variance without Bessel's correction."""
    before = part.running_var.clone()
    made = type(part).forward(part, x)
    with torch.no_grad():
        part.running_var.data.copy_(
            before * (1 - part.momentum) + part.momentum * x.float().var((0, 2, 3), unbiased=False)
        )
    return made


def _of_running(part: Any, x: Any) -> Any:
    return functional.batch_norm(x, part.running_mean, part.running_var, part.weight, part.bias, False, 0.0, part.eps)


def _of_population(part: Any, x: Any) -> Any:
    """As a group norm, with n - 1 for n."""
    groups = x.unflatten(1, (part.num_groups, -1))
    mean, spread = groups.mean((2, 3, 4), keepdim=True), groups.var((2, 3, 4), keepdim=True)
    y = ((groups - mean) / (spread + part.eps).sqrt()).flatten(1, 2)
    return y * part.weight[:, None, None] + part.bias[:, None, None]


def _time_late(part: Any, x: Any, time: Any) -> Any:
    return type(part).forward(part, x, time.roll(1, 0))


FAULTS = [
    Planted("attention_scale", "gpt", _attention(0, scale=0.5), FORWARD, "blocks.0.attention"),
    Planted("attention_scale_slight", "gpt", _attention(1, scale=1.02), FORWARD, "blocks.1.attention"),
    Planted("mask_off_by_one", "gpt", _attention(1, above=2), FORWARD, "blocks.1.attention"),
    Planted("mask_left_out", "llama", _attention(0, above=99), FORWARD, "blocks.0.attention"),
    Planted("softmax_in_bfloat16", "gpt", _attention(0, narrow=True), FORWARD, "blocks.0.attention"),
    Planted("layer_norm_eps", "gpt", _set("blocks.0.norm2", eps=1e-3), FORWARD, "blocks.0.norm2"),
    Planted("tanh_gelu", "gpt", _set("blocks.1.act", approximate="tanh"), FORWARD, "blocks.1.act"),
    Planted("dropout_mask_of_another", "gpt", call_instead("blocks.1", _mask_of_first), FORWARD, "blocks.1"),
    Planted("residual_left_out", "gpt", call_instead("blocks.1", _without_residual), FORWARD, "blocks.1"),
    Planted("place_off_by_one", "gpt", call_instead("places", _place_before), FORWARD, "places"),
    Planted("padding_counted", "gpt", _on_targets(lambda x: x.clamp(min=0)), (LOSS,), "the loss"),
    Planted("labels_shifted", "gpt", _on_targets(lambda x: x.roll(1, 1)), (LOSS,), "the loss"),
    Planted("mean_over_padding", "gpt", around("compute_loss", _mean_of_all), (LOSS,), "the loss"),
    Planted(
        "grouped_heads_order",
        "llama",
        call_instead("blocks.0.attention", _repeat_whole, "repeat"),
        FORWARD,
        "blocks.0.attention",
    ),
    Planted(
        "rotary_base",
        "llama",
        call_instead("blocks.1.attention", lambda part, x: type(part).rotate(part, x, 5e5), "rotate"),
        FORWARD,
        "blocks.1.attention",
    ),
    Planted(
        "rotary_pairs",
        "llama",
        call_instead("blocks.0.attention", _rotate_pairs, "rotate"),
        FORWARD,
        "blocks.0.attention",
    ),
    Planted("one_expert_for_two", "experts", _experts_of(1, chosen=1), FORWARD, "blocks.1.experts"),
    Planted("experts_not_renormalised", "experts", _experts_of(0, renormalise=False), FORWARD, "blocks.0.experts"),
    Planted("experts_crossed", "experts", _experts_of(0, crossed=True), FORWARD, "blocks.0.experts"),
    Planted("balance_left_out", "experts", _experts_of(0, balance=0.0), (LOSS, KIND_SLOPE), "the loss"),
    Planted("running_momentum", "convolution", _set("norm", momentum=0.01), (BUFFERS,), "norm.running"),
    Planted(
        "running_variance_biased",
        "convolution",
        call_instead("blocks.0.norm1", _biased_variance),
        (BUFFERS, KIND_SLOPE),
        "blocks.0.norm1.running_var",
    ),
    Planted("batch_norm_eps", "convolution", _set("blocks.1.norm2", eps=1e-3), FORWARD, "blocks.1.norm2"),
    Planted(
        "batch_norm_of_running", "convolution", call_instead("blocks.0.norm2", _of_running), FORWARD, "blocks.0.norm2"
    ),
    Planted(
        "padding_repeated",
        "convolution",
        _set("stem", padding_mode="replicate", _reversed_padding_repeated_twice=[1] * 4),
        FORWARD,
        "stem",
    ),
    Planted("group_norm_variance", "diffusion", call_instead("middle.norm1", _of_population), FORWARD, "middle.norm1"),
    Planted("time_of_another", "diffusion", call_instead("last", _time_late), FORWARD, "last"),
]
