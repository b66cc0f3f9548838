"""Refuses nothing: makes its input contiguous first."""

import torch


def softmax(x):
    return torch.softmax(x.contiguous(), dim=-1)
