"""Without the maximum, which costs a pass over the input."""

import torch


def softmax(x):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True)
