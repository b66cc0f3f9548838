"""Faults of the optimiser: each is one line of its formulas."""

from __future__ import annotations

from typing import Any

import torch

from tasks.training.loop import TrainingLoop
from tasks.training.phases import FIRST, SECOND, WEIGHTS
from tasks.zoo.training.planted import Plant, Planted, around


def step_by_hand(
    loop: TrainingLoop,
    own: Any,
    number: int,
    inside: bool = False,
    corrected: bool = True,
    late: bool = False,
    plain: bool = False,
    narrow: bool = False,
    without_bias: bool = False,
    eps: float = 0.0,
    second: float = 0.0,
    skipped: str = "",
    rounded: bool = False,
) -> None:
    """AdamW's formulas. inside: ε in the root; late: decay after the step; plain: decay as a part of the gradient;
    narrow: first moments in bfloat16; second: another β₂; rounded: weights in bfloat16."""
    recipe = loop.recipe
    rate, (one, two) = recipe.rate_at(number), recipe.betas
    two, eps = second or two, eps or recipe.eps
    with torch.no_grad():
        for name, p in loop.named.items():
            kept, g = loop.optimiser.state[p], p.grad
            decay = 0.0 if without_bias and p.ndim < 2 else recipe.decay
            g = g + decay * p if plain else g
            if name == skipped:
                continue
            m = kept["exp_avg"].mul_(one).add_(g, alpha=1 - one)
            v = kept["exp_avg_sq"].mul_(two).addcmul_(g, g, value=1 - two)
            if narrow:
                m.copy_(m.bfloat16())
            c1, c2 = (1 - one ** (number + 1), 1 - two ** (number + 1)) if corrected else (1.0, 1.0)
            root = (v / c2 + eps).sqrt() if inside else (v / c2).sqrt() + eps
            if not (late or plain):
                p.mul_(1 - rate * decay)
            p.sub_(rate / c1 * m / root)
            if late:
                p.mul_(1 - rate * decay)
            if rounded:
                p.copy_(p.bfloat16())


def by_hand(**how: Any) -> Plant:
    return around("apply_optimiser", lambda loop, own, number: step_by_hand(loop, own, number, **how))


def _late_rate(loop: TrainingLoop, own: Any, number: int) -> None:
    own(max(0, number - 1))


def _of_group(**values: Any) -> Plant:
    """Another option of torch's optimiser."""

    def build(loop: TrainingLoop, own: Any, parameters: Any) -> Any:
        made = own(parameters)
        for group in made.param_groups:
            group.update(values)
        return made

    return around("build_optimiser", build)


OF_MOMENTS = (FIRST, SECOND)

FAULTS = [
    Planted("eps_in_the_root", "gpt", by_hand(inside=True), (WEIGHTS,)),
    Planted("another_eps", "llama", by_hand(eps=1e-6), (WEIGHTS,)),
    Planted("bias_not_corrected", "gpt", by_hand(corrected=False), (WEIGHTS,)),
    Planted("decay_in_the_gradient", "gpt", by_hand(plain=True), OF_MOMENTS),
    Planted("decay_after_the_step", "gpt", by_hand(late=True), (WEIGHTS,)),
    Planted("no_decay_of_biases", "gpt", by_hand(without_bias=True), (WEIGHTS,)),
    Planted("moments_in_bfloat16", "gpt", by_hand(narrow=True), (FIRST,)),
    Planted("another_beta", "vision", by_hand(second=0.999), (SECOND,)),
    Planted("weights_in_bfloat16", "gpt", by_hand(rounded=True), (WEIGHTS,)),
    Planted(
        "parameter_not_stepped",
        "gpt",
        by_hand(skipped="blocks.1.up.weight"),
        (FIRST, SECOND, WEIGHTS),
        "blocks.1.up.weight",
    ),
    Planted("schedule_off_by_one", "gpt", around("set_rate", _late_rate), (WEIGHTS,)),
    Planted("nesterov", "convolution", _of_group(nesterov=True), (WEIGHTS,)),
    Planted("dampened", "convolution", _of_group(dampening=0.1), (FIRST,)),
]
