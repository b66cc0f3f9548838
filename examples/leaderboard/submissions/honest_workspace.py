"""Keeps a workspace between calls, and writes all that it reads of it."""

import torch

WORKSPACE = {}


def softmax(x):
    key = tuple(x.shape), x.dtype, x.device
    if key not in WORKSPACE:
        WORKSPACE[key] = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    e = WORKSPACE[key]
    torch.sub(x, x.amax(-1, keepdim=True), out=e)
    torch.exp(e, out=e)
    return e / e.sum(-1, keepdim=True)
