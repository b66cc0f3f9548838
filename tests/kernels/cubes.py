"""Kernels of torch with a second derivative, and that without a factor of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.autograd import Function


class Cube(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class Detached(Cube):
    """Its gradient is right; autograd is not told of one of its factors."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x.detach()


def cube(x: Any) -> Any:
    return Cube.apply(x)


def detached(x: Any) -> Any:
    return Detached.apply(x)


def right(x: Any) -> Any:
    return x**3


def wave(a: Any, b: Any) -> Any:
    return a * torch.sin(b)


def wave_right(a: Any, b: Any) -> Any:
    return a * np.sin(b)
