"""Views, and what is written into them."""

import torch
import torch.nn as nn


class Viewed(nn.Module):
    def forward(self, x):
        return torch.sin(x.t().reshape(4, 8).view(2, 2, 8).transpose(0, 1)).contiguous().view(-1)


class Halves(nn.Module):
    """One half is written through a view."""

    def forward(self, x):
        y = x * 2
        left, right = y.chunk(2, -1)
        left.mul_(right)
        return y, right


class Sliced(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        y[:, 1:] = x[:, :-1].cumsum(-1)
        y[::2] += 1
        return y


class Masked(nn.Module):
    def forward(self, x):
        y = x.clone()
        y.masked_fill_(x < 0, -1.0)
        y[0, 0] = 7
        return torch.exp(y)


class Scattered(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("places", torch.randint(0, 4, (8,)))

    def forward(self, x):
        out = x.new_zeros(4, 4)
        out.index_add_(1, self.places, x)
        return torch.tanh(out)


class Unfolded(nn.Module):
    """Windows that share what they show."""

    def forward(self, x):
        windows = x.unfold(-1, 3, 1)
        return (windows * windows).sum(-1), x.as_strided((3, 2), (8, 3)) + 1


class Expanded(nn.Module):
    def __init__(self):
        super().__init__()
        self.row = nn.Parameter(torch.randn(1, 8))

    def forward(self, x):
        return torch.atan2(self.row.expand(4, 8), x.flip(-1))


class OntoInput(nn.Module):
    """It writes into its input and returns something else."""

    def forward(self, x):
        x.add_(1)
        return torch.cos(x)


class Given(nn.Module):
    """Results go where out= says."""

    def forward(self, x):
        out = torch.empty_like(x)
        torch.mul(x, 3, out=out)
        return out + 1


class CountsCalls(nn.Module):
    """A buffer that counts calls and changes no result."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.layer(x))


def get_inputs():
    return [torch.randn(4, 8)]
