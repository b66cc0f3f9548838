"""Operators of one's own, with and without what a compiler must know of them."""

import numpy as np
import torch
import torch.nn as nn


@torch.library.custom_op("own_models::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@torch.library.custom_op("own_models::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.power(x.numpy(), 3))


@cube.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("own_models::split", mutates_args=())
def split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x.clamp_min(0), (x > 0).sum(-1)


@split.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty(x.shape[:-1], dtype=torch.int64)


@torch.library.custom_op("own_models::scale_", mutates_args={"x"})
def scale_(x: torch.Tensor, by: float) -> None:
    x.mul_(by)


@torch.library.custom_op("own_models::rows", mutates_args=())
def rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


@rows.register_fake
def _(x):
    raise ValueError("the fake of rows has a fault")


class WithFake(nn.Module):
    def forward(self, x):
        return cube(torch.sin(x)) + 1


class WithoutFake(nn.Module):
    """A compiler does not know what comes out of it; eager torch finds out."""

    def forward(self, x):
        return twice(x) + 1


class TwoOutputs(nn.Module):
    def forward(self, x):
        values, counts = split(torch.sin(x))
        return values * 2, counts


class Writes(nn.Module):
    """The operator changes what it is given."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x):
        y = x * self.weight
        scale_(y, 0.5)
        return torch.tanh(y)


class FakeRaises(nn.Module):
    """Planted: its fake raises, so compiling does; eager torch never asks it."""

    def forward(self, x):
        return rows(torch.sin(x)) * 2


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


class OwnFunction(nn.Module):
    """A torch.autograd.Function in a forward pass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.sqrt(1 + Square.apply(self.layer(x)))


def get_inputs():
    return [torch.randn(4, 8)]
