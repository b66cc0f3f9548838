"""The sum as a product with ones."""

import torch


def softmax(x):
    e = torch.exp((x - x.amax(-1, keepdim=True)).double())
    ones = torch.ones(x.shape[-1], 1, dtype=e.dtype, device=x.device)
    return (e / (e @ ones)).to(x.dtype)
