"""The ops of serving in torch: whole tensors and masks, as an engine's own fallback has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def attend_in_torch(
    torch: Any, query: Any, key: Any, value: Any, mask: Any = None, bias: Any = None, cap: float = 0.0, sink: Any = None
) -> Any:
    """query (…, Q, D), key (…, K, D), value (…, K, D′), mask (…, Q, K) of what is seen; scores and softmax in float32
    where the dtype is narrower."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).transpose(-1, -2) * query.shape[-1] ** -0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if bias is not None:
        scores = scores + bias.to(wide)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sink is None:
        shares = torch.softmax(scores, -1)
    else:
        more = sink.to(wide).reshape(-1, 1, 1).expand(*scores.shape[:-1], 1)
        shares = torch.softmax(torch.cat([scores, more], -1), -1)[..., :-1]
    return (shares @ value.to(wide)).to(query.dtype)


def make_causal_mask(torch: Any, queries: int, keys: int, device: Any, window: int = 0) -> Any:
    """(queries, keys): the queries are the last tokens, each sees those before and itself."""
    behind = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    return (behind >= 0) & (behind < window) if window else behind >= 0


def make_paged_attention(torch: Any) -> Callable[..., Any]:
    def paged_attention(query: Any, key_pages: Any, value_pages: Any, table: Any, lengths: Any) -> Any:
        keys, values = (x[table].transpose(1, 2).flatten(2, 3) for x in (key_pages, value_pages))
        seen = torch.arange(keys.shape[2], device=query.device) < lengths[:, None]
        return attend_in_torch(torch, query[:, :, None], keys, values, seen[:, None, None])[:, :, 0]

    return paged_attention


def make_varlen_attention(torch: Any) -> Callable[..., Any]:
    def varlen_attention(query: Any, key: Any, value: Any, starts: Any) -> Any:
        places = torch.arange(query.shape[0], device=query.device)
        of = torch.searchsorted(starts, places, right=True)
        seen = (of[:, None] == of) & (places[:, None] >= places)
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        return attend_in_torch(torch, query, key, value, seen).transpose(0, 1).contiguous()

    return varlen_attention


def make_masked_attention(torch: Any) -> Callable[..., Any]:
    def masked_attention(query: Any, key: Any, value: Any, window: int = 0) -> Any:
        return attend_in_torch(
            torch, query, key, value, make_causal_mask(torch, query.shape[1], key.shape[1], query.device, window)
        )

    return masked_attention


def make_sink_attention(torch: Any) -> Callable[..., Any]:
    def sink_attention(query: Any, key: Any, value: Any, sinks: Any) -> Any:
        return attend_in_torch(
            torch, query, key, value, make_causal_mask(torch, query.shape[1], key.shape[1], query.device), sink=sinks
        )

    return sink_attention


def make_alibi_attention(torch: Any) -> Callable[..., Any]:
    def alibi_attention(query: Any, key: Any, value: Any, slopes: Any) -> Any:
        places = torch.arange(key.shape[1], device=query.device)
        bias = slopes[:, None, None] * (places - places[:, None]).to(slopes.dtype)
        return attend_in_torch(
            torch, query, key, value, make_causal_mask(torch, query.shape[1], key.shape[1], query.device), bias
        )

    return alibi_attention


def make_softcap_attention(torch: Any) -> Callable[..., Any]:
    def softcap_attention(query: Any, key: Any, value: Any, cap: float) -> Any:
        return attend_in_torch(
            torch, query, key, value, make_causal_mask(torch, query.shape[1], key.shape[1], query.device), cap=cap
        )

    return softcap_attention


def make_latent_attention(torch: Any) -> Callable[..., Any]:
    def latent_attention(query: Any, query_rope: Any, latent: Any, key_rope: Any, up_key: Any, up_value: Any) -> Any:
        wide = torch.promote_types(query.dtype, torch.float32)
        absorbed = query.to(wide) @ up_key.to(wide)  # what is kept is never expanded
        scores = absorbed @ latent.to(wide).T + query_rope.to(wide) @ key_rope.to(wide).T
        scores = scores * (query.shape[-1] + query_rope.shape[-1]) ** -0.5
        seen = make_causal_mask(torch, query.shape[1], latent.shape[0], query.device)
        shares = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
        return (shares @ latent.to(wide) @ up_value.to(wide).transpose(1, 2)).to(query.dtype)

    return latent_attention


def make_int8_cache_attention(torch: Any) -> Callable[..., Any]:
    def int8_cache_attention(query: Any, key_codes: Any, key_scales: Any, value_codes: Any, value_scales: Any) -> Any:
        wide = torch.promote_types(query.dtype, torch.float32)
        keys, values = (
            key_codes.to(wide) * key_scales.to(wide)[..., None],
            value_codes.to(wide) * value_scales.to(wide)[..., None],
        )
        return attend_in_torch(torch, query[:, None], keys, values)[:, 0]

    return int8_cache_attention


def make_fp8_cache_attention(torch: Any) -> Callable[..., Any]:
    def fp8_cache_attention(query: Any, key_codes: Any, value_codes: Any, key_scale: float, value_scale: float) -> Any:
        wide = torch.promote_types(query.dtype, torch.float32)
        keys, values = (x.view(torch.float8_e4m3fn).to(wide) for x in (key_codes, value_codes))
        return attend_in_torch(torch, query[:, None], keys * key_scale, values * value_scale)[:, 0].to(query.dtype)

    return fp8_cache_attention


def make_merge_attention(torch: Any) -> Callable[..., Any]:
    def merge_attention(first: Any, first_sum: Any, second: Any, second_sum: Any) -> Any:
        wide = torch.promote_types(first.dtype, torch.float32)
        sums = torch.stack([first_sum, second_sum]).to(wide)
        shares = torch.softmax(sums, 0)[..., None]
        return (torch.stack([first, second]).to(wide) * shares).sum(0).to(first.dtype)

    return merge_attention


def make_rotary_interleaved(torch: Any) -> Callable[..., Any]:
    def rotary_interleaved(x: Any, cos: Any, sin: Any) -> Any:
        pairs = x.unflatten(-1, (-1, 2))
        a, b = pairs[..., 0], pairs[..., 1]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    return rotary_interleaved


def make_rotary_partial(torch: Any) -> Callable[..., Any]:
    def rotary_partial(x: Any, cos: Any, sin: Any) -> Any:
        turned, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
        a, b = turned.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)

    return rotary_partial


def make_rotary_sections(torch: Any) -> Callable[..., Any]:
    def rotary_sections(x: Any, cos: Any, sin: Any, sections: Sequence[int]) -> Any:
        cos, sin = (
            torch.cat([part[k] for k, part in enumerate(y.split(list(sections), -1))], -1).repeat(1, 2)
            for y in (cos, sin)
        )
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    return rotary_sections


def make_add_layer_norm(torch: Any) -> Callable[..., Any]:
    def add_layer_norm(x: Any, residual: Any, weight: Any, bias: Any, eps: float) -> Any:
        wide = torch.promote_types(x.dtype, torch.float32)
        y = x.to(wide) + residual.to(wide)
        return torch.nn.functional.layer_norm(y, y.shape[-1:], weight.to(wide), bias.to(wide), eps).to(x.dtype)

    return add_layer_norm


def make_add_rms_norm(torch: Any) -> Callable[..., Any]:
    def add_rms_norm(x: Any, residual: Any, weight: Any, eps: float) -> Any:
        wide = torch.promote_types(x.dtype, torch.float32)
        y = x.to(wide) + residual.to(wide)
        return (y * (y.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide)).to(x.dtype)

    return add_rms_norm


def make_route_tokens(torch: Any) -> Callable[..., Any]:
    def route_tokens(logits: Any, k: int) -> Any:
        largest, chosen = torch.topk(logits, k)
        return torch.zeros_like(logits).scatter(-1, chosen, torch.softmax(largest, -1))

    return route_tokens


def make_route_in_groups(torch: Any) -> Callable[..., Any]:
    def route_in_groups(logits: Any, bias: Any, groups: int, kept: int, k: int, scale: float) -> Any:
        wide = torch.promote_types(logits.dtype, torch.float32)
        score = logits.to(wide).sigmoid()
        biased = score + bias.to(wide)
        best = biased.unflatten(-1, (groups, -1)).topk(2, -1).values.sum(-1)
        open_groups = torch.zeros_like(best).scatter(-1, best.topk(kept, -1).indices, 1.0)
        seen = open_groups.repeat_interleave(biased.shape[-1] // groups, -1)
        chosen = biased.masked_fill(seen == 0, float("-inf")).topk(k, -1).indices
        weights = score.gather(-1, chosen)
        weights = scale * weights / weights.sum(-1, keepdim=True)
        return torch.zeros_like(score).scatter(-1, chosen, weights).to(logits.dtype)

    return route_in_groups


def make_adjust_probabilities(torch: Any) -> Callable[..., Any]:
    def adjust_probabilities(logits: Any, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
        wide = torch.promote_types(logits.dtype, torch.float32)
        largest, order = (logits.to(wide) / temperature).topk(top_k, -1)
        shares = torch.softmax(largest, -1)
        before = shares.cumsum(-1) - shares
        kept = (before < top_p) & (shares >= min_p * shares[..., :1])
        shares = shares.where(kept, torch.zeros_like(shares))
        shares = shares / shares.sum(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=wide).scatter(-1, order, shares).to(logits.dtype)

    return adjust_probabilities


def make_grouped_product(torch: Any) -> Callable[..., Any]:
    def grouped_product(x: Any, experts: Any, weight: Any) -> Any:
        return torch.bmm(x[:, None], weight[experts])[:, 0]

    return grouped_product


def make_penalise_repeats(torch: Any) -> Callable[..., Any]:
    def penalise_repeats(logits: Any, tokens: Any, penalty: float) -> Any:
        own = logits.gather(1, tokens)
        return logits.scatter(1, tokens, torch.where(own > 0, own / penalty, own * penalty))

    return penalise_repeats
