"""Models that are no models: each raises by itself, wherever it runs."""

import torch
import torch.nn as nn


class MissingArgument(nn.Module):
    def forward(self, x, mask):
        return x * mask


class NeedsWidth(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return self.layer(x)


class WrongWidth(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(7, 4)

    def forward(self, x):
        return torch.relu(self.layer(x))


class RaisesWhenMade(nn.Module):
    def __init__(self):
        super().__init__()
        raise ValueError("a width of 0 makes no layer")

    def forward(self, x):
        return x


class RaisesWhenCalled(nn.Module):
    def forward(self, x):
        raise NotImplementedError("this part is not written yet")


class NoModule:
    """Not a torch.nn.Module."""

    def forward(self, x):
        return x


class FloatIndex(nn.Module):
    """An embedding that is given numbers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4)

    def forward(self, x):
        return self.table(x)


def get_inputs():
    return [torch.randn(4, 8)]
