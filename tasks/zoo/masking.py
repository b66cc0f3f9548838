"""Tails: kernels that work in blocks, and what they do with a last block that is not full."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.operators.formulas import compute_softmax
from tasks.zoo.specimen import BLOCK, INF, SIZES, Kernel, Theme, blocks, padded, torch

THEME = Theme("masked tails", __name__)
ROWS = {"x": ["rows", "n"]}
DIMS = {"rows": [3], "n": SIZES}


def _softmax(pad: float = -INF, shift: bool = True, axis: int = -1, drop_last: bool = False, extra: int = 0) -> Kernel:
    """extra: elements of the tail beyond the end that the mask lets through, as large as the inputs may be."""

    def kernel(x: Any) -> Any:
        n = x.shape[-1]
        tail = padded(x.float(), pad)
        tail[..., n : n + extra] = 3.0
        e = torch.exp(tail - tail.amax(axis, keepdim=True) if shift else tail)
        if drop_last:
            e[..., n - n % BLOCK :] = 0.0
        return (e / e.sum(axis, keepdim=True))[..., :n].to(x.dtype)

    return kernel


THEME.add(
    "softmax",
    reference=lambda x: compute_softmax(x),
    inputs={"x": {"shape": ["rows", "n"], "low": -3, "high": 3}},
    dims=DIMS,
    dtypes=["float32", "float16"],
    op_class="normalisation",
    invariants=["non_negative", "sums_to_one"],
    right=_softmax(),
    wrong={
        "zero_padding": ("padding value", _softmax(pad=0.0)),
        "dropped_last_block": ("dropped last block", _softmax(drop_last=True)),
        "one_too_many": ("off by one", _softmax(extra=1)),
        "wrong_axis": ("wrong axis", _softmax(axis=0)),
    },
)

THEME.add(
    "softmax_of_large",
    reference=lambda x: compute_softmax(x),
    inputs={"x": {"shape": ["rows", "n"], "low": -200, "high": 200}},
    dims=DIMS,
    op_class="normalisation",
    right=_softmax(),
    wrong={"no_shift": ("overflow", _softmax(shift=False))},
)


def _row_max(start: float = -INF, drop_last: bool = False, keepdim: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        top = torch.full(x.shape[:-1], start, dtype=x.dtype)
        for part in blocks(x.shape[-1], drop_last):
            top = torch.maximum(top, x[..., part].amax(-1))
        return top.unsqueeze(-1) if keepdim else top

    return kernel


THEME.add(
    "row_max",
    reference=lambda x: x.max(-1),
    inputs={"x": {"shape": ["rows", "n"], "low": -9, "high": -1}},
    dims={"rows": [16], "n": SIZES},
    dtypes=["float32", "bfloat16"],
    op_class="exact",
    right=_row_max(),
    wrong={
        "from_zero": ("reduction identity", _row_max(0.0)),
        "dropped_last_block": ("dropped last block", _row_max(drop_last=True)),
        "keepdim": ("wrong shape", _row_max(keepdim=True)),
    },
)


def _row_min(pad: float = INF) -> Kernel:
    return lambda x: padded(x, pad).amin(-1)


THEME.add(
    "row_min",
    reference=lambda x: x.min(-1),
    inputs={"x": {"shape": ["rows", "n"], "low": 1, "high": 9}},
    dims=DIMS,
    op_class="exact",
    right=_row_min(),
    wrong={"zero_padding": ("padding value", _row_min(0.0))},
)

THEME.add(
    "row_prod",
    reference=lambda x: x.prod(-1),
    inputs={"x": {"shape": ["rows", "n"], "low": 0.9, "high": 1.1}},
    dims=DIMS,
    op_class="reduction",
    right=lambda x: padded(x, 1.0).prod(-1),
    wrong={"zero_padding": ("padding value", lambda x: padded(x, 0.0).prod(-1))},
)


def _axpy(
    alpha: bool = True, drop_last: bool = False, short: int = 0, sign: int = 1, empty: bool = False, whole: int = 0
) -> Kernel:
    """short: how many elements before the end the bound check stops, whole: where the last block is full; empty: the
    output is not cleared before."""

    def kernel(x: Any, y: Any, a: float) -> Any:
        out = (torch.empty_like if empty else torch.zeros_like)(y)
        end = x.numel() - (whole if x.numel() % BLOCK == 0 else short)
        for part in blocks(end, drop_last):
            out[part] = (a if alpha else 1.0) * x[part] + sign * y[part]
        return out

    return kernel


THEME.add(
    "axpy",
    reference=lambda x, y, a: a * x + y,
    inputs={"x": ["n"], "y": ["n"]},
    kwargs={"a": 2.5},
    dims={"n": SIZES},
    dtypes=["float32", "bfloat16"],
    op_class="composite",
    right=_axpy(),
    wrong={
        "no_scale": ("missing scale", _axpy(alpha=False)),
        "dropped_last_block": ("dropped last block", _axpy(drop_last=True)),
        "last_element": ("off by one", _axpy(short=1)),
        "last_of_whole_blocks": ("off by one", _axpy(whole=1)),
        "minus": ("sign", _axpy(sign=-1)),
        "tail_not_written": ("uninitialised", _axpy(drop_last=True, empty=True)),
    },
)


def _cumsum(carry: str = "add", exclusive: bool = False, reverse: bool = False) -> Kernel:
    """carry: what becomes of the sum of the blocks before: "add", "last" (of the last block alone) or "none"."""

    def kernel(x: Any) -> Any:
        x = x.flip(-1) if reverse else x
        parts, total = [], torch.zeros(*x.shape[:-1], 1)
        for part in blocks(x.shape[-1]):
            piece = x[..., part].float().cumsum(-1)
            parts.append(piece if carry == "none" else piece + total)
            total = piece[..., -1:] if carry == "last" else total + piece[..., -1:]
        out = torch.cat(parts, -1)
        out = out - x if exclusive else out
        return (out.flip(-1) if reverse else out).to(x.dtype)

    return kernel


THEME.add(
    "cumsum",
    reference=lambda x: np.cumsum(x, -1),
    inputs=ROWS,
    dims={"rows": [3], "n": [255, 257, 300, 640]},
    op_class="reduction",
    right=_cumsum(),
    wrong={
        "carry_of_last_block": ("acc= for acc+=", _cumsum(carry="last")),
        "no_carry": ("missing rescale", _cumsum(carry="none")),
        "exclusive": ("off by one", _cumsum(exclusive=True)),
        "reversed": ("order", _cumsum(reverse=True)),
    },
)
