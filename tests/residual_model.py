"""A model of a few kB for tests, and the same with products whose inputs are rounded."""

from __future__ import annotations

from typing import Any

import numpy as np


def residual(width: int = 48, layers: int = 2, outputs: int = 120, rows: int = 8, seed: int = 0) -> Any:
    """A ModelProto: layers of LayerNormalization, MatMul, Gelu as Erf, MatMul and a residual; then logits of each row.

    Input x [rows, width], output y [rows, outputs], float32; weights N(0, 1/fan_in).
    """
    from onnx import TensorProto, helper, numpy_helper

    g = np.random.default_rng(seed)
    nodes, weights = [], {"root": np.float32(0.5**0.5), "half": np.float32(0.5), "one": np.float32(1)}

    def node(op: str, inputs: str, output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **attributes))
        return output

    def weight(name: str, values: np.ndarray) -> str:
        weights[name] = values.astype(np.float32)
        return name

    def matrix(name: str, fan_in: int, fan_out: int) -> str:
        return weight(name, g.normal(0, fan_in**-0.5, (fan_in, fan_out)))

    x = "x"
    for k in range(layers):
        gain, bias = (
            weight(f"gain{k}", np.exp(0.3 * g.normal(size=width))),
            weight(f"bias{k}", 0.2 * g.normal(size=width)),
        )
        n = node("LayerNormalization", f"{x} {gain} {bias}", f"n{k}", axis=-1)
        u = node("MatMul", f"{n} {matrix(f'up{k}', width, 2 * width)}", f"u{k}")
        r = node("Mul", f"{u} root", f"r{k}")
        e = node("Erf", r, f"e{k}")
        s = node("Add", f"{e} one", f"s{k}")
        h = node("Mul", f"{u} half", f"h{k}")
        a = node("Mul", f"{h} {s}", f"a{k}")
        d = node("MatMul", f"{a} {matrix(f'down{k}', 2 * width, width)}", f"d{k}")
        x = node("Add", f"{x} {d}", f"x{k + 1}")
    node("MatMul", f"{x} {matrix('head', width, outputs)}", "y")
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [rows, width]), ("y", [rows, outputs]))
    ]
    graph = helper.make_graph(nodes, "residual", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs(model: Any, seed: int = 0) -> dict[str, np.ndarray]:
    """Values N(0, 1) of every input of a model, float32."""
    g = np.random.default_rng([9, seed])
    return {
        x.name: g.normal(size=[d.dim_value for d in x.type.tensor_type.shape.dim]).astype(np.float32)
        for x in model.graph.input
    }


def with_products_in(model: Any, precision: str) -> Any:
    """A copy of a model in float32 whose MatMuls round their inputs to "bfloat16" or "tfloat32" first, in its own
    nodes.

    To TF32's 11 digits by Veltkamp's splitting: c = (2¹³ + 1)·x, and c − (c − x).
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    made = onnx.ModelProto()
    made.CopyFrom(model)
    made.graph.initializer.append(numpy_helper.from_array(np.float32(2**13 + 1), "split"))
    del made.graph.node[:]
    for node in model.graph.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for place, x in enumerate(node.input if node.op_type == "MatMul" else ()):
            name = f"{node.name}_{place}"
            steps = [("Mul", [x, "split"], {}), ("Sub", [f"{name}_0", x], {}), ("Sub", [f"{name}_0", f"{name}_1"], {})]
            if precision == "bfloat16":
                steps = [
                    ("Cast", [x], {"to": TensorProto.BFLOAT16}),
                    ("Cast", [f"{name}_0"], {"to": TensorProto.FLOAT}),
                ]
            for k, (op, given, attributes) in enumerate(steps):
                made.graph.node.append(helper.make_node(op, given, [f"{name}_{k}"], **attributes))
            copy.input[place] = f"{name}_{len(steps) - 1}"
        made.graph.node.append(copy)
    return made
