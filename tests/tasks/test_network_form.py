"""A whole network by a framework's functions for torch's names: torch stands for the framework, float64 for what is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.backends.shared import function_form, network
from tasks.counterparts import by_torch
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.model import Form, Unsupported
from tasks.operators.table import NAMED

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def torch_as_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "get_framework_functions", lambda framework: by_torch.find_torch_counterpart)
    monkeypatch.setattr(network, "_get_tensor_maker", lambda framework: lambda x: torch.from_numpy(np.array(x)))


def small_image_network(opset: int = 17) -> Any:
    """A convolution of an image, its mean, and a reshape to what is computed of its shape; weights raw and number by
    number."""
    w = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
    bias = helper.make_tensor("bias", TensorProto.FLOAT, [4], [0.5, -1.0, 2.0, 0.25])
    one = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.array([1], np.int64)))
    rest = helper.make_node("Constant", [], ["rest"], value_ints=[-1])
    nodes = [
        helper.make_node("Conv", ["x", "w", "bias"], ["c"], pads=[1, 0, 2, 1], strides=[2, 1]),
        helper.make_node("HardSigmoid", ["c"], ["h"], alpha=0.25),
        helper.make_node("Shape", ["h"], ["shape"]),
        helper.make_node("Gather", ["shape", "one"], ["channels"]),
        one,
        rest,
        helper.make_node("Concat", ["channels", "rest"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["h", "wanted"], ["y"]),
    ]
    nodes = [*nodes[4:6], *nodes[:4], *nodes[6:]]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), bias],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def form_of(model: Any, *arrays: np.ndarray) -> Form:
    from tasks.arrays.tree import TensorSpec, encode_argument_tree

    args = encode_argument_tree(tuple(TensorSpec(id=i) for i in range(len(arrays))))
    return Form("jax", "models:tiny", "float32", list(arrays), args=args, model=model.SerializeToString())


def test_a_graph_is_walked_with_its_large_weights_as_inputs() -> None:
    model, x = small_image_network(), RNG.standard_normal((1, 3, 8, 7)).astype(np.float32)
    form = form_of(model, x)
    arrays = function_form.list_function_inputs(form)
    assert [a.shape for a in arrays] == [(1, 3, 8, 7), (4, 3, 3, 3)]  # the bias is small: a constant
    (y,) = function_form.invoke_counterpart(form, [torch.from_numpy(np.array(a)) for a in arrays], str)
    expected = EvaluatedGraph(model).run({"x": x})["y"]
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5)
    assert function_form.describe_framework_call(form) == "composed=onnx_graph"


def test_the_table_computes_what_the_network_does_and_a_planted_fault_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = small_image_network(), RNG.standard_normal((1, 3, 8, 7)).astype(np.float32)
    sound = NAMED["HardSigmoid"]
    monkeypatch.setitem(network.NAMED, "HardSigmoid", lambda o: sound(o) + 0.001)
    made = network.OnnxNetwork("jax", model.SerializeToString())
    (y,) = made(*[torch.from_numpy(np.array(a)) for a in (x, *made.weights)])
    assert np.abs(y.numpy() - EvaluatedGraph(model).run({"x": x})["y"]).max() > 5e-4


def test_what_has_no_counterpart_is_unsupported_in_one_line() -> None:
    def of(node: Any) -> network.OnnxNetwork:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        return network.OnnxNetwork(
            "jax", helper.make_model(helper.make_graph([node], "g", [x], [y])).SerializeToString()
        )

    with pytest.raises(Unsupported, match="no counterpart of ONNX's Shrink for jax"):
        of(helper.make_node("Shrink", ["x"], ["y"]))(torch.ones(2))
    with pytest.raises(Unsupported, match="Reshape for jax: the input 1 is computed"):
        of(helper.make_node("Reshape", ["x", "x"], ["y"]))(torch.ones(2))
    body = helper.make_graph([], "b", [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])])
    with pytest.raises(Unsupported, match="a subgraph"):
        of(onnx.helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body))
