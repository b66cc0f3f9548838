"""What a model may return."""

from typing import NamedTuple

import torch
import torch.nn as nn


class Both(NamedTuple):
    logits: torch.Tensor
    probabilities: torch.Tensor


class Tupled(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = nn.Linear(8, 2), nn.Linear(8, 2)

    def forward(self, x):
        return self.mean(x), torch.exp(self.spread(x))


class InOneDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        found = self.layer(x)
        return {"logits": found, "loss": found.square().mean()}


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        logits = self.layer(x)
        return Both(logits, logits.softmax(-1))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        first = torch.relu(self.layer(x))
        return {"states": [first, (first * 2, {"last": first.sum(-1)})], "x": x + 1}


class NestedWrong(Nested):
    """The innermost of its outputs is off once it is compiled."""

    def forward(self, x):
        found = super().forward(x)
        if torch.compiler.is_compiling():
            found["states"][1][1]["last"] = found["states"][1][1]["last"] + 0.01
        return found


class Best(nn.Module):
    """Numbers beside their places."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x):
        found = self.layer(x) * 2
        values, places = found.topk(3, -1)
        return values, places, found.argmax(-1), found > 0


class Absent(nn.Module):
    """An output that is None, as a model without a cache has it."""

    def forward(self, x):
        return torch.sin(x), None


class Counted(nn.Module):
    """A Python number beside a tensor."""

    def forward(self, x):
        return torch.sin(x), x.shape[0]


class Twice(nn.Module):
    """One tensor under two names, and the input as it was."""

    def forward(self, x):
        y = torch.cos(x)
        return y, y, x


class Scalar(nn.Module):
    def forward(self, x):
        return torch.logsumexp(x, (0, 1))


class Integers(nn.Module):
    """Integers from beginning to end."""

    def forward(self, x):
        counts = (x * 4).round().to(torch.int32)
        return counts.sum(-1), torch.bitwise_and(counts, 3)


def get_inputs():
    return [torch.randn(4, 8)]
