"""What float64 means for a model: its narrow floats become double, its integers and low-bit floats stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tasks.model import EPS
from tasks.operators.call import NARROW as NARROW
from tasks.operators.call import NoOracle as NoOracle

WIDENED = (*NARROW, "float64")

#: Attributes that name the dtype something is computed or returned in.
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type", "softmax_precision", "output_dtype")


def is_value_widened(value: Any) -> bool:
    """Whether there is a number in ``value`` (an array or a list of them) that is widened."""
    if isinstance(value, list):
        return any(is_value_widened(x) for x in value)
    return isinstance(value, np.ndarray) and value.dtype.name in WIDENED


def widen_model_value(value: Any, move: Callable[[np.ndarray, float], np.ndarray] | None = None) -> Any:
    """float64 twin of an array (or list of them) of a narrow dtype, as ``move`` moves it by ε; anything else as it
    is."""
    if isinstance(value, list):
        return [widen_model_value(x, move) for x in value]
    if not isinstance(value, np.ndarray) or value.dtype.name not in WIDENED:
        return value
    wide = value.astype(np.float64)
    return wide if move is None else move(wide, EPS[value.dtype.name])


def widen_onnx_graph(graph: Any) -> None:
    """Turn every float32, float16 and bfloat16 of a GraphProto into double, in place."""
    import onnx
    from onnx import numpy_helper

    narrow = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)

    def tensor(proto: Any) -> None:
        if proto.data_type in narrow:
            array = np.asarray(numpy_helper.to_array(proto)).astype(np.float64)
            proto.CopyFrom(numpy_helper.from_array(array, proto.name))

    for proto in graph.initializer:
        tensor(proto)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                widen_onnx_graph(attribute.g)
            if attribute.HasField("t"):
                tensor(attribute.t)
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i in narrow:
                attribute.i = onnx.TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.asarray(
                    attribute.f if attribute.name == "value_float" else list(attribute.floats), np.float64
                )
                attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(values)))
