"""A decoder in float64, one pass over all tokens of a prompt; and the same with every result moved, for the noise floor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tasks.arrays import noise
from tasks.model.engine import Decoder
from tasks.operators.formulas import compute_softmax

#: What is done to each result inside; nothing for the reference itself.
Move = Callable[[np.ndarray], np.ndarray]


def compute_decoder_logits(
    decoder: Decoder,
    weights: Mapping[str, np.ndarray],
    tokens: Sequence[int],
    move: Move = lambda x: x,
    move_cache: Move = lambda x: x,
    inside: list[np.ndarray] | None = None,
) -> np.ndarray:
    """The logits behind each of some tokens: float64 (tokens, vocabulary). move_cache: is done to keys and values as
    they are kept; inside: is given what each layer's heads give, and then what the layer gives, both (tokens, heads,
    head width).

    RMS norms (Zhang and Sennrich, 2019), rotary positions in halves (Su and others, 2021, as Llama lays them out),
    grouped queries (Ainslie and others, 2023), a gated SiLU (Shazeer, 2020).
    """
    heads, kv_heads, size = decoder.heads, decoder.kv_heads, decoder.head_width
    count = len(tokens)
    places = np.arange(count)
    angles = places[:, None] * decoder.rotary_base ** (-np.arange(0, size, 2) / size)
    cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
    behind = places[:, None] - places[None]
    attended = (behind >= 0) & ((behind < decoder.window) if decoder.window else True)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        scaled = move(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + decoder.epsilon))
        return move(scaled * weights[f"{name}.weight"])

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return move(x @ weights[f"{name}.weight"].T)

    def rotate(x: np.ndarray) -> np.ndarray:
        first, second = x[..., : size // 2], x[..., size // 2 :]
        return move(np.concatenate([first * cosine - second * sine, second * cosine + first * sine], -1))

    hidden = move(weights["model.embed_tokens.weight"][np.asarray(tokens)])
    for k in range(decoder.layers):
        layer = f"model.layers.{k}"
        normed = norm(hidden, f"{layer}.input_layernorm")
        query = rotate(linear(normed, f"{layer}.self_attn.q_proj").reshape(count, heads, size))
        key = move_cache(rotate(linear(normed, f"{layer}.self_attn.k_proj").reshape(count, kv_heads, size)))
        value = move_cache(linear(normed, f"{layer}.self_attn.v_proj").reshape(count, kv_heads, size))
        key, value = (np.repeat(x, heads // kv_heads, 1) for x in (key, value))
        scores = move(np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size))
        scores = np.where(attended, scores, -np.inf)
        shares = move(compute_softmax(scores))
        mixed = move(np.einsum("hqk,khd->qhd", shares, value))
        if inside is not None:
            inside.append(mixed)
        hidden = move(hidden + linear(mixed.reshape(count, -1), f"{layer}.self_attn.o_proj"))
        normed = norm(hidden, f"{layer}.post_attention_layernorm")
        gate = linear(normed, f"{layer}.mlp.gate_proj")
        opened = move(gate / (1 + np.exp(-gate)))
        gated = move(opened * linear(normed, f"{layer}.mlp.up_proj"))
        hidden = move(hidden + linear(gated, f"{layer}.mlp.down_proj"))
        if inside is not None:
            inside.append(hidden.reshape(mixed.shape))
    return linear(norm(hidden, "model.norm"), "lm_head")


def compute_decoder_logprobs(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities (…, vocabulary) of logits, float64."""
    lowered = np.asarray(logits, np.float64)
    lowered = lowered - lowered.max(-1, keepdims=True)
    return np.asarray(lowered - np.log(np.exp(lowered).sum(-1, keepdims=True)))


def make_logits_move(eps: float, draw: int) -> Move:
    """Moves every result of one evaluation by a relative ±ε, as a draw of the noise floor does."""
    places = itertools.count(1)
    return lambda x: noise.perturb_by_noise(x, eps, draw, next(places))


def make_int8_rounding(draw: int) -> Move:
    """Moves keys and values (tokens, heads, width) by up to half a step of an 8-bit code whose scale is a token's and
    head's largest."""
    generator = np.random.default_rng([8, draw])

    def move(x: np.ndarray) -> np.ndarray:
        step = np.abs(x).max(-1, keepdims=True) / 127
        return np.asarray(x + step * generator.uniform(0.25, 0.5, x.shape) * generator.choice([-1.0, 1.0], x.shape))

    return move
