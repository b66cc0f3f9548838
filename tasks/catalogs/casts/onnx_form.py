"""Conversions as ONNX models of one node: Cast, QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.model.dtypes import DTYPE_OF_ELEMENT, ELEMENT_TYPE, name_numpy_dtype

#: The opset that brought a dtype, where that is not the oldest one taken (13), by the beginning of its name.
_SINCE = {"float8_e8m0": 24, "float8": 19, "float6": 28, "float4": 23, "int4": 21, "uint4": 21, "int2": 25, "uint2": 25}
#: The operators of quantisation take integers of 16 bits and other scales than float32 from then on.
_QUANTISED = 21


def find_cast_opset(dtypes: Sequence[str], op: str) -> int:
    """The oldest opset that has an operator in these dtypes."""
    first = [next((n for name, n in _SINCE.items() if dtype.startswith(name)), 13) for dtype in dtypes]
    return max([*first, _QUANTISED if op in ("QuantizeLinear", "DequantizeLinear") else 13])


def make_cast_model(
    op: str,
    given: tuple[str, Sequence[int]],
    made: Mapping[str, tuple[str, Sequence[int]]],
    weights: Mapping[str, np.ndarray] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> bytes | None:
    """The bytes of a model of one input "x" (its dtype and shape), of outputs, both by name, and of constants; None
    where ONNX has no such dtype."""
    from onnx import checker, helper, numpy_helper

    constants = weights or {}
    dtypes = [
        given[0],
        *(dtype for dtype, _ in made.values()),
        *(name_numpy_dtype(x.dtype) for x in constants.values()),
    ]
    if not set(dtypes) <= set(DTYPE_OF_ELEMENT.values()) or any(dtype.startswith("complex") for dtype in dtypes):
        return None
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *constants], list(made), **(attributes or {}))],
        op,
        [helper.make_tensor_value_info("x", ELEMENT_TYPE[given[0]], list(given[1]))],
        [
            helper.make_tensor_value_info(name, ELEMENT_TYPE[dtype], list(shape))
            for name, (dtype, shape) in made.items()
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    imports = [helper.make_opsetid("", find_cast_opset(dtypes, op))]
    whole = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    checker.check_model(whole)
    return bytes(whole.SerializeToString(deterministic=True))


def get_element_number(dtype: str) -> int:
    """ONNX's number of a dtype, 0 of one that it has not."""
    return ELEMENT_TYPE.get(dtype, 0)
