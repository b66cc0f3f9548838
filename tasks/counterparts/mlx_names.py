"""The mlx column of the table: expressions over MLX's own functions, by torch's name of an op."""

from __future__ import annotations

#: Names whose JAX expression MLX reads as it stands, with its own functions in jax.numpy's place: both have NumPy's
#: names.
LIKE_JAX = frozenset(
    """
abs acos acosh asin asinh atan atanh ceil conj conj_physical cos cosh exp expm1 floor imag isfinite isinf isnan isneginf isposinf log
log10 log1p log2 logical_not nan_to_num neg real reciprocal round round.decimals_0 round.decimals_3 round.decimals_neg_3 sgn sign sin
sinh sqrt square tan tanh trunc
add __radd__ sub rsub __rsub__ mul __rmul__ div div.no_rounding_mode true_divide __rdiv__ div.floor_rounding floor_divide remainder
__rmod__ pow __rpow__ atan2 maximum max.binary minimum min.binary clamp_min clamp_max clamp eq ne lt le gt ge logical_and logical_or
isclose where critical:where masked_fill
amax amin all any max.reduction_no_dim min.reduction_no_dim critical:max critical:min
var std var.unbiased std.unbiased var_mean std_mean critical:sort msort
matmul mm bmm __rmatmul__ mv inner outer einsum tensordot kron
reshape view view_copy reshape_as view_as permute permute_copy transpose transpose_copy critical:transpose_contiguous T t t_copy movedim
squeeze squeeze_copy squeeze.multiple unsqueeze unsqueeze_copy roll tile repeat expand expand_copy broadcast_to expand_as stack cat
critical:cat split split.list_args split_with_sizes split_with_sizes_copy unsafe_split tril triu diag diagonal diagonal_copy trace
gather index_select nn.functional.embedding full ones zeros scatter_add
nn.functional.mse_loss nn.functional.cross_entropy critical:rotary_embedding critical:swiglu critical:bert_encoder""".split()
)

#: The others.
OWN = {
    "deg2rad": "mx.radians",
    "rad2deg": "mx.degrees",
    "erf": "mx.erf",
    "erfinv": "mx.erfinv",
    "rsqrt": "mx.rsqrt",
    "sigmoid": "mx.sigmoid",
    "logaddexp": "mx.logaddexp",
    "sum": "mx.sum(x, axis=axes(dim), keepdims=keepdim)",
    "mean": "mx.mean(x, axis=axes(dim), keepdims=keepdim)",
    "prod": "mx.prod(x, axis=axes(dim), keepdims=keepdim)",
    "logsumexp": "mx.logsumexp(x, axis=axes(dim), keepdims=keepdim)",
    "cumsum": "mx.cumsum(require_axis(x), axis=dim)",
    "cumprod": "mx.cumprod(require_axis(x), axis=dim)",
    "logcumsumexp": "mx.logcumsumexp(require_axis(x), axis=dim)",
    "argmax": "as_int64(mx.argmax(x, axis=dim, keepdims=keepdim))",
    "argmin": "as_int64(mx.argmin(x, axis=dim, keepdims=keepdim))",
    "max.reduction_with_dim": "(mx.max(x, dim, keepdims=keepdim), as_int64(mx.argmax(x, dim, keepdims=keepdim)))",
    "min.reduction_with_dim": "(mx.min(x, dim, keepdims=keepdim), as_int64(mx.argmin(x, dim, keepdims=keepdim)))",
    "argsort": "as_int64(mx.argsort(require_axis(x), dim)) if not descending else refuse_argument('descending')",
    "sort": "(mx.sort(x, dim), as_int64(mx.argsort(x, dim))) if not descending else refuse_argument('descending')",
    "critical:topk": "~mx.sort(mx.topk(x, k))[..., ::-1]",
    "addmm": "mx.addmm(x, mat1, mat2, alpha, beta)",
    "nn.functional.linear": "~mx.matmul(x, weight.T) if bias is None else mx.addmm(bias, x, weight.T)",
    "linalg.inv": "mx.linalg.inv",
    "linalg.cholesky": "mx.linalg.cholesky(x, upper)",
    "linalg.solve": "mx.linalg.solve(x, require_rank_of_matrix(other, x))",
    "flip": "mx.flip(x, list(dims))",
    "clone": "mx.array",
    "contiguous": "mx.contiguous",
    "ones_like": "mx.ones_like(x)",
    "zeros_like": "mx.zeros_like(x)",
    "nn.functional.pad.constant": "mx.pad(x, pad_widths(x, pad), constant_values=value or 0)",
    "nn.functional.pad.reflect": "mx.pad(x, pad_widths(x, pad), 'reflect') if mode == 'reflect' else refuse_argument(mode)",
    "nn.functional.pad.replicate": "mx.pad(x, pad_widths(x, pad), 'edge') if mode == 'replicate' else refuse_argument(mode)",
    "nn.functional.relu": "nn.relu(x)",
    "nn.functional.relu6": "nn.relu6(x)",
    "nn.functional.gelu": "nn.gelu_approx(x) if approximate == 'tanh' else nn.gelu(x)",
    "nn.functional.silu": "nn.silu(x)",
    "nn.functional.mish": "nn.mish(x)",
    "nn.functional.elu": "nn.elu(x, alpha)",
    "nn.functional.celu": "nn.celu(x, alpha)",
    "nn.functional.selu": "nn.selu(x)",
    "nn.functional.leaky_relu": "nn.leaky_relu(x, negative_slope)",
    "nn.functional.hardswish": "nn.hardswish(x)",
    "nn.functional.hardtanh": "nn.hard_tanh(x, min_val, max_val)",
    "nn.functional.hardshrink": "nn.hard_shrink(x, lambd)",
    "nn.functional.softshrink": "nn.softshrink(x, lambd)",
    "nn.functional.prelu": "nn.prelu(require_rank(x, 1), weight)",
    "nn.functional.softplus": "nn.softplus(x) if beta == 1 and threshold == 20 else refuse_argument('beta, threshold')",
    "nn.functional.softsign": "nn.softsign",
    "nn.functional.logsigmoid": "nn.log_sigmoid",
    "nn.functional.glu": "nn.glu(x, dim)",
    "softmax": "mx.softmax(require_axis(x), dim)",
    "log_softmax": "nn.log_softmax(require_axis(x), dim)",
    "nn.functional.dropout": "nn.Dropout(p)(x) if training else x",
    "nn.functional.layer_norm": "layer_norm(x, normalized_shape, weight, bias, eps)",
    "nn.functional.rms_norm": "rms_norm(x, normalized_shape, weight, eps)",
    "nn.functional.group_norm": "~group_norm(x, num_groups, weight, bias, eps)",
    "nn.functional.instance_norm": "~group_norm(x, x.shape[1], weight, bias, eps)",
    "critical:batch_norm": "batch_norm(x, mean, variance, weight, bias, eps)",
    "nn.functional.interpolate.nearest": "resize(x, size, 'nearest', align_corners)",
    "nn.functional.interpolate.bilinear": "resize(x, size, 'linear', align_corners)",
    "critical:interpolate_bilinear": "resize(x, size, mode, align_corners)",
    "nn.functional.scaled_dot_product_attention": "attention(query, key, value, attn_mask, is_causal, scale)",
    **{
        f"nn.functional.conv{n}d": f"convolution(x, weight, bias, stride, padding, dilation, groups, {n})"
        for n in (1, 2, 3)
    },
    **{
        f"nn.functional.conv_transpose{n}d": f"transposed_convolution(x, weight, bias, stride, padding, output_padding, groups, dilation, {n})"
        for n in (1, 2, 3)
    },
    **{f"nn.functional.max_pool{n}d": f"pool(nn.MaxPool{n}d, x, kernel_size, stride, padding, {n})" for n in (1, 2, 3)},
    **{
        f"nn.functional.avg_pool{n}d": f"pool(nn.AvgPool{n}d, x, kernel_size, stride, padding if count_include_pad else no(padding), {n})"
        for n in (1, 2, 3)
    },
    **{
        f"nn.functional.adaptive_avg_pool{n}d": f"~adaptive_average_pool(nn.AvgPool{n}d, x, output_size, {n})"
        for n in (1, 2, 3)
    },
}


def make_mlx_expression(names: str, jax: str) -> str:
    """MLX's expression of a row of the table that has these names and this JAX expression; "" for none."""
    own = next((OWN[name] for name in names.split() if name in OWN), "")
    return own or (jax.replace("jnp.", "mx.") if LIKE_JAX & set(names.split()) else "")
