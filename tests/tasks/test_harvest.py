"""farm init harvest: distinct nodes with their own tensors, written as a folder, and the catalog that runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from farm import lake  # noqa: E402
from farm.commands.harvest import main  # noqa: E402
from tasks.catalogs.models.table import MODELS  # noqa: E402
from tasks.catalogs.nodes import folder  # noqa: E402
from tasks.graphs.given_model import GivenError, read_given_case  # noqa: E402
from tasks.graphs.harvest import NodeHarvest  # noqa: E402
from tests.conftest import here  # noqa: E402
from tests.farm.test_report import make_row  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.standard_normal((4, 8)).astype(np.float32)
SQUARE = RNG.standard_normal((8, 8)).astype(np.float32)


def model(*layers: str, opset: int = 17, weights: dict[str, np.ndarray] | None = None) -> Any:
    """x through nodes one after another: "MatMul w", "Relu", "Sub b", …; a word behind the op names a weight."""
    weights = {"w": SQUARE} if weights is None else weights
    nodes, name = [], "x"
    for k, layer in enumerate(layers):
        op, *given_weights = layer.split()
        last = f"t{k}" if k + 1 < len(layers) else "y"
        nodes.append(helper.make_node(op, [name, *given_weights], [last], name=f"{op}_{k}"))
        name = last
    used = {word for layer in layers for word in layer.split()[1:]}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "m"])],
        [numpy_helper.from_array(x, n) for n, x in weights.items() if n in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def harvested(*models: Any, x: np.ndarray = X) -> NodeHarvest:
    found = NodeHarvest()
    for k, one in enumerate(models):
        found.add(one, {"x": x}, f"m{k}")
    return found


def test_equal_nodes_are_one_case_and_others_are_not() -> None:
    twice = model("MatMul w", "Relu", "MatMul w", "Relu")
    assert len(harvested(twice).largest) == 2
    apart = harvested(twice, model("MatMul w", "Relu", opset=13), x=X)
    assert len(apart.largest) == 4  # another operator set
    assert len(harvested(twice, x=X[:2]).largest | harvested(twice).largest) == 4  # other shapes
    bias = {"w": SQUARE, "b": np.ones(8, np.float32), "s": np.array([8, -1]), "r": np.array([-1, 4])}
    assert len(harvested(model("Add b", "Mul b", weights=bias)).largest) == 2
    assert len(harvested(model("Reshape s", weights=bias), model("Reshape r", weights=bias)).largest) == 2


def test_of_a_case_the_largest_numbers_and_the_most_cancelling_instance_are_kept() -> None:
    weights = {
        "huge": np.full(8, 1e6, np.float32),
        "big": np.full(8, 1e4, np.float32),
        "less": np.full(8, -1e4, np.float32),
        "one": np.ones(8, np.float32),
    }
    found = harvested(model("Add one", "Add big", "Add big", "Add less", weights=weights))
    (key,) = found.largest  # all four take a tensor and a weight of the same shapes
    assert found.largest[key].node == "Add_3" and found.largest[key].largest > 1.9e4
    assert found.cancelling[key].node == "Add_3" and found.cancelling[key].cancels > 1
    mixed = harvested(model("Add one", "Add less", "Add big", "Add huge", weights=weights))
    assert mixed.cancelling[key].node == "Add_2" and mixed.largest[key].node == "Add_3"
    assert mixed.cancelling[key].cancels > 100 > mixed.largest[key].cancels


def test_a_node_alone_is_a_valid_model_with_static_shapes_that_gives_what_the_whole_gave() -> None:
    ort = pytest.importorskip("onnxruntime")
    found = harvested(model("MatMul w", "Softmax", "Relu"))
    chosen, lost = found.select_instances(1)
    assert lost == 0 and sorted(one.op for _, one in chosen) == ["MatMul", "Relu", "Softmax"]
    for kind, one in chosen:
        part = onnx.load_from_string(one.model)
        onnx.checker.check_model(part, full_check=True)
        assert kind == "only" and len(part.graph.node) == 1
        assert all(d.dim_value for x in part.graph.input for d in x.type.tensor_type.shape.dim)
        assert set(one.inputs) == {x.name for x in part.graph.input}
        (y,) = ort.InferenceSession(one.model, providers=["CPUExecutionProvider"]).run(None, dict(one.inputs))
        assert y.shape == (4, 8)


def test_the_budget_keeps_as_many_cases_as_it_can() -> None:
    weights = {"w": SQUARE, "wide": RNG.standard_normal((8, 4096)).astype(np.float32)}
    found = harvested(model("MatMul w", "Relu", "MatMul wide", weights=weights))
    chosen, lost = found.select_instances(0.05)
    assert lost == 1 and {one.op for _, one in chosen} == {"MatMul", "Relu"}
    assert sum(one.size for _, one in chosen) <= 0.05 * 2**20


def test_what_is_no_case_is_left_out_and_counted() -> None:
    graph = model("MatMul w", "Dropout", "RandomNormalLike")
    assert harvested(graph).left_out == {"draws at random": 1}


def written(path: Path, *models: Any) -> Path:
    chosen, _ = harvested(*models).select_instances(10)
    folder.write_nodes_folder(path, chosen)
    return path


def test_a_folder_is_added_to_and_what_is_there_stays(tmp_path: Path) -> None:
    where = written(tmp_path / "nodes", model("MatMul w", "Relu"))
    before = {x.folder: x for x in folder.read_nodes_index(where)}
    written(where, model("MatMul w", "Tanh"))
    after = {x.folder: x for x in folder.read_nodes_index(where)}
    assert len(after) == 3 and before.items() <= after.items()
    content, feeds = folder.load_harvested_node(where, after[next(k for k in after if k.startswith("Tanh"))])
    assert onnx.load_from_string(content).graph.node[0].op_type == "Tanh" and next(iter(feeds.values())).shape == (4, 8)


def test_a_folder_that_was_changed_or_is_something_elses_is_refused_by_name(tmp_path: Path) -> None:
    where = written(tmp_path / "nodes", model("Relu"))
    (line,) = folder.read_nodes_index(where)
    (where / line.folder / "test_data_set_0" / "input_0.pb").write_bytes(b"other")
    with pytest.raises(folder.FolderError, match="its files were changed; harvest again"):
        folder.load_harvested_node(where, line)
    shutil.rmtree(where / line.folder)
    with pytest.raises(folder.FolderError, match="harvest again"):
        folder.load_harvested_node(where, line)
    (where / folder.INDEX).write_text(json.dumps({"format": 99, "nodes": []}))
    with pytest.raises(folder.FolderError, match="newer farm"):
        folder.read_nodes_index(where)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "file").touch()
    with pytest.raises(folder.FolderError, match="holds other files"):
        folder.write_nodes_folder(tmp_path / "else", [])


@pytest.fixture
def own(tmp_path: Path) -> list[str]:
    """The options of a model of one's own with its inputs."""
    onnx.save(model("MatMul w", "LogSoftmax", "Relu"), tmp_path / "m.onnx")
    np.savez(tmp_path / "m.npz", x=X)
    return ["--model", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "m.npz")]


def test_a_model_of_ones_own_is_harvested_and_every_backend_runs_it(
    own: list[str], tmp_path: Path, results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*own, "--out", str(tmp_path / "nodes")]) == 0
    said = capsys.readouterr().out
    assert "3 distinct of 3 nodes" in said and "name: nodes, path:" in said
    config = tmp_path / "c.yaml"
    config.write_text("catalogs: [{name: nodes, path: nodes}]\nbackends: [ort-cpu, openvino-cpu]\n")
    done = here(config, "--on", "inline", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert len(rows) == 6 and set(rows["op"]) == {"nodes:MatMul", "nodes:LogSoftmax", "nodes:Relu"}
    assert set(rows["status"]) == {"pass"} and set(rows["oracle"]) == {"float64"}
    classes = rows.drop_duplicates("op").set_index("op")["op_class"].to_dict()
    assert classes == {"nodes:MatMul": "contraction", "nodes:LogSoftmax": "normalisation", "nodes:Relu": "exact"}
    assert rows.loc[rows["op"] == "nodes:LogSoftmax", "second_oracle"].eq("torch-operators-float64").all()


def test_a_config_without_the_folder_names_the_key_and_the_fix(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("catalogs: [{name: nodes, path: nowhere}]\nbackends: [ort-cpu]\n")
    done = here(config, "--on", "inline")
    assert done.returncode == 2 and "c.yaml:1" in done.stderr and "write it with farm init harvest" in done.stderr
    config.write_text("catalogs: [nodes]\nbackends: [ort-cpu]\n")
    done = here(config, "--on", "inline")
    assert done.returncode == 2 and "the catalog nodes needs a path" in done.stderr
    config.write_text("catalogs: [{name: onnx, path: nowhere}]\nbackends: [ort-cpu]\n")
    done = here(config, "--on", "inline")
    assert done.returncode == 2 and "only the catalog nodes takes a folder" in done.stderr


def test_bad_input_is_one_line_with_what_to_do(own: list[str], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for arrays, said in (
        ({"z": X}, "no array for the model's input 'x'; it has z"),
        ({"x": X, "xx": X}, "the model has no input 'xx'"),
        ({"x": X[:, :4]}, "has the shape 4x4, the model takes ?x8"),
        ({"x": X.astype(np.int64)}, "is int64, the model takes float32"),
    ):
        np.savez(tmp_path / "bad.npz", **arrays)
        with pytest.raises(GivenError, match="(?s)^(?!.*\n)") as found:
            read_given_case(path, tmp_path / "bad.npz")
        assert said in str(found.value)
    np.savez(tmp_path / "wide.npz", x=X.astype(np.float64))
    assert read_given_case(path, tmp_path / "wide.npz")[1]["x"].dtype == np.float32
    np.save(tmp_path / "one.npy", X)
    (tmp_path / "no.onnx").write_bytes(b"no model")
    (tmp_path / "no.npz").write_bytes(b"no arrays")
    onnx.save(model("MatMul w"), tmp_path / "out.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    for bad, inputs, said in (
        (tmp_path / "gone.onnx", "m.npz", "no such file"),
        (tmp_path / "no.onnx", "m.npz", "no ONNX model"),
        (tmp_path / "out.onnx", "m.npz", "weights lie beside it"),
        (path, "gone.npz", "no such file"),
        (path, "no.npz", "no .npz file"),
        (path, "one.npy", "one array without a name"),
    ):
        with pytest.raises(GivenError) as found:
            read_given_case(bad, tmp_path / inputs)
        assert said in str(found.value) and "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["resnet5"], "the catalog models has no 'resnet5'"),
        (["--run", "last"], "no runs|no such run|no run"),
        (["--model", "gone.onnx", "--inputs", "gone.npz"], "gone.onnx: no such file"),
    ],
)
def test_the_command_refuses_what_is_not_there(
    args: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*args, "--out", str(tmp_path / "nodes"), "--results", str(tmp_path / "lake")])
    error = capsys.readouterr().err
    assert code == 2 and any(word in error for word in said.split("|")), error
    with pytest.raises(SystemExit):
        main(["--out", "x", "--model", "a.onnx"])


def test_custom_operators_are_left_out_with_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = model("MatMul w", "Relu")
    graph.graph.node[1].domain = "com.example"
    graph.opset_import.append(helper.make_opsetid("com.example", 1))
    onnx.save(graph, tmp_path / "m.onnx")
    np.savez(tmp_path / "m.npz", x=X)
    args = ["--model", str(tmp_path / "m.onnx"), "--inputs", str(tmp_path / "m.npz"), "--out", str(tmp_path / "nodes")]
    assert main(args) == 2
    said = capsys.readouterr().err
    assert "com.example.Relu is no operator of ONNX" in said and "no node was harvested" in said


class Mine:
    """A model as the catalog has them."""

    def model(self, cache: Path) -> bytes:
        return bytes(model("MatMul w", "Relu", "Softmax", "Tanh").SerializeToString())

    def inputs(self, index: int, seed: int, cache: Path) -> dict[str, np.ndarray]:
        return {"x": X + index}


@pytest.mark.parametrize(
    ("culprit", "ops"),
    [("node Relu_1 (Relu)", ["Relu"]), ("window Relu_1..Tanh_3", ["Relu", "Softmax", "Tanh"]), ("level all", [])],
)
def test_the_culprits_of_a_run_join_the_folder(
    culprit: str, ops: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, ("mine", ""), Mine())
    rows = [make_row("wrong", op="models:mine", sample=k, culprit=found) for k, found in ((0, None), (2, culprit))]
    (tmp_path / "lake" / "run=r1").mkdir(parents=True)
    part = tmp_path / "lake" / "run=r1" / "part-0.parquet"
    pq.write_table(pa.Table.from_pylist([row | {"started_at": None} for row in rows], schema=lake.SCHEMA), part)
    where = written(tmp_path / "nodes", model("LogSoftmax"))
    code = main(["--run", "last", "--results", str(tmp_path / "lake"), "--out", str(where)])
    assert code == (0 if ops else 2)
    assert sorted(x.op for x in folder.read_nodes_index(where)) == sorted(["LogSoftmax", *ops])
    assert {x.source for x in folder.read_nodes_index(where) if x.op in ops} <= {"models:mine/2"}
