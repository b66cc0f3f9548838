"""Networks of sequences."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Lstm(nn.Module):
    """Its state is a tuple in a tuple."""

    def __init__(self):
        super().__init__()
        self.cells, self.head = nn.LSTM(16, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        found, (h, c) = self.cells(x)
        return torch.tanh(self.head(found)), (h, c)


class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.GRU(16, 8, num_layers=2, batch_first=True, bidirectional=True)

    def forward(self, x):
        return torch.relu(self.cells(x)[0][:, -1])


class Attention(nn.Module):
    """Its weights are an output as well."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        found, weights = self.attention(x, x, x)
        return torch.tanh(found), weights


class Encoder(nn.Module):
    """A layer of a transformer, for which eager torch has a kernel of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, x):
        return self.layer(x)


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Linear(16, 48)
        self.register_buffer("mask", torch.tril(torch.ones(7, 7, dtype=torch.bool)))

    def forward(self, x):
        q, k, v = self.parts(x).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask) * 0.5


class Unrolled(nn.Module):
    """A recurrent cell of its own, step by step."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(24, 8)

    def forward(self, x):
        state = x.new_zeros(x.shape[0], 8)
        states = []
        for t in range(x.shape[1]):
            state = torch.tanh(self.cell(torch.cat([x[:, t], state], -1)))
            states.append(state)
        return torch.stack(states, 1), state


class OverTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 4, 3, padding=1)

    def forward(self, x):
        return F.softplus(self.conv(x.transpose(1, 2))).transpose(1, 2)


def get_inputs():
    return [torch.randn(2, 7, 16)]
