"""Two outputs of different dtypes, multiplied (pytorch/pytorch#143729)."""

import torch


class Frexp(torch.nn.Module):
    def forward(self, x):
        fraction, exponent = torch.frexp(x)
        return fraction * exponent


class FrexpBoth(torch.nn.Module):
    """Both outputs, one of them integers."""

    def forward(self, x):
        fraction, exponent = torch.frexp(x * 3)
        return fraction + 1, exponent


def get_inputs():
    return [torch.randn(4, 1)]
