"""Control flow: on shapes, which a compiler follows, and on data, which it does not."""

import torch
import torch.nn as nn


class OnShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        layer = self.layers[0] if x.shape[0] > 2 else self.layers[1]
        return torch.tanh(layer(x)) if x.dim() == 2 else x


class OnMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.layer(x)) if not self.training else x


class OnData(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        y = self.layer(x)
        if y.sum() > 0:
            return torch.sin(y)
        return torch.cos(y) + 1


class Until(nn.Module):
    """It halves until it is small."""

    def forward(self, x):
        while x.norm() > 1:
            x = x / 2
        return x.exp()


class Conditional(nn.Module):
    """torch.cond, which a compiler takes."""

    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: torch.sin(x), lambda x: torch.cos(x), (x,))


class Item(nn.Module):
    """A number out of a tensor, in Python."""

    def forward(self, x):
        return x / float(x.abs().max())


class Selected(nn.Module):
    """How many elements it returns, the data says."""

    def forward(self, x):
        return x[x > 0].square()


class OnDataWrong(OnData):
    """Planted: compiled, one branch is the other's."""

    def forward(self, x):
        y = self.layer(x)
        if torch.compiler.is_compiling():
            return torch.where(y.sum() > 0, torch.cos(y) + 1, torch.sin(y))
        return torch.sin(y) if y.sum() > 0 else torch.cos(y) + 1


class OnDataWhere(OnData):
    """The same branches without control flow."""

    def forward(self, x):
        y = self.layer(x)
        return torch.where(y.sum() > 0, torch.sin(y), torch.cos(y) + 1)


def get_inputs():
    return [torch.randn(4, 8)]
