"""Quantising by blocks that share a scale, and back: MXFP8, MXFP6, MXFP4 and NVFP4 (`tasks.arrays.block_scaled`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tasks.arrays.block_scaled import E8M0, FORMATS, dequantise_blocks, quantise_blocks
from tasks.arrays.every_value import list_every_value
from tasks.catalogs.casts import onnx_form
from tasks.model.dtypes import ELEMENT_TYPE, LARGEST, TABLE, get_numpy_dtype

#: Elements of a row, and exponents between which the largest numbers of blocks lie: beyond those of scales at either
#: end.
WIDTH, EXPONENTS = 384, (-140, 127)
#: What a variant of quantising is called: the format and the dtype of its elements.
QUANTISED = tuple(f"{name}-{dtype}" for name, kind in FORMATS.items() for dtype in kind.elements)


def make_quantised_blocks(source: str, variant: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(numbers (rows, WIDTH) of a float dtype, elements, scales): blocks of all sizes that the dtype has, with ties,
    numbers that are cut off at the largest element, and numbers that vanish beside it. A block of zeros is not among
    them: its scale is nobody's rule."""
    name, _, dtype = variant.partition("-")
    kind, rng = FORMATS[name], np.random.default_rng((seed, 17))
    row = TABLE[source]
    assert row.lowest is not None and row.digits is not None and row.largest is not None
    low, high = max(EXPONENTS[0], row.lowest - row.digits + 2), min(EXPONENTS[1], int(np.log2(row.largest)))
    sizes = np.repeat(np.arange(low, high + 1), 2)
    count = -(-len(sizes) * kind.block // WIDTH)
    sizes = np.resize(sizes, (count, WIDTH // kind.block))
    shape = (count, WIDTH // kind.block, kind.block)
    x = rng.uniform(-1.0, 1.0, shape)
    steps = rng.integers(-64, 65, shape) / 64.0  # ties of elements of up to 4 digits
    x = np.where(rng.random(shape) < 0.5, steps, x)
    x[..., 1] *= 2.0**-20
    x[..., 0] = rng.uniform(0.5, 1.0, shape[:-1]) * 1.9990234375  # the largest, within two powers of two
    x = (x * np.ldexp(1.0, sizes - 1)[..., None]).reshape(count, WIDTH)
    x = np.clip(x, -row.largest, row.largest).astype(get_numpy_dtype(source))
    return x, *quantise_blocks(x.astype(np.float64), dtype, kind)


def make_dequantised_blocks(dtype: str, variant: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(elements (rows, WIDTH), scales, float64 numbers): every value of the elements under scales that float32 holds
    the products of."""
    kind, rng = FORMATS[variant], np.random.default_rng((seed, 19))
    every = list_every_value(dtype)
    count = 24
    elements = np.resize(every, (count, WIDTH))
    shape = (count, WIDTH // kind.block)
    exponents = rng.integers(-100, 101, shape) if kind.scale == E8M0 else rng.integers(-6, 8, shape)
    scales = np.ldexp(1.0 if kind.scale == E8M0 else rng.integers(8, 16, shape) / 8, exponents).astype(
        get_numpy_dtype(kind.scale)
    )
    return elements, scales, dequantise_blocks(elements, scales)


def dequantise_in_torch(elements: Any, scales: Any) -> Any:
    """float32, by torch's own conversions of elements and of scales."""
    block = elements.shape[-1] // scales.shape[-1]
    return elements.float() * scales.float().repeat_interleave(block, -1)


def quantise_in_torch(variant: str, x: Any) -> Any:
    """(elements, scales) by torch's operations, in float32: the exponent of a block's largest number is read out of its
    bits, as kernels do."""
    import torch

    name, _, dtype = variant.partition("-")
    kind, top = FORMATS[name], LARGEST[dtype]
    wide = x.float()
    blocks = wide.reshape(*wide.shape[:-1], -1, kind.block)
    largest = blocks.abs().amax(-1)
    exponents = ((largest.view(torch.int32) >> 23) & 0xFF) - int(np.log2(top))
    bits = exponents.clamp(0, 254).to(torch.uint8)
    scales = bits.view(torch.float8_e8m0fnu)
    elements = (blocks / scales.float()[..., None]).clamp(-top, top).to(getattr(torch, dtype))
    return elements.reshape(x.shape), scales


def make_dequantising_model(dtype: str, variant: str, shape: tuple[int, ...]) -> bytes | None:
    """ONNX's model: scales to float32, DequantizeLinear of blocks; None where this onnx has not both in such dtypes."""
    from onnx import TensorProto, checker, helper

    kind = FORMATS[variant]
    opsets = [
        onnx_form.find_cast_opset("Cast", (kind.scale, "float32")),
        onnx_form.find_cast_opset("DequantizeLinear", (dtype, "float32")),
    ]
    if None in opsets:
        return None
    blocks = [*shape[:-1], shape[-1] // kind.block]
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("DequantizeLinear", ["x", "f"], ["y"], axis=len(shape) - 1, block_size=kind.block),
        ],
        "dequantize",
        [
            helper.make_tensor_value_info("x", ELEMENT_TYPE[dtype], list(shape)),
            helper.make_tensor_value_info("s", ELEMENT_TYPE[kind.scale], blocks),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape))],
    )
    imports = [helper.make_opsetid("", max(x for x in opsets if x))]
    whole = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    checker.check_model(whole)
    return bytes(whole.SerializeToString(deterministic=True))
