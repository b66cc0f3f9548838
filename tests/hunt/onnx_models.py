"""ONNX models on which a runtime is wrong, as in public reports, each beside one on which it is right.

``python tests/hunt/onnx_models.py FOLDER`` writes them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHT = np.array([[1, 2, -1], [0.5, -1.5, 3], [2, 1, 1]], np.float32)


def _model(
    nodes: Sequence[onnx.NodeProto], dtype: int, inputs: dict[str, list[int]], **initializers: np.ndarray
) -> bytes:
    values = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()]
    result = helper.make_tensor_value_info("y", dtype, None)
    held = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "reported", values, [result], held)
    made = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    )
    onnx.checker.check_model(made)
    return made.SerializeToString()


def squared_lengths(rows: int) -> bytes:
    """Lengths of rows after a linear map, with the weight on the left."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["w", "t"], ["m"]),
        helper.make_node("Mul", ["m", "m"], ["s"]),
        helper.make_node("ReduceSum", ["s", "axes"], ["y"], keepdims=0),
    ]
    return _model(nodes, TensorProto.FLOAT, {"x": [rows, 3]}, w=WEIGHT, axes=np.array([0]))


def wrapped_squares(dtype: int, zero: np.ndarray) -> bytes:
    """Squares that wrap, of which those below zero are turned round."""
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["p"]),
        helper.make_node("Less", ["p", "zero"], ["below"]),
        helper.make_node("Abs", ["p"], ["a"]),
        helper.make_node("Where", ["below", "a", "p"], ["y"]),
    ]
    return _model(nodes, dtype, {"x": [64]}, zero=zero)


def quotients(dtype: int) -> bytes:
    return _model([helper.make_node("Div", ["a", "b"], ["y"])], dtype, {"a": [64], "b": [64]})


#: Name → the model.
MODELS = {
    "lengths_of_40000": squared_lengths(40_000),
    "lengths_of_400": squared_lengths(400),
    "wrapped_int8": wrapped_squares(TensorProto.INT8, np.array(0, np.int8)),
    "wrapped_int32": wrapped_squares(TensorProto.INT32, np.array(0, np.int32)),
    "div_int64": quotients(TensorProto.INT64),
    "div_int32": quotients(TensorProto.INT32),
}


#: Values that do not fit 32 bits, over divisors that do.
_A, _B = np.arange(-32, 32) * (2**45 + 12_345), np.tile(np.array([2, -3, 7, 1000]), 16)
#: Name → its inputs: drawn as it says, or these values.
INPUTS: dict[str, dict[str, str] | dict[str, np.ndarray]] = {
    "lengths_of_40000": {"x": "float32[40000,3]"},
    "lengths_of_400": {"x": "float32[400,3]"},
    "wrapped_int8": {"x": np.arange(-32, 32, dtype=np.int8)},
    "wrapped_int32": {"x": np.arange(-32, 32, dtype=np.int32)},
    "div_int64": {"a": _A, "b": _B},
    "div_int32": {"a": (_A >> 30).astype(np.int32), "b": _B.astype(np.int32)},
}


def write(folder: Path) -> dict[str, dict[str, Any]]:
    """Write the models to ``folder``: name → what a config says of it (``model``, ``inputs``)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in MODELS.items():
        (folder / f"{name}.onnx").write_bytes(made)
    told: dict[str, dict[str, Any]] = {}
    for name, inputs in INPUTS.items():
        drawn = all(isinstance(x, str) for x in inputs.values())
        if not drawn:
            np.savez(folder / f"{name}.npz", **inputs)  # type: ignore[arg-type]
        told[name] = {"model": str(folder / f"{name}.onnx"), "inputs": inputs if drawn else str(folder / f"{name}.npz")}
    return told


if __name__ == "__main__":
    print(*(x["model"] for x in write(Path(sys.argv[1])).values()), sep="\n")
