"""The float64 oracle of the ONNX node suite: a case's model widened to double and run by onnx's own evaluator."""
from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tasks.model import EPS

#: Attributes that name the dtype something is computed or returned in.
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type", "softmax_precision", "output_dtype")

#: What may be widened; the low-bit floats may not: their rounding is what their cases are about.
_NARROW = ("float32", "float16", "bfloat16")


class NoOracle(Exception):
    """The model has no float64 evaluation; the text says why."""


class Widened:
    """A model with every float32, float16 and bfloat16 in it turned into float64."""

    def __init__(self, model: Any) -> None:
        """Raises NoOracle for a model that onnx's evaluator does not take."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        wide = onnx.ModelProto()
        wide.CopyFrom(model)
        _widen_graph(wide.graph)
        self.names = [x.name for x in model.graph.input]
        try:
            self._evaluator = ReferenceEvaluator(wide)
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None

    def run(self, inputs: list[Any]) -> list[Any]:
        """Outputs, flat, of inputs that `widen` widened. Raises NoOracle."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = self._evaluator.run(None, {k: v for k, v in zip(self.names, inputs) if v is not None})
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None
        return [y for x in found for y in (x if isinstance(x, (list, tuple)) else [x])]


def widen(value: Any, factor: Any = None) -> Any:
    """float64 twin of an array (or list of them) of a narrow dtype, times ``factor(shape)``; anything else as it is."""
    if isinstance(value, list):
        return [widen(x, factor) for x in value]
    if not isinstance(value, np.ndarray) or value.dtype.name not in (*_NARROW, "float64"):
        return value
    wide = value.astype(np.float64)
    return wide if factor is None else wide * factor(value.shape, EPS[value.dtype.name])


def _widen_graph(graph: Any) -> None:
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
                _widen_graph(attribute.g)
            if attribute.HasField("t"):
                tensor(attribute.t)
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i in narrow:
                attribute.i = onnx.TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.asarray(attribute.f if attribute.name == "value_float" else list(attribute.floats), np.float64)
                attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(values)))
