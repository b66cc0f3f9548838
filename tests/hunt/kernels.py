"""Kernels with the faults of public reports, each beside its sound twin; `tests.hunt.reports` says of which report each is one.

All are written anew, as small as the fault allows. Sizes are those that the report's project tests, or has in use: a
size that shows a fault is not added because it does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tasks.operators.formulas import compute_softmax
from tasks.zoo.narrowing import rms_norm_with_offset
from tasks.zoo.partial import differentiable
from tasks.zoo.specimen import INF, Kernel, Theme, torch

THEME = Theme("public reports", __name__)
WIDTH = 4


# A causal convolution of width 4 over time that takes the last tokens of the chunk before and gives those for the next.


def _conv_with_state(x: Any, w: Any, state: Any) -> Any:
    cat = torch.cat if isinstance(x, torch.Tensor) else np.concatenate
    full, t = cat([state, x]), x.shape[0]
    return sum(full[j + 1 : j + 1 + t] * w[j] for j in range(WIDTH)), full[t:] * 1


def _conv_with_state_gradient(short: bool) -> Kernel:
    def backward(given: Any, x: Any, w: Any, state: Any) -> Any:
        gy, gs = given
        t, full = x.shape[0], torch.cat([state, x])
        gf = torch.zeros_like(full)
        for j in range(WIDTH):
            gf[j + 1 : j + 1 + t] += gy * w[j]
        gw = torch.stack([(gy * full[j + 1 : j + 1 + t]).sum(0) for j in range(WIDTH)])
        if short:  # the slot of a token is counted from max(0, t - W), and what is left of the old state is forgotten
            start = max(0, t - WIDTH)
            gf[WIDTH + start :] += gs[: t - start]
        else:
            gf[t:] += gs
        return gf[WIDTH:], gw, gf[:WIDTH]

    return backward


THEME.add(
    "conv_with_state",
    reference=_conv_with_state,
    inputs={"x": ["t", "d"], "w": [WIDTH, "d"], "state": [WIDTH, "d"]},
    dims={"t": [16, 64], "d": [3]},
    gradient=["x", "w", "state"],
    right=differentiable(_conv_with_state, _conv_with_state_gradient(False)),
    wrong={"short_chunk": ("gradient term", differentiable(_conv_with_state, _conv_with_state_gradient(True)))},
)


# The same convolution over a batch of packed sequences.


def _packed(x: Any, w: Any) -> Any:
    def shifted(by: int) -> Any:
        if isinstance(x, torch.Tensor):
            return torch.nn.functional.pad(x, (0, 0, by, 0))[:, : x.shape[1]]
        return np.pad(x, ((0, 0), (by, 0), (0, 0)))[:, : x.shape[1]]

    return sum(shifted(j) * w[j] for j in range(WIDTH))


def _packed_gradient(again: bool) -> Kernel:
    def backward(g: Any, x: Any, w: Any) -> Any:
        b, t = x.shape[:2]
        gx, gw = torch.zeros_like(x), torch.zeros_like(w)
        for j in range(WIDTH):
            gx[:, : t - j] += g[:, j:] * w[j]
            gw[j] = (g[:, j:] * x[:, : t - j]).sum((0, 1))
        # The grid goes over the batch and over the sequences, which are those of the whole batch already.
        return gx, gw * b if again else gw

    return backward


THEME.add(
    "packed_conv",
    reference=_packed,
    inputs={"x": ["b", "t", "d"], "w": [WIDTH, "d"]},
    dims={"b": [1, 2], "t": [16, 30], "d": [3]},
    gradient=["x", "w"],
    right=differentiable(_packed, _packed_gradient(False)),
    wrong={"weight_per_batch": ("gradient term", differentiable(_packed, _packed_gradient(True)))},
)


# A gated running sum, computed chunk by chunk.

CHUNK = 64


def _gated_sum(x: Any, decay: Any) -> Any:
    rows, last = [], x[0] * 0
    for t in range(x.shape[0]):
        last = decay[t] * last + x[t]
        rows.append(last)
    return (torch.stack if isinstance(x, torch.Tensor) else np.stack)(rows)


def _gated_sum_gradient(partial: bool) -> Kernel:
    def backward(g: Any, x: Any, decay: Any) -> Any:
        y, n = _gated_sum(x, decay), x.shape[0]
        gx, gd, carry = torch.zeros_like(x), torch.zeros_like(decay), torch.zeros_like(x[0])
        for t in range(n - 1, -1, -1):
            carry = g[t] + (decay[t + 1] * carry if t + 1 < n else 0)
            gx[t] = carry
            # Of the last chunk, if it is no whole one, what comes of the state before it is left out.
            lost = partial and t and t == n - n % CHUNK
            gd[t] = carry * y[t - 1] if t and not lost else 0
        return gx, gd

    return backward


THEME.add(
    "gated_sum",
    reference=_gated_sum,
    inputs={"x": ["t", 2], "decay": {"shape": ["t", 2], "low": 0.5, "high": 1.0}},
    dims={"t": [64, 128]},
    gradient=["x", "decay"],
    op_class="reduction",
    right=differentiable(_gated_sum, _gated_sum_gradient(False)),
    wrong={"partial_chunk": ("gradient term", differentiable(_gated_sum, _gated_sum_gradient(True)))},
)


# Losses: the gradient is made in the forward pass, for a loss that is the mean.


def _row_loss(x: Any, target: Any) -> Any:
    if isinstance(x, torch.Tensor):
        picked = torch.gather(x, 1, target[:, None])[:, 0]
        return torch.logsumexp(x, 1) - picked
    top = x.max(1)
    return top + np.log(np.exp(x - top[:, None]).sum(1)) - np.take_along_axis(x, target[:, None], 1)[:, 0]


def _row_loss_gradient(of_first: bool) -> Kernel:
    def backward(g: Any, x: Any, target: Any) -> Any:
        made = torch.softmax(x, 1) - torch.nn.functional.one_hot(target, x.shape[1]).to(x.dtype)
        return made * (g[0] if of_first else g[:, None]), None

    return backward


THEME.add(
    "row_loss",
    reference=_row_loss,
    inputs={"x": ["rows", "classes"], "target": {"shape": ["rows"], "dtype": "int64", "low": 0, "high": "classes"}},
    dims={"rows": [4, 8], "classes": [15]},
    gradient=["x"],
    right=differentiable(_row_loss, _row_loss_gradient(False)),
    wrong={"gradient_of_first_row": ("gradient term", differentiable(_row_loss, _row_loss_gradient(True)))},
)


def _smoothed(x: Any, target: Any, smoothing: float, inverted: bool = False) -> Any:
    logs = x - torch.logsumexp(x, 1, keepdim=True)
    picked = torch.gather(logs, 1, target[:, None])[:, 0]
    share = (1 - smoothing if inverted else smoothing) / x.shape[1]
    return -(1 - smoothing) * picked - share * logs.sum(1)


def _smoothed_reference(x: np.ndarray, target: np.ndarray, smoothing: float) -> np.ndarray:
    logs = x - x.max(1, keepdims=True)
    logs = logs - np.log(np.exp(logs).sum(1, keepdims=True))
    wanted = np.full(x.shape, smoothing / x.shape[1])
    wanted[np.arange(len(x)), target] += 1 - smoothing
    return -(wanted * logs).sum(1)


THEME.add(
    "label_smoothing",
    reference=_smoothed_reference,
    inputs={"x": ["rows", "classes"], "target": {"shape": ["rows"], "dtype": "int64", "low": 0, "high": "classes"}},
    dims={"rows": [1, 8], "classes": [5, 32]},
    kwargs={"smoothing": 0.1},
    right=_smoothed,
    wrong={"wrong_share": ("missing scale", lambda x, target, smoothing: _smoothed(x, target, smoothing, True))},
)


# Normalisation


def _rms_reference(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _rms(x: Any, weight: Any, eps: float) -> Any:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


THEME.add(
    "rms_norm_eps",
    reference=_rms_reference,
    inputs={"x": ["rows", "width"], "weight": ["width"]},
    dims={"rows": [1, 4], "width": [64, 256]},
    kwargs={"eps": 1e-6},
    op_class="normalisation",
    right=_rms,
    wrong={"of_another_model": ("epsilon", lambda x, weight, eps: _rms(x, weight, 1e-5))},
)


THEME.add(
    "offset_rms_norm",
    reference=lambda x, weight: _rms_reference(x, weight + 1, 1e-6),
    inputs={"x": ["rows", "width"], "weight": {"shape": ["width"], "low": -0.05, "high": 0.05}},
    dims={"rows": [1, 8], "width": [64, 512]},
    dtypes=["bfloat16"],
    op_class="normalisation",
    right=rms_norm_with_offset(False),
    wrong={"offset_in_bfloat16": ("coarse precision", rms_norm_with_offset(True))},
)


def _rms_gradient(dense: bool) -> Kernel:
    def backward(g: Any, x: Any) -> Any:
        if dense:  # a device kernel that is given a pointer, and the strides of x
            g = (
                torch.as_strided(g, x.shape, x.stride(), g.storage_offset())
                if g.untyped_storage().nbytes() >= (g.element_size() * (g.storage_offset() + x.numel()))
                else g.flatten()[:1].expand(x.shape)
            )
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return r * g - x * r**3 * (g * x).mean(-1, keepdim=True)

    return backward


THEME.add(
    "rms_norm_strides",
    reference=lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6),
    inputs={"x": ["rows", "width"]},
    dims={"rows": [3, 8], "width": [5, 16]},
    gradient=["x"],
    op_class="normalisation",
    right=differentiable(lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), _rms_gradient(False)),
    wrong={
        "dense_gradient": (
            "stride ignored",
            differentiable(lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), _rms_gradient(True)),
        )
    },
)


# Experts


def _identity_experts(whole: bool) -> Kernel:
    def kernel(x: Any, scales: Any) -> Any:
        out, end = torch.zeros_like(x), x.shape[1] - x.shape[1] % 256 if whole else x.shape[1]
        for at in range(0, end, 256):
            out[:, at : at + 256] = x[:, at : at + 256] * scales.sum(1, keepdim=True)
        return out

    return kernel


THEME.add(
    "identity_experts",
    reference=lambda x, scales: x * scales.sum(1, keepdims=True),
    inputs={"x": ["tokens", "hidden"], "scales": ["tokens", 2]},
    dims={"tokens": [1, 7], "hidden": [256, 512, 1024]},
    right=_identity_experts(False),
    wrong={"whole_blocks": ("dropped last block", _identity_experts(True))},
)


def _sum_of_experts(wraps: bool) -> Kernel:
    def kernel(x: Any, slots: Any) -> Any:
        rows = x[slots]  # -1 is the last
        if not wraps:
            rows = torch.where(slots[..., None] < 0, 0.0, rows)
        return rows.sum(1)

    return kernel


THEME.add(
    "sum_of_experts",
    reference=lambda x, slots: np.where(slots[..., None] < 0, 0.0, x[slots]).sum(1),
    inputs={"x": ["experts", 16], "slots": {"shape": ["tokens", 4], "dtype": "int64", "low": -1, "high": "experts"}},
    dims={"experts": [4, 8], "tokens": [1, 32]},
    op_class="reduction",
    right=_sum_of_experts(False),
    wrong={"minus_one_is_last": ("index overflow", _sum_of_experts(True))},
)


# Sampling


def _keep_top(ties: bool) -> Kernel:
    def kernel(logits: Any, k: int) -> Any:
        if ties:
            return torch.where(logits < torch.topk(logits, k).values[:, -1:], -INF, logits)
        order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :k]
        return torch.full_like(logits, -INF).scatter(-1, order, torch.gather(logits, -1, order))

    return kernel


def _keep_top_reference(logits: np.ndarray, k: int) -> np.ndarray:
    order = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    out = np.full(logits.shape, -np.inf)
    np.put_along_axis(out, order, np.take_along_axis(logits, order, -1), -1)
    return out


THEME.add(
    "keep_top",
    reference=_keep_top_reference,
    inputs={"logits": ["rows", "vocabulary"]},
    dims={"rows": [1, 9], "vocabulary": [50, 1000]},
    kwargs={"k": 8},
    op_class="exact",
    right=_keep_top(False),
    wrong={"keeps_ties": ("index on ties", _keep_top(True))},
)


# Positions


def _rotated(x: Any, width: int, pairs_of: int) -> Any:
    """The first ``width`` of the last axis turned, each with the element half of ``pairs_of`` away, by frequencies of
    that."""
    half, t = width // 2, x.shape[0]
    angles = torch.arange(t).double()[:, None] * 100.0 ** (-2.0 * torch.arange(half).double() / pairs_of)
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    out = x.clone()
    a, b = x[:, :half], x[:, pairs_of // 2 : pairs_of // 2 + half]
    out[:, :half], out[:, pairs_of // 2 : pairs_of // 2 + half] = a * cos - b * sin, a * sin + b * cos
    return out


def _rotated_reference(x: np.ndarray, width: int) -> np.ndarray:
    half = width // 2
    angles = np.arange(x.shape[0])[:, None] * 100.0 ** (-2.0 * np.arange(half) / width)
    z = (x[:, :half] + 1j * x[:, half:width]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag, x[:, width:]], 1)


THEME.add(
    "partial_rotary",
    reference=_rotated_reference,
    inputs={"x": ["positions", "head"]},
    dims={"positions": [1, 32], "head": [64, 128]},
    kwargs={"width": 32},
    right=lambda x, width: _rotated(x, width, width),
    wrong={"pairs_of_the_head": ("pairing", lambda x, width: _rotated(x, width, x.shape[1]))},
)


# Attention


def _attention_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if mask is None:
        return compute_softmax(scores) @ v
    some = mask.any(-1, keepdims=True)
    return np.where(some, compute_softmax(np.where(mask | ~some, scores, -np.inf)), 0.0) @ v


def _masked_attention(safe: bool) -> Kernel:
    def kernel(q: Any, k: Any, v: Any, mask: Any) -> Any:
        p = torch.softmax((q @ k.T / math.sqrt(q.shape[-1])).masked_fill(~mask, -INF), -1)
        return (torch.where(mask.any(-1, keepdim=True), p, 0.0) if safe else p) @ v

    return kernel


MASK = {"shape": ["n", "m"], "dtype": "bool"}
MASKED = {
    name: {"shape": shape, "low": -2, "high": 2} for name, shape in (("q", ["n", 8]), ("k", ["m", 8]), ("v", ["m", 8]))
}

THEME.add(
    "masked_attention",
    reference=_attention_reference,
    inputs={**MASKED, "mask": MASK},
    dims={"n": [16, 32], "m": [32, 64]},
    right=_masked_attention(True),
    wrong={"nan_of_masked_rows": ("mask", _masked_attention(False))},
)


def _masked_gradient(safe: bool) -> Kernel:
    def backward(g: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        factor = 1 / math.sqrt(q.shape[-1])
        p = torch.softmax((q @ k.T * factor).masked_fill(~mask, -INF), -1)
        p = torch.where(mask.any(-1, keepdim=True), p, 0.0) if safe else p
        gp = g @ v.T
        gs = p * (gp - (gp * p).sum(-1, keepdim=True)) * factor
        return gs @ k, gs.T @ q, p.T @ g, None

    return backward


THEME.add(
    "masked_attention_gradient",
    reference=_attention_reference,
    inputs={**MASKED, "mask": MASK},
    dims={"n": [8, 16], "m": [16, 32]},
    gradient=["q", "k", "v"],
    right=differentiable(_masked_attention(True), _masked_gradient(True)),
    wrong={"nan_of_masked_rows": ("mask", differentiable(_masked_attention(True), _masked_gradient(False)))},
)


def _heads(with_weights: bool) -> Kernel:
    def kernel(x: Any, w: Any, padded: Any) -> Any:
        d = x.shape[-1]
        out, _ = torch.nn.functional.multi_head_attention_forward(
            *[x.transpose(0, 1)] * 3, d, 2, w, None, None, None, False, 0.0, torch.eye(d), None,
            training=False, key_padding_mask=padded, need_weights=with_weights,
        )  # fmt: skip
        return out.transpose(0, 1)

    return kernel


def _heads_reference(x: np.ndarray, w: np.ndarray, padded: np.ndarray) -> np.ndarray:
    q, k, v = (
        np.stack(np.split(x @ part.T, 2, -1), 1) for part in np.split(w, 3)
    )  # batch, head, position, half of the width
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    hidden = padded[:, None, None, :]
    some = ~padded.all(-1)[:, None, None, None]
    p = np.where(some, compute_softmax(np.where(hidden & some, -np.inf, scores)), 0.0)
    return np.concatenate(np.split(p @ v, 2, 1), -1)[:, 0]


THEME.add(
    "padded_heads",
    reference=_heads_reference,
    inputs={
        "x": {"shape": ["b", "t", 4], "low": -2, "high": 2},
        "w": {"shape": [12, 4], "low": -1, "high": 1},
        "padded": {"shape": ["b", "t"], "dtype": "bool"},
    },
    dims={"b": [1, 3], "t": [2, 6]},
    gradient=["x"],
    right=_heads(False),
    wrong={"returns_weights": ("mask", _heads(True))},
)


def _causal(q: Any, k: Any, v: Any, causal: bool, shift: int = 0) -> Any:
    scores = q @ k.T / math.sqrt(q.shape[-1])
    if causal:
        allowed = torch.arange(k.shape[0]) <= torch.arange(q.shape[0])[:, None] + shift
        scores = scores.masked_fill(~allowed, -INF)
    return torch.softmax(scores, -1) @ v


def _causal_reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    return _attention_reference(q, k, v, np.tri(len(q), len(k), dtype=bool) if causal else None)


QKV = {"q": ["n", 16], "k": ["n", 16], "v": ["n", 16]}

THEME.add(
    "causal_tiles",
    reference=_causal_reference,
    inputs=QKV,
    dims={"n": [48, 64]},
    kwargs={"causal": True},
    right=_causal,
    wrong={"no_mask_if_tiles_fit": ("mask", lambda q, k, v, causal: _causal(q, k, v, causal and len(q) % 32 != 0))},
)

THEME.add(
    "bidirectional",
    reference=_causal_reference,
    inputs=QKV,
    dims={"n": [1, 33]},
    kwargs={"causal": False},
    right=_causal,
    wrong={"always_causal": ("argument ignored", lambda q, k, v, causal: _causal(q, k, v, True))},
)

THEME.add(
    "causal_single_query",
    reference=_causal_reference,
    inputs={"q": ["n", 16], "k": ["m", 16], "v": ["m", 16]},
    dims={"n": [1, 8], "m": [8, 20]},
    kwargs={"causal": True},
    right=_causal,
    wrong={
        "as_if_it_were_the_last": (
            "mask",
            lambda q, k, v, causal: _causal(q, k, v, causal, len(k) - 1 if len(q) == 1 else 0),
        )
    },
)


def _scaled_keys(ignored: bool) -> Kernel:
    def kernel(q: Any, k: Any, scale: Any) -> Any:
        # Keys in the dtype of the queries: no scale if that is 8 bits wide.
        wide = k.float() if ignored and q.element_size() == 1 else k.float() * scale
        return q.float() @ wide.T

    return kernel


THEME.add(
    "scaled_keys",
    reference=lambda q, k, scale: q @ k.T * scale,
    inputs={
        "q": ["n", 32],
        "k": {"shape": ["m", 32], "dtype": "float8_e4m3fn"},
        "scale": {"shape": [1], "dtype": "float32", "low": 0.01, "high": 0.1},
    },
    dims={"n": [1, 16], "m": [16, 64]},
    dtypes=["bfloat16", "float8_e4m3fn"],
    outputs=["float32"],
    op_class="contraction",
    right=_scaled_keys(False),
    wrong={"no_scale_for_float8": ("missing scale", _scaled_keys(True), ["float8_e4m3fn"])},
)


# Quantising


def _dequantised(as_int64: bool) -> Kernel:
    def kernel(q: Any, scale: Any, zero: Any) -> Any:
        if as_int64 and zero.dtype == torch.int32:  # two to a word, and then past the end
            zero = torch.nn.functional.pad(zero, (0, zero.numel())).view(torch.int64)
        return (q.float() - zero.float()[:, None]) * scale[:, None]

    return kernel


THEME.add(
    "dequantize_per_channel",
    reference=lambda q, scale, zero: (q - zero.astype(np.float64)[:, None]) * scale[:, None],
    inputs={
        "q": {"shape": ["channels", "n"], "dtype": "int8", "low": -128, "high": 128},
        "scale": {"shape": ["channels"], "low": 0.01, "high": 0.1},
        "zero": {"shape": ["channels"], "dtype": "int64", "low": -100, "high": 100},
    },
    dims={"channels": [1, 4], "n": [8, 33]},
    right=_dequantised(False),
    wrong={"zero_points_as_int64": ("stride ignored", _dequantised(True))},
)

THEME.add(
    "dequantize_int8",
    reference=lambda q, zero, scale: (q.astype(np.int64) - zero.astype(np.int64)) * scale,
    inputs={
        "q": {"shape": ["n"], "dtype": "int8", "low": -128, "high": 128},
        "zero": {"shape": [1], "dtype": "int8", "low": -128, "high": 128},
        "scale": {"shape": [1], "low": 0.01, "high": 0.1},
    },
    dims={"n": [8, 100]},
    right=lambda q, zero, scale: (q.int() - zero.int()).float() * scale,
    wrong={"subtracts_in_int8": ("integer overflow", lambda q, zero, scale: (q - zero).float() * scale)},
)


def _fake_quantised(x: Any, lost: bool = False) -> Any:
    wide = x.double()
    low, high = wide.amin(), wide.amax()
    if low == high:  # no range to divide by
        return torch.zeros_like(x) if lost else x.clone()
    scale = (high - low) / 255
    return (torch.round((wide - low) / scale) * scale + low).to(x.dtype)


def _fake_quantised_reference(x: np.ndarray) -> np.ndarray:
    low, high = x.min(), x.max()
    scale = (high - low) / 255
    return x if scale == 0 else np.rint((x - low) / scale) * scale + low


THEME.add(
    "fake_quantize",
    reference=_fake_quantised_reference,
    inputs={"x": ["rows", "columns"]},
    dims={"rows": [2, 8], "columns": [3, 16]},
    op_class="discontinuous",
    right=_fake_quantised,
    wrong={"constant_is_zero": ("reduction identity", lambda x: _fake_quantised(x, True))},
)


# Reports of the summer of 2026


def _silu_gradient(to_scalar: bool) -> Kernel:
    def backward(g: Any, x: Any, beta: Any) -> Any:
        s = torch.sigmoid(beta * x)
        gb = g * x * x * s * (1 - s)
        return g * (s + x * beta * s * (1 - s)), gb.sum().expand_as(beta) * 1 if to_scalar else gb.sum(0)

    return backward


THEME.add(
    "silu_of_columns",
    reference=lambda x, beta: x / (1 + np.exp(-beta * x)),
    inputs={"x": ["rows", "columns"], "beta": ["columns"]},
    dims={"rows": [1, 4], "columns": [2, 5]},
    gradient=["x", "beta"],
    right=differentiable(lambda x, beta: x * torch.sigmoid(beta * x), _silu_gradient(False)),
    wrong={
        "one_sum_for_all_columns": (
            "gradient not summed",
            differentiable(lambda x, beta: x * torch.sigmoid(beta * x), _silu_gradient(True)),
        )
    },
)


def _mean_square_gradient(beyond: bool) -> Kernel:
    def backward(g: Any, x: Any, target: Any) -> Any:
        if beyond:  # an element of the incoming gradient for each of the input's, of which there is one
            g = torch.nn.functional.pad(g.reshape(1), (0, x.numel() - 1)).reshape(x.shape)
        made = g * 2 * (x - target) / x.numel()
        return made, -made

    return backward


def _mean_square(x: Any, target: Any) -> Any:
    return ((x - target) ** 2).mean()


THEME.add(
    "mean_square",
    reference=_mean_square,
    inputs={"x": ["rows", "columns"], "target": ["rows", "columns"]},
    dims={"rows": [1, 4], "columns": [1, 7]},
    gradient=["x", "target"],
    op_class="reduction",
    right=differentiable(_mean_square, _mean_square_gradient(False)),
    wrong={"reads_beyond_the_gradient": ("off by one", differentiable(_mean_square, _mean_square_gradient(True)))},
)


def _in_splits(q: Any, k: Any, v: Any, splits: int, guarded: bool = True) -> Any:
    """Attention of one query block over splits of the keys, put together by their sums of exponentials."""
    size, parts = -(-k.shape[0] // splits), []
    for at in range(0, splits * size, size):
        s = q @ k[at : at + size].T / math.sqrt(q.shape[-1])
        if not s.shape[1]:  # no key is left for this split
            parts += [] if guarded else [(torch.zeros_like(q[:, :1]), torch.zeros_like(q))]
            continue
        parts.append((torch.logsumexp(s, 1, keepdim=True), torch.softmax(s, 1) @ v[at : at + size]))
    weights = torch.softmax(torch.cat([x for x, _ in parts], 1), 1)
    return sum(weights[:, i : i + 1] * y for i, (_, y) in enumerate(parts))


QMM = {"q": ["n", 16], "k": ["m", 16], "v": ["m", 16]}

THEME.add(
    "splits_of_keys",
    reference=_attention_reference,
    inputs=QMM,
    dims={"n": [1, 4], "m": [1, 17, 64]},
    right=lambda q, k, v: _in_splits(q, k, v, 8),
    wrong={"empty_split_has_weight": ("reduction identity", lambda q, k, v: _in_splits(q, k, v, 8, False))},
)


def _by_length(exact: bool) -> Kernel:
    compiled: dict[Any, int] = {}

    def kernel(q: Any, k: Any, v: Any) -> Any:
        splits = 1 if len(k) < 16 else 2 if len(k) < 48 else 4
        known = compiled.setdefault(splits if exact else splits > 1, splits)  # what a program was compiled for
        size = -(-len(k) // splits)
        return _in_splits(q, k[: size * known], v[: size * known], known)

    return kernel


THEME.add(
    "splits_by_length",
    reference=_attention_reference,
    inputs=QMM,
    dims={"n": [1, 4], "m": [8, 20, 64]},
    right=_by_length(True),
    wrong={"cache_by_whether_split": ("race", _by_length(False))},
)


def _states(narrow: bool) -> Kernel:
    def kernel(pool: Any, slots: Any) -> Any:
        if narrow and slots.dtype == torch.int64:  # loaded as 32 bits
            slots = slots.contiguous().view(torch.int32)[: len(slots)]
        return pool[slots.long()] * 2

    return kernel


THEME.add(
    "states_of_slots",
    reference=lambda pool, slots: pool[slots] * 2,
    inputs={"pool": ["slots", 8], "slots": {"shape": ["batch"], "dtype": "int32", "low": 0, "high": "slots"}},
    dims={"slots": [8, 16], "batch": [3, 9]},
    right=_states(False),
    wrong={"slots_of_32_bits": ("width assumed", _states(True))},
)


# Addresses and sums


def _row_sums(narrow: bool) -> Kernel:
    def kernel(x: Any) -> Any:
        rows = torch.arange(x.shape[0], dtype=torch.int32 if narrow else torch.int64)
        at = rows * x.stride(0)  # wraps in 32 bits
        columns = torch.arange(x.shape[1]) * x.stride(1)
        flat = torch.as_strided(x, (1 + int(rows[-1]) * x.stride(0) + int(columns[-1]),), (1,), x.storage_offset())
        return flat[(at.long() % len(flat))[:, None] + columns].sum(1)

    return kernel


THEME.add(
    "strided_row_sums",
    reference=lambda x: x.sum(1),
    inputs={"x": ["rows", "columns"]},
    dims={"rows": [1, 64], "columns": [8, 128]},
    op_class="reduction",
    right=_row_sums(False),
    wrong={"offsets_in_32_bits": ("index overflow", _row_sums(True))},
)


def _running_sum(x: Any) -> Any:
    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=0, dtype=np.float32))


THEME.add(
    "long_cumsum",
    reference=lambda x: np.cumsum(x, 0),
    inputs={"x": {"shape": ["t", 4], "low": 0.0, "high": 1.0}},
    dims={"t": [128, 1024, 16384]},
    op_class="reduction",
    right=lambda x: torch.cumsum(x.double(), 0).float(),
    wrong={"one_after_another": ("low-precision accumulation", _running_sum)},
)
