"""The shapes check: a program for any size against programs for one, with planted faults beside a sound twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.arrays.tree import TensorSpec
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.backends.shared import onnx_graph
from tasks.catalogs.base import Sample
from tasks.catalogs.models import exporting
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf, Program, RuntimeInfo, Vacuous
from tasks.prepare.cases import PreparedGroup, prepare_group
from tasks.prepare.derived import shapes
from tasks.runner import Runner, make_item_of_whole_group

SOFTMAX = Group("onnx:Softmax", "softmax_axis_0", "float32", 1, check="shapes")
#: "open": the model says no sizes; "fixed": it does.
Kernel = Callable[[str, np.ndarray], np.ndarray]


def softmax(kind: str, x: np.ndarray) -> np.ndarray:
    wide = np.exp(x.astype(np.float64))
    return (wide / wide.sum(axis=0, keepdims=True)).astype(np.float32)


class Planted(Backend):
    """A kernel, made anew for each program, that is told whether its model leaves sizes open."""

    forms = ("onnx",)

    def __init__(self, make: Callable[[], Kernel]) -> None:
        super().__init__("planted-cpu", "cpu", {})
        self.make = make

    def build(self, form: Form) -> Program:
        kernel = self.make()
        shape = onnx_graph.read_onnx_graph(form.model or b"").inputs[0].shape or ()
        kind = "open" if None in shape else "fixed"
        return Program(
            lambda: [kernel(kind, form.arrays[0])],
            given=lambda arrays: lambda: [kernel(kind, arrays[0])],
            placement=kind,
        )


def row(backend: Backend, cache: Path, group: Group = SOFTMAX) -> dict[str, Any]:
    _, made = prepare_group(group, cache)
    info = RuntimeInfo("1", "cpu")
    runner = Runner(backend, info, policy_files.load_policy("error_units"), lambda *step: None)
    return next(iter(runner.run([make_item_of_whole_group(PreparedGroup(made.pack.path, "shapes"))]))).row.values()


def sound() -> Kernel:
    return softmax


def keeping() -> Kernel:
    """Keeps the buffer of the first size: a smaller result is cut out of it where it does not fit."""
    buffer: list[np.ndarray] = []

    def run(kind: str, x: np.ndarray) -> np.ndarray:
        made = softmax(kind, x)
        if not buffer or made.size > buffer[0].size:
            buffer[:] = [made]
        if made.size < buffer[0].size:
            return buffer[0].reshape(-1)[: made.size].reshape(made.shape)
        return made

    return run


def specialised() -> Kernel:
    """Reduces as many rows as the first size had, where sizes are open."""
    rows: list[int] = []

    def run(kind: str, x: np.ndarray) -> np.ndarray:
        rows.append(len(x))
        if kind == "fixed":
            return softmax(kind, x)
        wide = np.exp(x.astype(np.float64))
        return (wide / wide[: rows[0]].sum(axis=0, keepdims=True)).astype(np.float32)

    return run


def refusing() -> Kernel:
    def run(kind: str, x: np.ndarray) -> np.ndarray:
        if kind == "open" and len(x) > 3:
            raise RuntimeError("a dimension is larger than the one it was planned for")
        return softmax(kind, x)

    return run


def always_wrong() -> Kernel:
    return lambda kind, x: softmax(kind, x) * 2


def large_wrong() -> Kernel:
    return lambda kind, x: softmax(kind, x) * (2 if len(x) > 3 else 1)


def test_a_sound_program_passes_at_every_size(tmp_path: Path) -> None:
    made = row(Planted(sound), tmp_path)
    assert (made["status"], made["culprit"], made["flags"]) == ("pass", "", "sizes=3 ran=3")


@pytest.mark.parametrize(
    ("kernel", "status", "culprit"),
    [
        (specialised, "wrong", "open dimensions 6x4x5 after 3x4x5"),
        (keeping, "wrong", "open dimensions 1x4x5 after 6x4x5"),
        (refusing, "error", "open dimensions 6x4x5 after 3x4x5"),
        (large_wrong, "wrong", "fixed shapes 6x4x5"),
        (always_wrong, "wrong", ""),
    ],
)
def test_what_is_right_at_fixed_sizes_and_wrong_at_open_ones_is_told_apart(
    kernel: Callable[[], Kernel], status: str, culprit: str, tmp_path: Path
) -> None:
    made = row(Planted(kernel), tmp_path)
    assert (made["status"], made["culprit"]) == (status, culprit)


def test_a_size_that_a_runtime_does_not_take_even_alone_is_left_out(tmp_path: Path) -> None:
    def make() -> Kernel:
        def run(kind: str, x: np.ndarray) -> np.ndarray:
            if len(x) > 3:
                raise RuntimeError("not so many")
            return softmax(kind, x)

        return run

    made = row(Planted(make), tmp_path)
    assert (made["status"], made["flags"]) == ("pass", "sizes=3 ran=2")


def test_a_runtime_that_takes_inputs_once_is_unsupported(tmp_path: Path) -> None:
    class Once(Planted):
        def build(self, form: Form) -> Program:
            return Program(super().build(form).run)

    made = row(Once(sound), tmp_path)
    assert made["status"] == "unsupported" and "only once" in made["error"]


@pytest.mark.parametrize("name", ["ort-cpu", "openvino-cpu"])
@pytest.mark.parametrize("variant", ["Softmax softmax_axis_0", "MatMul matmul_3d", "Conv conv_with_strides_padding"])
def test_real_runtimes_at_several_sizes(name: str, variant: str, tmp_path: Path) -> None:
    backend = BackendSpec.parse(name).create()
    backend.start()
    op, case = variant.split()
    made = row(backend, tmp_path, Group(f"onnx:{op}", case, "float32", 1, check="shapes"))
    assert (made["status"], made["culprit"]) == ("pass", ""), made["error"]
    assert "sizes=" in made["flags"] and "ran=1" not in made["flags"]


def test_a_model_of_which_nothing_can_be_another_size_is_vacuous(tmp_path: Path) -> None:
    made = row(Planted(sound), tmp_path, Group("onnx:Reshape", "reshape_reduced_dims", "float32", 1, check="shapes"))
    assert made["status"] == "vacuous"


def test_what_torch_exports_for_one_batch_is_exported_again_with_open_dimensions() -> None:
    torch = pytest.importorskip("torch")

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return torch.conv1d(x, torch.ones(2, 3, 2, dtype=x.dtype)).reshape(x.shape[0], 2 * x.shape[2] - 2)

    def exact(x: np.ndarray) -> np.ndarray:
        return np.asarray(Flat()(torch.from_numpy(x.astype(np.float64))).numpy())

    x = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    base = Sample(0, (TensorSpec(0),), arrays=[x], expected=[Leaf("float32", (1, 6), exact(x))])
    group = Group("tiny:flat", "", "float32", 1)
    hows = (exporting.PLAIN, exporting.ModelExport(any_size=True))
    static, any_size = (
        exporting.export_model_module(Flat(), [torch.from_numpy(x)], ("x",), ("y",), how) for how in hows
    )
    with pytest.raises(Vacuous, match="no dimension"):
        shapes.derive(replace(base, model=static.SerializeToString()), 0, group, 1)
    made = shapes.derive(replace(base, model=any_size.SerializeToString()), 0, group, 1)
    assert [y.shape for y in made.arrays] == [(1, 3, 4), (2, 3, 8), (1, 3, 2)]
    for array, leaf in zip(made.arrays, made.expected, strict=True):
        np.testing.assert_allclose(leaf.reference, exact(array), rtol=1e-12)


def test_what_the_model_leaves_open_is_what_is_varied() -> None:
    """N and T are the model's; T of both inputs grows together, the 4 stays."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "m"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "T", 4]),
            helper.make_tensor_value_info("m", TensorProto.FLOAT, ["T", 1]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "T", 4])],
    )
    own = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4), "m": np.ones((3, 1), np.float32)}
    open_, *fewer = shapes._list_open_dimensions(helper.make_model(graph), own)
    assert open_ == {"x": ["N", "T", ""], "m": ["T", ""]}
    assert fewer == [{"x": ["", "T", ""], "m": ["T", ""]}, {"x": ["N", "", ""], "m": ["", ""]}]
    grown = shapes.resize_sample_inputs(own, open_, lambda n: 2 * n)
    assert {k: v.shape for k, v in grown.items()} == {"x": (4, 6, 4), "m": (6, 1)}
    assert (grown["x"][:2, :3] == own["x"]).all() and (grown["x"][2:, :3] == own["x"][::-1]).all()
    assert shapes.resize_sample_inputs(own, open_, lambda n: max(1, n // 2))["x"].tolist() == own["x"][1:, 2:].tolist()


def test_a_constant_that_is_empty_by_itself_is_none_of_the_sizes() -> None:
    """The roi that Resize does not heed is an empty list; a slice that is empty at another size is not meant."""
    roi = helper.make_node("Constant", [], ["roi"], value=numpy_helper.from_array(np.zeros(0, np.float32)))
    twice = helper.make_node(
        "Constant", [], ["twice"], value=numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32))
    )
    ends = numpy_helper.from_array(np.array([2], np.int64), "first")
    nodes = [
        roi,
        twice,
        helper.make_node("Resize", ["x", "roi", "twice"], ["r"]),
        helper.make_node("Slice", ["r", "first", "last", "axis"], ["s"]),
        helper.make_node("ReduceSum", ["s"], ["y"]),
    ]
    weights = [ends, *(numpy_helper.from_array(np.array([n], np.int64), k) for k, n in (("last", 99), ("axis", 2)))]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "H", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], weights), opset_imports=opset, ir_version=10)
    own = {"x": np.ones((1, 1, 3, 4), np.float32)}
    assert shapes._is_valid_at(model, own)
    assert not shapes._is_valid_at(model, {"x": own["x"][:, :, :1]})  # 2 rows, all before the slice


def test_shapes_are_written_into_a_models_bytes() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["N", 3])
    other = helper.make_tensor_value_info("s", TensorProto.INT64, [1])
    node = helper.make_node("Reshape", ["x", "s"], ["y"])
    graph = helper.make_graph(
        [node], "g", [value, other], [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["M"])]
    )
    model = helper.make_model(graph, producer_name="a maker")
    made = onnx.load_model_from_string(onnx_graph.put_onnx_shapes(model.SerializeToString(), {"x": (300, 3)}))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 300
    assert made == model
