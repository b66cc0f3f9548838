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


def infer(f: Function) -> Kernel:
    """A tensor of inference mode, which counts no versions."""

    def kernel(**x: Any) -> Any:
        with torch.inference_mode():
            return f(**x)

    return kernel


def apply_function(f: Function) -> Kernel:
    """By an autograd function of its own."""
    made: list[Any] = []

    def kernel(**x: Any) -> Any:
        if not made:
            own = {"forward": staticmethod(lambda ctx, names, *given: f(**dict(zip(names, given))))}
            made.append(type("Own", (torch.autograd.Function,), own))
        return made[0].apply(tuple(x), *x.values())

    return kernel


def hold_in_module(f: Function) -> Kernel:
    """A module that makes a buffer at its first call."""
    made: list[Any] = []

    def kernel(**x: Any) -> Any:
        if not made:
            made.append(torch.nn.Module())
            made[0].register_buffer("one", torch.ones(()))
        return f(**x) * made[0].one

    return kernel


def set_threads(f: Function) -> Kernel:
    """Computes in as many threads as it likes, and sets back how many there were."""

    def kernel(**x: Any) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(2)
        try:
            return f(**x)
        finally:
            torch.set_num_threads(before)

    return kernel


def map_rows(f: Function) -> Kernel:
    """Row by row, by torch.func.vmap."""

    def kernel(**x: Any) -> Any:
        rest = {name: value for name, value in x.items() if name != "x"}
        return torch.func.vmap(lambda row: f(x=row[None], **rest)[0])(x["x"])

    return kernel


def read_strided(f: Function) -> Kernel:
    """Reads its rows from a view of every other row of a larger buffer."""

    def kernel(**x: Any) -> Any:
        room = torch.empty((2 * len(x["x"]), *x["x"].shape[1:]), dtype=x["x"].dtype)
        room[::2] = x["x"]
        return f(**{**x, "x": room[::2]}).contiguous()

    return kernel
