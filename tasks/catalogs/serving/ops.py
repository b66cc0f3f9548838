"""The table of the catalog `serving`: every op with its inputs, its NumPy reference and its torch form."""

from __future__ import annotations

import numpy as np

from tasks.catalogs.critical.ops import Call, CriticalOp, call, normal, positive, turns, weights
from tasks.catalogs.serving import reference as ref
from tasks.catalogs.serving import torch_forms as forms

#: Heads, tokens and width of most inputs.
_HEADS, _TOKENS, _WIDTH = 4, 96, 64


def _heads(g: np.random.Generator, tokens: int = _TOKENS) -> np.ndarray:
    return normal(g, _HEADS, tokens, _WIDTH)


def _three(g: np.random.Generator) -> tuple[np.ndarray, ...]:
    return _heads(g), _heads(g), _heads(g)


def _paged(g: np.random.Generator) -> Call:
    pages, page, sequences, most = 32, 16, 4, 6
    table = g.permutation(pages)[: sequences * most].reshape(sequences, most)
    lengths = np.array([1, page, 3 * page + 5, most * page])
    room = (pages, _HEADS, page, _WIDTH)
    return call(normal(g, sequences, _HEADS, _WIDTH), normal(g, *room), normal(g, *room), table, lengths)


def _varlen(g: np.random.Generator) -> Call:
    starts = np.array([0, 1, 17, 64, 96])
    rows = (96, _HEADS, _WIDTH)
    return call(normal(g, *rows), normal(g, *rows), normal(g, *rows), starts)


def _latent(g: np.random.Generator) -> Call:
    kept, rope = 128, 16
    up = [weights(g, _HEADS, _WIDTH, kept, fan_in=kept) for _ in range(2)]
    return call(_heads(g), normal(g, _HEADS, _TOKENS, rope), normal(g, _TOKENS, kept), normal(g, _TOKENS, rope), *up)


def _codes(g: np.random.Generator) -> Call:
    def kept() -> tuple[np.ndarray, np.ndarray]:
        codes = g.integers(-127, 128, (_HEADS, _TOKENS, _WIDTH)).astype(np.int8)
        return codes, positive(g, _HEADS, _TOKENS, spread=0.3) / 64

    return call(normal(g, _HEADS, _WIDTH), *kept(), *kept())


def _bytes(g: np.random.Generator) -> Call:
    # Bytes of numbers up to 240: no code of NaN (127, 255) is drawn.
    signs, sizes = g.integers(0, 2, (2, _HEADS, _TOKENS, _WIDTH)) << 7, g.integers(0, 120, (2, _HEADS, _TOKENS, _WIDTH))
    keys, values = (signs + sizes).astype(np.uint8)
    return call(normal(g, _HEADS, _WIDTH), keys, values, key_scale=0.015625, value_scale=0.03125)


def _parts(g: np.random.Generator) -> Call:
    rows = (48, _HEADS)
    return call(
        normal(g, *rows, _WIDTH), normal(g, *rows, scale=2), normal(g, *rows, _WIDTH), normal(g, *rows, scale=2)
    )


def _sections(g: np.random.Generator) -> Call:
    # Places in time, rows and columns of a picture between two texts.
    cos, sin = turns(_TOKENS, _WIDTH)
    places = np.stack([np.arange(_TOKENS), g.integers(0, _TOKENS, _TOKENS), g.integers(0, _TOKENS, _TOKENS)])
    return call(_heads(g), cos[places], sin[places], sections=(8, 12, 12))


def _groups(g: np.random.Generator) -> Call:
    # Scores that 16 bits tell apart, so that rounding chooses no other expert.
    return call(
        g.permuted(np.tile(np.linspace(-3, 3, 16), (64, 1)), axis=1), np.zeros(16), groups=4, kept=2, k=3, scale=2.5
    )


def _likely(g: np.random.Generator) -> Call:
    # A quarter apart, which 16 bits tell apart; no sum of shares is within 0.01 of top_p, and no share of min_p.
    row = np.concatenate([-np.arange(32) / 4, np.full(96, -16.0)])
    return call(g.permuted(np.tile(row, (8, 1)), axis=1), temperature=0.8, top_k=24, top_p=0.9, min_p=0.18)


def _repeats(g: np.random.Generator) -> Call:
    # A token that is there twice is penalised once.
    tokens = np.stack([g.permutation(512)[:24] for _ in range(8)])
    return call(normal(g, 8, 512, scale=3), np.concatenate([tokens, tokens[:, :4]], 1), penalty=1.25)


_OPS = (
    CriticalOp("paged_attention", _paged, ref.paged_attention, forms.paged),
    CriticalOp("varlen_attention", _varlen, ref.varlen_attention, forms.varlen),
    CriticalOp(
        "chunked_attention", lambda g: call(_heads(g, 24), _heads(g), _heads(g)), ref.chunked_attention, forms.masked
    ),
    CriticalOp(
        "sliding_window_attention", lambda g: call(*_three(g), window=16), ref.sliding_window_attention, forms.masked
    ),
    CriticalOp("sink_attention", lambda g: call(*_three(g), normal(g, _HEADS)), ref.sink_attention, forms.with_sinks),
    CriticalOp(
        "alibi_attention",
        lambda g: call(*_three(g), 0.5 ** np.arange(1.0, 2 * _HEADS + 1, 2)),
        ref.alibi_attention,
        forms.with_slopes,
    ),
    CriticalOp("softcap_attention", lambda g: call(*_three(g), cap=2.0), ref.softcap_attention, forms.capped),
    CriticalOp("latent_attention", _latent, ref.latent_attention, forms.latent),
    CriticalOp("int8_cache_attention", _codes, ref.int8_cache_attention, forms.of_codes),
    CriticalOp(
        "rotary_interleaved",
        lambda g: call(_heads(g), *turns(_TOKENS, _WIDTH)),
        ref.rotary_interleaved,
        forms.interleaved,
    ),
    CriticalOp(
        "rotary_partial", lambda g: call(_heads(g), *turns(_TOKENS, _WIDTH // 4)), ref.rotary_partial, forms.partial
    ),
    CriticalOp(
        "add_rms_norm",
        lambda g: call(normal(g, 32, 512), normal(g, 32, 512), normal(g, 512, scale=0.1, loc=1), eps=1e-6),
        ref.add_rms_norm,
        forms.add_norm,
    ),
    CriticalOp(
        "route_tokens",
        lambda g: call(g.permuted(np.tile(np.linspace(-3, 3, 16), (64, 1)), axis=1), k=2),
        ref.route_tokens,
        forms.route,
    ),
    CriticalOp(
        "grouped_product",
        lambda g: call(normal(g, 48, 96), g.integers(0, 8, 48), weights(g, 8, 96, 64, fan_in=96)),
        ref.grouped_product,
        forms.grouped,
        selects=True,
    ),
    CriticalOp("fp8_cache_attention", _bytes, ref.fp8_cache_attention, forms.of_bytes),
    CriticalOp("merge_attention", _parts, ref.merge_attention, forms.merge),
    CriticalOp("rotary_sections", _sections, ref.rotary_sections, forms.in_sections),
    CriticalOp(
        "add_layer_norm",
        lambda g: call(
            normal(g, 32, 512), normal(g, 32, 512), normal(g, 512, scale=0.1, loc=1), normal(g, 512), eps=1e-5
        ),
        ref.add_layer_norm,
        forms.add_layer,
    ),
    CriticalOp("route_in_groups", _groups, ref.route_in_groups, forms.route_groups),
    CriticalOp("adjust_probabilities", _likely, ref.adjust_probabilities, forms.adjust),
    CriticalOp("penalise_repeats", _repeats, ref.penalise_repeats, forms.penalise),
)
OPS: dict[str, CriticalOp] = {op.name: op for op in sorted(_OPS, key=lambda op: op.name)}
