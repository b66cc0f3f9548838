"""The `casts` catalog: every pair of dtypes over every input of the narrower, and quantising; torch's conversion and ONNX's operators."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np

from tasks.arrays.block_scaled import FORMATS
from tasks.arrays.tree import TensorSpec, encode_tensor_spec
from tasks.catalogs.base import Catalog, Entry, Failure, Sample
from tasks.catalogs.casts import blocks, onnx_form, quantised, rules, values
from tasks.model import (
    EXHAUSTIVE,
    Group,
    Leaf,
    OpClass,
    Unsupported,
    get_numpy_dtype,
    is_complex_dtype,
    is_inexact_dtype,
)
from tasks.model.dtypes import PACKED_BITS, TABLE

#: Counts up whenever the bytes of a sample or a reference change.
CATALOG_VERSION = "1"

#: Dtypes that are converted, from and to.
DTYPES = tuple(x.name for x in TABLE.values() if x.family not in ("text", "precision"))
#: What is quantised, and what to.
NUMBERS = ("float32", "float16", "bfloat16")
QUANTISED = (
    "int8 uint8 int16 uint16 int4 uint4 int2 uint2 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float4_e2m1fn"
).split()
#: Quantising by blocks that share a scale, which it makes as well, and back.
BLOCKS, UNBLOCKS = "block_quantize", "block_dequantize"
#: torch's ways to convert, where they are not as for other float8 (torch/headeronly/util/Float8_*.h).
_OF_TORCH = {rules.E8M0: "nearest-unsaturated", "float8_e4m3fn": ""}
#: Shapes of the samples, in turn: whole vectors, and what is left of them.
SHAPES = ("one dimension", "a tail")


class Casts(Catalog):
    """An op is a target, "to_int8", "quantize_int8", "dequantize_float32"; the dtype under test is what is converted. A
    variant is a way to round, to saturate or to scale. One sample has all values, of ``group.samples`` each in another
    of SHAPES. Values of which nobody has said what they become are 1, or 0."""

    name = "casts"
    forms = ("torch", "onnx")

    def version(self) -> str:
        return f"{CATALOG_VERSION}+numpy{importlib.metadata.version('numpy')}+ml_dtypes{importlib.metadata.version('ml_dtypes')}"

    def entries(self) -> list[Entry]:
        found = [
            Entry(f"{self.name}:to_{to}", v, tuple(d for d in DTYPES if d != to), distributions=(EXHAUSTIVE,))
            for to in DTYPES
            for v in rules.list_cast_variants(to)
        ]
        for op, dtypes, ways in (
            *((f"quantize_{to}", NUMBERS, quantised.SCALES) for to in QUANTISED),
            # Of 16 bits no half holds every zero point.
            *(
                (f"dequantize_{to}", tuple(d for d in QUANTISED if TABLE[d].bits < TABLE[to].bits), quantised.SCALES)
                for to in NUMBERS
            ),
            ("dynamic_quantize", ("float32",), quantised.RANGES),
            (BLOCKS, NUMBERS, blocks.QUANTISED),
            *((UNBLOCKS, kind.elements, (name,)) for name, kind in FORMATS.items()),
        ):
            found += [Entry(f"{self.name}:{op}", v, dtypes, distributions=(EXHAUSTIVE,)) for v in ways]
        return sorted(found, key=lambda x: (x.op, x.variant))

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        """Raises ValueError for an op, variant or dtype that the catalog does not have."""
        entry = next((e for e in self._entries() if e.label == group.label and group.dtype in e.dtypes), None)
        if entry is None:
            raise ValueError(f"the catalog casts has no op {group.label!r} in {group.dtype}")
        for index in range(min(group.samples, len(SHAPES))):
            if index in skip:
                yield Sample(index)
                continue
            try:
                yield _make_cast_sample(group, index)
            except Exception as error:
                yield Sample(index, failure=Failure.of(error, "reference"))

    @functools.lru_cache(maxsize=1)  # noqa: B019 (there is one of each catalog)
    def _entries(self) -> list[Entry]:
        return self.entries()

    def call(self, group: Group) -> Callable[..., Any]:
        """torch's conversion, which saturates for one dtype of 8 bits and rounds to the nearest power of two. Raises
        Unsupported."""
        to = group.op_name.removeprefix("to_")
        elements = group.variant.partition("-")[2] if group.op_name == BLOCKS else ""
        low_bits = next((d for d in (to, group.dtype, elements) if d in PACKED_BITS), "")
        if group.op_name in (BLOCKS, UNBLOCKS) and not low_bits:
            return (
                functools.partial(blocks.quantise_in_torch, group.variant) if elements else blocks.dequantise_in_torch
            )
        own = _OF_TORCH.get(to, rules.UNSATURATED if to.startswith("float8") else "")
        if to == group.op_name or group.variant != own or low_bits:
            what = f"{low_bits} tensors of single elements" if low_bits else f"{group.label}"
            raise Unsupported(f"torch has no {what}")
        import torch

        return torch.Tensor.to


def _make_cast_sample(group: Group, index: int) -> Sample:
    op, _, to = group.op_name.partition("_")
    if group.op_name == "dynamic_quantize":
        return _make_dynamic_sample(group, index)
    if group.op_name in (BLOCKS, UNBLOCKS):
        return _make_block_sample(group, index)
    if op == "to":
        x = values.make_cast_inputs(group.dtype, to, group.seed)
        found = rules.convert_cast_values(x, group.dtype, to, group.variant)
        if found.open.any():
            x = np.where(found.open, np.ones((), x.dtype), x)
            found = rules.convert_cast_values(x, group.dtype, to, group.variant)
        x, y = _shape_cast_values(x, index), _shape_cast_values(found.values, index)
        model = onnx_form.make_cast_model(
            "Cast", (group.dtype, x.shape), {"y": (to, x.shape)}, None, _list_cast_attributes(to, group.variant)
        )
        return _build_cast_sample(group, index, x, [_make_cast_leaf(to, y)], OpClass.EXACT, model)
    made = (
        quantised.quantise_values(group.dtype, to, group.variant, group.seed)
        if op == "quantize"
        else quantised.dequantise_values(group.dtype, to, group.variant)
    )
    x, y = _shape_cast_values(made.x, index), _shape_cast_values(made.y, index)
    weights = {"scale": made.scale, "zero": made.zero}
    name = {"quantize": "QuantizeLinear", "dequantize": "DequantizeLinear"}[op]
    model = onnx_form.make_cast_model(name, (group.dtype, x.shape), {"y": (to, x.shape)}, weights)
    return _build_cast_sample(group, index, x, [_make_cast_leaf(to, y)], OpClass.EXACT, model)


def _make_block_sample(group: Group, index: int) -> Sample:
    if group.op_name == BLOCKS:
        name, _, dtype = group.variant.partition("-")
        x, y, scales = blocks.make_quantised_blocks(group.dtype, group.variant, group.seed + index)
        leaves = [_make_cast_leaf(dtype, y), _make_cast_leaf(FORMATS[name].scale, scales)]
        return Sample.of(index, [x], expected=leaves, op_class=OpClass.EXACT, oracle="exact")
    x, scales, y = blocks.make_dequantised_blocks(group.dtype, group.variant, group.seed + index)
    model = blocks.make_dequantising_model(group.dtype, group.variant, x.shape)
    made = {"expected": [_make_cast_leaf("float32", y)], "op_class": OpClass.EXACT, "oracle": "exact", "model": model}
    return Sample.of(index, [x, scales], **made)


def _make_dynamic_sample(group: Group, index: int) -> Sample:
    made = quantised.quantise_dynamically(group.variant, group.seed)
    x, y = _shape_cast_values(made.x, index), _shape_cast_values(made.y, index)
    outputs: dict[str, tuple[str, tuple[int, ...]]] = {
        "y": ("uint8", x.shape),
        "s": ("float32", ()),
        "z": ("uint8", ()),
    }
    leaves = [_make_cast_leaf("uint8", y), _make_cast_leaf("float32", made.scale), _make_cast_leaf("uint8", made.zero)]
    return _build_cast_sample(
        group,
        index,
        x,
        leaves,
        OpClass.ELEMENTARY,
        onnx_form.make_cast_model("DynamicQuantizeLinear", ("float32", x.shape), outputs),
    )


def _build_cast_sample(
    group: Group, index: int, x: np.ndarray, leaves: list[Leaf], op_class: OpClass, model: bytes | None
) -> Sample:
    spec = encode_tensor_spec(
        TensorSpec(0, flags=group.dtype if group.dtype == "complex32" else "")
    )  # which travels widened
    to = group.op_name.removeprefix("to_")
    named = (
        [["dtype", {"$": "torch.dtype", "name": to}]] if to != group.op_name else []
    )  # of ONNX's node it is an attribute
    given: Any = {"args": {"$": "tuple", "v": [spec]}, "kwargs": {"$": "dict", "v": named}}
    return Sample(index, arrays=[x], expected=leaves, op_class=op_class, oracle="exact", model=model, **given)


def _make_cast_leaf(dtype: str, y: np.ndarray) -> Leaf:
    wide = (
        np.complex128 if is_complex_dtype(dtype) else np.float64 if is_inexact_dtype(dtype) else get_numpy_dtype(dtype)
    )
    return Leaf(dtype, np.shape(y), np.asarray(y).astype(wide))


def _list_cast_attributes(to: str, variant: str) -> dict[str, Any]:
    """Of Cast, those other than the defaults."""
    made: dict[str, Any] = {"to": onnx_form.get_onnx_element_number(to)}
    if to == rules.E8M0:
        how, _, unsaturated = (variant or "up").partition("-")
        made |= {"round_mode": how}
        return made | ({"saturate": 0} if unsaturated else {})
    return made | ({"saturate": 0} if variant else {})


def _shape_cast_values(values: np.ndarray, index: int) -> np.ndarray:
    """In one of SHAPES: for a tail with the first of them once more at the end."""
    return np.concatenate([values, values[:13]]) if SHAPES[index] == "a tail" else np.ascontiguousarray(values)
