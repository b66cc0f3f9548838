"""Casting: NumPy references that round where the function does, with `astype` and ml_dtypes, as their authors write them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tasks.operators.formulas import compute_softmax
from tasks.zoo.specimen import Theme, torch

THEME = Theme("casting", __name__)
CAST, SCALE = "cast left out", "quantisation scale"
DIMS = {"rows": [3, 16], "n": [33, 256]}
ROWS = {"x": ["rows", "n"]}
LARGE = {"x": {"shape": ["rows", "n"], "low": 1, "high": 200}}
PRODUCT = {"x": ["rows", "n"], "w": [8, "n"]}
bfloat16, float8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


# --- of what is given ------------------------------------------------------------------------------------------------

THEME.add(
    "low_part_by_astype",
    reference=lambda x: x - x.astype(np.float16).astype(np.float32),
    inputs=LARGE,
    dims=DIMS,
    right=lambda x: x - x.half().float(),
    wrong={"folded": (CAST, lambda x: x - x), "of_bfloat16": ("rounding", lambda x: x - x.bfloat16().float())},
)

THEME.add(
    "low_part_of_float64",
    reference=lambda x: x - x.astype(np.float32).astype(np.float64),
    inputs=LARGE,
    dims=DIMS,
    dtypes=["float64"],
    right=lambda x: x - x.float().double(),
    wrong={"folded": (CAST, lambda x: x - x), "of_float16": ("rounding", lambda x: x - x.half().double())},
)

THEME.add(
    "holds_bfloat16",
    reference=lambda x: x == x.astype(bfloat16),
    outputs=["bool"],
    inputs={"x": {"shape": [10], "data": [1.0, 0.1, 3.0, 257.0, 256.0, -0.5, 1e38, 1.00390625, 0.0, 7.03125]}},
    op_class="exact",
    right=lambda x: x == x.bfloat16().float(),
    wrong={"folded": (CAST, lambda x: x == x), "of_float16": ("rounding", lambda x: x == x.half().float())},
)


def _feedback_exactly(x: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    sent = np.asarray(x + e).astype(float8)
    return sent.astype(x.dtype), x + e - sent


def _feedback(x: Any, e: Any, kept: bool = True, stored: bool = True) -> Any:
    """A gradient is sent in 8 bits, and what was lost is kept for the next step."""
    sent = (x + e).to(torch.float8_e4m3fn).float() if stored else x + e
    return sent, (x + e if kept else x) - sent


THEME.add(
    "error_feedback",
    reference=_feedback_exactly,
    inputs={
        "x": {"shape": ["rows", "n"], "low": -2, "high": 2},
        "e": {"shape": ["rows", "n"], "low": -0.1, "high": 0.1},
    },
    dims=DIMS,
    right=_feedback,
    wrong={
        "folded": (CAST, lambda x, e: _feedback(x, e, stored=False)),
        "of_this_step_alone": ("argument ignored", lambda x, e: _feedback(x, e, kept=False)),
    },
)


# --- of what is computed
# -----------------------------------------------------------------------------------------------


def _silu_of_stored_exactly(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    h = (x @ w.T).astype(np.float16)
    return h / (1 + np.exp(-h))  # type: ignore[no-any-return]


def _silu_of_stored(x: Any, w: Any, to: str = "float16") -> Any:
    h = (x @ w.T).to(getattr(torch, to)).float()
    return h * torch.sigmoid(h)


THEME.add(
    "silu_of_stored_product",
    reference=_silu_of_stored_exactly,
    inputs=PRODUCT,
    dims=DIMS,
    right=_silu_of_stored,
    wrong={
        "not_stored": (CAST, lambda x, w: _silu_of_stored(x, w, "float32")),
        "stored_in_bfloat16": ("coarse precision", lambda x, w: _silu_of_stored(x, w, "bfloat16")),
    },
)


def _attention_exactly(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    p = compute_softmax(q @ k.T / np.sqrt(q.shape[-1])).astype(bfloat16)
    return p.astype(np.float32) @ v


def _attention(q: Any, k: Any, v: Any, to: str = "bfloat16") -> Any:
    p = torch.softmax(q @ k.T / q.shape[-1] ** 0.5, -1)
    return p.to(getattr(torch, to)).float() @ v


THEME.add(
    "attention_with_stored_weights",
    reference=_attention_exactly,
    inputs={"q": ["rows", "n"], "k": [24, "n"], "v": [24, 5]},
    dims=DIMS,
    right=_attention,
    wrong={
        "not_stored": (CAST, lambda q, k, v: _attention(q, k, v, "float32")),
        "stored_in_float16": ("rounding", lambda q, k, v: _attention(q, k, v, "float16")),
    },
)


def _two_layers_exactly(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    h = np.maximum(x @ w.T, 0).astype(np.float16)
    return h.astype(x.dtype) @ v.T  # type: ignore[no-any-return]


THEME.add(
    "two_layers_stored_between",
    reference=_two_layers_exactly,
    inputs={"x": ["rows", "n"], "w": [64, "n"], "v": [7, 64]},
    dims=DIMS,
    op_class="contraction",
    right=lambda x, w, v: torch.relu(x @ w.T).half().float() @ v.T,
    wrong={
        "not_stored": (CAST, lambda x, w, v: torch.relu(x @ w.T) @ v.T),
        "stored_before_w": (CAST, lambda x, w, v: torch.relu(x.half().float() @ w.T) @ v.T),
    },
)


def _running_exactly(x: np.ndarray) -> np.ndarray:
    total = np.zeros(x.shape[:1], np.float16)
    for at in range(0, x.shape[1], 32):
        total[:] = total + x[:, at : at + 32].sum(1)
    return total.astype(np.float64)


def _running(x: Any, to: str = "float16", blocks: int = 32) -> Any:
    total = torch.zeros(x.shape[0], dtype=getattr(torch, to))
    for at in range(0, x.shape[1], blocks):
        total = (total.float() + x[:, at : at + blocks].sum(1)).to(total.dtype)
    return total.float()


THEME.add(
    "total_stored_after_each_block",
    reference=_running_exactly,
    inputs={"x": {"shape": ["rows", "n"], "low": 0, "high": 3}},
    dims={"rows": [3, 16], "n": [65, 256]},
    op_class="reduction",
    right=_running,
    wrong={
        "not_stored": (CAST, lambda x: _running(x, "float32")),
        "stored_after_the_last": (CAST, lambda x: _running(x, blocks=1 << 20)),
    },
)


def _norm_exactly(x: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    h = np.empty(x.shape, bfloat16)
    h[...] = x + r
    return h / np.sqrt(np.mean(np.square(h), -1, keepdims=True) + 1e-6), h


def _norm(x: Any, r: Any, of_stored: bool = True, to: str = "bfloat16") -> Any:
    h = (x + r).to(getattr(torch, to)).float()
    return h * torch.rsqrt((h if of_stored else x + r).square().mean(-1, keepdim=True) + 1e-6), h


THEME.add(
    "norm_and_stored_residual",
    reference=_norm_exactly,
    inputs={"x": ["rows", "n"], "r": ["rows", "n"]},
    dims=DIMS,
    op_class="normalisation",
    right=_norm,
    wrong={
        "mean_of_what_was_not_stored": (CAST, lambda x, r: _norm(x, r, of_stored=False)),
        "not_stored": (CAST, lambda x, r: _norm(x, r, to="float32")),
    },
)


# --- whole numbers
# -------------------------------------------------------------------------------------------------------

THEME.add(
    "bin_of_a_number",
    reference=lambda x: (x * 10).astype(np.int32),
    outputs=["int32"],
    inputs={"x": {"shape": ["rows", "n"], "low": -5, "high": 5}},
    dims=DIMS,
    op_class="discontinuous",
    right=lambda x: (x * 10).int(),
    wrong={
        "to_nearest": ("rounding", lambda x: torch.round(x * 10).int()),
        "down": ("rounding", lambda x: torch.floor(x * 10).int()),
    },
)


def _codes_exactly(x: np.ndarray) -> np.ndarray:
    scale = (np.abs(x).max(-1, keepdims=True) / 127).astype(np.float16)
    scale = np.maximum(scale, np.float16(2.0**-14)).astype(np.float32)
    return np.clip(np.rint(x / scale), -127, 127).astype(np.int8) * scale


def _codes(x: Any, axis: int = -1, stored: bool = True, nearest: bool = True) -> Any:
    scale = x.abs().amax(axis, keepdim=True) / 127
    scale = torch.clamp((scale.half().float() if stored else scale), 2.0**-14)
    codes = torch.round(x / scale) if nearest else torch.trunc(x / scale)
    return torch.clamp(codes, -127, 127).to(torch.int8).float() * scale


THEME.add(
    "codes_with_stored_scale",
    reference=_codes_exactly,
    inputs=ROWS,
    dims=DIMS,
    right=_codes,
    wrong={
        "scale_not_stored": (CAST, lambda x: _codes(x, stored=False)),
        "scale_of_columns": (SCALE, lambda x: _codes(x, axis=0)),
        "codes_cut": ("rounding", lambda x: _codes(x, nearest=False)),
    },
)


def _fraction_exactly(x: np.ndarray) -> np.ndarray:
    return x - x.astype(np.int64)


THEME.add(
    "fraction_by_integer_cast",
    reference=_fraction_exactly,
    inputs={"x": {"shape": ["rows", "n"], "low": -50, "high": 50}},
    dims=DIMS,
    op_class="exact",
    right=lambda x: x - x.long().to(x.dtype),
    wrong={"folded": (CAST, lambda x: x - x), "of_the_floor": ("rounding", lambda x: x - torch.floor(x))},
)


def _float8_rows_exactly(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    scale = (np.abs(x).max(-1, keepdims=True) / 448).astype(np.float32)
    return (x / scale).astype(float8).astype(np.float32) @ w.T * scale


def _float8_rows(x: Any, w: Any, axis: int | None = -1, stored: bool = True) -> Any:
    size = x.abs().amax() if axis is None else x.abs().amax(axis, keepdim=True)
    q = x / (size / 448)
    return ((q.to(torch.float8_e4m3fn).float() if stored else q) @ w.T) * (size / 448)


THEME.add(
    "float8_product_by_rows",
    reference=_float8_rows_exactly,
    inputs={"x": {"shape": ["rows", "n"], "low": -3, "high": 3}, "w": [8, "n"]},
    dims=DIMS,
    op_class="contraction",
    right=_float8_rows,
    wrong={
        "not_stored": (CAST, lambda x, w: _float8_rows(x, w, stored=False)),
        "scale_of_all": (SCALE, lambda x, w: _float8_rows(x, w, axis=None)),
    },
)


# --- references of tensors
# -------------------------------------------------------------------------------------------------

THEME.add(
    "gated_with_stored_gate",
    reference=lambda x, w: torch.sigmoid((x @ w.T).bfloat16().float()) * (x @ w.T),
    reference_framework="torch",
    inputs=PRODUCT,
    dims=DIMS,
    right=lambda x, w: torch.sigmoid((x @ w.T).bfloat16().float()) * (x @ w.T),
    wrong={
        "not_stored": (CAST, lambda x, w: torch.sigmoid(x @ w.T) * (x @ w.T)),
        "both_stored": (
            "coarse precision",
            lambda x, w: torch.sigmoid((x @ w.T).bfloat16().float()) * (x @ w.T).bfloat16().float(),
        ),
    },
)

THEME.add(
    "stored_scores",
    reference=lambda q, k, v: torch.softmax((q @ k.T).half().float() / q.shape[-1] ** 0.5, -1) @ v,
    reference_framework="torch",
    inputs={"q": ["rows", "n"], "k": [24, "n"], "v": [24, 5]},
    dims=DIMS,
    right=lambda q, k, v: torch.softmax((q @ k.T).half().float() / q.shape[-1] ** 0.5, -1) @ v,
    wrong={"not_stored": (CAST, lambda q, k, v: torch.softmax((q @ k.T) / q.shape[-1] ** 0.5, -1) @ v)},
)
