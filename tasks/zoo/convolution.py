"""Convolution, pooling and resampling: windows and what lies beyond the border."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import INF, Kernel, Theme, torch

THEME = Theme("windows", __name__)


def _conv_reference(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray, pad: tuple[int, int] = (1, 2), stride: int = 2, dilation: int = 2
) -> np.ndarray:
    """Cross-correlation over the last axis; x [in, n], w [out, in, k]."""
    x = np.pad(x, ((0, 0), pad))
    reach = (w.shape[-1] - 1) * dilation
    starts = range(0, x.shape[-1] - reach, stride)
    return np.stack([np.einsum("ik,oik->o", x[:, s : s + reach + 1 : dilation], w) + bias for s in starts], -1)


def _conv(
    pad: tuple[int, int] = (1, 2),
    stride: int = 2,
    dilation: int = 2,
    flip: bool = False,
    bias: bool = True,
    short: int = 0,
    swap: bool = False,
) -> Kernel:
    """short: taps left out at the end of the window; swap: the output's channels in reverse."""

    def kernel(x: Any, w: Any, bias_: Any) -> Any:
        w = w.flip(-1) if flip else w
        w = torch.cat([w[..., : w.shape[-1] - short], torch.zeros_like(w[..., :short])], -1)
        x = torch.nn.functional.pad(x, pad)
        out = torch.nn.functional.conv1d(x[None], w, bias_ if bias else None, stride, 0, dilation)[0]
        return out.flip(0) if swap else out

    return kernel


THEME.add(
    "conv1d",
    reference=lambda x, w, bias_: _conv_reference(x, w, bias_),
    inputs={"x": [3, "n"], "w": [4, 3, 3], "bias_": [4]},
    dims={"n": [15, 32, 129]},
    op_class="contraction",
    right=_conv(),
    wrong={
        "padding_swapped": ("border", _conv(pad=(2, 1))),
        "flipped": ("order", _conv(flip=True)),
        "no_bias": ("argument ignored", _conv(bias=False)),
        "last_tap": ("off by one", _conv(short=1)),
        "channels_reversed": ("order", _conv(swap=True)),
    },
)


def _grouped(groups: int = 2, shuffled: bool = False) -> Kernel:
    def kernel(x: Any, w: Any) -> Any:
        x = x.reshape(groups, -1, x.shape[-1]).transpose(0, 1).reshape(x.shape) if shuffled else x
        return torch.nn.functional.conv1d(x[None], w, groups=groups)[0]

    return kernel


def _grouped_reference(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    parts = [_conv_reference(x[2 * g : 2 * g + 2], w[2 * g : 2 * g + 2], np.zeros(2), (0, 0), 1, 1) for g in range(2)]
    return np.concatenate(parts)


THEME.add(
    "grouped_conv1d",
    reference=_grouped_reference,
    inputs={"x": [4, "n"], "w": [4, 2, 3]},
    dims={"n": [9, 33]},
    op_class="contraction",
    right=_grouped(),
    wrong={"channels_shuffled": ("grouping", _grouped(shuffled=True))},
)


def _windows(x: np.ndarray, pad: tuple[int, int], value: float) -> np.ndarray:
    """Windows of 3 with stride 2 over the padded last axis: [..., windows, 3]."""
    x = np.pad(x, ((0, 0), pad), constant_values=value)
    return np.lib.stride_tricks.sliding_window_view(x, 3, -1)[..., ::2, :]


def _max_pool(value: float = -INF, ceil: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        extra = (x.shape[-1] + 2 - 3) % 2 if ceil else 0
        x = torch.nn.functional.pad(x, (1, 1 + extra), value=value)
        return x.unfold(-1, 3, 2).amax(-1)

    return kernel


THEME.add(
    "max_pool1d",
    reference=lambda x: _windows(x, (1, 1), -np.inf).max(-1),
    inputs={"x": {"shape": [3, "n"], "low": -5, "high": -1}},
    dims={"n": [16, 33]},
    op_class="exact",
    right=_max_pool(),
    wrong={"zero_padding": ("padding value", _max_pool(0.0)), "ceil_mode": ("border", _max_pool(ceil=True))},
)


def _avg_pool(count_padding: bool = False, pad: tuple[int, int] = (1, 1)) -> Kernel:
    def kernel(x: Any) -> Any:
        sums = torch.nn.functional.pad(x, pad).unfold(-1, 3, 2).sum(-1)
        counts = torch.nn.functional.pad(torch.ones_like(x), pad).unfold(-1, 3, 2).sum(-1)
        return sums / (3 if count_padding else counts)

    return kernel


THEME.add(
    "avg_pool1d",
    reference=lambda x: _windows(x, (1, 1), 0.0).sum(-1) / _windows(np.ones_like(x), (1, 1), 0.0).sum(-1),
    inputs={"x": [3, "n"]},
    dims={"n": [15, 32]},
    op_class="reduction",
    right=_avg_pool(),
    wrong={
        "padding_counted": ("border", _avg_pool(count_padding=True)),
        "padded_on_one_side": ("border", _avg_pool(pad=(0, 2))),
    },
)


def _nearest(centre: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        n = x.shape[-1]
        at = torch.arange(2 * n + 1, dtype=torch.float64) + (0.5 if centre else 0.0)
        return x[..., (at * n / (2 * n + 1)).floor().long()]

    return kernel


THEME.add(
    "nearest_upsample",
    reference=lambda x: x[..., np.arange(2 * x.shape[-1] + 1) * x.shape[-1] // (2 * x.shape[-1] + 1)],
    inputs={"x": [2, "n"]},
    dims={"n": [7, 16]},
    op_class="exact",
    right=_nearest(),
    wrong={"half_pixel": ("off by one", _nearest(centre=True))},
)


def _linear(corners: bool) -> Kernel:
    return lambda x: torch.nn.functional.interpolate(
        x[None], size=2 * x.shape[-1], mode="linear", align_corners=corners
    )[0]


def _linear_at_corners(x: Any) -> Any:
    """Weights in float64: torch computes an output's place in float32, where it loses the bits that its size takes."""
    n = x.shape[-1]
    at = torch.arange(2 * n, dtype=torch.float64) * ((n - 1) / (2 * n - 1))
    low = at.floor().clamp(max=n - 2)
    right, left = (at - low).to(x.dtype), (1 - (at - low)).to(x.dtype)
    return x[..., low.long()] * left + x[..., low.long() + 1] * right


def _linear_reference(x: np.ndarray) -> np.ndarray:
    n = x.shape[-1]
    return np.stack([np.interp(np.arange(2 * n) * (n - 1) / (2 * n - 1), np.arange(n), row) for row in x])


THEME.add(
    "linear_upsample",
    reference=_linear_reference,
    inputs={"x": [2, "n"]},
    dims={"n": [7, 16]},
    op_class="composite",
    right=_linear_at_corners,
    wrong={"corners_not_aligned": ("argument ignored", _linear(corners=False))},
)
