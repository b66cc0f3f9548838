"""Rows of what neural networks are made of: activations, normalisations, convolutions, pooling, attention, losses."""

from __future__ import annotations

from tasks.counterparts.table import CounterpartRow, R

_INPLACE = ", inplace=False | inplace"

ACTIVATIONS: tuple[CounterpartRow, ...] = (
    R("nn.functional.relu", "x" + _INPLACE, "nn.relu(x)", "tf.nn.relu(x)", "F.relu(x)"),
    R("nn.functional.relu6", "x" + _INPLACE, "nn.relu6(x)", "tf.nn.relu6(x)", "F.relu6(x)"),
    R(
        "nn.functional.gelu",
        "x, *, approximate='none'",
        "nn.gelu(x, approximate=approximate == 'tanh')",
        "tf.nn.gelu(x, approximate=approximate == 'tanh')",
        "F.gelu(x, approximate == 'tanh')",
    ),
    R("nn.functional.silu nn.functional.silu.complex", "x" + _INPLACE, "nn.silu(x)", "tf.nn.silu(x)", "F.silu(x)"),
    R("nn.functional.mish", "x" + _INPLACE, "nn.mish(x)", "", "F.mish(x)"),
    R("nn.functional.elu", "x, alpha=1.0" + _INPLACE, "nn.elu(x, alpha)", "tf.nn.elu(x)", "F.elu(x, alpha)"),
    R("nn.functional.celu", "x, alpha=1.0" + _INPLACE, "nn.celu(x, alpha)", "", "F.celu(x, alpha)"),
    R("nn.functional.selu", "x" + _INPLACE, "nn.selu(x)", "tf.nn.selu(x)", "F.selu(x)"),
    R(
        "nn.functional.leaky_relu",
        "x, negative_slope=0.01" + _INPLACE,
        "nn.leaky_relu(x, negative_slope)",
        "tf.nn.leaky_relu(x, negative_slope)",
        "F.leaky_relu(x, negative_slope)",
    ),
    R("nn.functional.hardsigmoid", "x" + _INPLACE, "nn.hard_sigmoid(x)", "", "F.hardsigmoid(x)"),
    R("nn.functional.hardswish", "x" + _INPLACE, "nn.hard_swish(x)", "~x * (tf.nn.relu6(x + 3) / 6)", "F.hardswish(x)"),
    R(
        "nn.functional.hardtanh",
        "x, min_val=-1.0, max_val=1.0" + _INPLACE,
        "nn.hard_tanh(x)",
        "",
        "F.hardtanh(x, min_val, max_val)",
    ),
    R("nn.functional.hardshrink", "x, lambd=0.5", "", "", "F.hardshrink(x, lambd)"),
    R("nn.functional.softshrink", "x, lambd=0.5", "", "", "F.softshrink(x, lambd)"),
    R("nn.functional.tanhshrink", "x", "", "", "F.tanhshrink"),
    R("nn.functional.threshold", "x, threshold, value" + _INPLACE, "", "", "F.thresholded_relu(x, threshold, value)"),
    R(
        "nn.functional.softplus",
        "x, beta=1, threshold=20 | threshold",
        "nn.softplus(x) if threshold == 20 else refuse_argument('threshold')",
        "tf.nn.softplus(x) if threshold == 20 else refuse_argument('threshold')",
        "F.softplus(x, beta, threshold)",
    ),
    R("nn.functional.softsign", "x", "nn.soft_sign", "tf.nn.softsign", "F.softsign"),
    R("nn.functional.logsigmoid", "x", "nn.log_sigmoid", "tf.math.log_sigmoid", "F.log_sigmoid"),
    R("nn.functional.glu", "x, dim=-1", "nn.glu(x, dim)", "", "F.glu(x, dim)"),
    R("nn.functional.prelu", "x, weight", "", "", "F.prelu"),
    R(
        "nn.functional.rrelu",
        "x, lower=0.125, upper=1 / 3, training=False" + _INPLACE,
        "",
        "",
        "F.rrelu(x, lower, upper, training)",
    ),
    R("softmax", "x, dim, *, dtype=None", "nn.softmax(x, dim)", "tf.nn.softmax(require_axis(x), dim)", "F.softmax(x, dim)"),
    R(
        "softmax.with_dtype",
        "x, dim, *, dtype",
        "nn.softmax(x.astype(dtype), dim)",
        "tf.nn.softmax(tf.cast(require_axis(x), dtype), dim)",
        "F.softmax(x, dim, dtype)",
    ),
    R(
        "log_softmax",
        "x, dim, *, dtype=None",
        "nn.log_softmax(x, dim)",
        "tf.nn.log_softmax(require_axis(x), dim)",
        "F.log_softmax(x, dim)",
    ),
    R(
        "log_softmax.with_dtype",
        "x, dim, *, dtype",
        "nn.log_softmax(x.astype(dtype), dim)",
        "tf.nn.log_softmax(tf.cast(require_axis(x), dtype), dim)",
        "F.log_softmax(x, dim, dtype)",
    ),
    R(
        "nn.functional.dropout",
        "x, p=0.5, training=True" + _INPLACE,
        "",
        "tf.nn.dropout(x, p if training else 0.0)",
        "F.dropout(x, p, training=training)",
    ),
    R("nn.functional.alpha_dropout", "x, p=0.5, training=False" + _INPLACE, "", "", "F.alpha_dropout(x, p, training)"),
    R("nn.functional.dropout2d", "x, p=0.5, training=True" + _INPLACE, "", "", "F.dropout2d(require_rank(x, 4), p, training)"),
    R("nn.functional.dropout3d", "x, p=0.5, training=True" + _INPLACE, "", "", "F.dropout3d(require_rank(x, 5), p, training)"),
)

NORMALISATIONS: tuple[CounterpartRow, ...] = (
    R(
        "nn.functional.layer_norm",
        "x, normalized_shape, weight=None, bias=None, eps=1e-5",
        "~layer_norm(x, normalized_shape, weight, bias, eps)",
        "~layer_norm(x, normalized_shape, weight, bias, eps)",
        "F.layer_norm(x, list(normalized_shape), flatten_weight(weight), flatten_weight(bias), eps)",
    ),
    R(
        "nn.functional.rms_norm",
        "x, normalized_shape, weight=None, eps=None",
        "~rms_norm(x, normalized_shape, weight, eps)",
        "~rms_norm(x, normalized_shape, weight, eps)",
        "rms_norm(x, normalized_shape, weight, eps)",
    ),
    R(
        "nn.functional.group_norm",
        "x, num_groups, weight=None, bias=None, eps=1e-5",
        "~group_norm(x, num_groups, weight, bias, eps)",
        "~group_norm(x, num_groups, weight, bias, eps)",
        "F.group_norm(x, num_groups, eps, weight, bias)",
    ),
    R(
        "critical:batch_norm",
        "x, mean, variance, weight, bias, eps",
        "nn_standardize(x, mean, variance, weight, bias, eps)",
        "channels_first(tf.nn.batch_normalization(channels_last(x), mean, variance, bias, weight, eps))",
        "F.batch_norm(x, mean, variance, weight, bias, training=False, epsilon=eps)",
    ),
    R(
        "nn.functional.batch_norm nn.functional.batch_norm.without_cudnn",
        "x, mean, variance, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5 | momentum",
        "",
        "channels_first(tf.nn.batch_normalization(channels_last(x), mean, variance, bias, weight, eps))",
        "F.batch_norm(x, mean, variance, weight, bias, training=training, epsilon=eps)",
    ),
    R(
        "nn.functional.instance_norm",
        "x, running_mean=None, running_var=None, weight=None, bias=None, use_input_stats=True, momentum=0.1, eps=1e-5 | running_mean running_var momentum",
        "~group_norm(x, x.shape[1], weight, bias, eps)",
        "~group_norm(x, x.shape[1], weight, bias, eps)",
        "F.instance_norm(x, weight=weight, bias=bias, eps=eps)",
    ),
    R(
        "nn.functional.local_response_norm",
        "x, size, alpha=1e-4, beta=0.75, k=1.0",
        "",
        "",
        "F.local_response_norm(x, size, alpha, beta, k)",
    ),
    R("nn.functional.normalize", "x, p=2.0, dim=1, eps=1e-12", "", "", "F.normalize(x, p, dim, eps)"),
)

_CONV = "x, weight, bias=None, stride=1, padding=0, dilation=1, groups=1"
_TRANSPOSED = "x, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1"


def _make_convolution_rows(n: int) -> tuple[CounterpartRow, CounterpartRow]:
    return (
        R(
            f"nn.functional.conv{n}d",
            _CONV,
            f"convolution(x, weight, bias, stride, padding, dilation, groups, {n})",
            f"convolution(x, weight, bias, stride, padding, dilation, groups, {n})",
            f"F.conv{n}d(require_rank(x, {n + 2}), weight, bias, plain(stride, {n}), plain(padding, {n}), plain(dilation, {n}), groups)",
        ),
        R(
            f"nn.functional.conv_transpose{n}d",
            _TRANSPOSED,
            f"transposed_convolution(x, weight, bias, stride, padding, output_padding, groups, dilation, {n})",
            f"transposed_convolution(x, weight, bias, stride, padding, output_padding, groups, dilation, {n})",
            f"F.conv{n}d_transpose(require_rank(x, {n + 2}), weight, bias, plain(stride, {n}), plain(padding, {n}), plain(output_padding, {n}), groups=groups, dilation=plain(dilation, {n}))",
        ),
    )


_MAX_POOL = "x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False"
_AVG_POOL = "x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None"


def _make_pooling_rows(n: int) -> tuple[CounterpartRow, ...]:
    return (
        R(
            f"nn.functional.max_pool{n}d",
            _MAX_POOL,
            f"max_pool(x, kernel_size, stride, padding, dilation, {n})",
            f"max_pool(x, kernel_size, stride, padding, {n})",
            f"F.max_pool{n}d(require_rank(x, {n + 2}), plain(kernel_size, {n}), plain(stride, {n}), plain(padding, {n}), ceil_mode=ceil_mode)",
        ),
        R(
            f"nn.functional.avg_pool{n}d",
            _AVG_POOL,
            f"~average_pool(x, kernel_size, stride, padding, count_include_pad, {n})",
            f"average_pool(x, kernel_size, stride, padding, count_include_pad, {n})",
            f"F.avg_pool{n}d(require_rank(x, {n + 2}), plain(kernel_size, {n}), plain(stride, {n}), plain(padding, {n}), exclusive=not count_include_pad, ceil_mode=ceil_mode"
            + (")" if n == 1 else ", divisor_override=divisor_override)"),
        ),
        R(
            f"nn.functional.adaptive_avg_pool{n}d",
            "x, output_size",
            f"~adaptive_average_pool(x, output_size, {n})",
            f"~adaptive_average_pool(x, output_size, {n})",
            f"F.adaptive_avg_pool{n}d(require_rank(x, {n + 2}), plain(output_size, {n}))",
        ),
        R(
            f"nn.functional.adaptive_max_pool{n}d",
            "x, output_size, return_indices=False",
            "",
            "",
            f"F.adaptive_max_pool{n}d(require_rank(x, {n + 2}), plain(output_size, {n}))",
        ),
    )


IMAGES: tuple[CounterpartRow, ...] = (
    *(row for n in (1, 2, 3) for row in _make_convolution_rows(n)),
    *(row for n in (1, 2, 3) for row in _make_pooling_rows(n)),
    *(
        R(
            f"nn.functional.interpolate.{mode}",
            "x, size=None, scale_factor=None, mode='nearest', align_corners=None, recompute_scale_factor=None | align_corners",
            f"resize(x, size, {mode!r}, align_corners)",
            f"resize(x, size, {mode!r}, align_corners)",
            f"interpolate(x, size, scale_factor, {mode!r}, align_corners)",
        )
        for mode in ("nearest", "nearest-exact", "linear", "bilinear", "trilinear", "bicubic", "area")
    ),
    R(
        "critical:interpolate_bilinear critical:interpolate_nearest",
        "x, size, mode, align_corners=None",
        "resize(x, size, mode, align_corners)",
        "resize(x, size, mode, align_corners)",
        "interpolate(x, size, None, mode, align_corners)",
    ),
    R("nn.functional.pixel_shuffle", "x, upscale_factor", "", "", "F.pixel_shuffle(require_rank(x, 4), upscale_factor)"),
    R(
        "nn.functional.pixel_unshuffle",
        "x, downscale_factor",
        "",
        "",
        "F.pixel_unshuffle(require_rank(x, 4), downscale_factor)",
    ),
    R("nn.functional.channel_shuffle", "x, groups", "", "", "F.channel_shuffle(require_rank(x, 4), groups)"),
    R(
        "nn.functional.grid_sample",
        "x, grid, mode='bilinear', padding_mode='zeros', align_corners=None",
        "",
        "",
        "F.grid_sample(x, grid, named(mode, 'bilinear', 'nearest'), padding_mode, bool(align_corners))",
    ),
    R(
        "nn.functional.unfold",
        "x, kernel_size, dilation=1, padding=0, stride=1",
        "",
        "",
        "F.unfold(require_rank(x, 4), kernel_size, stride, padding, dilation)",
    ),
)

ATTENTION: tuple[CounterpartRow, ...] = (
    R("critical:bert_encoder", "x, mask, *weights, heads", *["~bert_encoder(named, x, mask, weights, heads)"] * 3),
    R(
        "nn.functional.scaled_dot_product_attention",
        "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False | enable_gqa",
        "attention(query, key, value, attn_mask, is_causal, scale)",
        "~attention(query, key, value, attn_mask, is_causal, scale)",
        "attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)",
    ),
    R(
        "critical:rotary_embedding",
        "x, cos, sin",
        "~rotary_embedding(x, cos, sin)",
        "~rotary_embedding(x, cos, sin)",
        "~rotary_embedding(x, cos, sin)",
    ),
    R(
        "critical:swiglu",
        "x, w, v",
        "~nn.silu(jnp.matmul(x, w)) * jnp.matmul(x, v)",
        "~tf.nn.silu(tf.matmul(x, w)) * tf.matmul(x, v)",
        "~F.silu(paddle.matmul(x, w)) * paddle.matmul(x, v)",
    ),
)

_REDUCED = ", size_average=None, reduce=None, reduction='mean'"

LOSSES: tuple[CounterpartRow, ...] = (
    R(
        "nn.functional.mse_loss",
        "x, target" + _REDUCED,
        "~reduced(jnp.square(x - target), reduction)",
        "~reduced(tf.math.squared_difference(x, target), reduction)",
        "F.mse_loss(x, target, reduction)",
    ),
    R(
        "nn.functional.l1_loss",
        "x, target" + _REDUCED,
        "~reduced(jnp.abs(x - target), reduction)",
        "~reduced(tf.abs(require_real(x) - require_real(target)), reduction)",
        "F.l1_loss(x, target, reduction)",
    ),
    R(
        "nn.functional.cross_entropy",
        "x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction='mean', label_smoothing=0.0",
        "~cross_entropy(x, target, ignore_index, reduction)",
        "cross_entropy(x, target, ignore_index, reduction)",
        "cross_entropy(x, target, weight, ignore_index, reduction)",
    ),
    R(
        "nn.functional.nll_loss",
        "x, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction='mean'",
        "",
        "",
        "F.nll_loss(require_batch(x), target, weight, ignore_index, reduction)",
    ),
    R(
        "nn.functional.binary_cross_entropy",
        "x, target, weight=None" + _REDUCED,
        "",
        "",
        "F.binary_cross_entropy(x, target, weight, reduction)",
    ),
    R(
        "nn.functional.binary_cross_entropy_with_logits",
        "x, target, weight=None, size_average=None, reduce=None, reduction='mean', pos_weight=None",
        "",
        "reduced(tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=x), reduction)",
        "F.binary_cross_entropy_with_logits(x, target, weight, reduction, pos_weight)",
    ),
    R(
        "nn.functional.kl_div",
        "x, target, size_average=None, reduce=None, reduction='mean', log_target=False",
        "",
        "",
        "F.kl_div(x, target, reduction, log_target)",
    ),
    R(
        "nn.functional.huber_loss",
        "x, target, reduction='mean', delta=1.0",
        "",
        "",
        "F.smooth_l1_loss(x, target, reduction, delta)",
    ),
    R(
        "nn.functional.cosine_similarity",
        "x, other, dim=1, eps=1e-8",
        "",
        "",
        "F.cosine_similarity(require_axis(x), require_axis(other), dim, eps)",
    ),
    R(
        "nn.functional.cosine_embedding_loss",
        "x, other, target, margin=0" + _REDUCED,
        "",
        "",
        "F.cosine_embedding_loss(x, other, target, margin, reduction)",
    ),
    R(
        "nn.functional.margin_ranking_loss",
        "x, other, target, margin=0.0" + _REDUCED,
        "",
        "",
        "F.margin_ranking_loss(x, other, target, margin, reduction)",
    ),
    R(
        "nn.functional.multi_margin_loss",
        "x, target, p=1, margin=1.0, weight=None" + _REDUCED,
        "",
        "",
        "F.multi_margin_loss(require_rank(x, 2), target, p, margin, weight, reduction)",
    ),
    R(
        "nn.functional.multilabel_soft_margin_loss",
        "x, target, weight=None" + _REDUCED,
        "",
        "",
        "F.multi_label_soft_margin_loss(x, target, weight, reduction)",
    ),
    R(
        "nn.functional.poisson_nll_loss",
        "x, target, log_input=True, full=False, size_average=None, eps=1e-8, reduce=None, reduction='mean'",
        "",
        "reduced(tf.nn.log_poisson_loss(target, x, full), reduction) if log_input and not full else refuse_argument('full')",
        "F.poisson_nll_loss(x, target, log_input, full, eps, reduction)",
    ),
    R(
        "nn.functional.gaussian_nll_loss",
        "x, target, variance, full=False, eps=1e-6, reduction='mean'",
        "",
        "",
        "F.gaussian_nll_loss(x, target, variance, full, eps, reduction)",
    ),
    R("nn.functional.soft_margin_loss", "x, target" + _REDUCED, "", "", "F.soft_margin_loss(x, target, reduction)"),
    R(
        "nn.functional.triplet_margin_loss",
        "x, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False" + _REDUCED,
        "",
        "",
        "F.triplet_margin_loss(x, positive, negative, margin, p, eps, swap, reduction)",
    ),
    R(
        "nn.functional.pairwise_distance",
        "x, other, p=2.0, eps=1e-6, keepdim=False",
        "",
        "",
        "F.pairwise_distance(x, other, p, eps, keepdim)",
    ),
)

ROWS: tuple[CounterpartRow, ...] = (*ACTIVATIONS, *NORMALISATIONS, *IMAGES, *ATTENTION, *LOSSES)
