"""Products of block-scaled matrices of the `gemm` catalog: MXFP8, MXFP6, MXFP4 and NVFP4, with their scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.arrays.block_scaled import FORMATS, dequantise_blocks, quantise_blocks

#: (rows, columns, summed): whole blocks, few and many, and more rows than one tile.
SHAPES: tuple[tuple[int, int, int], ...] = tuple(
    (m, n, k) for m in (32, 128, 160) for n in (16, 128) for k in (32, 64, 288)
)
#: By how many powers of two the largest numbers of blocks differ.
SPREAD = 6


def make_arrays(rng: np.random.Generator, shape: tuple[int, int, int], variant: str, dtype: str) -> list[np.ndarray]:
    """Elements (m, k) and (n, k), and their scales (m, k / block) and (n, k / block): both by rows of what is
    summed."""
    m, n, k = shape
    kind, sides = FORMATS[variant], []
    if k % kind.block:
        raise ValueError(f"{k} summed elements are not whole blocks of {kind.block}")
    for rows in (m, n):
        sizes = 2.0 ** rng.integers(-SPREAD, SPREAD + 1, (rows, k // kind.block))
        sides.append(quantise_blocks(rng.standard_normal((rows, k)) * np.repeat(sizes, kind.block, -1), dtype, kind))
    return [sides[0][0], sides[1][0], sides[0][1], sides[1][1]]


def multiply(variant: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The exact product (m, n) of what elements and scales stand for."""
    a, b, first, second = arrays
    made: np.ndarray = dequantise_blocks(a, first) @ dequantise_blocks(b, second).T
    return made


def call(variant: str, a: Any, b: Any, first: Any, second: Any) -> Any:
    """torch's scaled product. CUDA wants scales in tiles of 128 by 4."""
    import torch
    from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

    cuda = a.device.type == "cuda" and not torch.version.hip
    swizzle = SwizzleType.SWIZZLE_32_4_4 if cuda else SwizzleType.NO_SWIZZLE
    if cuda:
        first, second = _tile_block_scales(first), _tile_block_scales(second)
    recipe = {"mx": ScalingType.BlockWise1x32, "nv": ScalingType.BlockWise1x16}[variant]
    return scaled_mm(
        a, b.t(), first, recipe, second, recipe, swizzle_a=swizzle, swizzle_b=swizzle, output_dtype=torch.float32
    )


def _tile_block_scales(scales: Any) -> Any:
    """Scales (rows, blocks) in the order of cuBLAS (1D block scaling factors layout): tiles of 128 by 4, of each tile
    rows 0, 32, 64 and 96 beside one another; what is beyond the edges is 0."""
    import torch

    rows, blocks = scales.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-blocks // 4) * 4, dtype=torch.uint8, device=scales.device)
    padded[:rows, :blocks] = scales.view(torch.uint8)
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(scales.dtype)
