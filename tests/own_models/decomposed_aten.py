"""A fault in the decomposition of an operator of torch's own, for every model of the process that imports this file."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch._inductor.decomposition import decompositions

#: Planted: 1/5 for 1/6.
decompositions[torch.ops.aten.hardswish.default] = lambda x: x * (x + 3).clamp(0, 6) / 5


class HardswishWrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return F.hardswish(self.layer(x)) + 1


class Spelt(HardswishWrong):
    """The same function in operators that nobody touched."""

    def forward(self, x):
        y = self.layer(x)
        return y * (y + 3).clamp(0, 6) / 6 + 1


def get_inputs():
    return [torch.randn(4, 8)]
