"""Models that are another one on every call, and some that only look so."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class DropoutInTraining(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.25, training=True)


class Noisy(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


class Jittered(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x) * torch.rand(x.shape[0], 1)


class Sampled(nn.Module):
    """Integers that are drawn."""

    def forward(self, x):
        return torch.bernoulli(torch.sigmoid(x)), torch.randint(0, 4, (64,))


class Seeded(nn.Module):
    """The same numbers on every call: it seeds the generator itself."""

    def forward(self, x):
        torch.manual_seed(0)
        return x + torch.rand(64)


class DropoutOff(nn.Module):
    """It draws and takes nothing of it."""

    def forward(self, x):
        return F.dropout(torch.sin(x), 0.0, training=True)


class DropoutNotScaled(nn.Module):
    """Planted: compiled, what is left is not scaled by 1 / (1 - p)."""

    def forward(self, x):
        y = F.dropout(x, 0.25, training=True)
        return y * 0.75 if torch.compiler.is_compiling() else y * 1.0


class NoiseForgotten(nn.Module):
    """Planted: compiled, it draws nothing."""

    def forward(self, x):
        noise = torch.zeros_like(x) if torch.compiler.is_compiling() else torch.randn_like(x)
        return torch.sin(x) + 0.1 * noise


def get_inputs():
    return [torch.randn(64, 64)]
