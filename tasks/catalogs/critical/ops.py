"""The table of the critical catalog: every op with its inputs, its NumPy reference and its torch form.

Inputs are made in float64 (indices int64, masks bool) at shapes that current models use. The reference and the
torch form take the same arguments under the same names, so a call written once serves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.catalogs.critical import encoder, sums
from tasks.catalogs.critical import reference as ref

#: Positional and keyword arguments; arrays stand where tensors will.
Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class CriticalOp:
    """One op: ``inputs(rng)`` makes a call, ``reference(*call)`` its exact result, ``torch_form(torch)`` the callable.

    selects: whether an input of integers or booleans says what is taken. narrow: given the call's arguments, an equal
    call of the reference on fewer bytes, for an op that reads little of what it is given; None means the call as it is.
    sums: makes a call of which it is known where the terms of a result lie; None where it adds nothing, or nothing
    whose terms can be chosen (exponentials, squares).
    """

    name: str
    inputs: Callable[[np.random.Generator], Call]
    reference: Callable[..., Any]
    torch_form: Callable[[Any], Callable[..., Any]]
    narrow: Callable[..., Call] | None = None
    selects: bool = False
    sums: sums.Make | None = None


def make_critical_call(*args: Any, **kwargs: Any) -> Call:
    """The arguments of an op, as they stand in a function call."""
    return args, kwargs


def draw_activations(g: np.random.Generator, *shape: int, scale: float = 1.0, loc: float = 0.0) -> np.ndarray:
    """Activations: float64 normal values of the given shape."""
    x = g.standard_normal(shape)
    x *= scale
    x += loc
    return x


def draw_layer_weights(g: np.random.Generator, *shape: int, fan_in: int) -> np.ndarray:
    """Weights scaled so that a contraction over ``fan_in`` keeps the size of its input (He et al. 2015)."""
    return draw_activations(g, *shape, scale=fan_in**-0.5)


def draw_positive_values(g: np.random.Generator, *shape: int, spread: float = 1.0) -> np.ndarray:
    """Log-normal values: positive, around 1, ``spread`` the standard deviation of their logarithm."""
    return np.exp(draw_activations(g, *shape, scale=spread))


def draw_image(g: np.random.Generator, *shape: int) -> np.ndarray:
    """A picture or feature map (N, C, H, W) with a mean unlike zero, as after an activation."""
    return draw_activations(g, *shape, loc=0.25)


def draw_one_maximum_a_row(g: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """(rows, columns) with one place in every row above all others by 1, which no dtype here rounds away."""
    x = draw_activations(g, rows, columns)
    place = g.integers(0, columns, rows)
    x[np.arange(rows), place] = x.max(axis=1) + 1.0
    return x


def draw_classes_with_ignored(g: np.random.Generator, count: int, classes: int) -> np.ndarray:
    """Class indices (count) of which one in eight is −100, the index that a loss leaves out."""
    target = g.integers(0, classes, count)
    target[::8] = -100
    return target


def compute_rotary_angles(length: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin (length, width/2) of position·10000^(−2j/width), the angles of arXiv:2104.09864."""
    angles = np.arange(length)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    return np.cos(angles), np.sin(angles)


def _make_rotary_in_torch(torch: Any) -> Callable[..., Any]:
    def rotary_embedding(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        cos, sin = torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    return rotary_embedding


def _make_batch_norm_in_torch(torch: Any) -> Callable[..., Any]:
    def batch_norm(x: Any, mean: Any, variance: Any, weight: Any, bias: Any, eps: float) -> Any:
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training=False, eps=eps)

    return batch_norm


_CONTRACTIONS = (
    CriticalOp(
        "matmul",
        lambda g: make_critical_call(draw_activations(g, 256, 256), draw_activations(g, 256, 256)),
        np.matmul,
        lambda torch: torch.matmul,
        sums=sums.make_product_sum(),
    ),
    CriticalOp(
        "bmm",
        lambda g: make_critical_call(draw_activations(g, 8, 256, 256), draw_activations(g, 8, 256, 256)),
        np.matmul,
        lambda torch: torch.bmm,
        sums=sums.make_product_sum(batch=2),
    ),
    # The fused query-key-value projection of GPT-2.
    CriticalOp(
        "addmm",
        lambda g: make_critical_call(
            draw_activations(g, 2304), draw_activations(g, 128, 768), draw_layer_weights(g, 768, 2304, fan_in=768)
        ),
        ref.addmm,
        lambda torch: torch.addmm,
        sums=sums.make_product_sum(shared=1, bias=0),
    ),
    CriticalOp(
        "linear",
        lambda g: make_critical_call(
            draw_activations(g, 128, 768), draw_layer_weights(g, 3072, 768, fan_in=768), draw_activations(g, 3072)
        ),
        ref.linear,
        lambda torch: torch.nn.functional.linear,
        sums=sums.make_product_sum(bias=2, transposed=True),
    ),
    # The first layer of ResNet.
    CriticalOp(
        "conv2d",
        lambda g: make_critical_call(
            draw_image(g, 1, 3, 224, 224),
            draw_layer_weights(g, 64, 3, 7, 7, fan_in=147),
            draw_activations(g, 64),
            stride=2,
            padding=3,
        ),
        ref.conv2d,
        lambda torch: torch.nn.functional.conv2d,
        sums=sums.make_convolution_sum((3, 3), lambda n: max(1, n // 9)),
    ),
    # MobileNet.
    CriticalOp(
        "conv2d_depthwise",
        lambda g: make_critical_call(
            draw_image(g, 2, 144, 56, 56),
            draw_layer_weights(g, 144, 1, 3, 3, fan_in=9),
            draw_activations(g, 144),
            stride=1,
            padding=1,
            groups=144,
        ),
        ref.conv2d,
        lambda torch: torch.nn.functional.conv2d,
        sums=sums.make_convolution_sum((3, 3), lambda n: 1, lambda n: sums.COLUMNS),
    ),
    # ResNeXt 32×4d.
    CriticalOp(
        "conv2d_grouped",
        lambda g: make_critical_call(
            draw_image(g, 2, 128, 56, 56),
            draw_layer_weights(g, 128, 4, 3, 3, fan_in=36),
            draw_activations(g, 128),
            stride=1,
            padding=1,
            groups=32,
        ),
        ref.conv2d,
        lambda torch: torch.nn.functional.conv2d,
        sums=sums.make_convolution_sum((3, 3), lambda n: 4, lambda n: 2),
    ),
    # The first layer of Whisper.
    CriticalOp(
        "conv1d",
        lambda g: make_critical_call(
            draw_activations(g, 2, 80, 750),
            draw_layer_weights(g, 384, 80, 3, fan_in=240),
            draw_activations(g, 384),
            stride=1,
            padding=1,
        ),
        ref.conv1d,
        lambda torch: torch.nn.functional.conv1d,
        sums=sums.make_convolution_sum((3,), lambda n: max(1, n // 3)),
    ),
    # DCGAN's generator.
    CriticalOp(
        "conv_transpose2d",
        lambda g: make_critical_call(
            draw_image(g, 2, 128, 16, 16),
            draw_layer_weights(g, 128, 64, 4, 4, fan_in=512),
            draw_activations(g, 64),
            stride=2,
            padding=1,
        ),
        ref.conv_transpose2d,
        lambda torch: torch.nn.functional.conv_transpose2d,
        sums=sums.sum_transposed_convolution,
    ),
)

_ACTIVATIONS = (
    CriticalOp("relu", lambda g: make_critical_call(draw_activations(g, 64, 3072)), ref.relu, lambda torch: torch.relu),
    CriticalOp(
        "gelu", lambda g: make_critical_call(draw_activations(g, 64, 3072)), ref.gelu, lambda torch: torch.nn.functional.gelu
    ),
    CriticalOp(
        "gelu_tanh",
        lambda g: make_critical_call(draw_activations(g, 64, 3072), approximate="tanh"),
        ref.gelu_tanh,
        lambda torch: torch.nn.functional.gelu,
    ),
    CriticalOp(
        "silu",
        lambda g: make_critical_call(draw_activations(g, 64, 3072, scale=3)),
        ref.silu,
        lambda torch: torch.nn.functional.silu,
    ),
    CriticalOp(
        "sigmoid", lambda g: make_critical_call(draw_activations(g, 64, 3072, scale=3)), ref.sigmoid, lambda torch: torch.sigmoid
    ),
    CriticalOp("tanh", lambda g: make_critical_call(draw_activations(g, 64, 3072)), np.tanh, lambda torch: torch.tanh),
    CriticalOp(
        "softplus",
        lambda g: make_critical_call(draw_activations(g, 64, 3072, scale=3)),
        ref.softplus,
        lambda torch: torch.nn.functional.softplus,
    ),
    CriticalOp(
        "hardswish",
        lambda g: make_critical_call(draw_activations(g, 64, 3072, scale=3)),
        ref.hardswish,
        lambda torch: torch.nn.functional.hardswish,
    ),
)

_NORMALISATIONS = (
    CriticalOp(
        "softmax",
        lambda g: make_critical_call(draw_activations(g, 64, 2048, scale=2), dim=-1),
        ref.softmax,
        lambda torch: torch.softmax,
        sums=sums.make_normalised_sum(dim=-1),
    ),
    CriticalOp(
        "log_softmax",
        lambda g: make_critical_call(draw_activations(g, 64, 2048, scale=2), dim=-1),
        ref.log_softmax,
        lambda torch: torch.log_softmax,
        sums=sums.make_normalised_sum(dim=-1),
    ),
    CriticalOp(
        "layer_norm",
        lambda g: make_critical_call(
            draw_activations(g, 128, 768, loc=0.5),
            normalized_shape=(768,),
            weight=draw_activations(g, 768, scale=0.1, loc=1),
            bias=draw_activations(g, 768),
            eps=1e-5,
        ),
        ref.layer_norm,
        lambda torch: torch.nn.functional.layer_norm,
        sums=sums.make_standardised_sum(),
    ),
    CriticalOp(
        "rms_norm",
        lambda g: make_critical_call(
            draw_activations(g, 32, 4096),
            normalized_shape=(4096,),
            weight=draw_activations(g, 4096, scale=0.1, loc=1),
            eps=1e-6,
        ),
        ref.rms_norm,
        lambda torch: torch.nn.functional.rms_norm,
        sums=sums.sum_root_mean_square,
    ),
    # Stable Diffusion's U-Net.
    CriticalOp(
        "group_norm",
        lambda g: make_critical_call(
            draw_image(g, 2, 320, 32, 32),
            num_groups=32,
            weight=draw_activations(g, 320, scale=0.1, loc=1),
            bias=draw_activations(g, 320),
            eps=1e-5,
        ),
        ref.group_norm,
        lambda torch: torch.nn.functional.group_norm,
        sums=sums.make_standardised_sum(groups=2),
    ),
    # Outside training: the statistics are inputs.
    CriticalOp(
        "batch_norm",
        lambda g: make_critical_call(
            draw_image(g, 2, 64, 56, 56),
            draw_activations(g, 64),
            draw_positive_values(g, 64, spread=0.5),
            draw_activations(g, 64, scale=0.1, loc=1),
            draw_activations(g, 64),
            eps=1e-5,
        ),
        ref.batch_norm,
        _make_batch_norm_in_torch,
    ),
    CriticalOp(
        "instance_norm",
        lambda g: make_critical_call(
            draw_image(g, 2, 64, 56, 56),
            weight=draw_activations(g, 64, scale=0.1, loc=1),
            bias=draw_activations(g, 64),
            eps=1e-5,
        ),
        ref.instance_norm,
        lambda torch: torch.nn.functional.instance_norm,
        sums=sums.make_standardised_sum(each=True),
    ),
)

# Ties are common once values are rounded to bfloat16, so the index of an extreme or of a sorted value is not defined:
# max, min, topk and sort give values alone; argmax gets inputs whose maximum is unique in every dtype.
_REDUCTIONS = (
    CriticalOp(
        "sum",
        lambda g: make_critical_call(draw_activations(g, 64, 2048), dim=-1),
        ref.sum_,
        lambda torch: torch.sum,
        sums=sums.make_sum_along(dim=-1),
    ),
    CriticalOp(
        "mean",
        lambda g: make_critical_call(draw_activations(g, 64, 2048, loc=1), dim=-1),
        ref.mean,
        lambda torch: torch.mean,
        sums=sums.make_sum_along(divided=True, dim=-1),
    ),
    CriticalOp(
        "max",
        lambda g: make_critical_call(draw_activations(g, 64, 2048), dim=-1),
        ref.max_,
        lambda torch: lambda x, dim: torch.max(x, dim=dim).values,
    ),
    CriticalOp(
        "min",
        lambda g: make_critical_call(draw_activations(g, 64, 2048), dim=-1),
        ref.min_,
        lambda torch: lambda x, dim: torch.min(x, dim=dim).values,
    ),
    CriticalOp(
        "argmax",
        lambda g: make_critical_call(draw_one_maximum_a_row(g, 64, 2048), dim=-1),
        ref.argmax,
        lambda torch: torch.argmax,
    ),
    CriticalOp(
        "cumsum",
        lambda g: make_critical_call(draw_activations(g, 64, 1024), dim=-1),
        ref.cumsum,
        lambda torch: torch.cumsum,
        sums=sums.make_sum_along(scan=True, dim=-1),
    ),
    CriticalOp(
        "var",
        lambda g: make_critical_call(draw_activations(g, 64, 1024, loc=1), dim=-1, correction=1),
        ref.var,
        lambda torch: torch.var,
    ),
    CriticalOp(
        "topk",
        lambda g: make_critical_call(draw_activations(g, 8, 50257, scale=2), k=50),
        ref.topk,
        lambda torch: lambda x, k: torch.topk(x, k).values,
    ),
    CriticalOp(
        "sort",
        lambda g: make_critical_call(draw_activations(g, 64, 2048), dim=-1),
        ref.sort,
        lambda torch: lambda x, dim: torch.sort(x, dim=dim).values,
    ),
)

# The ranges keep every exact result inside float16.
_ELEMENTWISE = (
    CriticalOp(
        "add",
        lambda g: make_critical_call(draw_activations(g, 128, 768), draw_activations(g, 128, 768)),
        np.add,
        lambda torch: torch.add,
    ),
    CriticalOp(
        "mul",
        lambda g: make_critical_call(draw_activations(g, 128, 768), draw_activations(g, 768)),
        np.multiply,
        lambda torch: torch.mul,
    ),
    CriticalOp(
        "div",
        lambda g: make_critical_call(draw_activations(g, 128, 768), draw_positive_values(g, 128, 1)),
        np.divide,
        lambda torch: torch.div,
    ),
    CriticalOp(
        "pow",
        lambda g: make_critical_call(g.uniform(0.1, 4, (128, 768)), g.uniform(-4, 4, (128, 768))),
        np.power,
        lambda torch: torch.pow,
    ),
    CriticalOp("exp", lambda g: make_critical_call(g.uniform(-9, 9, (128, 768))), np.exp, lambda torch: torch.exp),
    CriticalOp(
        "log", lambda g: make_critical_call(draw_positive_values(g, 128, 768, spread=2)), np.log, lambda torch: torch.log
    ),
    CriticalOp(
        "sqrt", lambda g: make_critical_call(draw_positive_values(g, 128, 768, spread=2)), np.sqrt, lambda torch: torch.sqrt
    ),
    CriticalOp(
        "rsqrt", lambda g: make_critical_call(draw_positive_values(g, 128, 768, spread=2)), ref.rsqrt, lambda torch: torch.rsqrt
    ),
    CriticalOp(
        "where",
        lambda g: make_critical_call(g.random((128, 768)) < 0.5, draw_activations(g, 128, 768), draw_activations(g, 128, 768)),
        np.where,
        lambda torch: torch.where,
        selects=True,
    ),
    CriticalOp(
        "clamp",
        lambda g: make_critical_call(draw_activations(g, 128, 768), min=-1.0, max=0.75),
        ref.clamp,
        lambda torch: torch.clamp,
    ),
    CriticalOp(
        "dropout",
        lambda g: make_critical_call(draw_activations(g, 128, 768), p=0.1, training=False),
        ref.dropout,
        lambda torch: torch.nn.functional.dropout,
    ),
)

_MOVEMENT = (
    # GPT-2's table of tokens.
    CriticalOp(
        "embedding",
        lambda g: make_critical_call(g.integers(0, 50257, (4, 128)), draw_activations(g, 50257, 768, scale=0.02)),
        ref.embedding,
        lambda torch: torch.nn.functional.embedding,
        narrow=ref.embedding_rows,
        selects=True,
    ),
    CriticalOp(
        "index_select",
        lambda g: make_critical_call(draw_activations(g, 4096, 128), dim=0, index=g.integers(0, 4096, 512)),
        ref.index_select,
        lambda torch: torch.index_select,
        selects=True,
    ),
    CriticalOp(
        "gather",
        lambda g: make_critical_call(draw_activations(g, 32, 8192), dim=1, index=g.integers(0, 8192, (32, 64))),
        ref.gather,
        lambda torch: torch.gather,
        selects=True,
    ),
    # Messages summed at the nodes of a graph: about four a node.
    CriticalOp(
        "scatter_add",
        lambda g: make_critical_call(
            draw_activations(g, 512, 128),
            dim=0,
            index=g.integers(0, 512, (2048, 128)),
            src=draw_activations(g, 2048, 128),
        ),
        ref.scatter_add,
        lambda torch: torch.scatter_add,
        selects=True,
    ),
    CriticalOp(
        "cat",
        lambda g: make_critical_call(
            draw_activations(g, 64, 256), draw_activations(g, 64, 512), draw_activations(g, 64, 128), dim=1
        ),
        ref.cat,
        lambda torch: lambda *tensors, dim: torch.cat(tensors, dim=dim),
    ),
    # Attention heads moved before positions.
    CriticalOp(
        "transpose_contiguous",
        lambda g: make_critical_call(draw_activations(g, 2, 128, 12, 64), dim0=1, dim1=2),
        ref.transpose,
        lambda torch: lambda x, dim0, dim1: x.transpose(dim0, dim1).contiguous(),
    ),
)

_RESAMPLING = (
    CriticalOp(
        "max_pool2d",
        lambda g: make_critical_call(draw_image(g, 1, 64, 112, 112), kernel_size=3, stride=2, padding=1),
        ref.max_pool2d,
        lambda torch: torch.nn.functional.max_pool2d,
    ),
    CriticalOp(
        "avg_pool2d",
        lambda g: make_critical_call(draw_image(g, 1, 64, 112, 112), kernel_size=3, stride=2, padding=1),
        ref.avg_pool2d,
        lambda torch: torch.nn.functional.avg_pool2d,
        sums=sums.make_pool_sum,
    ),
    CriticalOp(
        "adaptive_avg_pool2d",
        lambda g: make_critical_call(draw_image(g, 4, 256, 14, 14), output_size=(7, 7)),
        ref.adaptive_avg_pool2d,
        lambda torch: torch.nn.functional.adaptive_avg_pool2d,
    ),
    # The head of a segmentation net: 21 classes up to the picture's size.
    CriticalOp(
        "interpolate_bilinear",
        lambda g: make_critical_call(draw_activations(g, 1, 21, 56, 56), size=(224, 224), mode="bilinear", align_corners=False),
        ref.interpolate_bilinear,
        lambda torch: torch.nn.functional.interpolate,
    ),
    CriticalOp(
        "interpolate_nearest",
        lambda g: make_critical_call(draw_activations(g, 1, 128, 32, 32), size=(64, 64), mode="nearest"),
        ref.interpolate_nearest,
        lambda torch: torch.nn.functional.interpolate,
    ),
)

_COMPOSITES = (
    CriticalOp(
        "scaled_dot_product_attention",
        lambda g: make_critical_call(
            draw_activations(g, 2, 12, 128, 64),
            draw_activations(g, 2, 12, 128, 64),
            draw_activations(g, 2, 12, 128, 64),
        ),
        ref.attention,
        lambda torch: torch.nn.functional.scaled_dot_product_attention,
        sums=sums.make_attention_sum(),
    ),
    CriticalOp(
        "scaled_dot_product_attention_causal",
        lambda g: make_critical_call(
            draw_activations(g, 2, 12, 128, 64),
            draw_activations(g, 2, 12, 128, 64),
            draw_activations(g, 2, 12, 128, 64),
            is_causal=True,
        ),
        ref.attention,
        lambda torch: torch.nn.functional.scaled_dot_product_attention,
        sums=sums.make_attention_sum(causal=True),
    ),
    # 32 query heads on 8 key heads, as in Llama 3 8B.
    CriticalOp(
        "scaled_dot_product_attention_gqa",
        lambda g: make_critical_call(
            draw_activations(g, 1, 32, 128, 128),
            draw_activations(g, 1, 8, 128, 128),
            draw_activations(g, 1, 8, 128, 128),
            enable_gqa=True,
        ),
        ref.attention,
        lambda torch: torch.nn.functional.scaled_dot_product_attention,
        sums=sums.make_attention_sum(heads=4, enable_gqa=True),
    ),
    CriticalOp(
        "rotary_embedding",
        lambda g: make_critical_call(draw_activations(g, 2, 12, 128, 64), *compute_rotary_angles(128, 64)),
        ref.rotary_embedding,
        _make_rotary_in_torch,
    ),
    CriticalOp(
        "swiglu",
        lambda g: make_critical_call(
            draw_activations(g, 64, 768),
            draw_layer_weights(g, 768, 2048, fan_in=768),
            draw_layer_weights(g, 768, 2048, fan_in=768),
        ),
        ref.swiglu,
        lambda torch: lambda x, w, v: torch.nn.functional.silu(x @ w) * (x @ v),
    ),
    CriticalOp(
        "cross_entropy",
        lambda g: make_critical_call(
            draw_activations(g, 32, 50257, scale=2), draw_classes_with_ignored(g, 32, 50257), ignore_index=-100
        ),
        ref.cross_entropy,
        lambda torch: torch.nn.functional.cross_entropy,
        selects=True,
    ),
    # The same weights in every framework.
    CriticalOp("bert_encoder", encoder.draw_encoder_inputs, encoder.encode_reference, encoder.make_encoder_in_torch),
    CriticalOp(
        "mse_loss",
        lambda g: make_critical_call(draw_activations(g, 64, 768), draw_activations(g, 64, 768)),
        ref.mse_loss,
        lambda torch: torch.nn.functional.mse_loss,
        sums=sums.sum_mean_square,
    ),
)

OPS: dict[str, CriticalOp] = {
    op.name: op
    for op in sorted(
        (
            *_CONTRACTIONS,
            *_ACTIVATIONS,
            *_NORMALISATIONS,
            *_REDUCTIONS,
            *_ELEMENTWISE,
            *_MOVEMENT,
            *_RESAMPLING,
            *_COMPOSITES,
        ),
        key=lambda op: op.name,
    )
}
