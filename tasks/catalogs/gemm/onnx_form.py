"""The products of the `gemm` catalog as ONNX models, which the catalog makes itself: an exporter would write transposes away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.model.dtypes import ELEMENT_TYPE

#: Which of the two matrices is stored transposed.
TRANSPOSED = ("nn", "nt", "tn", "tt")
#: Of a scaled product of float8: powers of two, which no dtype rounds.
SCALES = (0.5, 0.25)
#: αA·B + βC of `addmm`, as exact in every dtype.
ALPHA, BETA = 0.5, 2.0
#: Float8 came with opset 19.
OPSET, IR = 19, 9


def make_gemm_model(
    op: str, variant: str, dtype: str, shapes: Sequence[Sequence[int]], result: Sequence[int]
) -> bytes | None:
    """The bytes of the model for matrices stored in these shapes, and of their product; None where ONNX has no such
    product (a result in bfloat16 of float8 matrices)."""
    import onnx
    from onnx import TensorProto, helper

    if op in ("grouped_mm", "block_scaled_mm"):
        return None
    names = ["c", "a", "b"][-len(shapes) :]
    inputs = [helper.make_tensor_value_info(x, ELEMENT_TYPE[dtype], list(s)) for x, s in zip(names, shapes)]
    weights: list[Any] = []
    output = ELEMENT_TYPE[dtype]
    flips = {f"trans{side}": int(flip == "t") for side, flip in zip("AB", variant)} if variant in TRANSPOSED else {}
    if op == "mm":
        nodes = [helper.make_node("Gemm", ["a", "b"], ["y"], **flips)]
    elif op == "addmm":
        nodes = [helper.make_node("Gemm", ["a", "b", "c"], ["y"], alpha=ALPHA, beta=BETA, **flips)]
    elif op == "bmm":
        nodes, given = [], []
        for name, flip in zip("ab", variant):
            if flip == "t":
                nodes.append(helper.make_node("Transpose", [name], [f"{name}_t"], perm=[0, 2, 1]))
            given.append(f"{name}_t" if flip == "t" else name)
        nodes.append(helper.make_node("MatMul", given, ["y"]))
    elif op == "int_mm":
        nodes, output = [helper.make_node("MatMulInteger", ["a", "b"], ["y"])], TensorProto.INT32
    elif variant == "float32":
        weights = [helper.make_tensor(f"{x}_s", TensorProto.FLOAT, [], [s]) for x, s in zip("ab", SCALES)]
        nodes = [helper.make_node("DequantizeLinear", [x, f"{x}_s"], [f"{x}_f"]) for x in "ab"]
        nodes.append(helper.make_node("MatMul", ["a_f", "b_f"], ["y"]))
        output = TensorProto.FLOAT
    else:
        return None
    made_of = helper.make_tensor_value_info("y", output, list(result))
    graph = helper.make_graph(nodes, op, inputs, [made_of], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString(deterministic=True))
