"""The losses of the catalog's networks, each as torch's of the same name (`tasks.training.networks`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from tasks.training.in_jax.parts import JaxLayers, compute_cross_entropy
from tasks.training.networks.sizes import BALANCE, CHOSEN, HEADS, LLAMA_GROUPS, NORM_GROUPS, PATCH


def _count_jax_layers(layers: JaxLayers, name: str) -> int:
    """How many modules a list has."""
    return len({at.split(".")[name.count(".") + 1] for at in layers.weights if at.startswith(f"{name}.")})


def gpt(layers: JaxLayers, tokens: Any, masks: Any, targets: Any) -> Any:
    x = layers.embedding("words", tokens) + layers.embedding("places", jnp.arange(tokens.shape[1]))
    for k in range(_count_jax_layers(layers, "blocks")):
        at = f"blocks.{k}"
        x = x + layers.attention(f"{at}.attention", layers.layer_norm(f"{at}.norm1", x), HEADS) * masks[:, k]
        y = layers.linear(f"{at}.up", layers.layer_norm(f"{at}.norm2", x))
        y = layers.keep(f"{at}.act", jax.nn.gelu(y, approximate=False))
        x = layers.keep(at, x + layers.linear(f"{at}.down", y))
    logits = layers.product("...i,oi->...o", layers.layer_norm("norm", x), layers.weights["words.weight"])
    return compute_cross_entropy(logits, targets)


def llama(layers: JaxLayers, tokens: Any, targets: Any) -> Any:
    x = layers.embedding("words", tokens)
    for k in range(_count_jax_layers(layers, "blocks")):
        at = f"blocks.{k}"
        y = layers.rms_norm(f"{at}.norm1", x)
        x = x + layers.attention(f"{at}.attention", y, HEADS, LLAMA_GROUPS, rotary=True)
        y = layers.rms_norm(f"{at}.norm2", x)
        y = jax.nn.silu(layers.linear(f"{at}.gate", y)) * layers.linear(f"{at}.up", y)
        x = layers.keep(at, x + layers.linear(f"{at}.down", y))
    return compute_cross_entropy(layers.linear("head", layers.rms_norm("norm", x)), targets)


def experts(layers: JaxLayers, tokens: Any, targets: Any) -> Any:
    x = layers.embedding("words", tokens) + layers.embedding("places", jnp.arange(tokens.shape[1]))
    balance: Any = 0.0
    for k in range(_count_jax_layers(layers, "blocks")):
        at = f"blocks.{k}"
        x = x + layers.attention(f"{at}.attention", layers.layer_norm(f"{at}.norm1", x), HEADS)
        mixed, uneven = _mix_jax_experts(layers, f"{at}.experts", layers.layer_norm(f"{at}.norm2", x))
        x, balance = layers.keep(at, x + mixed), balance + uneven
    return compute_cross_entropy(layers.linear("head", layers.layer_norm("norm", x)), targets) + BALANCE * balance


def _mix_jax_experts(layers: JaxLayers, name: str, x: Any) -> tuple[Any, Any]:
    """(the experts' mean, weighted by the router's renormalised shares; how uneven those are)."""
    shares = jax.nn.softmax(layers.linear(f"{name}.router", x))
    count = shares.shape[-1]
    best, chosen = jax.lax.top_k(shares, CHOSEN)
    weights = (jax.nn.one_hot(chosen, count, dtype=x.dtype) * (best / best.sum(-1, keepdims=True))[..., None]).sum(-2)
    outputs = [
        layers.linear(f"{name}.down.{k}", jax.nn.gelu(layers.linear(f"{name}.up.{k}", x), approximate=False))
        for k in range(count)
    ]
    balance = count * ((weights > 0).mean((0, 1), dtype=x.dtype) * shares.mean((0, 1))).sum()
    return layers.keep(name, (jnp.stack(outputs, -1) * weights[..., None, :]).sum(-1)), balance


def convolution(layers: JaxLayers, images: Any, classes: Any) -> Any:
    x = jax.nn.relu(layers.batch_norm("norm", layers.convolution("stem", images, padding=1)))
    for k in range(_count_jax_layers(layers, "blocks")):
        at = f"blocks.{k}"
        y = jax.nn.relu(layers.batch_norm(f"{at}.norm1", layers.convolution(f"{at}.conv1", x, padding=1)))
        y = layers.batch_norm(f"{at}.norm2", layers.convolution(f"{at}.conv2", y, padding=1))
        x = layers.keep(at, jax.nn.relu(x + y))
    return compute_cross_entropy(layers.linear("head", x.mean((2, 3))), classes)


def vision(layers: JaxLayers, images: Any, classes: Any) -> Any:
    x = layers.convolution("patches", images, stride=PATCH)
    x = x.reshape(*x.shape[:2], -1).swapaxes(1, 2)
    token = jnp.broadcast_to(layers.weights["token"], (len(x), 1, x.shape[-1]))
    x = jnp.concatenate([token, x], 1) + layers.weights["places"]
    for k in range(_count_jax_layers(layers, "blocks")):
        at = f"blocks.{k}"
        x = x + layers.attention(f"{at}.attention", layers.layer_norm(f"{at}.norm1", x), HEADS, causal=False)
        y = jax.nn.gelu(layers.linear(f"{at}.up", layers.layer_norm(f"{at}.norm2", x)), approximate=False)
        x = layers.keep(at, x + layers.linear(f"{at}.down", y))
    return compute_cross_entropy(layers.linear("head", layers.layer_norm("norm", x)[:, 0]), classes)


def diffusion(layers: JaxLayers, images: Any, times: Any, noise: Any) -> Any:
    half = layers.weights["time.weight"].shape[1] // 2
    angle = times[:, None] * jnp.exp2(-jnp.arange(half, dtype=images.dtype))
    time = jax.nn.silu(layers.linear("time", jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)))

    def residual(name: str, x: Any) -> Any:
        y = jax.nn.silu(layers.group_norm(f"{name}.norm1", x, NORM_GROUPS))
        y = layers.convolution(f"{name}.conv1", y, padding=1) + layers.linear(f"{name}.time", time)[:, :, None, None]
        y = jax.nn.silu(layers.group_norm(f"{name}.norm2", y, NORM_GROUPS))
        return layers.keep(name, layers.convolution(f"{name}.skip", x) + layers.convolution(f"{name}.conv2", y, 1, 1))

    kept = residual("first", layers.convolution("stem", images, padding=1))
    x = residual("middle", layers.convolution("down", kept, 2, 1)).repeat(2, 2).repeat(2, 3)
    made = layers.convolution("head", residual("last", jnp.concatenate([x, kept], 1)), padding=1)
    return ((made - noise) ** 2).mean()


#: Loss of each network, of its layers and what a batch has.
LOSSES: dict[str, Callable[..., Any]] = {f.__name__: f for f in (convolution, diffusion, experts, gpt, llama, vision)}
