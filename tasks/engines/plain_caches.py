"""Caches of the plain engine: the keys and values of one sequence, laid out in several ways."""

from __future__ import annotations

from typing import Any, Protocol

#: Tokens of a page, and pages of a pool.
PAGE, PAGES = 8, 128


class Cache(Protocol):
    """Keys and values of one sequence, one pair a layer. Tensors are (kv heads, tokens, head width)."""

    #: Tokens that it holds in every layer.
    length: int

    def append(self, layer: int, key: Any, value: Any) -> None:
        """Keep further tokens of a layer behind the first `length`. `length` grows when the last layer has them
        (`grow`)."""

    def grow(self, count: int) -> None:
        """All layers have so many further tokens."""

    def read(self, layer: int, count: int) -> tuple[Any, Any]:
        """The first ``count`` tokens of a layer, or more: what is behind them counts for nothing."""

    def crop(self, length: int) -> None:
        """Forget all but the first tokens."""

    def free(self) -> None:
        """Give its memory back."""


class DynamicCache:
    """Grows by each token; holds no more than it has."""

    def __init__(self, layers: int) -> None:
        self.length = 0
        self._kept: list[tuple[Any, Any] | None] = [None] * layers

    def append(self, layer: int, key: Any, value: Any) -> None:
        import torch

        kept = self._kept[layer]
        both = (key, value) if kept is None else (torch.cat([a, b], 1) for a, b in zip(kept, (key, value)))
        self._kept[layer] = tuple(both)  # type: ignore[assignment]

    def grow(self, count: int) -> None:
        self.length += count

    def read(self, layer: int, count: int) -> tuple[Any, Any]:
        kept = self._kept[layer]
        assert kept is not None, "read after it was appended to"
        return kept

    def crop(self, length: int) -> None:
        self.length = length
        self._kept = [None if x is None else (x[0][:, :length], x[1][:, :length]) for x in self._kept]

    def free(self) -> None:
        self._kept = [None] * len(self._kept)


class StaticCache:
    """Has room for as many tokens as a sequence may have; all of it is read, and what lies behind the tokens is
    masked."""

    def __init__(self, layers: int, kv_heads: int, positions: int, width: int, dtype: Any) -> None:
        import torch

        self.length = 0
        self._room = torch.zeros(layers, 2, kv_heads, positions, width, dtype=dtype)

    def append(self, layer: int, key: Any, value: Any) -> None:
        end = self.length + key.shape[1]
        self._room[layer, 0, :, self.length : end], self._room[layer, 1, :, self.length : end] = key, value

    def grow(self, count: int) -> None:
        self.length += count

    def read(self, layer: int, count: int) -> tuple[Any, Any]:
        return self._room[layer, 0], self._room[layer, 1]

    def crop(self, length: int) -> None:
        self.length = length

    def free(self) -> None:
        pass


class PagePool:
    """Pages that paged caches share; what one has given back the next one finds as it was left."""

    def __init__(self, layers: int, kv_heads: int, width: int, dtype: Any) -> None:
        import torch

        self.room = torch.zeros(PAGES, layers, 2, kv_heads, PAGE, width, dtype=dtype)
        self.free = list(range(PAGES))[::-1]


class PagedCache:
    """A table of pages of a pool, in the order of the tokens."""

    def __init__(self, pool: PagePool) -> None:
        self.length = 0
        self._pool, self._pages = pool, list[int]()

    def append(self, layer: int, key: Any, value: Any) -> None:
        end = self.length + key.shape[1]
        while len(self._pages) * PAGE < end:
            self._pages.append(self._pool.free.pop())
        for k in range(key.shape[1]):
            page, place = divmod(self.length + k, PAGE)
            room = self._pool.room[self._pages[page], layer]
            room[0, :, place], room[1, :, place] = key[:, k], value[:, k]

    def grow(self, count: int) -> None:
        self.length += count

    def read(self, layer: int, count: int) -> tuple[Any, Any]:
        pages = self._pool.room[self._pages, layer]  # (pages, 2, kv heads, page, width)
        both = pages.permute(1, 2, 0, 3, 4).flatten(2, 3)
        return both[0], both[1]

    def crop(self, length: int) -> None:
        self.length = length
        kept = -(-length // PAGE)
        self._pool.free += self._pages[kept:]
        del self._pages[kept:]

    def free(self) -> None:
        self.crop(0)


class Int8Cache(DynamicCache):
    """Codes of 8 bits with a scale for each token and head: the largest of its numbers is 127."""

    def append(self, layer: int, key: Any, value: Any) -> None:
        super().append(layer, self._round(key), self._round(value))

    @staticmethod
    def _round(x: Any) -> Any:
        wide = x.float()
        scale = wide.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 127
        return ((wide / scale).round() * scale).to(x.dtype)
