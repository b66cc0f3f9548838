"""Two small networks as ONNX graphs with realistic weights: a convolutional one, and a transformer block with two heads."""

from __future__ import annotations

from typing import Any

import numpy as np


class Builder:
    """A graph in the making: `node` adds one and returns its output, `weight` an initializer."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.random = np.random.default_rng(seed)

    def node(self, op: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        from onnx import helper

        output = output or f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], f"{op}_{len(self.nodes)}", **attributes))
        return output

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        self.weights.append(numpy_helper.from_array(np.asarray(value), f"w{len(self.weights)}"))
        return str(self.weights[-1].name)

    def weight(self, *shape: int, fan: int = 1) -> str:
        return self.constant((self.random.standard_normal(shape) / fan**0.5).astype(np.float32))

    def model(self, inputs: list[Any], outputs: list[Any]) -> Any:
        from onnx import helper

        graph = helper.make_graph(self.nodes, "tiny", inputs, outputs, self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutional(seed: int = 0) -> tuple[Any, dict[str, np.ndarray]]:
    """(ModelProto, feeds): three convolutions, one with a batch normalisation, a skip, a Resize, a pool, a head."""
    from onnx import TensorProto, helper

    b = Builder(seed)
    x = b.node("Conv", "x", b.weight(8, 3, 3, 3, fan=27), b.weight(8), pads=[1] * 4)
    gain = b.constant(np.exp(0.3 * b.random.standard_normal(8)).astype(np.float32))
    variance = b.constant(np.exp(b.random.standard_normal(8)).astype(np.float32))
    x = b.node("BatchNormalization", x, gain, b.weight(8), b.weight(8), variance, epsilon=1e-5)
    skip = x = b.node("Relu", x)
    x = b.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("Conv", x, b.weight(8, 8, 3, 3, fan=72), b.weight(8), pads=[1] * 4)
    x = b.node("Sigmoid", x)
    sizes = b.constant(np.float32([1, 1, 2, 2]))
    x = b.node(
        "Resize", x, "", sizes, mode="nearest", nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    )
    x = b.node("Add", x, skip)
    x = b.node("Conv", x, b.weight(8, 8, 3, 3, fan=72), b.weight(8), pads=[1] * 4)
    x = b.node("Relu", x)
    x = b.node("GlobalAveragePool", x)
    x = b.node("Flatten", x)
    b.node("Gemm", x, b.weight(8, 10, fan=8), b.weight(10), output="y")
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, 12])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])
    return b.model([given], [made]), {"x": b.random.standard_normal((2, 3, 12, 12)).astype(np.float32)}


def transformer(seed: int = 0, length: int = 7, width: int = 16) -> tuple[Any, dict[str, np.ndarray]]:
    """(ModelProto, feeds): a table of 96 words, attention with two heads, GELU by Erf, two normalisations."""
    from onnx import TensorProto, helper

    b = Builder(seed)
    half = width // 2

    def linear(x: str, rows: int, columns: int) -> str:
        return b.node("Add", b.node("MatMul", x, b.weight(rows, columns, fan=rows)), b.weight(columns))

    def normal(x: str) -> str:
        gain = b.constant(np.exp(0.3 * b.random.standard_normal(width)).astype(np.float32))
        return b.node("LayerNormalization", x, gain, b.weight(width), epsilon=1e-5)

    def heads(x: str, order: list[int]) -> str:
        apart = b.node("Reshape", x, b.constant(np.int64([1, length, 2, half])))
        return b.node("Transpose", apart, perm=order)

    x = skip = b.node("Gather", b.weight(96, width), "ids")
    x = normal(x)
    query, keys, values = (
        heads(linear(x, width, width), order) for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    )
    scores = b.node("Div", b.node("MatMul", query, keys), b.constant(np.float32(half**0.5)))
    x = b.node("MatMul", b.node("Softmax", scores, axis=-1), values)
    x = b.node("Reshape", b.node("Transpose", x, perm=[0, 2, 1, 3]), b.constant(np.int64([1, length, width])))
    x = skip = b.node("Add", linear(x, width, width), skip)
    x = linear(normal(x), width, 2 * width)
    phi = b.node("Add", b.node("Erf", b.node("Div", x, b.constant(np.float32(2**0.5)))), b.constant(np.float32(1)))
    x = b.node("Mul", b.node("Mul", x, phi), b.constant(np.float32(0.5)))
    b.node("Add", linear(x, 2 * width, width), skip, output="y")
    given = helper.make_tensor_value_info("ids", TensorProto.INT64, [1, length])
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, length, width])
    return b.model([given], [made]), {"ids": np.int64([[3, 80, 7, 7, 41, 0, 95]])[:, :length]}
