"""A model of the user's own on the command line and in a config: judged, or refused in one line with what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from farm import lake
from farm.commands.run import main
from farm.exits import BAD_INPUT, FOUND, OK
from farm.plan.config import ConfigError, load
from tasks.catalogs import told
from tasks.catalogs.models import judged
from tasks.graphs import floor
from tests import residual_model


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and its inputs; what a run announces does not outlive the test."""
    monkeypatch.setattr(told, "_told", [""])
    monkeypatch.chdir(tmp_path)
    model = residual_model.residual()
    onnx.save(model, tmp_path / "mine.onnx")
    np.savez(tmp_path / "mine.npz", **residual_model.inputs(model))
    np.savez(tmp_path / "other.npz", **residual_model.inputs(model, 1))
    return tmp_path


def run(*arguments: str) -> int:
    return main([*arguments, "--backends", "ort-cpu", "--inline", "--results", "lake"])


def rows() -> list[tuple[str, str, str]]:
    opened = lake.open_lake("lake")
    found = lake.read(opened, lake.run_ids(opened)[-1])
    return [(x.case_id, x.status, x.error) for x in found.itertuples()]


def test_a_model_and_its_inputs_are_judged_without_a_config() -> None:
    assert run("--model", "mine.onnx", "--inputs", "mine.npz", "--inputs", "other.npz") == OK
    found = rows()
    assert [x[:2] for x in sorted(found)] == [(f"forward/models:mine/float32/{i}", "pass") for i in range(2)]


def test_a_function_s_torch_module_is_judged() -> None:
    Path("net.py").write_text(
        "import torch\ndef small():\n    torch.manual_seed(0)\n    return torch.nn.Linear(48, 4)\n"
    )
    assert run("--model", "net.py:small", "--inputs", "mine.npz") == OK
    assert [x[1] for x in rows()] == ["pass"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "none.onnx"], "--model: no such file"),
        (["--model", "mine.onnx", "--inputs", "none.npz"], "--inputs: no such file"),
        (["--inputs", "mine.npz"], "--inputs: they are a model's: name it with --model"),
        (["--model", "nowhere:small"], "--model: no module 'nowhere'"),
    ],
)
def test_what_is_not_there_ends_the_command(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == BAD_INPUT
    assert says in capsys.readouterr().err


def test_bad_models_are_a_line_each_and_the_run_goes_on(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "broken.onnx").write_bytes(b"no model")
    custom = onnx.load("mine.onnx")
    custom.graph.node[0].op_type, custom.graph.node[0].domain = "Fused", "com.vendor"
    custom.opset_import.append(onnx.helper.make_opsetid("com.vendor", 1))
    onnx.save(custom, "custom.onnx")
    outside = onnx.load("mine.onnx")
    onnx.save(outside, "outside.onnx", save_as_external_data=True, location="gone.bin", size_threshold=0)
    (here / "gone.bin").unlink()
    (here / "folder").mkdir()
    np.savez("wrong.npz", y=np.ones(3, np.float32))
    np.savez("shape.npz", x=np.ones((8, 47), np.float32))
    Path("net.py").write_text("def small():\n    return 3\n")
    own = [
        ("good", "mine.onnx", "mine.npz"),
        ("broken", "broken.onnx", "mine.npz"),
        ("custom", "custom.onnx", "mine.npz"),
        ("outside", "outside.onnx", "mine.npz"),
        ("saved", "folder", "mine.npz"),
        ("names", "mine.onnx", "wrong.npz"),
        ("shapes", "mine.onnx", "shape.npz"),
        ("number", "net.py:small", "mine.npz"),
    ]
    lines = "".join(f"  - {{name: {n}, model: '{m}', inputs: {i}}}\n" for n, m, i in own)
    Path("c.yaml").write_text(
        f"dtypes: [float32]\ncatalogs:\n- name: models\n  own:\n{lines}  - {{name: nothing, model: mine.onnx}}\nbackends: [ort-cpu]\n"
    )
    assert run("c.yaml") == FOUND
    found = {case.split(":")[1].split("/")[0]: (status, error) for case, status, error in rows()}
    assert found.pop("good") == ("pass", "")
    says = {
        "broken": "no ONNX model",
        "custom": "com.vendor.Fused is no operator of ONNX",
        "outside": "its weights lie beside it, and a file is missing",
        "saved": "no SavedModel: there is no saved_model.pb in it",
        "names": "no array for the model's input 'x'; it has y",
        "shapes": "'x' has the shape 8x47, the model takes 8x48",
        "number": "a function without arguments that returns a torch.nn.Module is needed, not 3",
        "nothing": "no inputs are given: write them with numpy.savez('nothing.npz'",
    }
    out = capsys.readouterr().out
    for name, text in says.items():
        status, error = found[name]
        assert status == "invalid" and text in error and "\n" not in error, (name, error)
        assert f"not judged: models:{name}: " in out
    assert f"{len(says)} samples of your own could not be judged: " in out


@pytest.mark.parametrize(("sizes", "status", "references"), [([6], "vacuous", 0), ([-1], "pass", 1)])
def test_no_reference_is_made_of_a_model_that_has_one_size(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], status: str, references: int
) -> None:
    made = []
    monkeypatch.setattr(judged, "reference_and_floor", lambda *of: made.append(of) or floor.reference_and_floor(*of))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[N] y)'
        f" <int64[1] s = {{{sizes[0]}}}> {{ e = Exp(x) y = Reshape(e, s) }}"
    )
    onnx.save(model, "flat.onnx")
    np.savez("flat.npz", x=np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3))
    own = "{name: flat, model: flat.onnx, inputs: flat.npz}"
    Path("c.yaml").write_text(
        f"dtypes: [float32]\nchecks: [shapes]\ncatalogs: [{{name: models, own: [{own}]}}]\nbackends: [ort-cpu]\n"
    )
    assert run("c.yaml") == (OK if references else FOUND), "a run that judged nothing is no success"
    assert [x[1] for x in rows()] == [status]
    assert len(made) == references


def test_a_config_s_own_models_are_checked_with_their_place(here: Path) -> None:
    for own, says in {
        "{name: a, model: gone.onnx}": r"c.yaml:3:19: catalogs.0.own.0.model: no such file",
        "{name: resnet50, model: mine.onnx}": "the catalog has a network 'resnet50'",
        "{name: a, modle: mine.onnx}": "modle",
    }.items():
        Path("c.yaml").write_text(f"catalogs:\n- name: models\n  own: [{own}]\nbackends: [ort-cpu]\n")
        with pytest.raises(ConfigError, match=says):
            load("c.yaml")
