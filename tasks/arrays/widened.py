"""Torch programs in float64, whatever they cast to, and with every rounded result moved as a draw of the noise says."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from tasks.arrays import noise

#: Ops that only move, choose or make numbers: nothing is rounded. Views are known by their schema.
MOVEMENT = frozenset(
    "_to_copy _unsafe_view cat clone constant_pad_nd copy detach embedding empty fill full full_like gather index "
    "index_select lift_fresh max_pool2d_with_indices neg new_zeros ones ones_like relu repeat scatter select_backward "
    "slice_backward stack threshold_backward topk tril triu where zeros zeros_like masked_fill scalar_tensor arange zero "
    "max_pool2d_with_indices_backward eq ne lt le gt ge abs sign roll flip sort maximum minimum".split()
)


#: Parts of the names of what `torch.autocast` computes in a narrower dtype: products, and what is made of them.
PRODUCTS = ("mm", "convolution", "attention", "matmul", "linear")


def does_op_only_move(func: Any) -> bool:
    """Whether an op of torch's dispatcher rounds nothing."""
    return func.is_view or func.overloadpacket.__name__.rstrip("_") in MOVEMENT


@contextlib.contextmanager
def compute_in_float64(
    eps: float = 0.0, draw: int = 0, elsewhere: float | None = None, places: Iterator[int] | None = None
) -> Iterator[None]:
    """In here torch computes in float64 on the CPU: a cast to a narrower floating dtype, or a tensor made in one, is
    float64.

    Programs that cast by themselves (a norm that sums in float32) are so evaluated exactly, forward and backward.
    eps: if not 0, every result that a runtime would round, gradients' included, is moved as a draw says
    (`tasks.arrays.noise`). elsewhere: the ε of all but products, if it is another. places: tell the results apart; the
    same that tell apart what else the evaluation moves. torch's default dtype is float64 inside.
    """
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _make_widening_mode()(eps, draw, eps if elsewhere is None else elsewhere, places or itertools.count(1)):
            yield
    finally:
        torch.set_default_dtype(before)


@functools.cache
def _make_widening_mode() -> Any:
    """The class of the mode: torch takes longer to make one than to run an op in it."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    narrow = (torch.float32, torch.float16, torch.bfloat16)

    def wide(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return torch.float64 if x in narrow else x
        return x

    class Wide(TorchDispatchMode):
        def __init__(self, eps: float, draw: int, elsewhere: float, places: Iterator[int]) -> None:
            super().__init__()
            self.eps, self.draw, self.elsewhere, self.places = eps, draw, elsewhere, places

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            args = tuple(map(wide, args))
            out = func(*args, **{name: wide(x) for name, x in (kwargs or {}).items()})
            if self.eps and not does_op_only_move(func):
                name = func.overloadpacket.__name__
                eps = self.eps if any(part in name for part in PRODUCTS) else self.elsewhere
                for x in out if isinstance(out, (tuple, list)) else (out,):
                    self.move(x, eps)
            return out

        def move(self, x: Any, eps: float) -> None:
            if isinstance(x, torch.Tensor) and x.dtype == torch.float64 and x.numel():
                noise.perturb_in_place(x.detach().numpy(), eps, self.draw, next(self.places))

    return Wide
