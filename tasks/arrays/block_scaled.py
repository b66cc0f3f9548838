"""Numbers of few bits that share a scale, block by block: their formats, and how numbers are rounded to them.

MX: OCP Microscaling Formats (MX) Specification 1.0, section 5 (blocks of 32, scales in E8M0) and 6.3 (the scale is the
largest power of two in the block over the largest power of two of the elements' dtype; elements are rounded to nearest
even, and saturate). NV: blocks of 16 with scales in E4M3, so that the largest number of a block becomes the largest of
E2M1 (NVIDIA, PTX ISA, tcgen05.mma, kind mxf4nvf4); the scale that a whole tensor may have beside them is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tasks.arrays.low_bits import pack_low_bits, unpack_low_bits
from tasks.model.dtypes import LARGEST, get_numpy_dtype, round_to_dtype

E8M0, E4M3, E2M1 = "float8_e8m0fnu", "float8_e4m3fn", "float4_e2m1fn"


@dataclass(frozen=True)
class BlockFormat:
    """block: elements that share a scale; scale: its dtype; elements: dtypes that have it."""

    name: str
    block: int
    scale: str
    elements: tuple[str, ...]


FORMATS: Mapping[str, BlockFormat] = {
    row.name: row
    for row in (
        BlockFormat("mx", 32, E8M0, (E4M3, "float8_e5m2", "float6_e3m2fn", "float6_e2m3fn", E2M1)),
        BlockFormat("nv", 16, E4M3, (E2M1,)),
    )
}


def quantise_blocks(values: np.ndarray, dtype: str, kind: BlockFormat) -> tuple[np.ndarray, np.ndarray]:
    """float64 (..., k) as elements (..., k) of a dtype and scales (..., k / block).

    A block with NaN or an infinity has the scale NaN where its dtype has one, and elements 0. Raises ValueError where k
    is no whole number of blocks.
    """
    if values.shape[-1] % kind.block:
        raise ValueError(f"{values.shape[-1]} elements are not whole blocks of {kind.block}")
    blocks = values.reshape(*values.shape[:-1], -1, kind.block)
    largest = np.abs(blocks).max(-1)
    good = np.isfinite(largest)
    held = np.where(good, largest, 0.0)
    top = LARGEST[dtype]
    if kind.scale == E8M0:
        exponents = np.frexp(held)[1] - 1 - (np.frexp(top)[1] - 1)
        scales = np.ldexp(1.0, np.where(held > 0, np.clip(exponents, -127, 127), -127))
    else:
        scales = round_to_dtype(np.minimum(held / top, LARGEST[kind.scale]), kind.scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(scales[..., None] > 0, np.where(good[..., None], blocks, 0.0) / scales[..., None], 0.0)
    elements = np.clip(ratio, -top, top).astype(get_numpy_dtype(dtype)).reshape(values.shape)
    return elements, np.where(good, scales, np.nan).astype(get_numpy_dtype(kind.scale))


def dequantise_blocks(elements: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Elements (..., k) times the scale of their block (..., k / block), exactly, in float64."""
    block = elements.shape[-1] // scales.shape[-1]
    made: np.ndarray = elements.astype(np.float64) * np.repeat(scales.astype(np.float64), block, -1)
    return made


def pack_pairs(elements: np.ndarray) -> np.ndarray:
    """E2M1 (..., k), one to a byte, as bytes (..., k / 2) of two, the first in the lower half: torch's
    float4_e2m1fn_x2."""
    return pack_low_bits(elements).reshape(*elements.shape[:-1], elements.shape[-1] // 2)


def unpack_pairs(pairs: np.ndarray) -> np.ndarray:
    """The E2M1 elements of such bytes."""
    return unpack_low_bits(pairs.reshape(-1), E2M1, (*pairs.shape[:-1], 2 * pairs.shape[-1]))
