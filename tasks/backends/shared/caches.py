"""Caches between a processor and its memory: how large the last of them is, and how to empty it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np

#: Bytes of a last cache that nobody tells: larger than most.
USUAL = 64 << 20
#: How many times the last cache a buffer is that leaves nothing else in it.
TIMES = 2
_OF_CPU = Path("/sys/devices/system/cpu/cpu0/cache")


@functools.cache
def last_level_bytes(target: str = "cpu") -> int:
    """Size of the last cache of what torch calls ``target``, as its driver or Linux tells; `USUAL` where neither
    does."""
    if target == "cpu":
        sizes = [_parse_cache_size(x.read_text()) for x in _OF_CPU.glob("index*/size")]
    else:
        import torch

        module: Any = getattr(torch, target, None)
        try:
            about = module.get_device_properties(0)
        except Exception:  # each plugin fails in its own way
            return USUAL
        sizes = [int(getattr(about, "L2_cache_size", 0) or getattr(about, "last_level_cache_size", 0))]
    return max(sizes, default=0) or USUAL


def _parse_cache_size(text: str) -> int:
    """ "32768K" in bytes."""
    number, unit = text.strip()[:-1], text.strip()[-1:]
    return int(number) << {"K": 10, "M": 20, "G": 30}[unit] if unit in "KMG" and number.isdecimal() else 0


@functools.cache
def _make_flush_buffer(target: str) -> Any:
    size = TIMES * last_level_bytes(target)
    if target == "cpu":
        return np.zeros(size // 8, np.int64)
    import torch

    return torch.zeros(size // 8, dtype=torch.int64, device=target)


def flush_processor_caches(target: str = "cpu") -> None:
    """Write a buffer larger than the last cache: nothing else is left in any. On a device it is only asked for."""
    buffer = _make_flush_buffer(target)
    buffer += 1
