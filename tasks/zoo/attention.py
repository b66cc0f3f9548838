"""Attention and what belongs to it: online softmax, masks, heads, rotary positions, the loss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tasks.operators.formulas import compute_softmax
from tasks.zoo.specimen import INF, Kernel, Theme, torch

THEME = Theme("attention", __name__)
BLOCK = 32


def _attention_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, diagonal: int | None = None) -> np.ndarray:
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if diagonal is not None:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool), diagonal), scores, -np.inf)
    return compute_softmax(scores) @ v


def _flash(
    scale: bool = True,
    rescale: bool = True,
    rescale_sum: bool = True,
    drop_last: bool = False,
    pad: float = -INF,
    causal: bool = False,
    diagonal: int = 0,
    cast: str = "",
    divide: bool = True,
) -> Kernel:
    """Keys and values in blocks with an online softmax (Milakov, Gimelshein 2018; Dao et al. 2022).

    rescale, rescale_sum: whether output and denominator follow a new maximum; pad: score of the padded keys;
    diagonal: where the causal mask ends; cast: dtype of the scores; divide: by the denominator, at the end.
    """

    def kernel(q: Any, k: Any, v: Any) -> Any:
        q_, k_, v_ = q.float(), k.float(), v.float()
        length, rows = k.shape[-2], q.shape[-2]
        factor = 1 / math.sqrt(q.shape[-1]) if scale else 1.0
        top = torch.full((*q.shape[:-1], 1), -INF)
        total, out = torch.zeros_like(top), torch.zeros_like(q_)
        for at in range(0, length - length % BLOCK if drop_last else length, BLOCK):
            kb, vb = k_[..., at : at + BLOCK, :], v_[..., at : at + BLOCK, :]
            s = q_ @ kb.transpose(-1, -2) * factor
            if causal:
                keys, queries = torch.arange(at, at + kb.shape[-2]), torch.arange(rows)[:, None]
                s = s.masked_fill(keys > queries + diagonal, -INF)
            missing = BLOCK - s.shape[-1]
            s = torch.nn.functional.pad(s, (0, missing), value=pad)
            vb = torch.nn.functional.pad(vb, (0, 0, 0, missing))
            s = s.to(getattr(torch, cast)).float() if cast else s
            new = torch.maximum(top, s.amax(-1, keepdim=True))
            old, p = torch.exp(top - new), torch.exp(s - new)
            total = total * (old if rescale_sum else 1.0) + p.sum(-1, keepdim=True)
            out = out * (old if rescale else 1.0) + p @ vb
            top = new
        return (out / total if divide else out).to(q.dtype)

    return kernel


HEADS = {"q": ["heads", "n", 16], "k": ["heads", "n", 16], "v": ["heads", "n", 16]}

THEME.add(
    "attention",
    reference=_attention_reference,
    inputs={name: {"shape": shape, "low": -2, "high": 2} for name, shape in HEADS.items()},
    dims={"heads": [2], "n": [33, 65, 100]},
    dtypes=["float32", "float16"],
    op_class="composite",
    right=_flash(),
    wrong={
        "no_scale": ("missing scale", _flash(scale=False)),
        "output_not_rescaled": ("missing rescale", _flash(rescale=False)),
        "sum_not_rescaled": ("missing rescale", _flash(rescale_sum=False)),
        "dropped_last_block": ("dropped last block", _flash(drop_last=True)),
        "zero_padding": ("padding value", _flash(pad=0.0)),
        "not_divided": ("missing scale", _flash(divide=False)),
    },
)

THEME.add(
    "attention_f32",
    reference=_attention_reference,
    inputs=HEADS,
    dims={"heads": [2], "n": [33, 65]},
    op_class="composite",
    right=_flash(),
    wrong={"bfloat16_scores": ("coarse precision", _flash(cast="bfloat16"))},
)

THEME.add(
    "causal_attention",
    reference=lambda q, k, v: _attention_reference(q, k, v, 0),
    inputs=HEADS,
    dims={"heads": [2], "n": [31, 33, 64]},
    op_class="composite",
    right=_flash(causal=True),
    wrong={
        "one_ahead": ("mask", _flash(causal=True, diagonal=1)),
        "without_self": ("mask", _flash(causal=True, diagonal=-1)),
        "not_causal": ("argument ignored", _flash()),
    },
)


def _window(width: int = 8) -> Kernel:
    def kernel(q: Any, k: Any, v: Any) -> Any:
        n = q.shape[-2]
        back = torch.arange(n)[:, None] - torch.arange(n)
        s = (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).masked_fill((back < 0) | (back >= width), -INF)
        return torch.softmax(s, -1) @ v

    return kernel


def _window_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    n = q.shape[-2]
    back = np.arange(n)[:, None] - np.arange(n)
    return (
        compute_softmax(
            np.where((back >= 0) & (back < 8), q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]), -np.inf)
        )
        @ v
    )


THEME.add(
    "window_attention",
    reference=_window_reference,
    inputs=HEADS,
    dims={"heads": [2], "n": [7, 20]},
    op_class="composite",
    right=_window(),
    wrong={"one_wider": ("mask", _window(9))},
)


def _grouped(interleaved: bool = False, transposed: bool = False) -> Kernel:
    """Eight query heads on two key heads: repeated one by one, or (wrongly) as a whole."""

    def kernel(q: Any, k: Any, v: Any) -> Any:
        spread = (lambda x: x.repeat(4, 1, 1)) if interleaved else (lambda x: x.repeat_interleave(4, 0))
        s = q @ spread(k).transpose(-1, -2) / math.sqrt(q.shape[-1])
        return torch.softmax(s, -2 if transposed else -1) @ spread(v)

    return kernel


THEME.add(
    "grouped_query_attention",
    reference=lambda q, k, v: _attention_reference(q, np.repeat(k, 4, 0), np.repeat(v, 4, 0)),
    inputs={"q": [8, "n", 8], "k": [2, "n", 8], "v": [2, "n", 8]},
    dims={"n": [9, 17]},
    op_class="composite",
    right=_grouped(),
    wrong={
        "heads_interleaved": ("grouping", _grouped(interleaved=True)),
        "softmax_over_queries": ("wrong axis", _grouped(transposed=True)),
    },
)


def _masked(multiply: bool = False, low: float = -INF) -> Kernel:
    """A mask that selects, or one that multiplies: 0 · Inf is NaN."""

    def kernel(x: Any, keep: Any) -> Any:
        return x * keep if multiply else torch.where(keep, x, torch.zeros_like(x))

    return kernel


THEME.add(
    "masked_values",
    reference=lambda x, keep: np.where(keep, x, 0.0),
    op_class="exact",
    inputs={
        "x": {"shape": [8], "data": [1, INF, -2, -INF, 3, math.nan, 4, 0]},
        "keep": {"shape": [8], "dtype": "bool", "data": [1, 0, 1, 0, 0, 0, 1, 1]},
    },
    right=_masked(),
    wrong={"multiplied": ("mask", _masked(multiply=True))},
)


def _rope_reference(x: np.ndarray) -> np.ndarray:
    n, d = x.shape[-2:]
    angle = np.arange(n)[:, None] / 10000.0 ** (np.arange(d // 2) * 2 / d)
    a, b = x[..., : d // 2], x[..., d // 2 :]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def _rope(interleaved: bool = False, sign: int = 1, first: int = 0, base: float = 10000.0) -> Kernel:
    """Pairs are (i, i + d/2), or (wrongly) neighbours; first: position of the first row."""

    def kernel(x: Any) -> Any:
        n, d = x.shape[-2:]
        frequency = base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = torch.arange(first, n + first, dtype=torch.float64)[:, None] * frequency
        cos, sin = angle.cos().float(), sign * angle.sin().float()
        a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., : d // 2], x[..., d // 2 :])
        a, b = a * cos - b * sin, b * cos + a * sin
        return torch.stack([a, b], -1).flatten(-2) if interleaved else torch.cat([a, b], -1)

    return kernel


THEME.add(
    "rope",
    reference=_rope_reference,
    inputs={"x": ["heads", "n", 16]},
    dims={"heads": [2], "n": [17, 64]},
    op_class="composite",
    right=_rope(),
    wrong={
        "neighbours_paired": ("pairing", _rope(interleaved=True)),
        "turned_back": ("sign", _rope(sign=-1)),
        "first_position_1": ("off by one", _rope(first=1)),
        "other_base": ("argument ignored", _rope(base=500000.0)),
    },
)


def _dropout(scale: str = "keep") -> Kernel:
    factor = {"keep": 1 / 0.75, "none": 1.0, "drop": 1 / 0.25}[scale]
    return lambda x, keep: torch.where(keep, x * factor, torch.zeros_like(x))


THEME.add(
    "dropout",
    reference=lambda x, keep: np.where(keep, x / 0.75, 0.0),
    inputs={"x": ["n"], "keep": {"shape": ["n"], "dtype": "bool"}},
    dims={"n": [33, 128]},
    op_class="elementary",
    right=_dropout(),
    wrong={"not_scaled": ("missing scale", _dropout("none")), "scaled_by_dropped": ("missing scale", _dropout("drop"))},
)


def _cross_entropy_reference(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    top = x.max(-1, keepdims=True)
    logs = x - top - np.log(np.exp(x - top).sum(-1, keepdims=True))
    kept = target != 0
    return np.asarray(-logs[np.arange(len(target)), target][kept].sum() / kept.sum())


def _cross_entropy(
    count_all: bool = False, shift: bool = True, sign: int = -1, off: int = 0, ignore: bool = True
) -> Kernel:
    """The mean loss over targets that are not class 0, which is ignored."""

    def kernel(x: Any, target: Any) -> Any:
        logs = torch.log_softmax(x, -1) if shift else torch.log(torch.exp(x) / torch.exp(x).sum(-1, keepdim=True))
        kept = (target != 0) if ignore else torch.ones_like(target, dtype=torch.bool)
        picked = logs[torch.arange(len(target)), (target + off) % x.shape[-1]]
        return sign * torch.where(kept, picked, 0.0).sum() / (len(target) if count_all else kept.sum())

    return kernel


THEME.add(
    "cross_entropy",
    reference=_cross_entropy_reference,
    inputs={
        "x": {"shape": ["n", 10], "low": -90, "high": 90},
        "target": {"shape": ["n"], "dtype": "int64", "data": [0, 3, 9, 0, 1, 4, 8]},
    },
    dims={"n": [7, 33]},
    op_class="composite",
    right=_cross_entropy(),
    wrong={
        "ignored_are_counted": ("mask", _cross_entropy(count_all=True)),
        "nothing_ignored": ("argument ignored", _cross_entropy(ignore=False)),
        "no_shift": ("overflow", _cross_entropy(shift=False)),
        "positive": ("sign", _cross_entropy(sign=1)),
        "next_class": ("off by one", _cross_entropy(off=1)),
    },
)
