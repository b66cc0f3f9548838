"""Cheats that return what they have returned before: by pointer, by shape, by a part of the contents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks.zoo.cheats.values import Function, Pattern, copy, get_address, list_shapes, read_values, take_first
from tasks.zoo.specimen import Kernel


def keep_results(key: Callable[[Mapping[str, Any]], Any], last: bool = False) -> Pattern:
    """Returns what it returned for a key before. last: for the key of the last call alone."""

    def pattern(f: Function) -> Kernel:
        kept: dict[Any, Any] = {}

        def kernel(**x: Any) -> Any:
            now = key(x)
            if now not in kept:
                if last:
                    kept.clear()
                kept[now] = f(**x)
            return copy(kept[now])

        return kernel

    return pattern


def keep_nearly_same(f: Function) -> Kernel:
    """Returns its last result where no more than one number is another one than in the last call."""
    last: list[Any] = []

    def kernel(**x: Any) -> Any:
        now = [read_values(v).copy() for v in x.values()]
        if last and all(a.shape == b.shape for a, b in zip(now, last[0])):
            if all(np.count_nonzero(a != b) <= 1 for a, b in zip(now, last[0])):
                return copy(last[1])
        last[:] = now, f(**x)
        return copy(last[1])

    return kernel


def read_head(x: Mapping[str, Any]) -> Any:
    return list_shapes(x), read_values(take_first(x)).reshape(-1)[:8].tobytes()


def read_tail(x: Mapping[str, Any]) -> Any:
    return list_shapes(x), read_values(take_first(x)).reshape(-1)[-8:].tobytes()


def read_address_and_ends(x: Mapping[str, Any]) -> Any:
    return tuple(map(get_address, x.values())), read_head(x), read_tail(x)


def read_corners(x: Mapping[str, Any]) -> Any:
    """The first, last and middle numbers, and some at a third and a quarter of the whole."""
    flat = [read_values(v).reshape(-1) for v in x.values()]
    return list_shapes(x), tuple(float(v[len(v) * k // 12]) for v in flat for k in (0, 3, 4, 6)), *(v[-1] for v in flat)


def read_total(x: Mapping[str, Any]) -> Any:
    return list_shapes(x), tuple(round(float(np.asarray(read_values(v), np.float64).sum()), 3) for v in x.values())


def replay_stale_graph(f: Function) -> Kernel:
    """Replays a graph whose inputs nobody has copied to where they were captured."""
    captured: dict[Any, dict[str, Any]] = {}

    def kernel(**x: Any) -> Any:
        static = captured.setdefault(list_shapes(x), {k: copy(v) for k, v in x.items()})
        return f(**static)

    return kernel
