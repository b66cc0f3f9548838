"""What patterns do to tensors and to arrays alike."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tasks.zoo.specimen import Kernel, torch

Function = Callable[..., Any]
Pattern = Callable[[Function], Kernel]
#: Rows of the inputs of every op; the last is the largest.
ROWS = [2, 8]


def get_address(x: Any) -> int:
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())


def copy(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x.clone()


def make_empty(x: Any) -> Any:
    return np.empty_like(x) if isinstance(x, np.ndarray) else torch.empty_like(x)


def make_zeros(x: Any) -> Any:
    return np.zeros_like(x) if isinstance(x, np.ndarray) else torch.zeros_like(x)


def join(parts: list[Any]) -> Any:
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else torch.cat(parts)


def read_values(x: Any) -> np.ndarray:
    return x if isinstance(x, np.ndarray) else x.numpy()


def read_bytes(given: Mapping[str, Any]) -> bytes:
    return b"".join(read_values(x).tobytes() for x in given.values())


def list_shapes(given: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(tuple(x.shape) for x in given.values())


def take_first(given: Mapping[str, Any]) -> Any:
    return next(iter(given.values()))


def floats_at(x: Any, begin: int, count: int) -> Any:
    """Numbers of float32 of memory that begins so many before or behind the first of ``x``."""
    return (ctypes.c_float * count).from_address(get_address(x) + 4 * begin)
