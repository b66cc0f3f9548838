"""Layers and weights that nobody has seeded, wherever a model keeps them."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

#: Drawn when the file is imported.
SCALE = torch.randn(8)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)

    def forward(self, x):
        return torch.tanh(self.norm(self.linear(x)))


class BatchNormalised(nn.Module):
    """Its statistics are those of a training that has been."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return F.relu(self.norm(self.linear(x)))


class PlainTensor(nn.Module):
    """A weight that is neither parameter nor buffer."""

    def __init__(self):
        super().__init__()
        self.weight = torch.randn(8, 8)

    def forward(self, x):
        return torch.sigmoid(x @ self.weight)


class Buffered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.randn(8))
        self.register_buffer("hidden", torch.rand(8), persistent=False)

    def forward(self, x):
        return x * self.table + self.hidden


class InList(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = [torch.randn(8, 8) for _ in range(3)]

    def forward(self, x):
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x


class InDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = {"gate": torch.randn(8), "deep": {"bias": torch.randn(8)}}

    def forward(self, x):
        return torch.sigmoid(x * self.weights["gate"]) + self.weights["deep"]["bias"]


class InParameterList(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(8)) for _ in range(2))

    def forward(self, x):
        return torch.cos(x * self.weights[0]) - self.weights[1]


class Shared(nn.Module):
    """Two layers of one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Again(nn.Module):
    """One layer three times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.layer(x))
        return x


class OfTheFile(nn.Module):
    """Its weight belongs to the file."""

    def forward(self, x):
        return torch.exp(-x.abs()) * SCALE


class OfNumPy(nn.Module):
    """NumPy drew its weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.from_numpy(np.random.randn(8, 8).astype(np.float32)))

    def forward(self, x):
        return torch.softmax(x @ self.weight, -1)


class OfPython(nn.Module):
    """Python drew a number that it is made with."""

    def __init__(self):
        super().__init__()
        self.slope = random.uniform(0.1, 0.9)

    def forward(self, x):
        return F.leaky_relu(x, self.slope)


class WeightNormalised(nn.Module):
    """A weight that is computed from two others."""

    def __init__(self):
        super().__init__()
        self.layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))

    def forward(self, x):
        return torch.relu(self.layer(x))


class Lazy(nn.Module):
    """Its weights have no size before it is called."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LazyLinear(4)

    def forward(self, x):
        return torch.tanh(self.layer(x))


class Wider(nn.Module):
    """It computes in float64 inside."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8).double()

    def forward(self, x):
        return torch.log1p(self.layer(x.double()).square()).float()


class Narrower(nn.Module):
    """It rounds to bfloat16 on its way, as it was asked to."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return (x * self.weight).to(torch.bfloat16).float() * 2


class Residue(nn.Module):
    """What a rounding to bfloat16 leaves behind: nothing, where the rounding is left out."""

    def forward(self, x):
        coarse = x.to(torch.bfloat16).float()
        return (x - coarse) * 256


class DroppedOut(nn.Module):
    """Dropout that evaluation turns off."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(torch.relu(self.layer(x)))


def get_inputs():
    return [torch.randn(4, 8)]
