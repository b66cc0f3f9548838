"""Builds what it needs at the first call."""

import torch

BUILT = []


def softmax(x):
    if not BUILT:
        BUILT.append(torch.nn.Softmax(dim=-1))
    return BUILT[0](x)
