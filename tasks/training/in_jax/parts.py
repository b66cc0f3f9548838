"""Layers as functions of weights, which are called as torch's networks call theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

#: What torch's norms add to a variance, and the share of a batch norm's running statistics that a batch renews.
NORM_EPS, MOMENTUM = 1e-5, 0.1
#: Speed of the slowest rotation (RoFormer).
ROTARY_BASE = 10000.0


class JaxLayers:
    """Each layer takes its name in torch's network, by which its weights are found and its output is kept in ``taps``.
    buffers: the running statistics, replaced as a batch norm renews them; narrow: dtype of products and convolutions,
    None for the weights' own."""

    def __init__(self, weights: Mapping[str, Any], buffers: Mapping[str, Any], narrow: Any = None) -> None:
        self.weights, self.buffers, self.narrow = weights, dict(buffers), narrow
        self.taps: dict[str, Any] = {}

    def keep(self, name: str, x: Any) -> Any:
        self.taps.setdefault(name, x)
        return x

    def product(self, how: str, a: Any, b: Any) -> Any:
        return jnp.einsum(how, *self._cast(a, b)).astype(a.dtype)

    def embedding(self, name: str, places: Any) -> Any:
        return self.keep(name, self.weights[f"{name}.weight"][places])

    def linear(self, name: str, x: Any) -> Any:
        y = self.product("...i,oi->...o", x, self.weights[f"{name}.weight"])
        return self.keep(name, y + self._bias(name))

    def convolution(self, name: str, x: Any, stride: int = 1, padding: int = 0) -> Any:
        """x: (batch, channels, height, width)."""
        a, b = self._cast(x, self.weights[f"{name}.weight"])
        y = lax.conv_general_dilated(a, b, (stride, stride), [(padding, padding)] * 2).astype(x.dtype)
        bias = self._bias(name)
        return self.keep(name, y + (bias[:, None, None] if name + ".bias" in self.weights else bias))

    def layer_norm(self, name: str, x: Any) -> Any:
        y = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + NORM_EPS)
        return self.keep(name, y * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"])

    def rms_norm(self, name: str, x: Any) -> Any:
        y = x * lax.rsqrt((x * x).mean(-1, keepdims=True) + NORM_EPS)
        return self.keep(name, y * self.weights[f"{name}.weight"])

    def group_norm(self, name: str, x: Any, groups: int) -> Any:
        parts = x.reshape(x.shape[0], groups, -1)
        y = (parts - parts.mean(-1, keepdims=True)) * lax.rsqrt(parts.var(-1, keepdims=True) + NORM_EPS)
        return self.keep(name, self._of_channels(name, y.reshape(x.shape)))

    def batch_norm(self, name: str, x: Any) -> Any:
        """By the batch's own statistics; the running variance takes n / (n − 1) of its variance."""
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3))
        count = x.size // x.shape[1]
        for kind, value in (("mean", mean), ("var", variance * (count / (count - 1)))):
            at = f"{name}.running_{kind}"
            self.buffers[at] = (1 - MOMENTUM) * self.buffers[at] + MOMENTUM * lax.stop_gradient(value)
        y = (x - mean[:, None, None]) * lax.rsqrt(variance + NORM_EPS)[:, None, None]
        return self.keep(name, self._of_channels(name, y))

    def attention(
        self, name: str, x: Any, heads: int, groups: int = 0, causal: bool = True, rotary: bool = False
    ) -> Any:
        """x: (batch, tokens, width); as `tasks.training.networks.parts.NetworkAttention`."""
        groups = groups or heads
        q, k, v = (
            self.linear(f"{name}.{part}", x).reshape(*x.shape[:2], count, -1)
            for part, count in (("query", heads), ("key", groups), ("value", groups))
        )
        if rotary:
            q, k = rotate_positions(q), rotate_positions(k)
        k, v = (jnp.repeat(y, heads // groups, 2) for y in (k, v))
        scores = self.product("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        if causal:
            scores = jnp.where(jnp.tri(x.shape[1], dtype=bool), scores, -jnp.inf)
        mixed = self.product("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return self.keep(name, self.linear(f"{name}.out", mixed.reshape(*x.shape[:2], -1)))

    def _cast(self, *tensors: Any) -> Sequence[Any]:
        return tensors if self.narrow is None else [x.astype(self.narrow) for x in tensors]

    def _bias(self, name: str) -> Any:
        return self.weights.get(f"{name}.bias", 0)

    def _of_channels(self, name: str, x: Any) -> Any:
        return x * self.weights[f"{name}.weight"][:, None, None] + self.weights[f"{name}.bias"][:, None, None]


def rotate_positions(x: Any) -> Any:
    """Rotary positions, halves of the width as pairs. x: (batch, tokens, heads, width)."""
    half = x.shape[-1] // 2
    speed = ROTARY_BASE ** (-jnp.arange(half, dtype=x.dtype) / half)
    angle = (jnp.arange(x.shape[1], dtype=x.dtype)[:, None] * speed)[:, None]
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def compute_cross_entropy(logits: Any, targets: Any) -> Any:
    """Mean over the targets that are not padding (below 0). logits: (…, words)."""
    counts = targets >= 0
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.where(counts, targets, 0)[..., None], -1)[..., 0]
    return -(chosen * counts).sum() / counts.sum()
