"""NumPy references of the ops of serving, from their definitions: one query, head, sequence or token after another, and no framework.

Arrays are float64 (places and counts int64, codes int8). T tokens, H heads, D width of a head, B sequences.
"""

from __future__ import annotations

import numpy as np

from tasks.operators.formulas import compute_softmax


def attend_one_query(
    query: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    bias: np.ndarray | float = 0.0,
    cap: float = 0.0,
    sink: float | None = None,
) -> np.ndarray:
    """query (D), keys (T, D), values (T, D′) -> (D′): softmax(query·keysᵀ/√D + bias)·values. cap: scores s become
    cap·tanh(s/cap) first. sink: a further score whose share is given to nothing."""
    scores = keys @ query / np.sqrt(query.size)
    if cap:
        scores = cap * np.tanh(scores / cap)
    scores = scores + bias
    top = scores.max() if sink is None else max(scores.max(), sink)
    shares = np.exp(scores - top)
    rest = 0.0 if sink is None else np.exp(sink - top)
    return np.asarray(shares @ values / (shares.sum() + rest))


def paged_attention(
    query: np.ndarray, key_pages: np.ndarray, value_pages: np.ndarray, table: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """query (B, H, D), pages (P, H, page, D), table (B, pages of a sequence), lengths (B) -> (B, H, D): each sequence
    attends to the first ``length`` tokens of its pages (Kwon and others, 2023)."""
    made = np.empty_like(query)
    for b, length in enumerate(lengths):
        keys, values = (
            np.concatenate([pages[p] for p in table[b]], 1)[:, :length] for pages in (key_pages, value_pages)
        )
        for h in range(query.shape[1]):
            made[b, h] = attend_one_query(query[b, h], keys[h], values[h])
    return made


def varlen_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """query, key, value (T, H, D) of sequences one behind another, which begin at ``starts`` (B + 1, the end last) ->
    (T, H, D), causal."""
    made = np.empty_like(query)
    for begin, end in zip(starts, starts[1:]):
        for t in range(begin, end):
            for h in range(query.shape[1]):
                made[t, h] = attend_one_query(query[t, h], key[begin : t + 1, h], value[begin : t + 1, h])
    return made


def chunked_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    """query (H, chunk, D), key, value (H, T, D) -> (H, chunk, D): the queries are those of the last tokens, causal."""
    before = key.shape[1] - query.shape[1]
    return _of_each_query(query, key, value, lambda t: (0, before + t + 1))


def sliding_window_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, window: int) -> np.ndarray:
    """query, key, value (H, T, D) -> (H, T, D): each query sees ``window`` tokens, itself the last (Beltagy and others,
    2020)."""
    return _of_each_query(query, key, value, lambda t: (max(0, t + 1 - window), t + 1))


def sink_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """query, key, value (H, T, D), sinks (H) -> (H, T, D), causal: a learned score of each head takes its share of the
    softmax and gives nothing (gpt-oss, 2025)."""
    made = np.empty_like(query)
    for h in range(query.shape[0]):
        for t in range(query.shape[1]):
            made[h, t] = attend_one_query(query[h, t], key[h, : t + 1], value[h, : t + 1], sink=float(sinks[h]))
    return made


def alibi_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, slopes: np.ndarray) -> np.ndarray:
    """query, key, value (H, T, D), slopes (H) -> (H, T, D), causal: a score falls by the slope for each token of
    distance (Press and others, 2022)."""
    made = np.empty_like(query)
    for h in range(query.shape[0]):
        for t in range(query.shape[1]):
            made[h, t] = attend_one_query(
                query[h, t], key[h, : t + 1], value[h, : t + 1], bias=-slopes[h] * np.arange(t, -1, -1)
            )
    return made


def softcap_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, cap: float) -> np.ndarray:
    """query, key, value (H, T, D) -> (H, T, D), causal: scores are capped by cap·tanh(s/cap) (Gemma 2, 2024)."""
    made = np.empty_like(query)
    for h in range(query.shape[0]):
        for t in range(query.shape[1]):
            made[h, t] = attend_one_query(query[h, t], key[h, : t + 1], value[h, : t + 1], cap=cap)
    return made


def latent_attention(
    query: np.ndarray,
    query_rope: np.ndarray,
    latent: np.ndarray,
    key_rope: np.ndarray,
    up_key: np.ndarray,
    up_value: np.ndarray,
) -> np.ndarray:
    """query (H, T, D), query_rope (H, T, R), latent (T, C), key_rope (T, R), up_key (H, D, C), up_value (H, D′, C) ->
    (H, T, D′), causal: keys and values are made of what is kept, a latent vector and one rotated key for all heads
    (DeepSeek-V2, 2024)."""
    made = np.empty((*query.shape[:2], up_value.shape[1]))
    for h in range(query.shape[0]):
        keys = np.concatenate([latent @ up_key[h].T, key_rope], 1)
        values = latent @ up_value[h].T
        for t in range(query.shape[1]):
            made[h, t] = attend_one_query(
                np.concatenate([query[h, t], query_rope[h, t]]), keys[: t + 1], values[: t + 1]
            )
    return made


def int8_cache_attention(
    query: np.ndarray, key_codes: np.ndarray, key_scales: np.ndarray, value_codes: np.ndarray, value_scales: np.ndarray
) -> np.ndarray:
    """query (H, D), codes int8 (H, T, D), scales (H, T) -> (H, D): one query over keys and values kept in 8 bits."""
    keys, values = key_codes * key_scales[..., None], value_codes * value_scales[..., None]
    return np.stack([attend_one_query(*row) for row in zip(query, keys, values)])


def fp8_cache_attention(
    query: np.ndarray, key_codes: np.ndarray, value_codes: np.ndarray, key_scale: float, value_scale: float
) -> np.ndarray:
    """query (H, D), codes uint8 (H, T, D), the bytes of float8 e4m3 (Micikevicius and others, 2022), a scale of all
    keys and one of all values -> (H, D)."""
    keys, values = key_scale * _decode_e4m3(key_codes), value_scale * _decode_e4m3(value_codes)
    return np.stack([attend_one_query(*row) for row in zip(query, keys, values)])


def _decode_e4m3(codes: np.ndarray) -> np.ndarray:
    """A sign, four bits of an exponent whose bias is 7, three of a fraction; without infinities."""
    sign, exponent, fraction = codes >> 7, (codes >> 3 & 15).astype(np.int64), (codes & 7) / 8
    size = np.where(exponent == 0, fraction * 2.0**-6, (1 + fraction) * 2.0 ** (exponent - 7))
    return np.where(sign == 1, -size, size)


def merge_attention(first: np.ndarray, first_sum: np.ndarray, second: np.ndarray, second_sum: np.ndarray) -> np.ndarray:
    """What attention gave over two parts of the keys (T, H, D), with the logarithms of the sums of each one's
    exponentials (T, H) -> that over both (Ye and others, FlashInfer, 2025; split keys in decoding)."""
    made = np.empty_like(first)
    for t, h in np.ndindex(*first_sum.shape):
        share = 1 / (1 + np.exp(second_sum[t, h] - first_sum[t, h]))
        made[t, h] = share * first[t, h] + (1 - share) * second[t, h]
    return made


def rotary_interleaved(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x (H, T, D), cos, sin (T, D/2) -> (H, T, D): the numbers 2k and 2k + 1 are turned (GPT-J; Su and others,
    2021)."""
    made = np.empty_like(x)
    for k in range(x.shape[-1] // 2):
        a, b = x[..., 2 * k], x[..., 2 * k + 1]
        made[..., 2 * k], made[..., 2 * k + 1] = a * cos[:, k] - b * sin[:, k], a * sin[:, k] + b * cos[:, k]
    return made


def rotary_partial(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """x (H, T, D), cos, sin (T, R/2) -> (H, T, D): the first R numbers are turned in halves, the others stay
    (GPT-NeoX)."""
    half = cos.shape[-1]
    made = x.copy()
    for k in range(half):
        a, b = x[..., k], x[..., half + k]
        made[..., k], made[..., half + k] = a * cos[:, k] - b * sin[:, k], a * sin[:, k] + b * cos[:, k]
    return made


def rotary_sections(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, sections: tuple[int, ...]) -> np.ndarray:
    """x (H, T, D), cos, sin (axes, T, D/2) -> (H, T, D): turned in halves; the first ``sections[0]`` pairs by a token's
    place in time, the next by its row, the last by its column (Qwen2-VL, 2024)."""
    half = x.shape[-1] // 2
    made = np.empty_like(x)
    for k, axis in enumerate(np.repeat(np.arange(len(sections)), sections)):
        a, b = x[..., k], x[..., half + k]
        made[..., k] = a * cos[axis, :, k] - b * sin[axis, :, k]
        made[..., half + k] = a * sin[axis, :, k] + b * cos[axis, :, k]
    return made


def add_layer_norm(x: np.ndarray, residual: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """x, residual (T, E), weight, bias (E) -> (T, E): the layer norm of x + residual (Ba and others, 2016)."""
    made = np.empty_like(x)
    for t, y in enumerate(x + residual):
        apart = y - y.sum() / y.size
        made[t] = apart / np.sqrt((apart * apart).sum() / y.size + eps) * weight + bias
    return made


def add_rms_norm(x: np.ndarray, residual: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x, residual (T, E), weight (E) -> (T, E): the RMS norm of x + residual."""
    y = x + residual
    return np.asarray(y / np.sqrt((y * y).mean(-1, keepdims=True) + eps) * weight)


def route_tokens(logits: np.ndarray, k: int) -> np.ndarray:
    """logits (T, experts) -> (T, experts): softmax over a token's k largest, 0 of the others (Mixtral, 2024)."""
    made = np.zeros_like(logits)
    for t, row in enumerate(logits):
        chosen = np.argsort(-row, kind="stable")[:k]
        made[t, chosen] = compute_softmax(row[chosen])
    return made


def route_in_groups(logits: np.ndarray, bias: np.ndarray, groups: int, kept: int, k: int, scale: float) -> np.ndarray:
    """logits (T, experts), bias (experts) -> (T, experts): of the ``kept`` groups whose two best experts score most, a
    token's k best experts; biased scores choose, sigmoids weigh (DeepSeek-V3, 2024)."""
    made = np.zeros_like(logits)
    size = logits.shape[1] // groups
    for t, row in enumerate(logits):
        score = 1 / (1 + np.exp(-row))
        biased = score + bias
        best = [np.sort(biased[g * size : (g + 1) * size])[-2:].sum() for g in range(groups)]
        seen = [e for g in np.argsort(best)[::-1][:kept] for e in range(g * size, (g + 1) * size)]
        chosen = sorted(seen, key=lambda e: -biased[e])[:k]
        made[t, chosen] = scale * score[chosen] / score[chosen].sum()
    return made


def grouped_product(x: np.ndarray, experts: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x (T, K), experts (T), weight (E, K, M) -> (T, M): each token by the matrix of its expert."""
    return np.stack([row @ weight[e] for row, e in zip(x, experts)])


def penalise_repeats(logits: np.ndarray, tokens: np.ndarray, penalty: float) -> np.ndarray:
    """logits (B, V), tokens (B, T) -> (B, V): a logit of a token that is there is divided by the penalty, a negative
    one multiplied (Keskar and others, 2019)."""
    made = logits.copy()
    for b, row in enumerate(tokens):
        for token in set(row.tolist()):
            made[b, token] = logits[b, token] / penalty if logits[b, token] > 0 else logits[b, token] * penalty
    return made


def adjust_probabilities(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> np.ndarray:
    """logits (B, V) -> (B, V): probabilities at a temperature; of the k likeliest tokens the fewest whose share of
    these reaches top_p, the one that reaches it among them (Holtzman and others, 2020); of those, the ones with at
    least min_p of the likeliest one's (Nguyen and others, 2024)."""
    made = np.zeros_like(logits)
    for b, row in enumerate(logits):
        order = np.argsort(-row, kind="stable")[:top_k]
        sizes = np.exp((row[order] - row[order[0]]) / temperature)
        stay, mass = [], 0.0
        for token, size in zip(order, sizes):
            if mass >= top_p * sizes.sum() or size < min_p:
                break
            stay.append(token)
            mass += size
        made[b, stay] = sizes[: len(stay)] / sizes[: len(stay)].sum()
    return made


def _of_each_query(query: np.ndarray, key: np.ndarray, value: np.ndarray, seen: object) -> np.ndarray:
    made = np.empty_like(query)
    for h in range(query.shape[0]):
        for t in range(query.shape[1]):
            begin, end = seen(t)  # type: ignore[operator]
            made[h, t] = attend_one_query(query[h, t], key[h, begin:end], value[h, begin:end])
    return made
