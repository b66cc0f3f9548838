"""A model of an operator set that onnx does not know is no valid one, whatever runtimes make of it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tasks.graphs.given_model import GivenError, read_given_model


def model(path: Path, **opsets: int) -> Path:
    node = helper.make_node("Relu", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    asked = [helper.make_opsetid("" if name == "onnx" else name, n) for name, n in opsets.items()]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=asked, ir_version=10), path)
    return path


def test_an_unknown_operator_set_is_refused_with_the_newest_one(tmp_path: Path) -> None:
    newest = onnx.defs.onnx_opset_version()
    with pytest.raises(
        GivenError, match=f"operator set 99 of ai.onnx is not known to onnx .*, whose newest is {newest}"
    ):
        read_given_model(model(tmp_path / "m.onnx", onnx=99))


def test_what_onnx_knows_and_what_is_not_onnxs_is_taken(tmp_path: Path) -> None:
    assert read_given_model(model(tmp_path / "a.onnx", onnx=onnx.defs.onnx_opset_version())).graph.node
    assert read_given_model(model(tmp_path / "b.onnx", onnx=20, mine=99)).graph.node
