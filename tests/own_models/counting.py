"""Models that are others at their second call: each call of a backend is to be the first. Two samples are asked for."""

import torch
from torch import nn


class CountsInBuffer(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        return x * self.calls


class CountsInNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.sin(x) * self.calls


class Smooths(nn.Module):
    """A running mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


class Toggles(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layer = True, nn.Linear(8, 8)

    def forward(self, x):
        if self.first:
            self.first = False
            return torch.tanh(self.layer(x))
        return torch.exp(x)


class Caches(nn.Module):
    """Keys of the calls before, as a language model keeps them."""

    def __init__(self):
        super().__init__()
        self.layer, self.keys = nn.Linear(8, 8), None

    def forward(self, x):
        key = self.layer(x)
        self.keys = key if self.keys is None else torch.cat([self.keys, key])
        return torch.softmax(x @ self.keys.t(), -1) @ self.keys


class KeepsTables(nn.Module):
    """A table that is made at first use."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = None, nn.Linear(8, 8)

    def forward(self, x):
        if self.table is None or self.table.shape[0] < x.shape[0]:
            self.table = torch.cos(torch.arange(x.shape[0])[:, None] * (0.1 ** torch.arange(8)))
        return self.layer(x) * self.table


class KeepsLosses(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.losses = nn.Linear(8, 8), []

    def forward(self, x):
        y = torch.tanh(self.layer(x))
        self.losses.append(y.pow(2).mean())
        return y


class TogglesElsewhere(nn.Module):
    """In an object that nobody can put back."""

    def __init__(self):
        super().__init__()
        self.other = type("Other", (), {})()
        self.other.calls = 0

    def forward(self, x):
        self.other.calls += 1
        return torch.sin(x) if self.other.calls % 2 else torch.cos(x)


class RaisesAtTheSecond(TogglesElsewhere):
    def forward(self, x):
        self.other.calls += 1
        if self.other.calls > 1:
            raise RuntimeError("this part is not written yet")
        return torch.sin(x)


def get_inputs():
    return [torch.randn(4, 8)]
