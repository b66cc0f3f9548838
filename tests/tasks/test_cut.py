"""A part of a graph is a model of its own: valid, complete, and of the same values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks.graphs.branches import inline_branches
from tasks.graphs.cut_graph import add_graph_outputs, cut_graph_part, list_crossing_tensors

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def tensor(name: str, shape: Any) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@pytest.fixture
def model() -> Any:
    """x → MatMul → Split → (Relu, If whose bodies read a tensor, an initializer and a Constant's output from
    outside)."""
    body = [
        helper.make_graph([helper.make_node(op, ["right", other], [f"in_{op}"])], op, [], [tensor(f"in_{op}", None)])
        for op, other in (("Add", "bias"), ("Mul", "two"))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="project"),
        helper.make_node("Split", ["h"], ["left", "right"], axis=1, num_outputs=2),
        helper.make_node("Relu", ["left"], ["a"]),
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32([2]))),
        helper.make_node("ReduceMax", ["a"], ["top"], keepdims=0),
        helper.make_node("Greater", ["top", "two"], ["flag"]),
        helper.make_node("If", ["flag"], ["b"], then_branch=body[0], else_branch=body[1]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.eye(4, dtype=np.float32) * 1.5, "w"),
        numpy_helper.from_array(np.float32([1, -1]), "bias"),
    ]
    graph = helper.make_graph(nodes, "test", [tensor("x", [3, 4])], [tensor("y", [3, 2])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def run(model: Any, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip([x.name for x in model.graph.output], session.run(None, feeds)))


def test_a_probed_model_gives_intermediate_tensors_beside_its_own(model: Any) -> None:
    values = run(add_graph_outputs(model, ["h", "y", "b"]), x=X)
    assert list(values) == ["y", "h", "b"]
    np.testing.assert_array_equal(values["h"], X * np.float32(1.5))
    assert [x.name for x in model.graph.output] == ["y"]  # the model itself is as it was


@pytest.mark.parametrize("place", [0, 1, 2, 4, 5, 6, 7])
def test_every_node_by_itself_computes_what_it_does_within_the_model(model: Any, place: int) -> None:
    inputs, outputs = list_crossing_tensors(model.graph, [place])
    known = {"x": X} | run(add_graph_outputs(model, [x for node in model.graph.node for x in node.output]), x=X)
    part = cut_graph_part(model, inputs, outputs)
    assert [node.op_type for node in part.graph.node if node.op_type != "Constant"] == [model.graph.node[place].op_type]
    for name, value in run(part, **{x: known[x] for x in inputs}).items():
        np.testing.assert_array_equal(value, known[name])


def test_a_window_takes_what_crosses_its_border(model: Any) -> None:
    assert list_crossing_tensors(model.graph, [1, 2, 6]) == (["h", "flag"], ["a", "b"])


def test_a_tensor_that_is_given_replaces_what_made_it(model: Any) -> None:
    part = cut_graph_part(model, ["h", "left"], ["y"])  # Split still makes the other half
    zero = np.zeros((3, 2), np.float32)
    np.testing.assert_array_equal(run(part, h=X, left=zero)["y"], X[:, 2:] * 2)
    weights = run(cut_graph_part(model, ["x", "w"], ["h"]), x=X, w=np.eye(4, dtype=np.float32))
    np.testing.assert_array_equal(weights["h"], X)


@pytest.mark.parametrize(
    ("inputs", "outputs", "words"),
    [
        (["nothing"], ["y"], "has no tensor 'nothing'"),
        (["x"], ["x"], "no node of the part makes 'x'"),
        ([], ["h"], "reads x, which is not among its inputs"),
    ],
)
def test_a_part_that_cannot_be_is_refused(model: Any, inputs: list[str], outputs: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cut_graph_part(model, inputs, outputs)


def test_only_what_a_node_makes_can_be_probed(model: Any) -> None:
    with pytest.raises(ValueError, match="no node of the graph makes 'w'"):
        add_graph_outputs(model, ["w"])


@pytest.mark.parametrize("scale", [1, 4])
def test_the_branch_that_is_taken_stands_in_the_place_of_an_if(model: Any, scale: int) -> None:
    x = X * scale
    flat = inline_branches(model, {"x": x})
    ops = [node.op_type for node in flat.graph.node]
    assert "If" not in ops and ("Mul" in ops) == (scale == 1)
    np.testing.assert_array_equal(run(flat, x=x)["y"], run(model, x=x)["y"])


def test_branches_within_branches_and_outputs_that_no_node_of_them_makes_are_kept() -> None:
    inner = [
        helper.make_graph([helper.make_node(op, ["m"], ["t"])], op, [], [tensor("t", None)]) for op in ("Neg", "Abs")
    ]
    half = numpy_helper.from_array(np.float32([0.5]), "half")
    nodes = [
        helper.make_node("Mul", ["h", "half"], ["m"]),
        helper.make_node("If", ["flag"], ["u"], then_branch=inner[0], else_branch=inner[1]),
    ]
    outputs = [tensor(name, None) for name in ("u", "half", "m")]
    branch = helper.make_graph(nodes, "branch", [], outputs, [half])
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["h"]),
            # Two with the same names inside.
            *(
                helper.make_node("If", ["flag"], list(names), then_branch=branch, else_branch=branch)
                for names in ("abc", "def")
            ),
            *(helper.make_node("Add", ["h", name], [name * 2]) for name in "abcdef"),
        ],
        "test",
        [tensor("x", [3, 4]), helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [tensor(name * 2, [3, 4]) for name in "abcdef"],
    )
    nested = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    for flag in (np.array(True), np.array(False)):
        before, after = (
            run(nested, x=X, flag=flag),
            run(inline_branches(nested, {"x": X, "flag": flag}), x=X, flag=flag),
        )
        for name, value in before.items():
            np.testing.assert_array_equal(after[name], value)
