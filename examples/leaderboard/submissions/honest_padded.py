"""Batches of rows of a fixed size, the last one padded."""

import torch

BATCH = 8


def softmax(x):
    rows = x.shape[0]
    padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % BATCH))
    return torch.cat([torch.softmax(part, -1) for part in padded.split(BATCH)])[:rows]
