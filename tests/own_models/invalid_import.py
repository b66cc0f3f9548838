"""A file that does not import."""

import torch
import torch.nn as nn

LAYERS = nn.NoSuchLayer


class Model(nn.Module):
    def forward(self, x):
        return x


def get_inputs():
    return [torch.randn(4, 8)]
