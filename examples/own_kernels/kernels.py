"""Two kernels: one declared here, one in farm.yaml."""

import numpy as np
import torch

import farm


def softmax_reference(x):
    """What is right, on float64 NumPy arrays."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@farm.op(
    reference=softmax_reference,
    dims={"rows": [1, 5, 32], "columns": [1, 31, 129, 1000]},
    inputs={"x": ["rows", "columns"]},
    dtypes=["float32", "float16"],
    op_class="normalisation",
    invariants=["sums_to_one", "non_negative", "shape_preserved"],
)
def softmax(x):
    """Softmax over the last axis in blocks of 128 with a running maximum and sum."""
    top = torch.full(x.shape[:-1], -torch.inf, device=x.device)
    total = torch.zeros(x.shape[:-1], device=x.device)
    for block in x.float().split(128, dim=-1):
        new = torch.maximum(top, block.amax(-1))
        # Leave out the rescaling (the factor before the sum) and see what the farm says.
        total = torch.exp(top - new) * total + torch.exp(block - new[..., None]).sum(-1)
        top = new
    return (torch.exp(x.float() - top[..., None]) / total[..., None]).to(x.dtype)


def rms_norm(x, weight, eps):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype)
