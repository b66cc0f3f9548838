"""Times two ways once for a shape, and keeps the faster."""

import time

import torch

CHOSEN = {}


def one(x):
    return torch.softmax(x, -1)


def other(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def timed(way, x):
    begin = time.perf_counter()
    way(x)
    return time.perf_counter() - begin


def softmax(x):
    key = tuple(x.shape), x.dtype
    if key not in CHOSEN:
        CHOSEN[key] = min((one, other), key=lambda way: timed(way, x))
    return CHOSEN[key](x)
