"""What a device can do at most, as measured on it: bytes a second to and from its memory, operations a second of its products.

Measured once for each device and process, and the best of what was ever measured is kept in the cache: a neighbour that
takes a part of the device makes it slower, and nothing makes it faster than it is.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.backends.shared import caches
from tasks.backends.shared.torch_devices import synchronize_torch_device
from tasks.cache import default_cache
from tasks.relay import count_usable_processors

#: Runs of which the fastest counts: so many at least, and for so many seconds: on a busy machine one of them is left
#: alone.
RUNS, SECONDS = 5, 0.3
#: Rows of the square matrices that are multiplied, on a core and on a device.
ROWS, ROWS_OF_DEVICE = 512, 4096
MEMORY = "memory"


def find_device_ceiling(device: str, what: str, measure: Callable[[str], float], again: bool = False) -> float | None:
    """Bytes a second (``what``: MEMORY), or operations a second of products in a dtype, at most; None where it cannot
    be measured.

    device: what tells it from others; measure: measures it, 0 where it cannot. again: it is measured once more, and the
    better counts.
    """
    name = hashlib.sha256(f"{device} {count_usable_processors()}".encode()).hexdigest()[:16]
    file = default_cache() / "ceilings" / f"{name}.json"
    known: dict[str, float] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(file.read_text())
    if what in known and not again:
        return float(known[what])
    found = max(measure(what), float(known.get(what, 0.0)))
    if not found:
        return None
    with contextlib.suppress(OSError):  # a process that may write nothing measures anew
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(known | {what: found}))
        aside.replace(file)
    return found


def measure_device_ceiling(target: str, what: str) -> float:
    """What torch calls ``target``, at most, now; 0 where it cannot be measured."""
    try:
        if what == MEMORY:
            return _measure_cpu_memory() if target == "cpu" else _measure_device_memory(target)
        return _measure_cpu_products(what) if target == "cpu" else _measure_device_products(target, what)
    except Exception:  # a device without the dtype, or without the memory
        return 0.0


def _measure_cpu_memory() -> float:
    """The best of a copy, a read and a write, by all cores that this process may use: a kernel may use them."""
    parts = count_usable_processors()
    size = 2 * caches.last_level_bytes() // parts // 8
    pairs = [(np.ones(size), np.ones(size)) for _ in range(parts)]
    ways: tuple[tuple[int, Callable[[Any, Any], Any]], ...] = (
        (2, np.copyto),
        (1, lambda a, b: np.dot(a, a)),
        (1, lambda a, b: a.fill(1.0)),
    )
    rates = []
    for passes, way in ways:
        works = [functools.partial(way, *pair) for pair in pairs]
        rates += [passes * size * 8 * len(some) / _time_fastest_of_works(some) for some in (works, works[:1])]
    return max(rates)


def _measure_cpu_products(dtype: str) -> float:
    import torch

    kind = getattr(torch, dtype)
    given = torch.ones(ROWS, ROWS, dtype=kind)
    # Cores that multiply share little: where others are busy, one alone tells best what all could do.
    return count_usable_processors() * 2 * ROWS**3 / _time_fastest_of_works([functools.partial(torch.mm, given, given)])


def _time_fastest_of_works(works: Sequence[Callable[[], Any]]) -> float:
    """Seconds that all of these take at the same time, each on a thread of its own, in the best of some runs."""
    best, first, runs = float("inf"), time.perf_counter(), 0
    while runs < RUNS or time.perf_counter() - first < SECONDS:
        threads = [threading.Thread(target=work) for work in works[1:]]
        begin = time.perf_counter()
        for one in threads:
            one.start()
        works[0]()
        for one in threads:
            one.join()
        best, runs = min(best, time.perf_counter() - begin), runs + 1
    return best


def _measure_device_memory(target: str) -> float:
    import torch

    size = max(8 * caches.last_level_bytes(target), 1 << 28) // 4
    a, b = (torch.ones(size, device=target) for _ in range(2))
    ways: tuple[tuple[int, Callable[[], Any]], ...] = (
        (2, lambda: b.copy_(a)),
        (1, lambda: a.sum()),
        (1, lambda: a.fill_(1.0)),
    )
    return max(passes * size * 4 / _time_fastest_on_device(target, way) for passes, way in ways)


def _measure_device_products(target: str, dtype: str) -> float:
    """Products of float32 in TF32 where the device has it: a kernel may build float32 of it."""
    import torch

    a = torch.ones(ROWS_OF_DEVICE, ROWS_OF_DEVICE, dtype=getattr(torch, dtype), device=target)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        return 2 * ROWS_OF_DEVICE**3 / _time_fastest_on_device(target, lambda: torch.mm(a, a))
    finally:
        torch.set_float32_matmul_precision(before)


def _time_fastest_on_device(target: str, work: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(2 * RUNS):
        synchronize_torch_device(target)
        begin = time.perf_counter()
        work()
        synchronize_torch_device(target)
        best = min(best, time.perf_counter() - begin)
    return best
