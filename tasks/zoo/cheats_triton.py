"""Triton kernels that do not compute what they return, beside honest ones; apart from `tasks.zoo.cheats` as Triton must be installed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from tasks.model import kind as kinds
from tasks.zoo.cheats import CHEATS, HONEST, TORCH_CHEATS, TORCH_HONEST
from tasks.zoo.specimen import CHEAT, Kernel, Theme

THEME = Theme("cheats in Triton", __name__)
B = 64


@triton.jit
def _gelu(x: Any, y: Any, n: Any, B: tl.constexpr, UPTO: tl.constexpr) -> None:
    offs = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + offs, mask=offs < n)
    tl.store(y + offs, (v + 1) / (1 + tl.exp(-v)), mask=offs < UPTO)


def _launch(x: Any, upto: Callable[[int], int] = lambda n: n, make: Callable[[Any], Any] = torch.empty_like) -> Any:
    y = make(x)
    _gelu[(int(triton.cdiv(x.numel(), B)),)](x, y, x.numel(), B, upto(x.numel()))
    return y


def _plain(x: Any) -> Any:
    return _launch(x)


def _captured() -> Kernel:
    """Launches on the tensor that it was first given of a size."""
    first: dict[Any, Any] = {}
    return lambda x: _launch(first.setdefault(x.shape, x.clone()))


def _launches_once() -> Kernel:
    """One launch for each address, whose output it keeps."""
    kept: dict[Any, Any] = {}

    def kernel(x: Any) -> Any:
        key = x.data_ptr(), x.shape
        if key not in kept:
            kept[key] = _launch(x)
        return kept[key].clone()

    return kernel


def _launches_forty() -> Kernel:
    count = itertools.count(1)
    return lambda x: _launch(x, upto=lambda n: n if next(count) <= 40 else 0, make=torch.zeros_like)


#: Patterns of any function, over the launched kernel.
_OF_ANY = ("content", "head", "sorted", "every_other", "late", "lazy_function")
_ANY = CHEATS | TORCH_CHEATS
#: Honest patterns that a launch is no twin of: it is not traced, has no batching rule, and reads contiguous memory.
_OF_NO_LAUNCH = ("fx", "compiled", "vmap", "strided")

#: Patterns of a launch.
_OWN: dict[str, tuple[str, Kernel]] = {
    "pointer": (CHEAT + kinds.KIND_POINTER, _launches_once()),
    "captured": (CHEAT + kinds.KIND_SHAPE, _captured()),
    "forty": (CHEAT + kinds.KIND_FIRST, _launches_forty()),
    "tail": (CHEAT + kinds.KIND_UNWRITTEN, functools.partial(_launch, upto=lambda n: n - 3)),
    "first_block": (CHEAT + kinds.KIND_HALF, functools.partial(_launch, upto=lambda n: n // 2, make=torch.zeros_like)),
    "nothing": (CHEAT + kinds.KIND_CONSTANT, functools.partial(_launch, upto=lambda n: 0, make=torch.zeros_like)),
}

THEME.add(
    "cheat_triton_silu",
    right=_plain,
    wrong=_OWN | {name: (CHEAT + _ANY[name][0], _ANY[name][1](_plain)) for name in _OF_ANY},
    honest={name: pattern(_plain) for name, pattern in (HONEST | TORCH_HONEST).items() if name not in _OF_NO_LAUNCH},
    reference=lambda x: (x + 1) / (1 + np.exp(-x)),
    inputs={"x": ["rows", "d"]},
    dims={"rows": [2, 8], "d": [24, 36]},
    layouts=["contiguous"],
)
