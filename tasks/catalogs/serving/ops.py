"""The table of the catalog `serving`: every op with its inputs, its NumPy reference and its torch form."""

from __future__ import annotations

import numpy as np

from tasks.catalogs.critical.ops import (
    Call,
    CriticalOp,
    compute_rotary_angles,
    draw_activations,
    draw_layer_weights,
    draw_positive_values,
    make_critical_call,
)
from tasks.catalogs.serving import reference as ref
from tasks.catalogs.serving import torch_forms as forms

#: Heads, tokens and width of most inputs.
_HEADS, _TOKENS, _WIDTH = 4, 96, 64


def _draw_heads(g: np.random.Generator, tokens: int = _TOKENS) -> np.ndarray:
    return draw_activations(g, _HEADS, tokens, _WIDTH)


def _draw_query_key_value(g: np.random.Generator) -> tuple[np.ndarray, ...]:
    return _draw_heads(g), _draw_heads(g), _draw_heads(g)


def _draw_paged_call(g: np.random.Generator) -> Call:
    pages, page, sequences, most = 32, 16, 4, 6
    table = g.permutation(pages)[: sequences * most].reshape(sequences, most)
    lengths = np.array([1, page, 3 * page + 5, most * page])
    room = (pages, _HEADS, page, _WIDTH)
    return make_critical_call(
        draw_activations(g, sequences, _HEADS, _WIDTH),
        draw_activations(g, *room),
        draw_activations(g, *room),
        table,
        lengths,
    )


def _draw_varlen_call(g: np.random.Generator) -> Call:
    starts = np.array([0, 1, 17, 64, 96])
    rows = (96, _HEADS, _WIDTH)
    return make_critical_call(
        draw_activations(g, *rows), draw_activations(g, *rows), draw_activations(g, *rows), starts
    )


def _draw_latent_call(g: np.random.Generator) -> Call:
    kept, rope = 128, 16
    up = [draw_layer_weights(g, _HEADS, _WIDTH, kept, fan_in=kept) for _ in range(2)]
    return make_critical_call(
        _draw_heads(g),
        draw_activations(g, _HEADS, _TOKENS, rope),
        draw_activations(g, _TOKENS, kept),
        draw_activations(g, _TOKENS, rope),
        *up,
    )


def _draw_int8_cache_call(g: np.random.Generator) -> Call:
    def kept() -> tuple[np.ndarray, np.ndarray]:
        codes = g.integers(-127, 128, (_HEADS, _TOKENS, _WIDTH)).astype(np.int8)
        return codes, draw_positive_values(g, _HEADS, _TOKENS, spread=0.3) / 64

    return make_critical_call(draw_activations(g, _HEADS, _WIDTH), *kept(), *kept())


def _draw_fp8_cache_call(g: np.random.Generator) -> Call:
    # Bytes of numbers up to 240: no code of NaN (127, 255) is drawn.
    signs, sizes = g.integers(0, 2, (2, _HEADS, _TOKENS, _WIDTH)) << 7, g.integers(0, 120, (2, _HEADS, _TOKENS, _WIDTH))
    keys, values = (signs + sizes).astype(np.uint8)
    return make_critical_call(
        draw_activations(g, _HEADS, _WIDTH), keys, values, key_scale=0.015625, value_scale=0.03125
    )


def _draw_attention_parts(g: np.random.Generator) -> Call:
    rows = (48, _HEADS)
    return make_critical_call(
        draw_activations(g, *rows, _WIDTH),
        draw_activations(g, *rows, scale=2),
        draw_activations(g, *rows, _WIDTH),
        draw_activations(g, *rows, scale=2),
    )


def _draw_rotary_sections(g: np.random.Generator) -> Call:
    # Places in time, rows and columns of a picture between two texts.
    cos, sin = compute_rotary_angles(_TOKENS, _WIDTH)
    places = np.stack([np.arange(_TOKENS), g.integers(0, _TOKENS, _TOKENS), g.integers(0, _TOKENS, _TOKENS)])
    return make_critical_call(_draw_heads(g), cos[places], sin[places], sections=(8, 12, 12))


def _draw_routing_groups(g: np.random.Generator) -> Call:
    # Scores that 16 bits tell apart, so that rounding chooses no other expert.
    return make_critical_call(
        g.permuted(np.tile(np.linspace(-3, 3, 16), (64, 1)), axis=1), np.zeros(16), groups=4, kept=2, k=3, scale=2.5
    )


def _draw_sampling_call(g: np.random.Generator) -> Call:
    # A quarter apart, which 16 bits tell apart; no sum of shares is within 0.01 of top_p, and no share of min_p.
    row = np.concatenate([-np.arange(32) / 4, np.full(96, -16.0)])
    return make_critical_call(
        g.permuted(np.tile(row, (8, 1)), axis=1), temperature=0.8, top_k=24, top_p=0.9, min_p=0.18
    )


def _draw_penalty_call(g: np.random.Generator) -> Call:
    # A token that is there twice is penalised once.
    tokens = np.stack([g.permutation(512)[:24] for _ in range(8)])
    return make_critical_call(
        draw_activations(g, 8, 512, scale=3), np.concatenate([tokens, tokens[:, :4]], 1), penalty=1.25
    )


_OPS = (
    CriticalOp("paged_attention", _draw_paged_call, ref.paged_attention, forms.make_paged_attention),
    CriticalOp("varlen_attention", _draw_varlen_call, ref.varlen_attention, forms.make_varlen_attention),
    CriticalOp(
        "chunked_attention",
        lambda g: make_critical_call(_draw_heads(g, 24), _draw_heads(g), _draw_heads(g)),
        ref.chunked_attention,
        forms.make_masked_attention,
    ),
    CriticalOp(
        "sliding_window_attention",
        lambda g: make_critical_call(*_draw_query_key_value(g), window=16),
        ref.sliding_window_attention,
        forms.make_masked_attention,
    ),
    CriticalOp(
        "sink_attention",
        lambda g: make_critical_call(*_draw_query_key_value(g), draw_activations(g, _HEADS)),
        ref.sink_attention,
        forms.make_sink_attention,
    ),
    CriticalOp(
        "alibi_attention",
        lambda g: make_critical_call(*_draw_query_key_value(g), 0.5 ** np.arange(1.0, 2 * _HEADS + 1, 2)),
        ref.alibi_attention,
        forms.make_alibi_attention,
    ),
    CriticalOp(
        "softcap_attention",
        lambda g: make_critical_call(*_draw_query_key_value(g), cap=2.0),
        ref.softcap_attention,
        forms.make_softcap_attention,
    ),
    CriticalOp("latent_attention", _draw_latent_call, ref.latent_attention, forms.make_latent_attention),
    CriticalOp(
        "int8_cache_attention", _draw_int8_cache_call, ref.int8_cache_attention, forms.make_int8_cache_attention
    ),
    CriticalOp(
        "rotary_interleaved",
        lambda g: make_critical_call(_draw_heads(g), *compute_rotary_angles(_TOKENS, _WIDTH)),
        ref.rotary_interleaved,
        forms.make_rotary_interleaved,
    ),
    CriticalOp(
        "rotary_partial",
        lambda g: make_critical_call(_draw_heads(g), *compute_rotary_angles(_TOKENS, _WIDTH // 4)),
        ref.rotary_partial,
        forms.make_rotary_partial,
    ),
    CriticalOp(
        "add_rms_norm",
        lambda g: make_critical_call(
            draw_activations(g, 32, 512),
            draw_activations(g, 32, 512),
            draw_activations(g, 512, scale=0.1, loc=1),
            eps=1e-6,
        ),
        ref.add_rms_norm,
        forms.make_add_rms_norm,
    ),
    CriticalOp(
        "route_tokens",
        lambda g: make_critical_call(g.permuted(np.tile(np.linspace(-3, 3, 16), (64, 1)), axis=1), k=2),
        ref.route_tokens,
        forms.make_route_tokens,
    ),
    CriticalOp(
        "grouped_product",
        lambda g: make_critical_call(
            draw_activations(g, 48, 96), g.integers(0, 8, 48), draw_layer_weights(g, 8, 96, 64, fan_in=96)
        ),
        ref.grouped_product,
        forms.make_grouped_product,
        selects=True,
    ),
    CriticalOp("fp8_cache_attention", _draw_fp8_cache_call, ref.fp8_cache_attention, forms.make_fp8_cache_attention),
    CriticalOp("merge_attention", _draw_attention_parts, ref.merge_attention, forms.make_merge_attention),
    CriticalOp("rotary_sections", _draw_rotary_sections, ref.rotary_sections, forms.make_rotary_sections),
    CriticalOp(
        "add_layer_norm",
        lambda g: make_critical_call(
            draw_activations(g, 32, 512),
            draw_activations(g, 32, 512),
            draw_activations(g, 512, scale=0.1, loc=1),
            draw_activations(g, 512),
            eps=1e-5,
        ),
        ref.add_layer_norm,
        forms.make_add_layer_norm,
    ),
    CriticalOp("route_in_groups", _draw_routing_groups, ref.route_in_groups, forms.make_route_in_groups),
    CriticalOp("adjust_probabilities", _draw_sampling_call, ref.adjust_probabilities, forms.make_adjust_probabilities),
    CriticalOp("penalise_repeats", _draw_penalty_call, ref.penalise_repeats, forms.make_penalise_repeats),
)
OPS: dict[str, CriticalOp] = {op.name: op for op in sorted(_OPS, key=lambda op: op.name)}
