"""Arrays of dtypes of less than a byte, several elements to a byte."""

from __future__ import annotations

import numpy as np

from tasks.model.dtypes import PACKED_BITS, get_numpy_dtype


def pack_low_bits(array: np.ndarray) -> np.ndarray:
    """Bytes of a low-bit array (any shape, one element to a byte) as ONNX and torch pack them, the first in the
    lowest: 1-d uint8."""
    bits = PACKED_BITS[array.dtype.name]
    per_byte = 8 // bits
    flat = array.reshape(-1).view(np.uint8) & ((1 << bits) - 1)
    padded = np.zeros(-(-flat.size // per_byte) * per_byte, dtype=np.uint8)
    padded[: flat.size] = flat
    shifts = np.arange(per_byte, dtype=np.uint8) * bits
    return np.bitwise_or.reduce(padded.reshape(-1, per_byte) << shifts, axis=1).astype(np.uint8)


def unpack_low_bits(raw: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Inverse of `pack_low_bits`: ``raw`` is 1-d uint8; returns an ml_dtypes array of ``shape``."""
    bits = PACKED_BITS[dtype]
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    size = int(np.prod(shape, dtype=np.int64))
    codes = ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:size]
    return codes.view(get_numpy_dtype(dtype)).reshape(shape)
