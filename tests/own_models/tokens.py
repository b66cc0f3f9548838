"""Networks that take integers."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16)

    def forward(self, ids):
        return torch.tanh(self.table(ids).mean(1))


class Placed(nn.Module):
    """Positions beside ids."""

    def __init__(self):
        super().__init__()
        self.table, self.places, self.norm = nn.Embedding(50, 16), nn.Embedding(7, 16), nn.LayerNorm(16)

    def forward(self, ids):
        places = torch.arange(ids.shape[1], device=ids.device)
        return self.norm(self.table(ids) + self.places(places))


class Tied(nn.Module):
    """The head is the table."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return torch.log_softmax(self.head(F.gelu(self.table(ids))), -1)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.EmbeddingBag(50, 8, mode="sum")

    def forward(self, ids):
        return torch.relu(self.table(ids))


class OneHot(nn.Module):
    """Integers alone, counted."""

    def forward(self, ids):
        return F.one_hot(ids, 50).sum(1), (ids > 25).cumsum(-1)


class Padded(nn.Module):
    """A mean over what is no padding."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 16, padding_idx=0)

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1)
        return (self.table(ids) * mask).sum(1) / mask.sum(1).clamp_min(1), mask.sum((1, 2))


class Remainders(nn.Module):
    """Integer arithmetic of negative numbers."""

    def forward(self, ids):
        less = ids - 25
        return less // 4, less % 4, torch.div(less, 4, rounding_mode="trunc"), less.to(torch.int8) * 3


def get_inputs():
    return [torch.randint(0, 50, (2, 7))]
