"""Engines with one planted fault each: the plain engine with a part replaced, as such faults are met in engines that serve.

The twin of each is the plain engine itself. `FAULTS` says by which relations a fault is to be found; "float64" where
every way to the logits has it, so that relations agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.checks.engine_relations import CHUNK
from tasks.engines.plain import PlainEngine
from tasks.engines.plain_caches import PAGE, Cache, DynamicCache, Int8Cache, PagedCache, StaticCache
from tasks.engines.plain_rank import PlainRank
from tasks.engines.sampling import adjust_probabilities, draw_sampled_tokens
from tasks.model.engine import INT8, LEFT, PAGED, STATIC, Sampling, ServedModel


@dataclass(frozen=True)
class EngineFault:
    """found_by: relations (ops of the catalog `engine`) of which each finds it; window: only a decoder with a window
    has it."""

    engine: type[PlainEngine]
    found_by: tuple[str, ...]
    window: bool = False


# --- after tokens are forgotten -----------------------------------------------------------------------------------


class PositionAfterCrop(PlainEngine):
    """Positions go on one too far once a sequence was cropped."""

    def crop(self, sequence: int, length: int) -> None:
        super().crop(sequence, length)
        self._off = {*getattr(self, "_off", ()), id(self._caches[sequence])}

    def _positions(self, cache: Cache, count: int) -> list[int]:
        off = id(cache) in getattr(self, "_off", ())
        return [x + off for x in super()._positions(cache, count)]


class StaleSlot(PlainEngine):
    """A crop forgets the tokens and leaves their keys where they are read."""

    def crop(self, sequence: int, length: int) -> None:
        cache = self._cache_of(sequence)
        kept = cache.length
        super().crop(sequence, length)
        if isinstance(cache, DynamicCache) and kept > length:
            for layer, pair in enumerate(cache._kept):
                if pair is not None:
                    cache._kept[layer] = tuple(_repeat_last(x, 1) for x in pair)  # type: ignore[assignment]


class CropOneShort(PlainEngine):
    """A crop of several tokens leaves the first of them."""

    def crop(self, sequence: int, length: int) -> None:
        over = len(self._tokens[sequence]) - length
        super().crop(sequence, length + (over > 1))


# --- batches ------------------------------------------------------------------------------------------------------


class PaddingAttended(PlainEngine):
    """Padding counts as tokens at position 0."""

    def _mask(self, places: Any, at: Any) -> Any:
        return super()._mask(places, at.clamp_min(0))


class PositionsOfPadding(PlainEngine):
    """A prompt padded on the left has positions from the padding on, the tokens after it have not."""

    def batch(self, prompts: Sequence[Sequence[int]], side: str) -> tuple[list[int], np.ndarray]:
        self._longest = max(len(x) for x in prompts) if side == LEFT else 0
        try:
            return super().batch(prompts, side)
        finally:
            self._longest = 0

    def _rotate(self, x: Any, places: Any) -> Any:
        longest = getattr(self, "_longest", 0)
        return super()._rotate(x, places + (longest - 1 - places.amax(1, keepdim=True)) if longest else places)


class LogitsOfPadding(PlainEngine):
    """The first token behind a prompt padded on the right comes from the padding's logits."""

    def _rows(self, count: int, wide: int) -> slice:
        rows = super()._rows(count, wide)
        reading = getattr(self, "_reading", False) and self._side != LEFT
        return slice(wide - count, wide) if reading else rows

    def _attend(self, *args: Any) -> Any:
        self._reading = False
        try:
            return super()._attend(*args)
        finally:
            self._reading = True


class PositionOfLongest(PlainEngine):
    """All rows of a batch decode at the position of the longest."""

    def _rotate(self, x: Any, places: Any) -> Any:
        one = places.shape[0] > 1 and places.shape[1] == 1
        return super()._rotate(x, places.amax().expand_as(places) if one else places)


class MaskOfFirstRow(PlainEngine):
    """The first row's mask holds for the whole batch."""

    def _mask(self, places: Any, at: Any) -> Any:
        mask = super()._mask(places, at)
        return mask[:1].expand_as(mask)


class RowsByLength(PlainEngine):
    """A batch is sorted by length for its kernel, and its logits are not put back."""

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        found = super().decode(sequences, tokens)
        return found[np.argsort([len(self._tokens[x]) for x in sequences], kind="stable")]


class CachesReordered(PlainEngine):
    """The caches of a batch are turned by one row in the layers behind the first."""

    def _attend(self, layer: int, query: Any, key: Any, value: Any, places: Any, caches: Any, counts: Any) -> Any:
        mixed = super()._attend(layer, query, key, value, places, caches, counts)
        return mixed.roll(1, 0) if layer and len(caches) > 1 and max(counts) == 1 else mixed


class RowInPosition(PlainEngine):
    """A row's number in its batch is added to the positions that it decodes at."""

    def _rotate(self, x: Any, places: Any) -> Any:
        import torch

        one = places.shape[1] == 1
        return super()._rotate(x, places + torch.arange(len(places))[:, None] if one else places)


# --- prefixes and chunks ------------------------------------------------------------------------------------------


class WrongPrefix(PlainEngine):
    """The first page of a prefix is looked up without the tokens in it: another prompt's is a hit."""

    def fork(self, sequence: int, length: int) -> int:
        own = self._tokens[sequence][:length]
        self._page = getattr(self, "_page", own[:PAGE])
        made = super().fork(sequence, length)
        if length > PAGE and len(self._page) == PAGE:
            self.crop(made, 1)
            self._read([made], [[*self._page[1:], *own[PAGE:]]])
        self._page = own[:PAGE]
        return made


class PrefixOneShort(PlainEngine):
    """A fork takes one token fewer over."""

    def fork(self, sequence: int, length: int) -> int:
        return super().fork(sequence, max(length - 1, 1))


class ForkShares(PlainEngine):
    """A fork and its origin write to the same cache."""

    def fork(self, sequence: int, length: int) -> int:
        made = super().fork(sequence, length)
        own, other = self._caches[made], self._caches[sequence]
        if isinstance(own, DynamicCache) and isinstance(other, DynamicCache):
            own._kept = other._kept
        return made


class LastChunkDropped(PlainEngine):
    """The last token of a chunk that is not full is not kept in the cache."""

    def prefill(self, tokens: Sequence[int], after: int | None = None, cache: str = "") -> tuple[int, np.ndarray]:
        sequence, logits = super().prefill(tokens, after, cache)
        if after is not None and 1 < len(tokens) < CHUNK:
            super().crop(sequence, len(self._tokens[sequence]) - 1)
        return sequence, logits


class ChunkNotCausal(PlainEngine):
    """Tokens of a chunk behind others see the whole chunk."""

    def _mask(self, places: Any, at: Any) -> Any:
        behind = places.shape[0] == 1 and places.shape[1] > 1 and int(places[0, 0]) > 0
        return super()._mask(places.amax(1, keepdim=True).expand_as(places) if behind else places, at)


class ChunkFromZero(PlainEngine):
    """Positions of a chunk begin at 0 again."""

    def _rotate(self, x: Any, places: Any) -> Any:
        return super()._rotate(x, places - places[:, :1] if places.shape[1] > 1 else places)


# --- what is cached -----------------------------------------------------------------------------------------------


class RotatedTwice(PlainEngine):
    """Keys that are added to a cache one by one are rotated once more."""

    def _keep(self, cache: Cache, layer: int, key: Any, value: Any) -> None:
        import torch

        if key.shape[1] == 1 and cache.length:
            key = self._rotate(key[None], torch.tensor([[cache.length]]))[0]
        super()._keep(cache, layer, key, value)


class PreviousLogits(PlainEngine):
    """A step of decoding returns what the one before it computed."""

    def decode(self, sequences: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
        found = super().decode(sequences, tokens)
        self._before = getattr(self, "_before", {})
        key = tuple(sequences)
        before, self._before[key] = self._before.get(key, found), found
        return before


class WindowInDecode(PlainEngine):
    """The window has one token more while decoding."""

    def _mask(self, places: Any, at: Any) -> Any:
        import dataclasses

        own = self._decoder
        if own.window and places.shape[1] == 1:
            self._decoder = dataclasses.replace(own, window=own.window + 1)
        try:
            return super()._mask(places, at)
        finally:
            self._decoder = own


class _Fixed(StaticCache):
    def append(self, layer: int, key: Any, value: Any) -> None:
        if key.shape[1] == 1 and self.length > 8:
            self._room[layer, 1, :, self.length - 1] = value[:, 0]
        super().append(layer, key, value)


class StaticOverwrites(PlainEngine):
    """A fixed cache writes a value to the place of the one before it as well."""

    def _make_cache(self, kind: str) -> Cache:
        if kind != STATIC:
            return super()._make_cache(kind)
        decoder = self._decoder
        return _Fixed(decoder.layers, decoder.kv_heads, decoder.positions, decoder.head_width, self._dtype)


class StaticUnmasked(PlainEngine):
    """The unused end of a fixed cache takes part in the softmax, as zeros."""

    def _mask(self, places: Any, at: Any) -> Any:
        mask = super()._mask(places, at)
        if at.shape[1] == self._decoder.positions:
            mask = mask | (at[:, None] < 0)
        return mask


class _Sorted(PagedCache):
    def read(self, layer: int, count: int) -> tuple[Any, Any]:
        own = self._pages
        self._pages = sorted(own)
        try:
            return super().read(layer, count)
        finally:
            self._pages = own


class PagesSorted(PlainEngine):
    """Pages are read in the order of memory, not of the table."""

    def _make_cache(self, kind: str) -> Cache:
        return _Sorted(self._pool) if kind == PAGED else super()._make_cache(kind)


class PageTailAttended(PlainEngine):
    """The last page is taken for full."""

    def _mask(self, places: Any, at: Any) -> Any:
        mask = super()._mask(places, at)
        if not at.shape[1] % PAGE and places.shape[0] == 1 and at.shape[1] < self._decoder.positions:
            mask = mask | (at[:, None] < 0)
        return mask


class _FirstScale(Int8Cache):
    @staticmethod
    def _round(x: Any) -> Any:
        first = x[:, :1].float().abs().amax(-1, keepdim=True) / 127
        return ((x.float() / first).round().clamp(-127, 127) * first).to(x.dtype)


class ScaleOfFirstToken(PlainEngine):
    """An 8-bit cache takes a chunk's first token's scale for all of its tokens, and clips the others."""

    def _make_cache(self, kind: str) -> Cache:
        return _FirstScale(self._decoder.layers) if kind == INT8 else super()._make_cache(kind)


class _FourBits(Int8Cache):
    @staticmethod
    def _round(x: Any) -> Any:
        scale = x.float().abs().amax(-1, keepdim=True).clamp_min(1e-30) / 7
        return ((x.float() / scale).round() * scale).to(x.dtype)


class FourBitsForEight(PlainEngine):
    """A cache that is said to have 8 bits has 4."""

    def _make_cache(self, kind: str) -> Cache:
        return _FourBits(self._decoder.layers) if kind == INT8 else super()._make_cache(kind)


# --- sequences that give way to others ----------------------------------------------------------------------------


class ResumedOneShort(PlainEngine):
    """What is computed again after an eviction lacks the last token's values."""

    def _cache_of(self, sequence: int) -> Cache:
        was_evicted = self._caches[sequence] is None
        cache = super()._cache_of(sequence)
        if was_evicted and isinstance(cache, DynamicCache):
            for layer, pair in enumerate(cache._kept):
                if pair is not None:
                    cache._kept[layer] = (pair[0], pair[1].clone())
                    cache._kept[layer][1][:, -1] = 0  # type: ignore[index]
        return cache


class ResumedInAnothersPlace(PlainEngine):
    """A sequence comes back to the cache of the one that had taken its place."""

    def _cache_of(self, sequence: int) -> Cache:
        if self._caches[sequence] is None:
            tokens = self._tokens[sequence]
            other = self._tokens[max(self._tokens)]
            self._tokens[sequence] = [*other, *tokens[len(other) :]][: len(tokens)]
        return super()._cache_of(sequence)


# --- one function for another, whichever way ----------------------------------------------------------------------


class WindowTooWide(PlainEngine):
    """The window has one token more everywhere."""

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        import dataclasses

        super().load(model, compiled)
        if self._decoder.window:
            self._decoder = dataclasses.replace(self._decoder, window=self._decoder.window + 1)


class QueriesOutOfOrder(PlainEngine):
    """Query heads share keys in turn, instead of neighbours sharing one."""

    def _share(self, x: Any) -> Any:
        return x.repeat(1, self._decoder.heads // self._decoder.kv_heads, 1, 1)


class ScaleOfWidth(PlainEngine):
    """Scores are divided by the root of the whole width, not of a head's."""

    def _scale(self) -> float:
        return float(self._decoder.width**-0.5)


class RotaryInterleaved(PlainEngine):
    """Rotary positions turn neighbouring numbers, not the halves of a head."""

    def _rotate(self, x: Any, places: Any) -> Any:
        size = x.shape[-1]
        order = [*range(0, size, 2), *range(1, size, 2)]
        back = np.argsort(order).tolist()
        return super()._rotate(x[..., order], places)[..., back]


class TiedHead(PlainEngine):
    """The embedding stands for the head, as if they were tied."""

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        super().load(model, compiled)
        self._weights["lm_head.weight"] = self._weights["model.embed_tokens.weight"]


# --- what has happened before, and how it was compiled ------------------------------------------------------------


class CoarseOnceWarm(PlainEngine):
    """From some number of calls on another kernel is chosen, whose factors are rounded to 4 bits."""

    def _read(self, sequences: Sequence[int], tokens: Sequence[list[int]]) -> list[np.ndarray]:
        self._calls = getattr(self, "_calls", 0) + 1
        return super()._read(sequences, tokens)

    def _share(self, x: Any) -> Any:
        import torch

        shared = super()._share(x)
        if self._calls <= 96:
            return shared
        scale = shared.abs().amax() / 7
        return torch.round(shared / scale) * scale


class CompiledOtherwise(PlainEngine):
    """Compiled, the gate has the sigmoid's tanh approximation."""

    def load(self, model: ServedModel, compiled: bool = False) -> None:
        super().load(model)
        if compiled:
            self._block = self._approximated

    def _approximated(self, hidden: Any, norm: Any, gate: Any, up: Any, down: Any) -> Any:
        from torch.nn import functional

        normed = self._normalise(hidden, norm)
        return (functional.gelu(normed @ gate.T, approximate="tanh") * (normed @ up.T)) @ down.T


# --- several ranks ------------------------------------------------------------------------------------------------


class MeanForSum(PlainEngine):
    """Two ranks average what they have to add."""

    class Rank(PlainRank):
        def _sum_ranks(self, x: Any) -> Any:
            return super()._sum_ranks(x) / self.ranks

    rank_class = f"{__name__}:MeanForSum.Rank"


class AttentionNotReduced(PlainEngine):
    """From the second layer on, what the heads of the other ranks give is not added."""

    class Rank(PlainRank):
        def _linear(self, x: Any, name: str) -> Any:
            self._at = name
            return super()._linear(x, name)

        def _sum_ranks(self, x: Any) -> Any:
            attention = self._at.endswith("o_proj") and ".0." not in self._at
            self._at = ""
            return x if attention else super()._sum_ranks(x)

    rank_class = f"{__name__}:AttentionNotReduced.Rank"


class KeysOfFirstRank(PlainEngine):
    """Every rank takes the first rank's keys."""

    class Rank(PlainRank):
        def _share_of(self, name: str, rank: int) -> int:
            return 0 if name.endswith("k_proj") else rank

    rank_class = f"{__name__}:KeysOfFirstRank.Rank"


class LastRankAlone(PlainEngine):
    """The last rank leaves the norm behind the layers out."""

    class Rank(PlainRank):
        def _norm(self, x: Any, name: str) -> Any:
            return x if name == "model.norm" and self.rank == self.ranks - 1 else super()._norm(x, name)

    rank_class = f"{__name__}:LastRankAlone.Rank"


# --- samplers -----------------------------------------------------------------------------------------------------


class TemperatureAfterTopP(PlainEngine):
    """The likeliest tokens are chosen before the temperature is applied."""

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        kept = adjust_probabilities(logits, replace(how, temperature=1.0)) > 0
        return draw_sampled_tokens(
            np.where(kept, logits, -1e30), replace(how, top_k=0, top_p=1.0, min_p=0.0), count, seed
        )


class TopKOneMore(PlainEngine):
    """Of the likeliest tokens one too many is kept."""

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        return draw_sampled_tokens(logits, replace(how, top_k=how.top_k and how.top_k + 1), count, seed)


class TopPWithoutCrossing(PlainEngine):
    """The token with which the mass is reached is left out."""

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        shares = adjust_probabilities(logits, how)
        if how.top_p < 1.0:
            shares[shares == shares[shares > 0].min()] = 0.0
        shares /= shares.sum()
        return np.random.default_rng(seed).choice(shares.size, count, p=shares).astype(np.int64)


class MinPOfOne(PlainEngine):
    """The least probability is not taken as a share of the largest one."""

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        largest = float(adjust_probabilities(logits, replace(how, min_p=0.0)).max())
        return draw_sampled_tokens(logits, replace(how, min_p=min(how.min_p / largest, 1.0)), count, seed)


class PenaltyRewards(PlainEngine):
    """A penalty divides negative logits as well, which makes their tokens likelier."""

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        seen = list(how.before)
        logits = np.array(logits)
        logits[seen] /= how.penalty
        return draw_sampled_tokens(logits, replace(how, penalty=1.0), count, seed)


class SeedRepeats(PlainEngine):
    """A few numbers of the generator are used again and again."""

    def sample(self, logits: np.ndarray, how: Sampling, count: int, seed: int) -> np.ndarray:
        return np.resize(draw_sampled_tokens(logits, how, count // 64, seed), count)


def _repeat_last(x: Any, count: int) -> Any:
    import torch

    return torch.cat([x[:, :-count], x[:, -count - 1 : -1]], 1) if x.shape[1] > count + 1 else x


BATCHED = ("padded_left", "padded_right")
FAULTS: dict[str, EngineFault] = {
    "position_after_crop": EngineFault(PositionAfterCrop, ("cropped", "speculative")),
    "stale_slot": EngineFault(StaleSlot, ("cropped", "speculative")),
    "crop_one_short": EngineFault(CropOneShort, ("cropped", "speculative")),
    "padding_attended": EngineFault(PaddingAttended, BATCHED),
    "positions_of_padding": EngineFault(PositionsOfPadding, ("padded_left",)),
    "logits_of_padding": EngineFault(LogitsOfPadding, ("padded_right",)),
    "position_of_longest": EngineFault(PositionOfLongest, BATCHED),
    "mask_of_first_row": EngineFault(MaskOfFirstRow, BATCHED),
    "rows_by_length": EngineFault(RowsByLength, BATCHED),
    "caches_reordered": EngineFault(CachesReordered, BATCHED),
    "row_in_position": EngineFault(RowInPosition, (*BATCHED, "permuted")),
    "wrong_prefix": EngineFault(WrongPrefix, ("prefix_reused",)),
    "prefix_one_short": EngineFault(PrefixOneShort, ("prefix_reused",)),
    "fork_shares": EngineFault(ForkShares, ("prefix_reused",)),
    "last_chunk_dropped": EngineFault(LastChunkDropped, ("chunked",)),
    "chunk_not_causal": EngineFault(ChunkNotCausal, ("chunked", "speculative")),
    "chunk_from_zero": EngineFault(ChunkFromZero, ("chunked", "speculative")),
    "rotated_twice": EngineFault(RotatedTwice, ("recomputed",)),
    "previous_logits": EngineFault(PreviousLogits, ("recomputed",)),
    "window_in_decode": EngineFault(WindowInDecode, ("recomputed",), window=True),
    "static_overwrites": EngineFault(StaticOverwrites, ("static_cache",)),
    "static_unmasked": EngineFault(StaticUnmasked, ("static_cache",)),
    "pages_sorted": EngineFault(PagesSorted, ("paged_cache",)),
    "page_tail_attended": EngineFault(PageTailAttended, ("paged_cache",)),
    "scale_of_first_token": EngineFault(ScaleOfFirstToken, ("int8_cache",)),
    "four_bits_for_eight": EngineFault(FourBitsForEight, ("int8_cache",)),
    "resumed_one_short": EngineFault(ResumedOneShort, ("preempted",)),
    "resumed_in_anothers_place": EngineFault(ResumedInAnothersPlace, ("preempted",)),
    "window_too_wide": EngineFault(WindowTooWide, ("float64",), window=True),
    "queries_out_of_order": EngineFault(QueriesOutOfOrder, ("float64",)),
    "scale_of_width": EngineFault(ScaleOfWidth, ("float64",)),
    "rotary_interleaved": EngineFault(RotaryInterleaved, ("float64",)),
    "tied_head": EngineFault(TiedHead, ("float64",)),
    "coarse_once_warm": EngineFault(CoarseOnceWarm, ("again",)),
    "compiled_otherwise": EngineFault(CompiledOtherwise, ("compiled",)),
    "mean_for_sum": EngineFault(MeanForSum, ("tensor_parallel",)),
    "attention_not_reduced": EngineFault(AttentionNotReduced, ("tensor_parallel",)),
    "keys_of_first_rank": EngineFault(KeysOfFirstRank, ("tensor_parallel",)),
    "last_rank_alone": EngineFault(LastRankAlone, ("tensor_parallel",)),
}
#: Faults of samplers, by the variant of the op `sampling` that is to find each.
SAMPLER_FAULTS: dict[str, tuple[type[PlainEngine], str]] = {
    "temperature_after_top_p": (TemperatureAfterTopP, "hot_top_p"),
    "top_k_one_more": (TopKOneMore, "top_k"),
    "top_p_without_crossing": (TopPWithoutCrossing, "top_p"),
    "min_p_of_one": (MinPOfOne, "min_p"),
    "penalty_rewards": (PenaltyRewards, "penalty"),
    "seed_repeats": (SeedRepeats, "plain"),
}
