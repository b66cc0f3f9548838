"""Through NumPy, on the CPU."""

import numpy as np
import torch


def softmax(x):
    a = x.detach().cpu().numpy().astype(np.float64)
    e = np.exp(a - a.max(-1, keepdims=True))
    return torch.from_numpy(e / e.sum(-1, keepdims=True)).to(x)
