"""The quantized check: a runtime is judged by the quantised graph itself; planted faults beside sound twins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks import catalogs
from tasks.arrays.tree import TensorSpec
from tasks.backends import BackendSpec
from tasks.catalogs.base import Catalog, Sample
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf, OpClass, Program
from tasks.prepare import cases
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.prepare.derived import quantized
from tasks.prepare.derived.parts import Spoilt
from tasks.runner import Runner, make_item_of_whole_group

GROUP = Group("tiny:perceptron", "", "float32", 2, check="quantized")


def perceptron() -> tuple[bytes, np.ndarray]:
    """Two layers with a relu between them, and an input."""
    rng = np.random.default_rng(5)
    weights = {
        "w1": rng.standard_normal((16, 32)).astype(np.float32) / 4,
        "w2": rng.standard_normal((32, 8)).astype(np.float32) / 6,
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])],
        [numpy_helper.from_array(v, k) for k, v in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return model.SerializeToString(), rng.standard_normal((4, 16)).astype(np.float32)


class Tiny(Catalog):
    name = "tiny"
    forms = ("onnx",)

    def version(self) -> str:
        return "1"

    def samples(self, group: Group, draws: int, skip: Any = ()) -> Iterator[Sample]:
        from tasks.graphs.evaluate_graph import EvaluatedGraph

        model, x = perceptron()
        y = EvaluatedGraph(onnx.load_model_from_string(model)).run({"x": x})["y"]
        leaf = Leaf("float32", y.shape, y, np.full(y.shape, 1e-7))
        yield Sample(0, (TensorSpec(0),), arrays=[x], expected=[leaf], op_class=OpClass.MODEL, model=model)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "get_catalog", lambda name: Tiny())
    monkeypatch.setattr(catalogs, "get_catalog_if_installed", lambda name: Tiny())
    cases._find_catalog_version.cache_clear()


def rows(name: str, cache: Path, change: Callable[[Any], None] = lambda model: None) -> dict[int, dict[str, Any]]:
    """Rows by bits, of a runtime that is given a graph that ``change`` has changed."""
    backend = BackendSpec.parse(name).create()
    info = backend.start()
    build = backend.build

    def otherwise(form: Form) -> Program:
        model = onnx.load_model_from_string(form.model or b"")
        change(model)
        return build(replace(form, model=model.SerializeToString()))

    backend.build = otherwise  # type: ignore[method-assign]
    _, made = prepare_group(GROUP, cache)
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
    found = [
        done.row.values() for done in runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, "quantized"))])
    ]
    return {row["sample"]: row for row in found}


@pytest.mark.parametrize("name", ["ort-cpu", "openvino-cpu"])
def test_real_runtimes_are_judged_by_the_quantised_graph(name: str, tmp_path: Path) -> None:
    found = rows(name, tmp_path)
    assert {k: (row["status"], row["op_class"]) for k, row in found.items()} == {
        8: ("pass", "composite"),
        16: ("pass", "composite"),
    }, [row["error"] for row in found.values()]
    assert "quantized=int8 tool=onnxruntime-" in found[8]["flags"] and "quantized=float16" in found[16]["flags"]
    assert 1e-3 < found[8]["loss"] < 0.1 and 1e-5 < found[16]["loss"] < 1e-3
    assert not found[8]["weak"] and not found[16]["weak"]


def initializer(model: Any, ending: str) -> Any:
    return next(x for x in model.graph.initializer if x.name.endswith(ending))


def wrong_zero_point(model: Any) -> None:
    """Of the activations between the layers: another zero point where they are read than where they are written."""
    zero = initializer(model, "b_zero_point")
    other = helper.make_tensor("other", zero.data_type, [], [int(numpy_helper.to_array(zero)) + 3])
    model.graph.initializer.append(other)
    node = next(x for x in model.graph.node if x.op_type == "DequantizeLinear" and x.input[0].startswith("b_"))
    node.input[2] = "other"


def wrong_scale(model: Any) -> None:
    """Of the second layer's weights: 10 % too large."""
    scale = initializer(model, "w2_scale")
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.1), scale.name))


@pytest.mark.parametrize("change", [wrong_zero_point, wrong_scale])
def test_another_function_than_the_quantised_graph_is_wrong(change: Callable[[Any], None], tmp_path: Path) -> None:
    def once(model: Any) -> None:
        if any(node.op_type == "QuantizeLinear" for node in model.graph.node):
            change(model)

    found = rows("ort-cpu", tmp_path, once)
    assert found[8]["status"] in ("wrong", "imprecise") and found[8]["error_units"] > 32
    assert found[16]["status"] == "pass"


def test_the_loss_is_not_what_a_runtime_is_judged_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool that quantises badly costs loss; a runtime that runs its graph passes."""
    original = quantized._quantize_to_int8

    def badly(model: Any, feeds: Any) -> Any:
        made = original(model, feeds)
        wrong_scale(made)
        return made

    monkeypatch.setattr(quantized, "_quantize_to_int8", badly)
    found = rows("ort-cpu", tmp_path)
    assert found[8]["status"] == "pass" and found[8]["loss"] > 0.05


def test_a_scale_of_infinity_is_the_tools(tmp_path: Path) -> None:
    # What a causal mask is filled with.
    weights = [numpy_helper.from_array(np.array([0, -np.inf], np.float32), "mask")]
    nodes = [helper.make_node("Add", ["x", "mask"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 2]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    base = Sample(0, (TensorSpec(0),), arrays=[np.ones((1, 2), np.float32)], model=model.SerializeToString())
    with pytest.raises(Spoilt, match="an infinite scale") as raised:
        quantized.derive(base, 8, GROUP, 1)
    assert raised.value.culprit == "quantizer"


def test_a_tool_that_refuses_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise ValueError("no such type")

    monkeypatch.setattr(quantized, "_quantize_to_int8", refuse)
    row = rows("ort-cpu", tmp_path)[8]
    assert (row["status"], row["culprit"]) == ("invalid", "quantizer") and "no such type" in row["error"]
