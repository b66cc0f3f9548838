"""Reflection padding, a view, halves of it and their distance (pytorch/pytorch#151198)."""

import torch


class Distance(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.pad = torch.nn.ReflectionPad3d(1)
        self.dist = torch.nn.PairwiseDistance(p=2)

    def forward(self, x):
        x = self.pad(x)
        x = x.view(x.size(0), -1)
        x = torch.chunk(x, 2, dim=1)
        return self.dist(x[0], x[1])


def get_inputs():
    return [torch.randn(2, 3, 4, 4, 4)]
