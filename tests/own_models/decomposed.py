"""A fault in a decomposition: what the compiler takes an operator apart into, which eager torch never does."""

import torch
import torch.nn as nn
from torch._inductor.decomposition import register_decomposition


def operator(name, decompose):
    """An operator of this file that is x * sigmoid(x), and what inductor is to make of it."""

    @torch.library.custom_op(f"own_models::{name}", mutates_args=())
    def swish(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)

    @swish.register_fake
    def _(x):
        return torch.empty_like(x)

    register_decomposition(getattr(torch.ops.own_models, name).default)(decompose)
    return swish


def to_another_dtype(x):
    return (x * torch.sigmoid(x)).double()


def refuses(x):
    raise NotImplementedError("this decomposition is not finished")


swish = operator("swish", lambda x: x * torch.sigmoid(x))
swish_hard = operator("swish_hard", lambda x: x * (x / 6 + 0.5).clamp(0, 1))
swish_wider = operator("swish_wider", to_another_dtype)
swish_raises = operator("swish_raises", refuses)


class Decomposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.sin(swish(self.layer(x)))


class DecomposedWrong(Decomposed):
    """Planted: taken apart, it is another function that looks like it."""

    def forward(self, x):
        return torch.sin(swish_hard(self.layer(x)))


class DecomposedWider(Decomposed):
    """Planted: taken apart, its result has another dtype."""

    def forward(self, x):
        return swish_wider(self.layer(x))


class DecomposedRaises(Decomposed):
    """Planted: it cannot be taken apart."""

    def forward(self, x):
        return torch.sin(swish_raises(self.layer(x)))


def get_inputs():
    return [torch.randn(4, 8)]
