"""In blocks of columns, with a running maximum and sum."""

import torch


def softmax(x):
    top = torch.full(x.shape[:-1], -torch.inf, device=x.device, dtype=x.dtype)
    total = torch.zeros(x.shape[:-1], device=x.device, dtype=x.dtype)
    for block in x.split(128, dim=-1):
        new = torch.maximum(top, block.amax(-1))
        total = torch.exp(top - new) * total + torch.exp(block - new[..., None]).sum(-1)
        top = new
    return torch.exp(x - top[..., None]) / total[..., None]
