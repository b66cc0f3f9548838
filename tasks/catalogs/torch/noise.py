"""What a noise draw does to torch's arguments: widened to float64, and moved by a relative ±ε from tables of random factors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple([replaced(x, change) for x in value])
    if kind is list:
        return [replaced(x, change) for x in value]
    if kind is dict:
        return {k: replaced(x, change) for k, x in value.items()}
    return change(value)


def widen(x: Any) -> Any:
    """float64 (complex128) twin of a tensor or dtype, never sharing memory; everything else as it is."""
    import torch

    if isinstance(x, torch.Tensor):
        x = x.detach()
        if x.is_floating_point():
            return x.to(torch.float64, copy=True)
        return x.to(torch.complex128, copy=True) if x.is_complex() else x.clone()
    if isinstance(x, torch.dtype):
        return torch.float64 if x.is_floating_point else torch.complex128 if x.is_complex else x
    return x


def clone(x: Any) -> Any:
    import torch

    return x.detach().clone() if isinstance(x, torch.Tensor) else x


#: Length of the table of random factors: a prime, so that no shape falls in step with its period.
_TABLE = 262147
#: Number of tables; further draws begin elsewhere in them.
_TABLES = 16


@functools.lru_cache(maxsize=64)
def _factors(eps: float, draw: int) -> Any:
    """1 + ε·u for one draw, u of random sign and size in [½, 1], shape (_TABLE,), float64.

    Sizes differ from draw to draw, so that a short sum does not cancel in all of them; draw k+2 has the
    opposite signs of draw k, so that a step of a discontinuous op is met from both sides.
    """
    import torch

    signs = np.random.Generator(np.random.PCG64([20, draw // 4 * 2 + draw % 2])).integers(0, 2, _TABLE) * 2 - 1
    sizes = np.random.Generator(np.random.PCG64([21, draw])).uniform(0.5, 1.0, _TABLE)
    return torch.from_numpy(1.0 + eps * (signs if draw % 4 < 2 else -signs) * sizes)


def moved(x: Any, eps: float, draw: int, place: int) -> Any:
    """``x`` widened, every element times its factor of the draw; ``place`` tells the tensors of a call apart."""
    import torch

    x = x.detach()
    if x.layout != torch.strided:
        wide = widen(x)
        values = wide._values() if x.layout == torch.sparse_coo else wide.values()
        values.mul_(moved(torch.ones_like(values), eps, draw, place))
        return wide
    factors, n = _factors(eps, draw % _TABLES), x.numel()
    start = (place + draw // _TABLES) * 104729 % (_TABLE // 2)
    if n > _TABLE - start:
        # Row by row of the table's length: no table as large as the tensor is ever made.
        block = factors[start:]
        wide = widen(x).contiguous()
        flat, rows = wide.view(-1), n // len(block)
        flat[: rows * len(block)].view(rows, len(block)).mul_(block)
        flat[rows * len(block) :].mul_(block[: n - rows * len(block)])
        return wide
    f = factors[start : start + n].view(x.shape)
    if x.is_complex():
        return x.to(torch.complex128) * f
    return torch.mul(x, f) if x.dim() or x.dtype == torch.float64 else x.double() * f


def jittered(x: Any, eps: float, draw: int, place: int) -> Any:
    """``x`` with every element times a factor that its value, the draw and ``place`` decide: what is equal and has the
    same place stays equal (the gradient of a maximum looks for the elements that are equal to it)."""
    import torch

    x = x.detach()
    if x.dtype not in (torch.float64, torch.complex128) or x.layout != torch.strided:
        return x
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    bits = parts.contiguous().view(torch.int64)
    # Fibonacci hashing to 18 bits, less than _TABLE.
    moved = parts * _factors(eps, draw % _TABLES)[((bits + place) * -0x61C8864680B583EB >> 46) & 0x3FFFF]
    return torch.view_as_complex(moved) if x.is_complex() else moved
