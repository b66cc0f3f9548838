"""Faults that are there only where a compiler looks, each beside the model without it."""

import torch
import torch.nn as nn


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.softmax(self.layer(x), -1)


class Numbers(Twin):
    def forward(self, x):
        y = super().forward(x)
        return y * 1.001 if torch.compiler.is_compiling() else y * 1.0


class OneElement(Twin):
    def forward(self, x):
        y = super().forward(x)
        if torch.compiler.is_compiling():
            y[-1, -1] = 0
        return y


class NotFinite(Twin):
    def forward(self, x):
        y = super().forward(x)
        return torch.where(y == y.max(), torch.nan, y) if torch.compiler.is_compiling() else y * 1.0


class Dtype(Twin):
    def forward(self, x):
        y = super().forward(x)
        return y.double() if torch.compiler.is_compiling() else y * 1.0


class Shape(Twin):
    def forward(self, x):
        y = super().forward(x)
        return y[None] * 1.0 if torch.compiler.is_compiling() else y * 1.0


class Lacking(Twin):
    """Compiled, it returns one output of two."""

    def forward(self, x):
        y = super().forward(x)
        return (y * 1.0,) if torch.compiler.is_compiling() else (y * 1.0, y * 2)


class Accepts(Twin):
    """Eager torch refuses what the compiler takes."""

    def forward(self, x):
        if not torch.compiler.is_compiling() and x.dim() == 2:
            raise ValueError("three dimensions are needed")
        return super().forward(x) * 2


class Exported(Twin):
    """Wrong where it is exported, and nowhere else."""

    def forward(self, x):
        y = super().forward(x)
        return y * 1.001 if torch.compiler.is_exporting() else y * 1.0


class OfDynamo(Twin):
    """As Numbers, asked in the older words."""

    def forward(self, x):
        y = super().forward(x)
        return y - 0.01 if torch.compiler.is_dynamo_compiling() else y * 1.0


class LeavesMean(Twin):
    """What it returns is right; compiled, the running mean that it leaves is not."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        y = super().forward(x)
        self.mean.lerp_(y.mean(0), 0.11 if torch.compiler.is_compiling() else 0.1)
        return y * 1.0


class LeavesInput(Twin):
    """As LeavesMean, in its input."""

    def forward(self, x):
        y = super().forward(x)
        x.mul_(0.99 if torch.compiler.is_compiling() else 1.0).add_(1)
        return y * 1.0


class Leaves(Twin):
    """The twin of both."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x):
        y = super().forward(x)
        self.norm.train()
        x.add_(1)
        return self.norm(y)


def get_inputs():
    return [torch.randn(4, 8)]
