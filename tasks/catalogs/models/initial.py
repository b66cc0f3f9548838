"""Realistic seeded weights for networks without trained ones: what a default init hides, these show.

In a default init whole layers have no effect: norms that begin at zero, biases of zero, weights so small that every
logit is the same. Here every parameter has the size that it has in trained networks, from a NumPy stream of its own.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.model.dtypes import round_to_digits

#: Names of the projections whose product is an attention's logits.
QUERY_KEY = ("query", "key", "q_proj", "k_proj")
#: The last norm of a residual branch in a convolutional network, and how much smaller its gains are: training leaves
#: the branches small beside what they are added to, and only so is a deep network well conditioned.
LAST_OF_BRANCH, LAST = ("layer.2.normalization", "project_bn"), 0.25
#: Significant bits of a calibrated statistic: few, so that the order of a sum does not show.
STATISTIC_BITS = 12


def initialise_network(module: Any, seed: str) -> None:
    """Give every parameter of a torch module its value, and buffers of frequencies theirs.

    weights N(0, 1/fan_in), those of queries and keys times √2; biases 0.1·N; gains of norms exp(0.3·N) (those of
    LAST_OF_BRANCH times LAST), their biases 0.2·N; embeddings N(0, 1), those that are also the last layer's weights
    N(0, 1/√width). Raises ValueError for a parameter that no rule is for.
    """
    import torch

    names: dict[int, list[str]] = {}
    for _, owner in module.named_modules():
        for _, parameter in owner.named_parameters(recurse=False):
            names.setdefault(id(parameter), []).append(type(owner).__name__)
    done: set[int] = set()
    with torch.no_grad():
        for prefix, owner in module.named_modules():
            for own, parameter in owner.named_parameters(recurse=False):
                if id(parameter) in done:
                    continue
                done.add(id(parameter))
                name = f"{prefix}.{own}"
                rng = np.random.default_rng([zlib.crc32(seed.encode()), zlib.crc32(name.encode())])
                tied = len(names[id(parameter)]) > 1
                values = _draw_parameter_values(rng, owner, prefix, own, tuple(parameter.shape), tied)
                parameter.copy_(torch.from_numpy(np.asarray(values, np.float32).reshape(parameter.shape)))
            for own, buffer in owner.named_buffers(recurse=False):
                if "inv_freq" in own:  # torch's own powers differ between processors in the last bit
                    base, count = owner.config.rope_parameters["rope_theta"], len(buffer)
                    buffer.copy_(torch.from_numpy((base ** -(np.arange(count) / count)).astype(np.float32)))


def _draw_parameter_values(
    rng: np.random.Generator, owner: Any, path: str, own: str, shape: tuple[int, ...], tied: bool
) -> np.ndarray:
    """Values of the parameter ``own`` of a module that stands at ``path``, float64."""
    place, kind, normal = path.rpartition(".")[2], type(owner).__name__, rng.standard_normal(shape)
    if "Norm" in kind:
        gain = LAST if any(path.endswith(end) for end in LAST_OF_BRANCH) else 1.0
        return 0.2 * normal if own == "bias" else gain * np.exp(0.3 * normal)
    if kind == "WhisperPositionalEmbedding" and not owner.weight.requires_grad:
        return _make_sinusoids(*shape)
    if "Embedding" in kind and own == "weight":
        return normal * shape[-1] ** -0.25 if tied else normal
    if own in ("cls_token", "mask_token", "position_embeddings"):
        return normal
    if own == "A_log":  # decay rates, as Mamba's authors draw them
        return np.log(rng.uniform(1, 16, shape))
    if own == "dt_bias":  # the softplus of it is a step between 0.001 and 0.1
        step = np.exp(rng.uniform(math.log(1e-3), math.log(1e-1), shape))
        return step + np.log(-np.expm1(-step))
    if own == "D":
        return np.exp(0.3 * normal)
    if own.endswith("bias"):
        return 0.1 * normal
    if len(shape) < 2:
        raise ValueError(f"no rule for the parameter {own} of a {kind}")
    values = normal * _count_fan_in(owner, kind, shape) ** -0.5
    if place in QUERY_KEY:
        values *= 2**0.5
    elif place == "c_attn":  # queries, keys and values beside each other
        values[:, : shape[1] * 2 // 3] *= 2**0.5
    return np.asarray(values)


def _count_fan_in(owner: Any, kind: str, shape: tuple[int, ...]) -> float:
    if kind == "Conv1D":  # GPT-2's linear layer, stored the other way round
        return shape[0]
    if kind.startswith("ConvTranspose"):
        return float(shape[0] * np.prod(shape[2:]) / np.prod(owner.stride))
    if kind.startswith("Conv"):
        return float(np.prod(shape[1:]))
    return shape[-1]  # linear layers, and experts' matrices one upon the other


def _make_sinusoids(length: int, channels: int) -> np.ndarray:
    """Whisper's positions: sines, then cosines, of geometrically spaced rates."""
    rates = np.exp(-math.log(10000) / (channels // 2 - 1) * np.arange(channels // 2))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)


def calibrate_batch_norms(module: Any, batches: Sequence[Sequence[np.ndarray]]) -> None:
    """Set the running statistics of batch norms to what ``batches`` of inputs show, in float64, rounded to few bits."""
    import torch

    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    module.double().train()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the average of all batches
    with torch.no_grad():
        for batch in batches:
            module(*(torch.from_numpy(x).double() if x.dtype == np.float32 else torch.from_numpy(x) for x in batch))
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
            for statistic in _list_running_statistics(norm):
                statistic.copy_(torch.from_numpy(round_to_digits(statistic.numpy(), 2.0 ** (1 - STATISTIC_BITS))))
            norm.num_batches_tracked.zero_()
    module.float().eval()


def _list_running_statistics(norm: Any) -> Iterator[Any]:
    yield norm.running_mean
    yield norm.running_var
