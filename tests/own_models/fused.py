"""Faults in fusions: each operator is right by itself, and wrong where the compiler joins it with the one before."""

import torch
import torch.nn as nn
from torch._inductor import ir
from torch._inductor.fx_passes import post_grad
from torch._inductor.lowering import lowerings, mul
from torch._inductor.pattern_matcher import Arg, CallFunction, register_graph_pattern

aten = torch.ops.aten


@register_graph_pattern(
    CallFunction(aten.atan.default, CallFunction(aten.sinh.default, Arg())), pass_dict=post_grad.pass_patterns[1]
)
def gudermannian(match, x):
    """Planted: a pass knows the two as one function, and its formula is for small arguments alone."""
    match.replace_by_example(lambda x: x - x * x * x / 6, [x])


_tanh = lowerings[aten.tanh.default]


def tanh(x):
    """Planted: joined to what makes its argument it is a thousandth off; of what lies in memory it is right."""
    joined = isinstance(x.data, ir.StorageBox) and isinstance(x.data.data, ir.Pointwise)
    return mul(_tanh(x), 1.001) if joined else _tanh(x)


lowerings[aten.tanh.default] = lowerings[aten.tanh] = tanh


class PassWrong(nn.Module):
    def forward(self, x):
        return torch.atan(torch.sinh(x)) + 2


class PassTwin(nn.Module):
    """The two operators, which no pass finds together."""

    def forward(self, x):
        return torch.atan(x) + torch.sinh(x)


class LoweringWrong(nn.Module):
    def forward(self, x):
        return torch.tanh(torch.exp(x))


class LoweringTwin(nn.Module):
    """The tanh of an input, and the exp of a tanh."""

    def forward(self, x):
        return torch.exp(torch.tanh(x))


def get_inputs():
    return [torch.randn(4, 8)]
