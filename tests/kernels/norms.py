"""An RMS norm, one that loses the tail of a row, and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import tasks

INPUTS = {"x": ["b", "n"], "weight": ["n"]}
DIMS = {"b": (1, 4), "n": (1, 600)}


def exact(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def exact_in_torch(x: Any, weight: Any) -> Any:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def refuses(x: Any, weight: Any) -> Any:
    raise RuntimeError("no reference today")


@tasks.op(reference=exact, inputs=INPUTS, dims={"b": [1, 4], "n": [1, 600]}, op_class="normalisation")
def rms_norm(x: Any, weight: Any) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)


def tail_lost(x: Any, weight: Any) -> Any:
    """Sums whole blocks of 128 alone, where there is more than one."""
    n = x.shape[-1]
    kept = n // 128 * 128 if n > 128 else n
    wide = x.float()
    mean = wide.square()[..., :kept].sum(-1, keepdim=True) / n
    return (wide * torch.rsqrt(mean + 1e-6) * weight.float()).to(x.dtype)


class Norm(torch.autograd.Function):
    """The same with a gradient of its own; wrong, it forgets that the norm depends on x."""

    wrong = False

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return exact_in_torch(x, weight)

    @classmethod
    def backward(cls, ctx: Any, g: Any) -> Any:
        x, weight = ctx.saved_tensors
        r = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
        along = (g * weight * x).mean(-1, keepdim=True)
        return g * weight * r - (0 if cls.wrong else x * r**3 * along), (g * x * r).sum(0)


class WrongNorm(Norm):
    wrong = True
