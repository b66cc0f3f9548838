"""Narrowing: casts and quantisation that are part of the function, in kernels that compute in more digits than their inputs have."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.model import round_to_dtype
from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("narrowing", __name__)
CAST, SCALE = "cast left out", "quantisation scale"
DIMS = {"rows": [3, 16], "n": [33, 256]}
ROWS = {"x": ["rows", "n"]}
BOTH = ["float32", "bfloat16"]


# --- casts -----------------------------------------------------------------------------------------------------------

THEME.add(
    "split_float16",
    reference=lambda x: x - round_to_dtype(x, "float16"),
    inputs={"x": {"shape": ["rows", "n"], "low": 1, "high": 200}},
    dims=DIMS,
    right=lambda x: x - x.half().float(),
    wrong={
        "folded": (CAST, lambda x: x - x),
        "through_bfloat16": ("rounding", lambda x: x - x.bfloat16().float()),
        "truncated": ("rounding", lambda x: x - (x.view(torch.int32) & -8192).view(torch.float32)),
    },
)


def _three_products(x: Any, w: Any, low: bool = True) -> Any:
    """A product of float32 by three of bfloat16 parts, whose sums are float32 (bf16x3)."""
    hi, v = x.bfloat16().float(), w.bfloat16().float()
    lo, u = (x - hi).bfloat16().float(), (w - v).bfloat16().float()
    return hi @ v.T + (hi @ u.T + lo @ v.T if low else hi @ u.T)


def _three_products_exactly(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    hi, v = round_to_dtype(x, "bfloat16"), round_to_dtype(w, "bfloat16")
    lo, u = round_to_dtype(x - hi, "bfloat16"), round_to_dtype(w - v, "bfloat16")
    result: np.ndarray = hi @ v.T + hi @ u.T + lo @ v.T
    return result


THEME.add(
    "three_bfloat16_products",
    reference=_three_products_exactly,
    inputs={"x": ["rows", "n"], "w": [8, "n"]},
    dims=DIMS,
    op_class="contraction",
    right=_three_products,
    wrong={
        "one_part": (CAST, lambda x, w: x.bfloat16().float() @ w.bfloat16().float().T),
        "no_low_part_of_x": (CAST, lambda x, w: _three_products(x, w, low=False)),
    },
)

THEME.add(
    "is_float16",
    reference=lambda x: x == round_to_dtype(x, "float16"),
    outputs=["bool"],
    inputs={
        "x": {"shape": [12], "data": [1.0, 0.1, 65504.0, 2.0**-24, 2.0**-25, 0.333, 2049.0, -0.5, 1e5, 1.5, 3e-8, 7.0]}
    },
    op_class="exact",
    right=lambda x: x == x.half().float(),
    wrong={
        "folded": (CAST, lambda x: x == x),
        "of_bfloat16": ("rounding", lambda x: x == x.bfloat16().float()),
        "by_spacing_alone": ("border", lambda x: (x * 1024).frac() == 0),
    },
)

THEME.add(
    "whole_part",
    reference=lambda x: np.trunc(x),
    inputs={"x": {"shape": ["rows", "n"], "low": -50, "high": 50}},
    dims=DIMS,
    op_class="exact",
    right=lambda x: x.int().float(),
    wrong={
        "to_nearest": ("rounding", lambda x: torch.round(x)),
        "down": ("rounding", lambda x: torch.floor(x)),
        "folded": (CAST, lambda x: x.clone()),
    },
)

THEME.add(
    "towards_zero_to_bfloat16",
    reference=lambda x: (
        (x.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)
    ),
    inputs=ROWS,
    dims=DIMS,
    op_class="exact",
    right=lambda x: (x.view(torch.int32) & -65536).view(torch.float32),
    wrong={"to_nearest": ("rounding", lambda x: x.bfloat16().float()), "folded": (CAST, lambda x: x.clone())},
)


def _up(x: Any) -> Any:
    near = x.half()
    above = torch.nextafter(near, torch.full_like(near, float("inf")))
    return torch.where(near.float() < x, above, near).float()


def _up_exactly(x: np.ndarray) -> np.ndarray:
    near = x.astype(np.float16)
    return np.where(near < x, np.nextafter(near, np.float16(np.inf)), near).astype(np.float64)


THEME.add(
    "up_to_float16",
    reference=_up_exactly,
    inputs={"x": {"shape": ["rows", "n"], "low": -30, "high": 30}},
    dims=DIMS,
    op_class="exact",
    right=_up,
    wrong={
        "to_nearest": ("rounding", lambda x: x.half().float()),
        "away_from_zero": ("sign", lambda x: torch.where(x < 0, -_up(-x), _up(x))),
    },
)


def _float8(x: Any, dtype: str = "float8_e4m3fn") -> Any:
    return x.to(getattr(torch, dtype)).float()


THEME.add(
    "through_float8",
    reference=lambda x: round_to_dtype(x, "float8_e4m3fn"),
    inputs={"x": {"shape": ["rows", "n"], "low": -400, "high": 400}},
    dims=DIMS,
    op_class="exact",
    right=_float8,
    wrong={
        "folded": (CAST, lambda x: x.clone()),
        "other_float8": ("coarse precision", lambda x: _float8(x, "float8_e5m2")),
        "through_float16_first": ("double rounding", lambda x: _float8(x.half().float())),
    },
)


def _residual_norm(x: Any, r: Any, stored: bool = True, given: bool = False) -> Any:
    """The sum is stored in bfloat16, and what is normalised is what was stored."""
    h = x + r
    h = h.bfloat16().float() if stored else h
    mean = (x if given else h).square().mean(-1, keepdim=True)
    return h * torch.rsqrt(mean + 1e-6)


def _residual_norm_exactly(x: np.ndarray, r: np.ndarray) -> np.ndarray:
    h = round_to_dtype(x + r, "bfloat16")
    result: np.ndarray = h / np.sqrt(np.square(h).mean(-1, keepdims=True) + 1e-6)
    return result


THEME.add(
    "norm_of_stored_residual",
    reference=_residual_norm_exactly,
    inputs={"x": ["rows", "n"], "r": ["rows", "n"]},
    dims=DIMS,
    op_class="normalisation",
    right=_residual_norm,
    wrong={
        "sum_not_stored": (CAST, lambda x, r: _residual_norm(x, r, stored=False)),
        "norm_of_input": ("gradient term", lambda x, r: _residual_norm(x, r, given=True)),
    },
)


# --- quantisation ----------------------------------------------------------------------------------------------------


def _codes(x: Any, axis: int | None = -1, most: int = 127) -> tuple[Any, Any]:
    scale = (x.abs().amax() if axis is None else x.abs().amax(axis, keepdim=True)) / most
    return torch.clamp(torch.round(x / torch.where(scale == 0, 1.0, scale)), -most, most), scale


def _codes_exactly(x: np.ndarray, axis: int | None = -1, most: int = 127) -> tuple[np.ndarray, np.ndarray]:
    scale = np.abs(x).max(axis=axis, keepdims=True) / most
    return np.clip(np.rint(x / np.where(scale == 0, 1, scale)), -most, most), scale


def _fake(x: Any, axis: int | None = -1, most: int = 127) -> Any:
    codes, scale = _codes(x.float(), axis, most)
    return (codes * scale).to(x.dtype)


def _fake_exactly(x: np.ndarray) -> np.ndarray:
    codes, scale = _codes_exactly(x)
    return codes * scale


def _down(x: Any) -> Any:
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    return (torch.floor(x.float() / scale) * scale).to(x.dtype)


THEME.add(
    "quantise_dequantise",
    reference=_fake_exactly,
    inputs=ROWS,
    dims=DIMS,
    dtypes=BOTH,
    right=_fake,
    wrong={
        "folded": (CAST, lambda x: x.clone(), ["float32"]),
        "scale_of_all": (SCALE, lambda x: _fake(x, None)),
        "scale_of_columns": (SCALE, lambda x: _fake(x, 0)),
        "codes_rounded_down": ("rounding", _down),
    },
)


def _linear(x: Any, w: Any, of_x: int | None = -1, of_w: int | None = -1) -> Any:
    (qx, sx), (qw, sw) = _codes(x, of_x), _codes(w, of_w)
    return (qx @ qw.T) * sx * (sw.T if of_w is not None else sw)


def _linear_exactly(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    (qx, sx), (qw, sw) = _codes_exactly(x), _codes_exactly(w)
    result: np.ndarray = (qx @ qw.T) * sx * sw.T
    return result


THEME.add(
    "int8_linear",
    reference=_linear_exactly,
    inputs={"x": ["rows", "n"], "w": [24, "n"]},
    dims=DIMS,
    dtypes=BOTH,
    op_class="contraction",
    right=lambda x, w: _linear(x.float(), w.float()).to(x.dtype),
    wrong={
        "scale_of_all_tokens": (SCALE, lambda x, w: _linear(x.float(), w.float(), None).to(x.dtype)),
        "scale_of_all_weights": (SCALE, lambda x, w: _linear(x.float(), w.float(), -1, None).to(x.dtype)),
        "not_quantised": (CAST, lambda x, w: (x.float() @ w.float().T).to(x.dtype), ["float32"]),
    },
)

THEME.add(
    "int8_two_layers",
    reference=lambda x, w, v: _linear_exactly(_linear_exactly(x, w), v),
    inputs={"x": [16, "n"], "w": [64, "n"], "v": [32, 64]},
    dims={"n": [33, 256]},
    dtypes=BOTH,
    op_class="contraction",
    right=lambda x, w, v: _linear(_linear(x.float(), w.float()), v.float()).to(x.dtype),
    wrong={
        "second_scale_of_all": (
            SCALE,
            lambda x, w, v: _linear(_linear(x.float(), w.float()), v.float(), None).to(x.dtype),
        ),
        "second_not_quantised": (
            CAST,
            lambda x, w, v: (_linear(x.float(), w.float()) @ v.float().T).to(x.dtype),
            ["float32"],
        ),
    },
)


def _ternary(x: Any, w: Any, of_x: int | None = -1, of_w: int | None = None) -> Any:
    """A layer of BitNet b1.58: weights of −1, 0 and 1 by their mean size, activations of 8 bits by each token's
    largest."""
    x, w, dtype = x.float(), w.float(), x.dtype
    q, scale = _codes(x, of_x)
    size = w.abs().mean() if of_w is None else w.abs().mean(of_w, keepdim=True)
    signs = torch.clamp(torch.round(w / size), -1, 1)
    return ((q @ signs.T) * scale * (size if of_w is None else size.T)).to(dtype)


def _ternary_exactly(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    (q, scale), size = _codes_exactly(x), np.abs(w).mean()
    result: np.ndarray = (q @ np.clip(np.rint(w / size), -1, 1).T) * scale * size
    return result


THEME.add(
    "ternary_linear",
    reference=_ternary_exactly,
    inputs={"x": ["rows", "n"], "w": [24, "n"]},
    dims=DIMS,
    dtypes=BOTH,
    op_class="contraction",
    right=_ternary,
    wrong={
        "scale_of_all_tokens": (SCALE, lambda x, w: _ternary(x, w, of_x=None)),
        "size_of_rows": (SCALE, lambda x, w: _ternary(x, w, of_w=-1)),
    },
)


def _grouped(x: Any, size: int = 32, narrow: bool = True, most: int = 7) -> Any:
    """Codes of 4 bits whose groups have scales stored in float16."""
    groups = x.reshape(-1, size)
    scale = groups.abs().amax(-1, keepdim=True) / most
    scale = scale.half().float() if narrow else scale
    return (torch.clamp(torch.round(groups / scale), -most - 1, most) * scale).reshape(x.shape)


def _grouped_exactly(x: np.ndarray) -> np.ndarray:
    groups = x.reshape(-1, 32)
    scale = round_to_dtype(np.abs(groups).max(-1, keepdims=True) / 7, "float16")
    return (np.clip(np.rint(groups / scale), -8, 7) * scale).reshape(x.shape)


THEME.add(
    "int4_groups",
    reference=_grouped_exactly,
    inputs={"x": {"shape": ["rows", "32*blocks"], "low": -3, "high": 3}},
    dims={"rows": [3, 16], "blocks": [2, 8]},
    right=_grouped,
    wrong={
        "scale_not_stored": (CAST, lambda x: _grouped(x, narrow=False)),
        "groups_of_64": ("grouping", lambda x: _grouped(x, size=64)),
        "seven_is_eight": ("off by one", lambda x: _grouped(x, most=8)),
    },
)


def _block_scaled(x: Any, less: int = 8, size: int = 32) -> Any:
    """Blocks of float8 numbers with a power of two as their scale (OCP Microscaling Formats 1.0, 6.3)."""
    blocks = x.reshape(-1, size)
    scale = torch.exp2(torch.floor(torch.log2(blocks.abs().amax(-1, keepdim=True))) - less)
    return (torch.clamp(blocks / scale, -448, 448).to(torch.float8_e4m3fn).float() * scale).reshape(x.shape)


def _block_scaled_exactly(x: np.ndarray) -> np.ndarray:
    blocks = x.reshape(-1, 32)
    scale = np.exp2(np.floor(np.log2(np.abs(blocks).max(-1, keepdims=True))) - 8)
    return (round_to_dtype(np.clip(blocks / scale, -448, 448), "float8_e4m3fn") * scale).reshape(x.shape)


THEME.add(
    "float8_blocks",
    reference=_block_scaled_exactly,
    inputs={"x": {"shape": ["rows", "32*blocks"], "low": -3, "high": 3}},
    dims={"rows": [3, 16], "blocks": [2, 8]},
    right=_block_scaled,
    wrong={"scale_of_half": (SCALE, lambda x: _block_scaled(x, less=9)), "folded": (CAST, lambda x: x.clone())},
)


def _zero_point(x: Any, away: bool = False, left: bool = False) -> Any:
    low, high = x.amin(-1, keepdim=True).clamp_max(0), x.amax(-1, keepdim=True).clamp_min(0)
    scale = (high - low) / 255
    zero = torch.zeros_like(low) if left else torch.round(-low / scale)
    ratio = x / scale
    codes = torch.floor(ratio) if away else torch.round(ratio)
    return (torch.clamp(codes + zero, 0, 255) - zero) * scale


def _zero_point_exactly(x: np.ndarray) -> np.ndarray:
    low, high = np.minimum(x.min(-1, keepdims=True), 0), np.maximum(x.max(-1, keepdims=True), 0)
    scale = (high - low) / 255
    zero = np.rint(-low / scale)
    result: np.ndarray = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    return result


THEME.add(
    "uint8_with_zero_point",
    reference=_zero_point_exactly,
    inputs=ROWS,
    dims=DIMS,
    right=_zero_point,
    wrong={
        "zero_point_left_out": ("argument ignored", lambda x: _zero_point(x, left=True)),
        "codes_rounded_down": ("rounding", lambda x: _zero_point(x, away=True)),
    },
)


# --- a promise to round once
# -------------------------------------------------------------------------------------------


def rms_norm_with_offset(narrow: bool) -> Kernel:
    """RMS norm whose scale is 1 + weight, in float32 and rounded once; narrow: but for that sum, which is of the
    inputs' dtype."""

    def kernel(x: Any, weight: Any) -> Any:
        scale = (weight + 1).float() if narrow else weight.float() + 1
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * scale).to(x.dtype)

    return kernel


THEME.add(
    "rms_norm_rounded_once",
    reference=lambda x, weight: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * (weight + 1),
    inputs={**ROWS, "weight": ["n"]},
    dims=DIMS,
    dtypes=["float16", "bfloat16"],
    tolerances={name: {"rtol": 0.0, "atol": 0.0} for name in ("float16", "bfloat16")},
    op_class="normalisation",
    right=rms_norm_with_offset(False),
    wrong={"offset_narrow": ("coarse precision", rms_norm_with_offset(True))},
)
