"""transformers as an engine: a network of its library with the caches that its `generate` takes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.engines.checkpoint import make_transformers_network
from tasks.model import Unsupported
from tasks.model.engine import DYNAMIC, LEFT, STATIC, Sampling, ServedModel


@dataclass
class _Batch:
    """Sequences that share a cache. mask: (rows, tokens) int64, 0 of padding; cache: None while it is evicted."""

    kind: str
    cache: Any
    tokens: list[list[int]]
    mask: Any
    members: list[int] = field(default_factory=list)


class TransformersEngine:
    """A `tasks.model.engine.Engine`. attention: transformers' name of the implementation, "sdpa" or "eager"."""

    def __init__(self, attention: str = "sdpa", device: str = "cpu") -> None:
        self._attention, self._device = attention, device

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        import torch

        self._decoder = model.decoder
        self._network = make_transformers_network(model, self._attention).to(self._device)
        self._call = torch.compile(self._network, dynamic=True) if compiled else self._network
        self._batches: dict[int, tuple[_Batch, int]] = {}
        self._next = 0
        self._seen_inside: list[Any] = []

    def watch(self) -> None:
        for layer in self._network.model.layers:
            layer.self_attn.o_proj.register_forward_pre_hook(
                lambda module, given: self._seen_inside.append(given[0].float())
            )
            layer.register_forward_hook(lambda module, given, made: self._seen_inside.append(made.float()))

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        if after is None:
            (after,) = self._open(_Batch(cache or DYNAMIC, self._make_cache(cache or DYNAMIC), [[]], self._ones(1, 0)))
        return after, self._read(self._find([after]), [list(tokens)])[0]

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        longest = max(len(x) for x in prompts)
        made = _Batch(DYNAMIC, self._make_cache(DYNAMIC), [[] for _ in prompts], self._ones(len(prompts), 0))
        sequences = self._open(made)
        rows = self._read(made, [list(x) for x in prompts], longest, side)
        return sequences, np.stack([row[-1 if side == LEFT else len(x) - 1] for row, x in zip(rows, prompts)])

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        return self._read(self._find(sequences), [[int(token)] for token in tokens])[:, -1]

    def fork(self, sequence: int, length: int) -> int:
        batch = self._find([sequence])
        self._restore(batch)
        cache = copy.deepcopy(batch.cache)
        made = _Batch(batch.kind, cache, [list(batch.tokens[0])], batch.mask.clone())
        (opened,) = self._open(made)
        self.crop(opened, length)
        return opened

    def crop(self, sequence: int, length: int) -> None:
        batch = self._find([sequence])
        self._restore(batch)
        if length < len(batch.tokens[0]):
            try:
                batch.cache.crop(length - len(batch.tokens[0]))
            except (ValueError, NotImplementedError, AttributeError, RuntimeError) as error:
                raise Unsupported(f"its cache forgets no tokens: {error}") from error
        del batch.tokens[0][length:]
        batch.mask = batch.mask[:, :length]

    def evict(self, sequence: int) -> None:
        self._find([sequence]).cache = None

    def free(self, sequence: int) -> None:
        del self._batches[sequence]

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        import torch
        from transformers.generation import logits_process

        made = logits_process.LogitsProcessorList()
        if how.penalty != 1.0:
            made.append(logits_process.RepetitionPenaltyLogitsProcessor(how.penalty))
        if how.temperature != 1.0:
            made.append(logits_process.TemperatureLogitsWarper(how.temperature))
        if how.top_k:
            made.append(logits_process.TopKLogitsWarper(how.top_k))
        if how.top_p < 1.0:
            made.append(logits_process.TopPLogitsWarper(how.top_p))
        if how.min_p:
            made.append(logits_process.MinPLogitsWarper(how.min_p))
        scores = made(torch.tensor([how.before], dtype=torch.int64), torch.tensor(logits, dtype=torch.float32)[None])
        generator = torch.Generator().manual_seed(seed)
        shares = torch.softmax(scores[0], -1)
        return torch.multinomial(shares, count, replacement=True, generator=generator).numpy()

    # --- batches and caches ---------------------------------------------------------------------------------------

    def _ones(self, rows: int, tokens: int) -> Any:
        import torch

        return torch.ones(rows, tokens, dtype=torch.int64, device=self._device)

    def _open(self, batch: _Batch) -> list[int]:
        batch.members = [self._next + 1 + k for k in range(len(batch.tokens))]
        self._next += len(batch.tokens)
        self._batches |= {x: (batch, k) for k, x in enumerate(batch.members)}
        return batch.members

    def _find(self, sequences: Sequence[int]) -> _Batch:
        batch = self._batches[sequences[0]][0]
        if list(sequences) != batch.members:
            raise Unsupported("transformers computes the sequences of a batch together, in its order")
        return batch

    def _make_cache(self, kind: str) -> Any:
        from transformers import DynamicCache, StaticCache

        if kind == DYNAMIC:
            return DynamicCache(config=self._network.config)
        if kind == STATIC:
            return StaticCache(config=self._network.config, max_cache_len=self._decoder.positions)
        raise Unsupported(f"transformers has no cache {kind!r} without further packages")

    def _restore(self, batch: _Batch) -> None:
        """Compute a cache again that was evicted."""
        if batch.cache is None:
            tokens, batch.tokens = batch.tokens, [[] for _ in batch.tokens]
            batch.cache, batch.mask = self._make_cache(batch.kind), self._ones(len(tokens), 0)
            self._read(batch, tokens)

    def _read(self, batch: _Batch, tokens: list[list[int]], wide: int = 0, side: str = "") -> np.ndarray:
        """Read further tokens of a batch's rows, padded to a width on a side. Returns logits (rows, width, vocabulary),
        float32."""
        import torch

        self._restore(batch)
        wide = wide or len(tokens[0])
        ids, mask = torch.zeros(len(tokens), wide, dtype=torch.int64), torch.zeros(len(tokens), wide, dtype=torch.int64)
        for row, new in enumerate(tokens):
            own = slice(wide - len(new), wide) if side == LEFT else slice(0, len(new))
            ids[row, own], mask[row, own] = torch.tensor(new), 1
        batch.mask = torch.cat([batch.mask, mask.to(self._device)], 1)
        # As its `generate` makes them: the number of tokens before each that are no padding.
        positions = (batch.mask.cumsum(1) - 1).clamp_min(0)[:, -wide:]
        with torch.no_grad():
            said = {"attention_mask": batch.mask, "position_ids": positions, "past_key_values": batch.cache}
            logits = self._call(ids.to(self._device), use_cache=True, **said).logits
        logits = torch.cat([logits.float(), *self._seen_inside], -1)
        self._seen_inside.clear()
        for row, new in enumerate(tokens):
            batch.tokens[row] += new
        return np.asarray(logits.cpu().numpy())
