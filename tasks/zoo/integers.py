"""Integers, rounding and casts: wrap and saturation, division, quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import Kernel, Theme, torch

THEME = Theme("integers and rounding", __name__)
BYTES = {
    "x": {"shape": ["n"], "dtype": "uint8", "low": 0, "high": 255},
    "y": {"shape": ["n"], "dtype": "uint8", "low": 0, "high": 255},
}
DIMS = {"n": [33, 256]}

THEME.add(
    "add_uint8",
    reference=lambda x, y: x + y,
    inputs=BYTES,
    dims=DIMS,
    dtypes=["uint8"],
    op_class="exact",
    right=lambda x, y: x + y,
    wrong={"saturated": ("integer overflow", lambda x, y: (x.int() + y.int()).clamp_max(255).byte())},
)

THEME.add(
    "average_uint8",
    reference=lambda x, y: ((x.astype(np.int64) + y) // 2).astype(np.uint8),
    inputs=BYTES,
    dims=DIMS,
    dtypes=["uint8"],
    op_class="exact",
    right=lambda x, y: ((x.int() + y.int()) // 2).byte(),
    wrong={"wrapped_sum": ("integer overflow", lambda x, y: (x + y) // 2)},
)


def _int8_matmul(accumulator: str = "int32") -> Kernel:
    return lambda a, b: (a.int() @ b.int()).to(getattr(torch, accumulator)).int()


THEME.add(
    "int8_matmul",
    reference=lambda a, b: a.astype(np.int32) @ b.astype(np.int32),
    outputs=["int32"],
    dtypes=["int8"],
    inputs={
        "a": {"shape": [5, "n"], "dtype": "int8", "low": 50, "high": 127},
        "b": {"shape": ["n", 6], "dtype": "int8", "low": 20, "high": 127},
    },
    dims={"n": [33, 129]},
    op_class="exact",
    right=_int8_matmul(),
    wrong={"int16_accumulator": ("integer overflow", _int8_matmul("int16"))},
)

THEME.add(
    "sum_int32",
    reference=lambda x: x.sum(-1, dtype=np.int64),
    outputs=["int64"],
    dtypes=["int32"],
    op_class="exact",
    inputs={"x": {"shape": [2, "n"], "dtype": "int32", "low": 10**9, "high": 2 * 10**9}},
    dims=DIMS,
    right=lambda x: x.sum(-1),
    wrong={
        "int32_accumulator": ("integer overflow", lambda x: x.sum(-1, dtype=torch.int32).long()),
        "through_float32": ("coarse precision", lambda x: x.float().sum(-1).long()),
    },
)

SIGNED = {
    "x": {"shape": [6], "dtype": "int32", "data": [7, -7, 7, -7, -8, 0]},
    "y": {"shape": [6], "dtype": "int32", "data": [2, 2, -2, -2, 3, 5]},
}

THEME.add(
    "floor_divide",
    reference=lambda x, y: x // y,
    inputs=SIGNED,
    dtypes=["int32"],
    op_class="exact",
    right=lambda x, y: x // y,
    wrong={"truncated": ("rounding", lambda x, y: torch.div(x, y, rounding_mode="trunc"))},
)

THEME.add(
    "remainder",
    reference=lambda x, y: x % y,
    inputs=SIGNED,
    dtypes=["int32"],
    op_class="exact",
    right=lambda x, y: x % y,
    wrong={"sign_of_dividend": ("sign", lambda x, y: torch.fmod(x, y))},
)

THEME.add(
    "shift_right",
    reference=lambda x: x >> 2,
    inputs={"x": SIGNED["x"]},
    dtypes=["int32"],
    op_class="exact",
    right=lambda x: x >> 2,
    wrong={
        "logical": ("sign", lambda x: ((x.long() & 0xFFFFFFFF) >> 2).int()),
        "divided": ("rounding", lambda x: torch.div(x, 4, rounding_mode="trunc")),
    },
)

LARGE = [2**53, 2**53 + 1, -(2**62) - 1, 5]

THEME.add(
    "equal_int64",
    reference=lambda x, y: x == y,
    outputs=["bool"],
    dtypes=["int64"],
    op_class="exact",
    right=lambda x, y: x == y,
    inputs={
        "x": {"shape": [4], "dtype": "int64", "data": LARGE},
        "y": {"shape": [4], "dtype": "int64", "data": [2**53 + 1, 2**53 + 1, -(2**62), 4]},
    },
    wrong={
        "through_float64": ("coarse precision", lambda x, y: x.double() == y.double()),
        "as_uint8": ("wrong dtype", lambda x, y: (x == y).byte()),
    },
)


def _half_away(x: Any) -> Any:
    return torch.sign(x) * torch.floor(x.abs() + 0.5)


THEME.add(
    "round",
    reference=lambda x: np.round(x),
    dtypes=["float32", "float16"],
    op_class="exact",
    right=lambda x: torch.round(x),
    inputs={"x": {"shape": [8], "data": [0.5, 1.5, 2.5, -0.5, -2.5, 3.49, 1023.5, -7.75]}},
    wrong={"half_away_from_zero": ("rounding", _half_away), "floor": ("rounding", lambda x: x.floor())},
)


def _quantize(rounding: Any = None, zero: int = 3, low: int = -128, inverse: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        scaled = x * 0.125 if inverse else x / 0.125
        return ((rounding or torch.round)(scaled) + zero).clamp(low, 127).to(torch.int8)

    return kernel


THEME.add(
    "quantize",
    reference=lambda x: np.clip(np.round(x / 0.125) + 3, -128, 127).astype(np.int8),
    outputs=["int8"],
    op_class="exact",
    inputs={"x": {"shape": [9], "data": [0.0, 0.0625, 0.1875, -0.0625, 1.3, -2.7, 100.0, -100.0, 0.3125]}},
    right=_quantize(),
    wrong={
        "half_away_from_zero": ("rounding", _quantize(_half_away)),
        "truncated": ("rounding", _quantize(lambda x: x.trunc())),
        "no_zero_point": ("argument ignored", _quantize(zero=0)),
        "narrow_range": ("off by one", _quantize(low=-127)),
        "scale_inverted": ("missing scale", _quantize(inverse=True)),
        "not_clamped": ("integer overflow", lambda x: (torch.round(x / 0.125) + 3).int().to(torch.int8)),
    },
)


def _unpack(high_first: bool = False, signed: bool = True) -> Kernel:
    """Two 4-bit integers of each byte, the low one first."""

    def kernel(x: Any) -> Any:
        parts = torch.stack([x >> 4, x & 15] if high_first else [x & 15, x >> 4], -1).flatten(-2).to(torch.int8)
        return torch.where(parts > 7, parts - 16, parts) if signed else parts

    return kernel


def _unpack_reference(x: np.ndarray) -> np.ndarray:
    parts = np.stack([x & 15, x >> 4], -1).reshape(*x.shape[:-1], -1).astype(np.int8)
    return np.where(parts > 7, parts - 16, parts).astype(np.int8)


THEME.add(
    "unpack_int4",
    reference=_unpack_reference,
    inputs={"x": BYTES["x"]},
    dims=DIMS,
    dtypes=["uint8"],
    outputs=["int8"],
    op_class="exact",
    right=_unpack(),
    wrong={"high_first": ("order", _unpack(high_first=True)), "not_signed": ("sign", _unpack(signed=False))},
)


def _truncated_bfloat16(x: Any) -> Any:
    return (x.view(torch.int32) & -65536).view(torch.float32).bfloat16()


def _bfloat16_up_if_odd(x: Any) -> Any:
    bits = x.view(torch.int32)  # rounding to nearest even would add 0x7fff and the last digit kept
    return (bits + ((bits & 0x10000) >> 1) & -65536).view(torch.float32).bfloat16()


THEME.add(
    "to_bfloat16",
    reference=lambda x: x,
    inputs={"x": ["n"]},
    dims=DIMS,
    outputs=["bfloat16"],
    op_class="exact",
    right=lambda x: x.bfloat16(),
    wrong={"truncated": ("rounding", _truncated_bfloat16), "up_if_odd": ("rounding", _bfloat16_up_if_odd)},
)

THEME.add(
    "double_to_half",
    reference=lambda x: x,
    dtypes=["float64"],
    outputs=["float16"],
    op_class="exact",
    framework="numpy",
    inputs={"x": {"shape": [4], "data": [1 + 2.0**-11 + 2.0**-40, 1.25, -3 + 2.0**-10 - 2.0**-40, 1e-3]}},
    right=lambda x: x.astype(np.float16),
    wrong={"through_float32": ("double rounding", lambda x: x.astype(np.float32).astype(np.float16))},
)


def _fma(x: Any, y: Any, z: Any) -> Any:
    return (x.double() * y.double() + z.double()).float()


THEME.add(
    "fma",
    reference=lambda x, y, z: x * y + z,
    op_class="elementary",
    right=_fma,
    inputs={
        "x": {"shape": [3], "data": [1 + 2.0**-12, 3.0, 1 + 2.0**-20]},
        "y": {"shape": [3], "data": [1 - 2.0**-12, 0.1, 1 + 2.0**-20]},
        "z": {"shape": [3], "data": [-1.0, -0.3, -1.0]},
    },
    wrong={"product_rounded": ("double rounding", lambda x, y, z: x * y + z)},
)
