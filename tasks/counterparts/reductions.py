"""Rows of ops that reduce, scan, sort or search along an axis."""

from __future__ import annotations

from tasks.counterparts.table import CounterpartRow, R

_DIM = "x, dim=None, keepdim=False"


def _make_reduction_row(
    names: str, jax: str, tensorflow: str = "", paddle: str = "", dtype: bool = False
) -> CounterpartRow:
    """A row of functions that take axes and keepdims under those names."""
    return R(
        names,
        _DIM + (", *, dtype=None" if dtype else ""),
        jax and f"{jax}(x, axis=axes(dim), keepdims=keepdim{', dtype=dtype' if dtype else ''})",
        tensorflow and f"{tensorflow}(x, axes(dim), keepdim)",
        paddle and f"{paddle}(x, axis=axes(dim), keepdim=keepdim)",
    )


_SPREAD = "x, dim=None, unbiased=None, keepdim=False, *, correction=None"
_JAX_SPREAD = "(x, axis=axes(dim), ddof=ddof(unbiased, correction), keepdims=keepdim)"
_PADDLE_SPREAD = "(x, axis=axes(dim), unbiased=bessel(unbiased, correction), keepdim=keepdim)"
_JAX_UNBIASED = "(x, ddof=int(unbiased))"

REDUCTIONS: tuple[CounterpartRow, ...] = (
    _make_reduction_row("sum", "jnp.sum", "tf.reduce_sum", "paddle.sum", dtype=True),
    _make_reduction_row("mean", "jnp.mean", "tf.reduce_mean", "paddle.mean", dtype=True),
    _make_reduction_row("prod", "jnp.prod", "tf.reduce_prod", "paddle.prod", dtype=True),
    _make_reduction_row("amax", "jnp.max", "tf.reduce_max", "paddle.amax"),
    _make_reduction_row("amin", "jnp.min", "tf.reduce_min", "paddle.amin"),
    _make_reduction_row("nansum", "jnp.nansum", "", "paddle.nansum", dtype=True),
    _make_reduction_row("nanmean", "jnp.nanmean", "", "paddle.nanmean", dtype=True),
    R(
        "logsumexp",
        _DIM,
        "jsp.special.logsumexp(x, axis=axes(dim), keepdims=keepdim)",
        "tf.reduce_logsumexp(require_axis(x), axes(dim), keepdim)",
        "paddle.logsumexp(x, axis=axes(dim), keepdim=keepdim)",
    ),
    R(
        "all",
        _DIM,
        "jnp.all(x, axis=axes(dim), keepdims=keepdim)",
        "tf.reduce_all(tf.cast(x, tf.bool), axes(dim), keepdim)",
        "paddle.all(x, axis=axes(dim), keepdim=keepdim)",
    ),
    R(
        "any",
        _DIM,
        "jnp.any(x, axis=axes(dim), keepdims=keepdim)",
        "tf.reduce_any(tf.cast(x, tf.bool), axes(dim), keepdim)",
        "paddle.any(x, axis=axes(dim), keepdim=keepdim)",
    ),
    R(
        "count_nonzero",
        "x, dim=None",
        "jnp.count_nonzero(x, axis=axes(dim))",
        "tf.math.count_nonzero(x if dim is None else require_axis(x), axes(dim))",
        "paddle.count_nonzero(x, axis=axes(dim))",
    ),
    R("max.reduction_no_dim", "x", "jnp.max", "tf.reduce_max", "paddle.max"),
    R("min.reduction_no_dim", "x", "jnp.min", "tf.reduce_min", "paddle.min"),
    R(
        "max.reduction_with_dim",
        "x, dim, keepdim=False",
        "(jnp.max(x, dim, keepdims=keepdim), jnp.argmax(x, dim, keepdims=keepdim))",
    ),
    R(
        "min.reduction_with_dim",
        "x, dim, keepdim=False",
        "(jnp.min(x, dim, keepdims=keepdim), jnp.argmin(x, dim, keepdims=keepdim))",
    ),
    R("critical:max", "x, dim", "jnp.max(x, axis=dim)", "tf.reduce_max(x, dim)", "paddle.max(x, axis=dim)"),
    R("critical:min", "x, dim", "jnp.min(x, axis=dim)", "tf.reduce_min(x, dim)", "paddle.min(x, axis=dim)"),
    R(
        "aminmax",
        "x, *, dim=None, keepdim=False",
        "(jnp.min(x, dim, keepdims=keepdim), jnp.max(x, dim, keepdims=keepdim))",
    ),
    R(
        "argmax",
        _DIM,
        "jnp.argmax(x, axis=dim, keepdims=keepdim)",
        "tf.argmax(x, axis=given(dim))",
        "paddle.argmax(x, axis=dim, keepdim=keepdim)",
    ),
    R(
        "argmin",
        _DIM,
        "jnp.argmin(x, axis=dim, keepdims=keepdim)",
        "tf.argmin(x, axis=given(dim))",
        "paddle.argmin(x, axis=dim, keepdim=keepdim)",
    ),
    R(
        "var",
        _SPREAD,
        f"jnp.var{_JAX_SPREAD}",
        "~variance(x, axes(dim), ddof(unbiased, correction), keepdim)",
        f"paddle.var{_PADDLE_SPREAD}",
    ),
    R("std", _SPREAD, f"jnp.std{_JAX_SPREAD}", "", f"paddle.std{_PADDLE_SPREAD}"),
    R(
        "var.unbiased",
        "x, unbiased",
        f"jnp.var{_JAX_UNBIASED}",
        "~variance(x, None, int(unbiased), False)",
        "paddle.var(x, unbiased=unbiased)",
    ),
    R("std.unbiased", "x, unbiased", f"jnp.std{_JAX_UNBIASED}", "", "paddle.std(x, unbiased=unbiased)"),
    R("var_mean", _SPREAD, f"(jnp.var{_JAX_SPREAD}, jnp.mean(x, axis=axes(dim), keepdims=keepdim))"),
    R("std_mean", _SPREAD, f"(jnp.std{_JAX_SPREAD}, jnp.mean(x, axis=axes(dim), keepdims=keepdim))"),
    R("var_mean.unbiased", "x, unbiased", f"(jnp.var{_JAX_UNBIASED}, jnp.mean(x))"),
    R("std_mean.unbiased", "x, unbiased", f"(jnp.std{_JAX_UNBIASED}, jnp.mean(x))"),
    R(
        "linalg.vector_norm",
        "x, ord=2, dim=None, keepdim=False, *, dtype=None",
        "jnp.linalg.vector_norm(x, ord=ord, axis=axes(dim), keepdims=keepdim)",
        "tf.norm(x, require_positive_order(ord), axes(dim), keepdim)",
        "paddle.linalg.vector_norm(x, float(ord), axes(dim), keepdim)",
    ),
    R(
        "linalg.norm linalg.norm.subgradients_at_zero",
        "x, ord=None, dim=None, keepdim=False, *, dtype=None",
        "jnp.linalg.norm(x, ord, axes(dim), keepdim)",
    ),
    R(
        "linalg.matrix_norm",
        "x, ord='fro', dim=(-2, -1), keepdim=False, *, dtype=None",
        "jnp.linalg.matrix_norm(x, ord=ord, keepdims=keepdim)",
        "",
        "paddle.linalg.matrix_norm(require_real(x), ord, list(dim), keepdim)",
    ),
    R("dist", "x, other, p=2", "", "", "paddle.dist(x, other, p)"),
    R(
        "quantile",
        "x, q, dim=None, keepdim=False, *, interpolation='linear'",
        "jnp.quantile(x, q, axis=dim, method=interpolation, keepdims=keepdim)",
    ),
    R(
        "nanquantile",
        "x, q, dim=None, keepdim=False, *, interpolation='linear'",
        "jnp.nanquantile(x, q, axis=dim, method=interpolation, keepdims=keepdim)",
    ),
    R("mode", "x, dim=-1, keepdim=False", "", "", "paddle.mode(x, dim, keepdim)"),
    R("kthvalue", "x, k, dim=-1, keepdim=False", "", "", "paddle.kthvalue(x, k, dim, keepdim)"),
    R(
        "cov",
        "x, *, correction=1, fweights=None, aweights=None",
        "jnp.cov(x, ddof=correction, fweights=fweights, aweights=aweights)",
    ),
    R("corrcoef", "x", "jnp.corrcoef", "", "paddle.linalg.corrcoef"),
    R(
        "trapezoid trapz",
        "y, x=None, *, dx=1.0, dim=-1",
        "jnp.trapezoid(y, x, dx, dim)",
        "",
        "paddle.trapezoid(y, x, None if x is not None else dx, dim)",
    ),
    R(
        "cumulative_trapezoid",
        "y, x=None, *, dx=1.0, dim=-1",
        "",
        "",
        "paddle.cumulative_trapezoid(y, x, None if x is not None else dx, dim)",
    ),
)

SCANS: tuple[CounterpartRow, ...] = (
    R(
        "cumsum",
        "x, dim, *, dtype=None",
        "jnp.cumsum(x, axis=dim, dtype=dtype)",
        "tf.cumsum(require_axis(x), axis=dim)",
        "paddle.cumsum(x, dim, dtype)",
    ),
    R(
        "cumprod",
        "x, dim, *, dtype=None",
        "jnp.cumprod(x, axis=dim, dtype=dtype)",
        "tf.math.cumprod(require_axis(x), axis=dim)",
        "paddle.cumprod(x, dim=dim, dtype=dtype)",
    ),
    R("cummax", "x, dim", "", "", "paddle.cummax(x, dim)"),
    R("cummin", "x, dim", "", "", "paddle.cummin(x, dim)"),
    R(
        "logcumsumexp",
        "x, dim",
        "lax.cumlogsumexp(require_real(x), dim % max(x.ndim, 1))",
        "tf.math.cumulative_logsumexp(require_axis(x), dim)",
        "paddle.logcumsumexp(x, dim)",
    ),
    R(
        "diff",
        "x, n=1, dim=-1, prepend=None, append=None",
        "jnp.diff(x, n, dim, prepend, append)",
        "",
        "paddle.diff(require_axis(x), n or refuse_argument('n=0'), dim, prepend, append)",
    ),
)

SORTS: tuple[CounterpartRow, ...] = (
    R(
        "sort",
        "x, dim=-1, descending=False, *, stable=False | stable",
        "(jnp.sort(x, dim, descending=descending), jnp.argsort(x, dim, descending=descending))",
        "(tf.sort(x, dim, name_sort_direction(descending)), as_int64(tf.argsort(x, dim, name_sort_direction(descending), True)))",
        "(paddle.sort(x, dim, descending), paddle.argsort(x, dim, descending, True))",
    ),
    R("critical:sort", "x, dim", "jnp.sort(x, dim)", "tf.sort(x, dim)", "paddle.sort(x, dim)"),
    R(
        "argsort",
        "x, dim=-1, descending=False, stable=False | stable",
        "jnp.argsort(x, dim, descending=descending)",
        "as_int64(tf.argsort(x, dim, name_sort_direction(descending), stable))",
        "paddle.argsort(x, dim, descending, stable)",
    ),
    R("msort", "x", "jnp.sort(x, 0)", "tf.sort(x, 0)", "paddle.sort(x, 0)"),
    R(
        "topk",
        "x, k, dim=-1, largest=True, sorted=True",
        "top_k(x, k, dim, largest)",
        "top_k(x, k, dim, largest)",
        "paddle.topk(x, k, dim, largest)",
    ),
    R("critical:topk", "x, k", "lax.top_k(x, k)[0]", "tf.math.top_k(x, k)[0]", "paddle.topk(x, k)[0]"),
    R(
        "searchsorted",
        "sorted_sequence, values, *, out_int32=False, right=False, side=None, sorter=None",
        "searchsorted(sorted_sequence, values, right, side, out_int32)",
        "searchsorted(sorted_sequence, values, right, side, out_int32)",
        "searchsorted(sorted_sequence, values, right, side, out_int32)",
    ),
    R(
        "bucketize",
        "x, boundaries, *, out_int32=False, right=False",
        "searchsorted(boundaries, x, right, None, out_int32)",
        "",
        "paddle.bucketize(x, boundaries, out_int32, right)",
    ),
    R(
        "isin",
        "elements, test_elements, *, assume_unique=False, invert=False",
        "jnp.isin(elements, test_elements, invert=invert)",
        "",
        "paddle.isin(elements, test_elements, invert=invert)",
    ),
)

ROWS: tuple[CounterpartRow, ...] = (*REDUCTIONS, *SCANS, *SORTS)
