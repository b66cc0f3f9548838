"""NumPy float64 references of the critical ops, written from their definitions and independent of every framework.

Every function takes float64 arrays (indices int64, masks bool) and the keyword names of the op's torch form, and
returns one array: float64, or int64 where it says so. Shapes use N batch, C channels, H height, W width, L length,
E embedding; ``...`` is any number of leading dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.operators import formulas, pooling, spatial
from tasks.operators.call import OperatorCall


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, second = value
    return first, second


def _call(*inputs: np.ndarray, **attributes: Any) -> OperatorCall:
    """A call of ONNX's operator that is the op."""
    return OperatorCall(inputs, attributes, opset=22, outputs=1)


def _channels(x: np.ndarray, value: np.ndarray) -> np.ndarray:
    """``value`` (C) shaped to broadcast against ``x`` (N, C, ...)."""
    return value.reshape(1, -1, *(1,) * (x.ndim - 2))


# ---- contractions


def addmm(bias: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bias (M) or (N, M), a (N, K), b (K, M) -> (N, M): bias + a·b."""
    return bias + a @ b


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """x (..., K), weight (M, K), bias (M) -> (..., M): x·weightᵀ + bias."""
    return x @ weight.T + bias


def conv2d(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    groups: int = 1,
) -> np.ndarray:
    """x (N, C, H, W), weight (O, C/groups, KH, KW), bias (O) -> (N, O, H', W'): cross-correlation.

    H' = floor((H + 2·padding − KH) / stride) + 1; the definition of torch.nn.Conv2d and of ONNX Conv.
    """
    return spatial.evaluate_conv(_call(x, weight, bias, strides=_pair(stride), pads=_pair(padding) * 2, group=groups))[
        0
    ]


def conv1d(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int = 1, padding: int = 0) -> np.ndarray:
    """x (N, C, L), weight (O, C, K), bias (O) -> (N, O, L'): `conv2d` with a height of one."""
    return conv2d(x[:, :, None], weight[:, :, None], bias, (1, stride), (0, padding))[:, :, 0]


def conv_transpose2d(
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, stride: int = 1, padding: int = 0
) -> np.ndarray:
    """x (N, C, H, W), weight (C, O, KH, KW), bias (O) -> (N, O, H', W'): the adjoint of `conv2d`.

    Every input element adds its multiple of the kernel at ``stride`` times its place; ``padding`` rows and
    columns are cut off each side: H' = (H − 1)·stride − 2·padding + KH (torch.nn.ConvTranspose2d).
    """
    return spatial.evaluate_conv_transpose(_call(x, weight, bias, strides=_pair(stride), pads=(padding,) * 4))[0]


# ---- activations: x (...) -> (...)


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def gelu(x: np.ndarray) -> np.ndarray:
    """x·Φ(x), Φ the normal distribution function."""
    return formulas.compute_gelu(x)


def gelu_tanh(x: np.ndarray, approximate: str) -> np.ndarray:
    """`gelu` approximated by tanh. ``approximate`` is "tanh": it has no default here, since without it torch computes
    another function."""
    return formulas.compute_gelu_tanh(x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1/(1 + exp(−x))."""
    return formulas.compute_sigmoid(x)


def silu(x: np.ndarray) -> np.ndarray:
    """x·sigmoid(x) (Swish with β = 1; Ramachandran et al. 2017, arXiv:1710.05941)."""
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)); x itself beyond 20, which torch.nn.Softplus documents as its default threshold."""
    return np.where(x > 20.0, x, formulas.compute_softplus(x))


def hardswish(x: np.ndarray) -> np.ndarray:
    """x·min(max(x + 3, 0), 6)/6 (Howard et al. 2019, arXiv:1905.02244)."""
    return x * np.clip(x + 3.0, 0.0, 6.0) / 6.0


# ---- normalisations


def softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """x (...) -> (...): exp(x − max) over its sum along ``dim``."""
    return formulas.compute_softmax(x, dim)


def log_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """x (...) -> (...): x − max − log(sum(exp(x − max))) along ``dim``."""
    return formulas.compute_log_softmax(x, dim)


def layer_norm(
    x: np.ndarray, normalized_shape: Sequence[int], weight: np.ndarray, bias: np.ndarray, eps: float
) -> np.ndarray:
    """x (..., E), weight (E), bias (E) -> (..., E): (x − mean)/√(biased variance + eps)·weight + bias.

    Over the dimensions of ``normalized_shape`` (Ba et al. 2016, arXiv:1607.06450).
    """
    return formulas.compute_standardised(x, tuple(range(-len(normalized_shape), 0)), eps) * weight + bias


def rms_norm(x: np.ndarray, normalized_shape: Sequence[int], weight: np.ndarray, eps: float) -> np.ndarray:
    """x (..., E), weight (E) -> (..., E): x/√(mean(x²) + eps)·weight.

    Zhang & Sennrich 2019, arXiv:1910.07467; eps inside the root as in torch.nn.RMSNorm.
    """
    axes = tuple(range(-len(normalized_shape), 0))
    return formulas.compute_standardised(x, axes, eps, centred=False) * weight


def group_norm(x: np.ndarray, num_groups: int, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """x (N, C, ...), weight (C), bias (C) -> (N, C, ...): standardised per sample and group of C/num_groups channels.

    Wu & He 2018, arXiv:1803.08494; biased variance.
    """
    grouped = formulas.compute_standardised(x.reshape(x.shape[0], num_groups, -1), (2,), eps).reshape(x.shape)
    return grouped * _channels(x, weight) + _channels(x, bias)


def batch_norm(
    x: np.ndarray, mean: np.ndarray, variance: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float
) -> np.ndarray:
    """x (N, C, ...), the others (C) -> (N, C, ...): (x − mean)/√(variance + eps)·weight + bias with given statistics.

    Inference form of Ioffe & Szegedy 2015, arXiv:1502.03167.
    """
    scaled = (x - _channels(x, mean)) / np.sqrt(_channels(x, variance) + eps)
    return scaled * _channels(x, weight) + _channels(x, bias)


def instance_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """x (N, C, H, W), weight (C), bias (C) -> (N, C, H, W): standardised per sample and channel.

    Ulyanov et al. 2016, arXiv:1607.08022; biased variance.
    """
    return formulas.compute_standardised(x, tuple(range(2, x.ndim)), eps) * _channels(x, weight) + _channels(x, bias)


# ---- reductions, scans and selections along ``dim``


def sum_(x: np.ndarray, dim: int) -> np.ndarray:
    """x (..., K) -> (...): sum along ``dim``."""
    return x.sum(axis=dim)


def mean(x: np.ndarray, dim: int) -> np.ndarray:
    """x (..., K) -> (...): mean along ``dim``."""
    return x.mean(axis=dim)


def max_(x: np.ndarray, dim: int) -> np.ndarray:
    """x (..., K) -> (...): largest value along ``dim``, without its index."""
    return x.max(axis=dim)


def min_(x: np.ndarray, dim: int) -> np.ndarray:
    """x (..., K) -> (...): smallest value along ``dim``, without its index."""
    return x.min(axis=dim)


def argmax(x: np.ndarray, dim: int) -> np.ndarray:
    """x (..., K) -> (...) int64: place of the largest value along ``dim``."""
    return x.argmax(axis=dim).astype(np.int64)


def cumsum(x: np.ndarray, dim: int) -> np.ndarray:
    """x (...) -> (...): running sum along ``dim``."""
    return np.cumsum(x, axis=dim)


def var(x: np.ndarray, dim: int, correction: int) -> np.ndarray:
    """x (..., K) -> (...): sum((x − mean)²)/(K − correction) along ``dim``."""
    centred = x - x.mean(axis=dim, keepdims=True)
    return (centred * centred).sum(axis=dim) / (x.shape[dim] - correction)


def topk(x: np.ndarray, k: int) -> np.ndarray:
    """x (..., K) -> (..., k): the ``k`` largest values of the last dimension, largest first."""
    return -np.sort(-x, axis=-1)[..., :k]


def sort(x: np.ndarray, dim: int) -> np.ndarray:
    """x (...) -> (...): values in ascending order along ``dim``."""
    return np.sort(x, axis=dim)


# ---- element by element


def rsqrt(x: np.ndarray) -> np.ndarray:
    """x (...) -> (...): 1/√x."""
    return 1.0 / np.sqrt(x)


def clamp(x: np.ndarray, min: float, max: float) -> np.ndarray:
    """x (...) -> (...): x limited to [min, max]."""
    return np.minimum(np.maximum(x, min), max)


def dropout(x: np.ndarray, p: float, training: bool) -> np.ndarray:
    """x (...) -> (...): x itself, which is what dropout is outside training (torch.nn.Dropout)."""
    return x


# ---- indexing and data movement


def embedding(index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """index (...) int64, weight (V, E) -> (..., E): rows of ``weight``."""
    return weight[index]


def embedding_rows(index: np.ndarray, weight: np.ndarray) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call of `embedding` on the rows it reads alone: index (...) into weight (rows read, E), same result."""
    rows, inverse = np.unique(index, return_inverse=True)
    return (inverse.reshape(index.shape), weight[rows]), {}


def index_select(x: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    """x (...), index (M) int64 -> x with ``dim`` of size M."""
    return np.take(x, index, axis=dim)


def gather(x: np.ndarray, dim: int, index: np.ndarray) -> np.ndarray:
    """x (N, K), index (N, M) int64 -> (N, M) for dim 1: out[i, j] = x[i, index[i, j]]."""
    return np.take_along_axis(x, index, axis=dim)


def scatter_add(x: np.ndarray, dim: int, index: np.ndarray, src: np.ndarray) -> np.ndarray:
    """x (V, E), index (M, E) int64, src (M, E) -> (V, E) for dim 0: out = x; out[index[i, j], j] += src[i, j]."""
    out = x.copy()
    places: list[np.ndarray] = list(np.indices(index.shape, sparse=True))
    places[dim] = index
    np.add.at(out, tuple(places), src)
    return out


def cat(*tensors: np.ndarray, dim: int) -> np.ndarray:
    """Arrays equal in all dimensions but ``dim`` -> one, laid end to end along it."""
    return np.concatenate(tensors, axis=dim)


def transpose(x: np.ndarray, dim0: int, dim1: int) -> np.ndarray:
    """x (...) -> x with two dimensions exchanged, contiguous."""
    return np.ascontiguousarray(np.swapaxes(x, dim0, dim1))


# ---- pooling and resampling: x (N, C, H, W) -> (N, C, H', W')


def _pool(x: np.ndarray, kernel_size: int, stride: int, padding: int, **more: int) -> OperatorCall:
    return _call(x, kernel_shape=_pair(kernel_size), strides=_pair(stride), pads=(padding,) * 4, **more)


def max_pool2d(x: np.ndarray, kernel_size: int, stride: int, padding: int) -> np.ndarray:
    """Largest value of every window; the padding never wins (torch.nn.MaxPool2d)."""
    return pooling.evaluate_max_pool(_pool(x, kernel_size, stride, padding))[0]


def avg_pool2d(x: np.ndarray, kernel_size: int, stride: int, padding: int) -> np.ndarray:
    """Mean of every window, the padding's zeros counted (count_include_pad, the default of torch.nn.AvgPool2d)."""
    return pooling.evaluate_average_pool(_pool(x, kernel_size, stride, padding, count_include_pad=1))[0]


def adaptive_avg_pool2d(x: np.ndarray, output_size: tuple[int, int]) -> np.ndarray:
    """Mean of rows floor(i·H/H') to ceil((i+1)·H/H') − 1, columns likewise (torch.nn.AdaptiveAvgPool2d)."""
    out = np.empty((*x.shape[:2], *output_size))
    (height, width), (rows, columns) = x.shape[2:], output_size
    for i in range(rows):
        for j in range(columns):
            top, bottom = i * height // rows, -(-(i + 1) * height // rows)
            left, right = j * width // columns, -(-(j + 1) * width // columns)
            out[:, :, i, j] = x[:, :, top:bottom, left:right].mean(axis=(2, 3))
    return out


def _bilinear_weights(size: int, out: int) -> np.ndarray:
    """(out, size): weights of the source places for every destination, half-pixel centres, clamped at the edges."""
    source = np.maximum((np.arange(out) + 0.5) * size / out - 0.5, 0.0)
    low = np.floor(source).astype(np.int64)
    high = np.minimum(low + 1, size - 1)
    weights = np.zeros((out, size))
    np.add.at(weights, (np.arange(out), low), 1.0 - (source - low))
    np.add.at(weights, (np.arange(out), high), source - low)
    return weights


def interpolate_bilinear(x: np.ndarray, size: tuple[int, int], mode: str, align_corners: bool) -> np.ndarray:
    """Linear in both directions, half-pixel centres (align_corners False of torch.nn.functional.interpolate)."""
    rows, columns = _bilinear_weights(x.shape[2], size[0]), _bilinear_weights(x.shape[3], size[1])
    return rows @ x @ columns.T


def interpolate_nearest(x: np.ndarray, size: tuple[int, int], mode: str) -> np.ndarray:
    """Source place floor(i·H/H'), columns likewise (mode "nearest" of torch.nn.functional.interpolate)."""
    rows = np.arange(size[0]) * x.shape[2] // size[0]
    columns = np.arange(size[1]) * x.shape[3] // size[1]
    return x[:, :, rows][:, :, :, columns]


# ---- attention and other composites


def attention(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, is_causal: bool = False, enable_gqa: bool = False
) -> np.ndarray:
    """query (N, H, L, E), key (N, G, S, E), value (N, G, S, E) -> (N, H, L, E): softmax(q·kᵀ/√E)·v per head.

    `formulas.attention`. ``enable_gqa``: each of the G key heads serves H/G consecutive query heads; otherwise G = H.
    """
    heads, groups = query.shape[1], key.shape[1]
    if groups != heads and not enable_gqa:
        raise ValueError(f"{heads} query heads on {groups} key heads need enable_gqa")
    return formulas.compute_attention(query, key, value, is_causal)


def rotary_embedding(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x (N, H, L, E), cos and sin (L, E/2) -> (N, H, L, E): element j and j + E/2 turned as one complex number.

    Su et al. 2021, arXiv:2104.09864, in the half-split layout of GPT-NeoX and LLaMA (ONNX RotaryEmbedding with
    interleaved = 0).
    """
    half = x.shape[-1] // 2
    turned = (x[..., :half] + 1j * x[..., half:]) * (cos + 1j * sin)
    return np.concatenate((turned.real, turned.imag), axis=-1)


def swiglu(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    """x (N, K), w (K, M), v (K, M) -> (N, M): silu(x·w) ⊙ (x·v) (Shazeer 2020, arXiv:2002.05202, without biases)."""
    return silu(x @ w) * (x @ v)


def cross_entropy(logits: np.ndarray, target: np.ndarray, ignore_index: int) -> np.ndarray:
    """logits (N, V), target (N) int64 -> (): mean of −log_softmax(logits)[target] over targets ≠ ``ignore_index``."""
    kept = np.flatnonzero(target != ignore_index)
    return -log_softmax(logits[kept], 1)[np.arange(kept.size), target[kept]].mean()


def mse_loss(x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """x (...), target (...) -> (): mean of (x − target)²."""
    return np.square(x - target).mean()
