"""Models that torch.compile gets wrong, as in public reports, each beside one that it gets right."""

import torch
import torch.nn as nn


class ResizedView(nn.Module):
    """A view is resized; what it was a view of keeps its size."""

    def forward(self, x):
        base = x.reshape(-1) * 2
        base.view(-1).resize_(40)
        return base - 1


class ResizedCopy(nn.Module):
    def forward(self, x):
        base = x.reshape(-1) * 2
        base.clone().resize_(40)
        return base - 1


def _step(p, g, m, v, count):
    count.add_(1)
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    n = count.item()  # a graph break
    scale = (v.sqrt() / ((1 - 0.99**n) ** 0.5)).add_(1e-8)
    p.addcdiv_(m, scale, value=-0.1 / (1 - 0.9**n))


class Steps(nn.Module):
    """Steps of Adam in a loop, with the number of the step as a Python number."""

    def forward(self, x):
        p, g = x.clone(), x.cos()
        m, v, count = torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())
        for _ in range(5):
            _step(p, g, m, v, count)
        return p


class StepsAsTensors(nn.Module):
    def forward(self, x):
        p, g = x.clone(), x.cos()
        m, v = torch.zeros_like(p), torch.zeros_like(p)
        for n in range(1, 6):
            m, v = m * 0.9 + g * 0.1, v * 0.99 + g * g * 0.01
            p = p - 0.1 / (1 - 0.9**n) * m / (v.sqrt() / (1 - 0.99**n) ** 0.5 + 1e-8)
        return p


def get_inputs():
    return [torch.randn(4, 8)]
