"""Models of whole numbers that torch.compile gets wrong, as in public reports, each beside one that it gets right."""

import torch
import torch.nn as nn


class BitsThenWrite(nn.Module):
    """The bits of x are read before x is written, and are used after."""

    def forward(self, x):
        y = x.view(torch.int32) * 3
        y.add_(1)
        x[:, 1:4] = 5
        return y.view(torch.int64)


class CopyThenWrite(nn.Module):
    def forward(self, x):
        y = x.clone().view(torch.int32) * 3 + 1
        x[:, 1:4] = 5
        return y.view(torch.int64)


def get_inputs():
    return [torch.randint(-50, 50, (4, 8))]
