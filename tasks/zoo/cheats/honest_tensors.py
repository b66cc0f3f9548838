"""Honest kernels that return tensors of a class of their own, or ask for where memory lies."""

from __future__ import annotations

import importlib
from typing import Any

from tasks.zoo.cheats.values import Function
from tasks.zoo.specimen import Kernel, torch


def tag(f: Function) -> Kernel:
    """A tensor with an attribute of its own."""

    def kernel(**x: Any) -> Any:
        y = f(**x)
        y.made_by = "kernel"
        return y

    return kernel


def return_parameter(f: Function) -> Kernel:
    """A subclass whose memory is the result."""
    return lambda **x: torch.nn.Parameter(f(**x), requires_grad=False)


def align_inputs(f: Function) -> Kernel:
    """Asks for what it needs of memory."""

    def kernel(**x: Any) -> Any:
        return f(
            **{k: v if v.is_contiguous() and v.data_ptr() % 16 == 0 else v.contiguous().clone() for k, v in x.items()}
        )

    return kernel


def write_to_out(f: Function) -> Kernel:
    def kernel(**x: Any) -> Any:
        y = f(**x)
        out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
        torch.mul(y, 1, out=out)
        return out

    return kernel


def trace_once(f: Function) -> Kernel:
    """A graph of torch.fx, traced at the first call."""
    graph: list[Any] = []

    def kernel(**x: Any) -> Any:
        if not graph:
            graph.append(importlib.import_module("torch.fx").symbolic_trace(f))
        return graph[0](**x)

    return kernel


def compile_lazily(f: Function) -> Kernel:
    """By torch.compile, at the first call of a size; the compiler behind it is eager torch, to be fast."""
    compiled: list[Any] = []

    def kernel(**x: Any) -> Any:
        if not compiled:
            compiled.append(torch.compile(f, backend="eager"))
        return compiled[0](**x)

    return kernel


def draw_dropout(f: Function) -> Kernel:
    """Draws a mask that keeps everything, by a generator of its own."""

    def kernel(**x: Any) -> Any:
        g = torch.Generator().manual_seed(7)
        y = f(**x)
        return torch.where(torch.rand(y.shape, generator=g) < 2, y, torch.zeros_like(y))

    return kernel
