"""Reductions and contractions: accumulators, their dtype, their beginning and their end."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.zoo.specimen import INF, NAN, SIZES, Kernel, Theme, blocks, torch

THEME = Theme("reductions", __name__)


def _sum(overwrite: bool = False, drop_last: bool = False, first: int = 0, dim: int = -1) -> Kernel:
    def kernel(x: Any) -> Any:
        x = x.movedim(dim, -1)[..., first:]
        acc = torch.zeros(x.shape[:-1])
        for part in blocks(x.shape[-1], drop_last):
            piece = x[..., part].float().sum(-1)
            acc = piece if overwrite else acc + piece
        return acc.to(x.dtype)

    return kernel


THEME.add(
    "sum",
    reference=lambda x: x.sum(-1),
    inputs={"x": ["n", "n"]},
    dims={"n": [129, 257]},
    dtypes=["float32", "float16"],
    op_class="reduction",
    right=_sum(),
    wrong={
        "overwritten": ("acc= for acc+=", _sum(overwrite=True)),
        "dropped_last_block": ("dropped last block", _sum(drop_last=True)),
        "first_element": ("off by one", _sum(first=1)),
        "wrong_axis": ("wrong axis", _sum(dim=0)),
    },
)


def _lanes(x: np.ndarray) -> np.ndarray:
    """Sums of rows with 32 accumulators in the dtype of x, added up at the end: how a vectorised loop sums."""
    acc = np.add.accumulate(x.reshape(x.shape[0], -1, 32), 1, dtype=x.dtype)[:, -1]
    total: np.ndarray = np.add.accumulate(acc, -1, dtype=x.dtype)[:, -1]
    return total


THEME.add(
    "long_sum",
    framework="numpy",
    reference=lambda x: x.sum(-1),
    inputs={"x": {"shape": [2, "n"], "low": 0, "high": 1}},
    dims={"n": [1024, 4096, 65536]},
    dtypes=["bfloat16"],
    op_class="reduction",
    right=lambda x: x.astype(np.float32).sum(-1).astype(x.dtype),
    wrong={
        "narrow": ("low-precision accumulation", lambda x: np.add.accumulate(x, -1, dtype=x.dtype)[:, -1]),
        "narrow_lanes": ("low-precision accumulation", _lanes),
    },
)

THEME.add(
    "long_half_sum",
    framework="numpy",
    reference=lambda x: x.sum(-1),
    inputs={"x": {"shape": [2, "n"], "low": 0, "high": 1}},
    dims={"n": [4096, 10000]},
    dtypes=["float16"],
    op_class="reduction",
    right=lambda x: x.astype(np.float32).sum(-1).astype(x.dtype),
    wrong={"narrow": ("low-precision accumulation", lambda x: np.add.accumulate(x, -1, dtype=x.dtype)[:, -1])},
)


def _mean(padded_count: bool = False, wide_output: bool = False, keepdim: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        n = x.shape[-1]
        out = x.float().sum(-1, keepdim=keepdim) / (n + (-n % 128) if padded_count else n)
        return out if wide_output else out.to(x.dtype)

    return kernel


THEME.add(
    "mean",
    reference=lambda x: x.mean(-1),
    inputs={"x": [5, "n"]},
    dims={"n": SIZES},
    dtypes=["bfloat16", "float16"],
    op_class="reduction",
    right=_mean(),
    wrong={
        "count_of_padding": ("padding value", _mean(padded_count=True)),
        "float32_out": ("wrong dtype", _mean(wide_output=True)),
        "keepdim": ("wrong shape", _mean(keepdim=True)),
        "list": ("wrong structure", lambda x: x.float().mean(-1).tolist()),
        "whole_blocks_only": ("raises", lambda x: x.float().view(x.shape[0], -1, 64).sum(-1).mean(-1).to(x.dtype)),
    },
)

THEME.add(
    "total",
    reference=lambda x: np.asarray(x.sum()),
    inputs={"x": ["n"]},
    dims={"n": SIZES},
    op_class="reduction",
    right=lambda x: x.sum(),
    wrong={
        "one_element": ("wrong shape", lambda x: x.sum(0, keepdim=True)),
        "python_float": ("wrong structure", lambda x: float(x.sum())),
        "nothing_returned": ("wrong structure", lambda x: None),
    },
)

THEME.add(
    "pooled",
    reference=lambda x: x.mean(-1),
    inputs={"x": ["rows", "n"]},
    dims={"rows": [1, 3], "n": [7, 33]},
    op_class="reduction",
    right=lambda x: x.mean(-1),
    wrong={"squeezed": ("wrong shape", lambda x: x.mean(-1).squeeze())},
)

THEME.add(
    "var_mean",
    reference=lambda x: (x.var(-1), x.mean(-1)),
    inputs={"x": [4, "n"]},
    dims={"n": [33, 128]},
    op_class="reduction",
    right=lambda x: torch.var_mean(x, -1, correction=0),
    wrong={
        "swapped": ("order", lambda x: torch.var_mean(x, -1, correction=0)[::-1]),
        "second_of_first_row": ("broadcast", lambda x: (x.var(-1, correction=0), x[:1].mean(-1).repeat(x.shape[0]))),
        "mean_forgotten": ("wrong structure", lambda x: x.var(-1, correction=0)),
    },
)


def _var(ddof: int = 1, one_pass: bool = False, delta: bool = True) -> Kernel:
    """Means and squared deviations merged block by block (Chan, Golub, LeVeque 1979); ``delta``: with the term of the
    means."""

    def kernel(x: Any) -> Any:
        if one_pass:
            n = x.shape[-1]
            return (x.square().sum(-1) - x.sum(-1).square() / n) / (n - ddof)
        count, mean, m2 = 0, torch.zeros(x.shape[:-1]), torch.zeros(x.shape[:-1])
        for part in blocks(x.shape[-1]):
            b = x[..., part]
            k, centre = b.shape[-1], b.mean(-1)
            step = centre - mean
            m2 = m2 + (b - centre[..., None]).square().sum(-1)
            if delta:
                m2 = m2 + step.square() * (count * k / (count + k))
            mean, count = mean + step * (k / (count + k)), count + k
        return m2 / (count - ddof)

    return kernel


THEME.add(
    "var",
    reference=lambda x: x.var(-1, ddof=1),
    inputs={"x": {"shape": [4, "n"], "low": 300, "high": 301}},
    dims={"n": [129, 300, 1000]},
    op_class="reduction",
    right=_var(),
    wrong={
        "biased": ("biased variance", _var(ddof=0)),
        "one_pass": ("cancellation", _var(one_pass=True)),
        "merged_without_means": ("missing rescale", _var(delta=False)),
    },
)


def _logsumexp(shift: bool = True, add_back: bool = True, start: float = -INF) -> Kernel:
    def kernel(x: Any) -> Any:
        top = x.amax(-1, keepdim=True).clamp_min(start) if shift else torch.zeros(*x.shape[:-1], 1)
        out = torch.exp(x - top).sum(-1).log()
        return out + top[..., 0] if add_back else out

    return kernel


THEME.add(
    "logsumexp",
    reference=lambda x: np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1)) + x.max(-1),
    inputs={"x": {"shape": [4, "n"], "low": -300, "high": -100}},
    dims={"n": SIZES},
    op_class="reduction",
    right=_logsumexp(),
    wrong={
        "no_shift": ("overflow", _logsumexp(shift=False)),
        "shift_not_added": ("missing rescale", _logsumexp(add_back=False)),
        "max_from_zero": ("reduction identity", _logsumexp(start=0.0)),
    },
)


def _norm(root: bool = True, narrow: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        squares = x.square() if narrow else x.float().square()
        total = squares.float().sum(-1)
        return (total.sqrt() if root else total).to(x.dtype)

    return kernel


THEME.add(
    "norm",
    reference=lambda x: np.sqrt((x * x).sum(-1)),
    inputs={"x": {"shape": [4, "n"], "low": -900, "high": 900}},
    dims={"n": [31, 129]},
    dtypes=["float16"],
    op_class="reduction",
    right=_norm(),
    wrong={"float16_squares": ("overflow", _norm(narrow=True)), "no_root": ("cruder formula", _norm(root=False))},
)


def _amax(nan: bool = True) -> Kernel:
    def kernel(x: Any) -> Any:
        top = x[..., 0] if nan else torch.full(x.shape[:-1], -INF)
        for k in range(x.shape[-1]):
            top = torch.maximum(top, x[..., k]) if nan else torch.where(x[..., k] > top, x[..., k], top)
        return top

    return kernel


THEME.add(
    "amax_with_nan",
    reference=lambda x: x.max(-1),
    op_class="exact",
    right=_amax(),
    inputs={"x": {"shape": [4, 5], "data": [NAN, 1, 2, 3, 4, 1, 2, NAN, -3, 4, 5, 4, 3, -INF, NAN, 5, 6, INF, 8, -9]}},
    wrong={"compared": ("NaN swallowed", _amax(nan=False))},
)


def _argmax(last: bool = False, narrow: bool = False) -> Kernel:
    def kernel(x: Any) -> Any:
        n = x.shape[-1]
        places = torch.arange(n).expand(x.shape)
        hit = x == x.amax(-1, keepdim=True)
        out = torch.where(hit, places, -1).amax(-1) if last else torch.where(hit, places, n).amin(-1)
        return out.int() if narrow else out

    return kernel


THEME.add(
    "argmax",
    reference=lambda x: x.argmax(-1),
    inputs={"x": {"shape": [3, "n"], "data": [1, 5, 2, 5, -1, 0, 5]}},
    dims={"n": [7, 32, 127]},
    op_class="exact",
    outputs=["int64"],
    dtypes=["float32", "float16"],
    right=_argmax(),
    wrong={"last_of_equals": ("index on ties", _argmax(last=True)), "int32": ("wrong dtype", _argmax(narrow=True))},
)


def _gemm(
    overwrite: bool = False,
    drop_last: bool = False,
    alpha: bool = True,
    beta: bool = True,
    cast: str = "",
    transposed: bool = False,
    garbage: float = 0.0,
    column: bool = False,
) -> Kernel:
    """out = alpha·a@b + beta·c, over blocks of k; cast: dtype that products are made in; garbage: what the
    padding of k adds to a sum; column: c is spread over columns."""

    def kernel(a: Any, b: Any, c: Any, alpha_: float, beta_: float) -> Any:
        b = b.t() if transposed else b
        k = a.shape[1]
        acc = torch.zeros(a.shape[0], b.shape[1])
        for part in blocks(k, drop_last):
            left, right = a[:, part].float(), b[part].float()
            if cast:
                left, right = left.to(getattr(torch, cast)).float(), right.to(getattr(torch, cast)).float()
            piece = left @ right + garbage * (-(part.stop - part.start) % 128)
            acc = piece if overwrite else acc + piece
        c = c.float()[:, None] if column else c.float()
        return ((alpha_ if alpha else 1.0) * acc + (beta_ if beta else 1.0) * c).to(a.dtype)

    return kernel


def _narrow_gemm(a: Any, b: Any, c: Any, alpha_: float, beta_: float) -> Any:
    """Every product, and every sum, is rounded to the dtype itself: nothing at all in float32."""
    acc = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    for k in range(a.shape[1]):
        acc = acc + a[:, k : k + 1] * b[k]
    return alpha_ * acc + beta_ * c


THEME.add(
    "gemm",
    reference=lambda a, b, c, alpha_, beta_: alpha_ * (a @ b) + beta_ * c,
    inputs={"a": ["m", "k"], "b": ["k", "k"], "c": ["k"]},
    kwargs={"alpha_": 0.5, "beta_": 2.0},
    dims={"m": [33], "k": [127, 129, 257]},
    dtypes=["float32", "float16", "bfloat16"],
    op_class="contraction",
    right=_gemm(),
    wrong={
        "overwritten": ("acc= for acc+=", _gemm(overwrite=True)),
        "dropped_last_block": ("dropped last block", _gemm(drop_last=True)),
        "no_alpha": ("missing scale", _gemm(alpha=False)),
        "no_beta": ("argument ignored", _gemm(beta=False)),
        "transposed": ("stride ignored", _gemm(transposed=True)),
        "garbage_in_padding": ("padding value", _gemm(garbage=0.5)),
        "narrow": ("low-precision accumulation", _narrow_gemm, ["float16", "bfloat16"]),
    },
)

THEME.add(
    "square_gemm",
    reference=lambda a, b, c, alpha_, beta_: alpha_ * (a @ b) + beta_ * c,
    inputs={"a": ["k", "k"], "b": ["k", "k"], "c": ["k"]},
    kwargs={"alpha_": 1.0, "beta_": 1.0},
    dims={"k": [64, 129]},
    op_class="contraction",
    right=_gemm(),
    wrong={
        "bias_over_columns": ("broadcast", _gemm(column=True)),
        "bfloat16_products": ("coarse precision", _gemm(cast="bfloat16")),
        "float16_products": ("coarse precision", _gemm(cast="float16")),
    },
)

THEME.add(
    "long_dot",
    framework="numpy",
    reference=lambda x, y: (x * y).sum(-1),
    inputs={"x": {"shape": [2, "n"], "low": 0, "high": 1}, "y": {"shape": [2, "n"], "low": 0, "high": 1}},
    dims={"n": [5000, 10000]},
    dtypes=["float16", "bfloat16"],
    op_class="contraction",
    right=lambda x, y: (x.astype(np.float32) * y.astype(np.float32)).sum(-1).astype(x.dtype),
    wrong={"narrow": ("low-precision accumulation", lambda x, y: np.add.accumulate(x * y, -1, dtype=x.dtype)[:, -1])},
)


def _bmm(first_only: bool = False) -> Kernel:
    return lambda a, b: torch.stack([a[i] @ b[0 if first_only else i] for i in range(a.shape[0])])


THEME.add(
    "bmm",
    reference=lambda a, b: a @ b,
    inputs={"a": ["batch", 5, "k"], "b": ["batch", "k", 7]},
    dims={"batch": [3], "k": [33, 64]},
    op_class="contraction",
    right=_bmm(),
    wrong={"batch_stride": ("stride ignored", _bmm(first_only=True))},
)


THEME.add(
    "double_dot",
    reference=lambda x, y: (x * y).sum(-1),
    inputs={"x": [3, "n"], "y": [3, "n"]},
    dims={"n": [33, 129]},
    dtypes=["float64"],
    op_class="contraction",
    right=lambda x, y: (x * y).sum(-1),
    wrong={"through_float32": ("coarse precision", lambda x, y: (x.float() * y.float()).sum(-1).double())},
)

THEME.add(
    "complex_dot",
    reference=lambda x, y: (x.conj() * y).sum(-1),
    inputs={"x": [3, "n"], "y": [3, "n"]},
    dims={"n": [33, 129]},
    dtypes=["complex64"],
    op_class="contraction",
    right=lambda x, y: (x.conj() * y).sum(-1),
    wrong={
        "not_conjugated": ("sign", lambda x, y: (x * y).sum(-1)),
        "other_conjugated": ("sign", lambda x, y: (x * y.conj()).sum(-1)),
        "real_part": ("argument ignored", lambda x, y: torch.complex((x.conj() * y).real.sum(-1), torch.zeros(3))),
    },
)

THEME.add(
    "complex_abs",
    reference=lambda x: np.abs(x),
    inputs={"x": {"shape": [3, "n"], "low": -1e30, "high": 1e30}},
    dims={"n": [33, 129]},
    dtypes=["complex64"],
    outputs=["float32"],
    op_class="elementary",
    right=lambda x: torch.hypot(x.real, x.imag),
    wrong={"squares": ("overflow", lambda x: (x.real.square() + x.imag.square()).sqrt())},
)


def _block_scaled(shared: bool) -> Kernel:
    """Rows and columns scaled below 1, multiplied in fixed point, scaled back: by a scale for each row of x, or one for
    all."""

    def scale(x: Any, *dim: int) -> Any:
        size = x.abs().amax(dim, keepdim=True)
        return torch.ldexp(torch.ones_like(size), torch.frexp(size).exponent)

    def kernel(x: Any, w: Any) -> Any:
        of_x, of_w = scale(x, *[0] * shared, 1), scale(w, 0)
        # A fixed-point accumulator of 32 bits.
        fixed = torch.round((x / of_x @ (w / of_w)).double() * 2.0**27) / 2.0**27
        return (fixed * of_x * of_w).to(x.dtype)

    return kernel


THEME.add(
    "scaled_matmul",
    reference=lambda x, w: x @ w,
    op_class="contraction",
    inputs={
        "x": {
            "shape": [4, 8],
            "data": [s * v for s in (1e4, 1e-1, 1e-4, 1.0) for v in (0.3, -0.7, 0.9, 0.2, -0.5, 0.8, 0.4, -0.6)],
        },
        "w": [8, 16],
    },
    right=_block_scaled(shared=False),
    wrong={"one_scale": ("small beside large", _block_scaled(shared=True))},
)
