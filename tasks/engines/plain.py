"""The plain engine: torch's own operations, one sequence's cache beside the other's. It is what a fault is planted in, and what others
are compared with: nothing in it is fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.engines.plain_caches import Cache, DynamicCache, Int8Cache, PagedCache, PagePool, StaticCache
from tasks.engines.sampling import draw_sampled_tokens
from tasks.model import Unsupported
from tasks.model.engine import DYNAMIC, INT8, LEFT, PAGED, RIGHT, STATIC, Sampling, ServedModel


class PlainEngine:
    """A `tasks.model.engine.Engine` on the CPU. Methods with a leading underscore are its parts, of which a planted
    fault replaces one."""

    #: "module:Class" of one rank of several (`tasks.model.engine.SpreadEngine`).
    rank_class = "tasks.engines.plain_rank:PlainRank"

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        import torch

        self._decoder = model.decoder
        self._dtype = getattr(torch, model.dtype)
        self._weights = {
            name: torch.tensor(np.asarray(x, np.float32)).to(self._dtype) for name, x in model.weights.items()
        }
        #: Of each sequence: its tokens, its cache (None while it is evicted), and the kind of that.
        self._tokens: dict[int, list[int]] = {}
        self._caches: dict[int, Cache | None] = {}
        self._kinds: dict[int, str] = {}
        self._next = 0
        self._side = RIGHT
        #: What the heads and then the layers of one pass gave, where somebody watches.
        self._seen_inside: list[Any] | None = None
        decoder = self._decoder
        self._pool = PagePool(decoder.layers, decoder.kv_heads, decoder.head_width, self._dtype)
        self._block: Callable[..., Any] = torch.compile(self._inside, dynamic=True) if compiled else self._inside

    # --- what an engine is asked ----------------------------------------------------------------------------------

    def watch(self) -> None:
        self._seen_inside = []

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        sequence = self._open(cache) if after is None else after
        return sequence, self._read([sequence], [list(tokens)])[0]

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        self._side = side
        sequences = [self._open("") for _ in prompts]
        rows = self._read(sequences, [list(x) for x in prompts])
        return sequences, np.stack([x[-1] for x in rows])

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        return np.stack([x[-1] for x in self._read(sequences, [[int(token)] for token in tokens])])

    def fork(self, sequence: int, length: int) -> int:
        kept = self._cache_of(sequence)
        made = self._open("")
        cache = self._caches[made]
        assert cache is not None
        for layer in range(self._decoder.layers):
            key, value = kept.read(layer, length)
            cache.append(layer, key[:, :length].clone(), value[:, :length].clone())
        cache.grow(length)
        self._tokens[made] = self._tokens[sequence][:length]
        return made

    def crop(self, sequence: int, length: int) -> None:
        self._cache_of(sequence).crop(length)
        del self._tokens[sequence][length:]

    def evict(self, sequence: int) -> None:
        if (cache := self._caches[sequence]) is not None:
            cache.free()
        self._caches[sequence] = None

    def free(self, sequence: int) -> None:
        self.evict(sequence)
        del self._tokens[sequence], self._caches[sequence], self._kinds[sequence]

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        return draw_sampled_tokens(logits, how, count, seed)

    # --- sequences and caches -------------------------------------------------------------------------------------

    def _open(self, kind: str) -> int:
        self._next += 1
        self._tokens[self._next], self._kinds[self._next] = [], kind or DYNAMIC
        self._caches[self._next] = self._make_cache(kind or DYNAMIC)
        return self._next

    def _make_cache(self, kind: str) -> Cache:
        decoder = self._decoder
        if kind == STATIC:
            return StaticCache(decoder.layers, decoder.kv_heads, decoder.positions, decoder.head_width, self._dtype)
        if kind == PAGED:
            return PagedCache(self._pool)
        if kind in (DYNAMIC, INT8):
            return (Int8Cache if kind == INT8 else DynamicCache)(decoder.layers)
        raise Unsupported(f"the plain engine has no cache {kind!r}")

    def _cache_of(self, sequence: int) -> Cache:
        """The cache of a sequence, computed again where it was evicted."""
        cache = self._caches[sequence]
        if cache is None:
            tokens, self._tokens[sequence] = self._tokens[sequence], []
            self._caches[sequence] = cache = self._make_cache(self._kinds[sequence])
            self._read([sequence], [tokens])
        return cache

    # --- the decoder ----------------------------------------------------------------------------------------------

    def _read(self, sequences: Sequence[int], tokens: Sequence[list[int]]) -> list[np.ndarray]:
        """Read further tokens of some sequences together. Returns the logits behind each token, float32, per
        sequence."""
        import torch

        caches = [self._cache_of(x) for x in sequences]
        positions = [self._positions(cache, len(new)) for cache, new in zip(caches, tokens)]
        with torch.no_grad():
            hidden = self._weights["model.embed_tokens.weight"][self._pad([torch.tensor(x) for x in tokens])]
            places = self._pad([torch.tensor(x) for x in positions])
            for layer in range(self._decoder.layers):
                hidden = self._layer(layer, hidden, places, caches, [len(x) for x in tokens])
            logits = self._linear(self._norm(hidden, "model.norm"), "lm_head").float()
            if self._seen_inside:
                logits = torch.cat([logits, *self._seen_inside], -1)
                self._seen_inside = []
            logits = logits.numpy()
        for sequence, cache, new in zip(sequences, caches, tokens):
            cache.grow(len(new))
            self._tokens[sequence] += new
        return [row[self._rows(len(new), logits.shape[1])] for row, new in zip(logits, tokens)]

    def _positions(self, cache: Cache, count: int) -> list[int]:
        """Positions of tokens that follow those of a cache."""
        return list(range(cache.length, cache.length + count))

    def _rows(self, count: int, wide: int) -> slice:
        """Where a row's own numbers are among padded ones."""
        return slice(wide - count, wide) if self._side == LEFT else slice(0, count)

    def _pad(self, rows: Sequence[Any], dim: int = 0) -> Any:
        """Tensors of several lengths in a dimension as one, zeros on the batch's side."""
        import torch

        wide = max(x.shape[dim] for x in rows)
        padded = []
        for x in rows:
            shape = list(x.shape)
            shape[dim] = wide - x.shape[dim]
            parts = [x, x.new_zeros(shape)]
            padded.append(torch.cat(parts[::-1] if self._side == LEFT else parts, dim) if shape[dim] else x)
        return torch.stack(padded)

    def _layer(self, layer: int, hidden: Any, places: Any, caches: Sequence[Cache], counts: Sequence[int]) -> Any:
        name = f"model.layers.{layer}"
        normed = self._norm(hidden, f"{name}.input_layernorm")
        query, key, value = (self._heads(self._linear(normed, f"{name}.self_attn.{x}_proj")) for x in "qkv")
        query, key = self._rotate(query, places), self._rotate(key, places)
        mixed = self._attend(layer, query, key, value, places, caches, counts)
        mixed = mixed.transpose(1, 2).flatten(2)
        hidden = hidden + self._sum_ranks(self._linear(mixed, f"{name}.self_attn.o_proj"))
        made = hidden + self._sum_ranks(self._block(hidden, *self._inside_weights(name)))
        if self._seen_inside is not None:
            self._seen_inside += [self._join_ranks(mixed).float(), made.float()]
        return made

    def _inside_weights(self, name: str) -> tuple[Any, ...]:
        names = ("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        return tuple(self._weights[f"{name}.{x}.weight"] for x in names)

    def _inside(self, hidden: Any, norm: Any, gate: Any, up: Any, down: Any) -> Any:
        """The gated product behind attention."""
        from torch.nn import functional

        normed = self._normalise(hidden, norm)
        inside = functional.silu(normed @ gate.T) * (normed @ up.T)
        return inside @ down.T

    def _sum_ranks(self, x: Any) -> Any:
        """What all ranks have of a sum, added; there is but one."""
        return x

    def _join_ranks(self, x: Any) -> Any:
        """What each rank's heads gave, side by side."""
        return x

    def _norm(self, x: Any, name: str) -> Any:
        return self._normalise(x, self._weights[f"{name}.weight"])

    def _normalise(self, x: Any, weight: Any) -> Any:
        wide = x.float()
        scaled = wide * (wide.pow(2).mean(-1, keepdim=True) + self._decoder.epsilon).rsqrt()
        return scaled.to(x.dtype) * weight

    def _linear(self, x: Any, name: str) -> Any:
        return x @ self._weights[f"{name}.weight"].T

    def _heads(self, x: Any) -> Any:
        """(rows, tokens, heads × width) as (rows, heads, tokens, width)."""
        return x.unflatten(-1, (-1, self._decoder.head_width)).transpose(1, 2)

    def _rotate(self, x: Any, places: Any) -> Any:
        """Rotary positions: x (rows, heads, tokens, width), places (rows, tokens)."""
        import torch

        size = self._decoder.head_width
        frequencies = self._decoder.rotary_base ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        angles = (places[:, None, :, None].float() * frequencies).repeat(1, 1, 1, 2)
        first, second = x.float().chunk(2, -1)
        return (x.float() * angles.cos() + torch.cat([-second, first], -1) * angles.sin()).to(x.dtype)

    def _attend(
        self, layer: int, query: Any, key: Any, value: Any, places: Any, caches: Sequence[Cache], counts: Sequence[int]
    ) -> Any:
        """Keep the new keys and values, and mix all that each query may see: (rows, heads, tokens, width)."""
        import torch

        for row, (cache, count) in enumerate(zip(caches, counts)):
            own = self._rows(count, key.shape[2])
            self._keep(cache, layer, key[row, :, own], value[row, :, own])
        kept = [cache.read(layer, cache.length + count) for cache, count in zip(caches, counts)]
        keys, values = (self._pad([x[k] for x in kept], 1) for k in range(2))
        at = [torch.arange(pair[0].shape[1]) for pair in kept]
        # A key's position is its place in the cache; one that is padding, or lies behind the tokens, has none.
        at = [torch.where(x < cache.length + count, x, -1) for x, cache, count in zip(at, caches, counts)]
        mask = self._mask(places, self._pad([x + 1 for x in at]) - 1)
        keys, values = self._share(keys), self._share(values)
        scores = (query @ keys.transpose(2, 3)) * self._scale()
        scores = scores.float().masked_fill(~mask[:, None], -1e30)
        return torch.softmax(scores, -1).to(query.dtype) @ values

    def _keep(self, cache: Cache, layer: int, key: Any, value: Any) -> None:
        cache.append(layer, key, value)

    def _scale(self) -> float:
        return 1 / math.sqrt(self._decoder.head_width)

    def _share(self, x: Any) -> Any:
        """Keys or values of each head of queries: (rows, kv heads, …) as (rows, heads, …)."""
        return x.repeat_interleave(self._decoder.heads // self._decoder.kv_heads, 1)

    def _mask(self, places: Any, at: Any) -> Any:
        """Which keys each query sees: places (rows, queries), at (rows, keys) → (rows, queries, keys)."""
        behind = places[:, :, None] - at[:, None]
        seen = (at[:, None] >= 0) & (behind >= 0)
        return seen & (behind < self._decoder.window) if self._decoder.window else seen
