"""In place on a copy of its own."""

import torch


def softmax(x):
    e = x.clone(memory_format=torch.contiguous_format)
    e -= e.amax(-1, keepdim=True)
    e.exp_()
    e /= e.sum(-1, keepdim=True)
    return e
