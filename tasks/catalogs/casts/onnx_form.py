"""Conversions as ONNX models of one node: Cast, QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.model.dtypes import ELEMENT_TYPE, name_numpy_dtype
from tasks.operators import schemas

#: The operators of quantisation take integers of 16 bits and other scales than float32 from then on.
_QUANTISED = 21


def find_cast_opset(op: str, dtypes: Collection[str]) -> int | None:
    """The oldest opset that has an operator in these dtypes; None where none has."""
    found = schemas.find_oldest_opset(op, frozenset(dtypes))
    return found and max(found, _QUANTISED if op in ("QuantizeLinear", "DequantizeLinear") else found)


def make_cast_model(
    op: str,
    given: tuple[str, Sequence[int]],
    made: Mapping[str, tuple[str, Sequence[int]]],
    weights: Mapping[str, np.ndarray] | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> bytes | None:
    """The bytes of a model of one input "x" (its dtype and shape), of outputs, both by name, and of constants; None
    where ONNX has not the operator in such dtypes."""
    from onnx import checker, helper, numpy_helper

    constants = weights or {}
    dtypes = [
        given[0],
        *(dtype for dtype, _ in made.values()),
        *(name_numpy_dtype(x.dtype) for x in constants.values()),
    ]
    opset = find_cast_opset(op, dtypes)
    if opset is None:
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
    imports = [helper.make_opsetid("", opset)]
    whole = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    checker.check_model(whole)
    return bytes(whole.SerializeToString(deterministic=True))


def get_onnx_element_number(dtype: str) -> int:
    """ONNX's number of a dtype, 0 of one that it has not."""
    return ELEMENT_TYPE.get(dtype, 0)
