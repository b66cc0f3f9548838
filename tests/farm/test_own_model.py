"""A model of the user's own on the command line and in a config: judged, or refused in one line with what to do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from farm import lake
from farm.commands.reproduce import main as reproduce
from farm.commands.run import main
from farm.exits import BAD_INPUT, FOUND, OK
from farm.plan.config import ConfigError, load_config
from tasks.catalogs.models import network_samples
from tasks.graphs import noise_floor
from tests import residual_model


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and its inputs."""
    monkeypatch.chdir(tmp_path)
    model = residual_model.residual()
    onnx.save(model, tmp_path / "mine.onnx")
    np.savez(tmp_path / "mine.npz", **residual_model.inputs(model))
    np.savez(tmp_path / "other.npz", **residual_model.inputs(model, 1))
    (tmp_path / "net.py").write_text("small = None")
    return tmp_path


def run(*arguments: str) -> int:
    return main([*arguments, "--backends", "ort-cpu", "--on", "inline", "--results", "lake"])


def rows() -> list[tuple[str, str, str]]:
    opened = lake.open_lake("lake")
    found = lake.read(opened, lake.run_ids(opened)[-1])
    return [(x.case_id, x.status, x.error) for x in found.itertuples()]


def test_a_model_and_its_inputs_are_judged_without_a_config() -> None:
    assert run("--model", "mine.onnx", "--inputs", "mine.npz", "--inputs", "other.npz") == OK
    found = rows()
    assert [x[:2] for x in sorted(found)] == [(f"forward/models:mine/float32/{i}", "pass") for i in range(2)]


def test_a_model_is_asked_more_than_its_outputs_where_checks_are_named() -> None:
    assert run("--model", "mine.onnx", "--inputs", "mine.npz", "--checks", "forward,levels") == OK
    assert sorted(x[0].partition("/")[0] for x in rows()) == ["forward", "levels"]


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
        (["--model", "mine.onnx", "--checks", "levls"], "--checks: no check 'levls'; did you mean levels?"),
        (["--inputs", "mine.npz"], "--inputs: they are a model's: name it with --model"),
        (["--model", "nowhere:small"], "--model: no module 'nowhere'"),
        (["--input", "x=float32[4]"], "--input: they are a model's: name it with --model"),
        (
            ["--model", "mine.onnx", "--input", "x=float32[4", "--inputs", "mine.npz"],
            "--input: the inputs are in the files",
        ),
        (["--model", "mine.onnx", "--input", "x=float32[4"], "--input: 'x=float32[4': the bracket is not closed"),
        (["--model", "mine.onnx", "--input", "x", "--input", "x=[2]"], "--input: 'x' is given twice"),
        (
            ["--model", "net.py:small", "--input", "x=float32"],
            "--input: 'x=float32' has no sizes: write NAME=DTYPE[SIZES]",
        ),
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
        "number": "a torch.nn.Module, or a class or function without arguments that makes one is needed, not 3",
        "nothing": "no inputs are given: let them be drawn (--input 'x=float32[4,8]'",
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
    monkeypatch.setattr(
        network_samples, "reference_and_floor", lambda *of: made.append(of) or noise_floor.reference_and_floor(*of)
    )
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
            load_config("c.yaml")


def torch_run(*arguments: str) -> int:
    return main([*arguments, "--backends", "torch-cpu", "--on", "inline", "--results", "lake"])


#: The models of a blog on torch.compile, as they stand there.
DOCUMENT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(in_channels=1, out_channels=3, kernel_size=1)
        self.linear = torch.nn.Linear(3, 1)
    def forward(self, x):
        x = x.unsqueeze(1)
        x = self.conv(x)
        x = x.mean(dim=-1)
        return self.linear(x)
x = torch.randn(1, 3)
m = Model()
print(m(x))
class MatrixModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mm_layer = torch.nn.Linear(10, 10)
    def forward(self, x1, inp):
        v1 = torch.mm(x1, inp)
        v2 = v1 + inp
        return v2
x1 = torch.randn(2, 10)
inp = torch.randn(2, 10)
"""


def test_a_document_s_model_and_its_inputs_are_judged_as_they_stand() -> None:
    Path("doc.py").write_text(DOCUMENT)
    assert torch_run("--model", "doc.py:Model") == OK
    assert [x[:2] for x in rows()] == [("forward/models:Model/float32/0", "pass")]
    assert torch_run("--model", "doc.py:MatrixModel") == FOUND
    ((_, status, error),) = rows()
    place = f"({Path('doc.py').resolve()}:21)"
    assert (status, error) == ("invalid", f"mat1 and mat2 shapes cannot be multiplied (2x10 and 2x10) {place}")


def test_drawn_inputs_are_judged_and_drawn_again() -> None:
    Path("net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def forward(self, ids, x):\n        return x[ids]\n"
    )
    given = ["--model", "net.py:Net", "--input", "x=float32[5,8]", "--input", "ids=int64[3]<5", "--samples", "2"]
    digests = []
    for _ in range(2):
        assert torch_run(*given) == OK
        opened = lake.open_lake("lake")
        found = lake.read(opened, lake.run_ids(opened)[-1]).sort_values("sample")
        assert list(found["shapes"]) == ["3 5x8"] * 2, "in the order of forward's arguments"
        digests.append(list(found["digest"]))
    assert digests[0] == digests[1] and len(set(digests[0])) == 2


def test_a_config_draws_inputs_as_well(here: Path) -> None:
    text = "dtypes: [float32]\ncatalogs:\n- name: models\n  samples: 2\n  own:\n  - name: a\n    model: mine.onnx\n    inputs:\n      x: {}\nbackends: [ort-cpu]\n"
    Path("c.yaml").write_text(text.format("'[8,48]'"))
    assert run("c.yaml") == OK and [x[1] for x in rows()] == ["pass"] * 2
    Path("c.yaml").write_text(text.format("float33[8]"))
    with pytest.raises(ConfigError, match=r"c.yaml:9:7: catalogs.0.own.0.inputs.x: .*unknown dtype 'float33'"):
        load_config("c.yaml")
    Path("c.yaml").write_text(text.format("3"))
    with pytest.raises(ConfigError, match="3 is no DTYPE"):
        load_config("c.yaml")


@pytest.mark.parametrize(
    ("source", "name", "says"),
    [
        (
            "x = 1\nimport no_such_module\nclass M: pass\n",
            "M",
            "net.py:3: cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "torch.ones(2, 3) @ torch.ones(2, 3)\nclass M: pass\n",
            "M",
            "net.py:2: cannot be imported: RuntimeError: mat1 and mat2 shapes cannot be",
        ),
        (
            "class M(torch.nn.Module):\n    @torch.no_grad()\n    def forward(self, x, y): return x\n",
            "M",
            "forward(x, y) is called with x: missing a required argument: 'y'",
        ),
        (
            "class M(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.load_state_dict({'w': torch.ones(3)})\n",
            "M",
            'RuntimeError: Error(s) in loading state_dict for M: Unexpected key(s) in state_dict: "w". (',
        ),
        (
            "class M(torch.nn.Module):\n    def forward(self, x): return x.shpae\n",
            "M",
            "object has no attribute 'shpae' (",
        ),
    ],
)
def test_an_invalid_model_says_why(source: str, name: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text("import torch\n" + source)
    assert torch_run("--model", f"net.py:{name}", "--input", "x=float32[2,3]") == FOUND
    ((_, status, error), _) = rows()
    assert status == "invalid" and says in error and "\n" not in error and "\x1b" not in error and len(error) < 300
    out = capsys.readouterr().out
    assert error in out.splitlines()[-1] and f"not judged: models:{name}: " not in out, "whole, and once"
    assert out.count("farm reproduce ") == 1, "one reason, on however many backends"


def test_a_model_that_cannot_run_is_told_before_the_backends_have_answered(capsys: pytest.CaptureFixture[str]) -> None:
    Path("doc.py").write_text(DOCUMENT)
    given = ["--backends", "torch-cpu", "--on", "processes", "--results", "lake"]
    assert main(["--model", "doc.py:MatrixModel", *given]) == BAD_INPUT
    out, err = capsys.readouterr()
    place = f"({Path('doc.py').resolve()}:21)"
    assert err == f"error: --model: mat1 and mat2 shapes cannot be multiplied (2x10 and 2x10) {place}\n"
    assert "available" not in out and not lake.run_ids(lake.open_lake("lake"))
    assert main(["--model", "doc.py:Model", *given]) == OK
    assert [x[1] for x in rows()] == ["pass"]


def test_backends_are_asked_whether_they_raise_what_eager_torch_raises(capsys: pytest.CaptureFixture[str]) -> None:
    Path("doc.py").write_text(DOCUMENT)
    given = ["--backends", "torch-cpu,ort-cpu", "--on", "processes", "--results", "lake"]
    assert main(["--model", "doc.py:MatrixModel", *given]) == FOUND
    out = capsys.readouterr().out
    assert "\neager torch raises: mat1 and mat2 shapes cannot be multiplied (2x10 and 2x10) (" in out
    assert {x[1] for x in rows()} == {"invalid"}


def test_a_model_that_can_run_on_some_of_its_inputs_has_its_rows() -> None:
    np.savez("wrong.npz", y=np.ones(3, np.float32))
    files = ["--inputs", "mine.npz", "--inputs", "wrong.npz"]
    assert (
        main(["--model", "mine.onnx", *files, "--backends", "ort-cpu", "--on", "processes", "--results", "lake"])
        == FOUND
    )
    assert [x[1] for x in sorted(rows())] == ["pass", "invalid"]


NET = "class Model(torch.nn.Module):\n    def forward(self, x, y=1): return x\n"


@pytest.mark.parametrize(
    ("source", "model", "more", "says"),
    [
        (NET, "net.py:Modle", [], "--model: net.py:Modle: there is no 'Modle' in it; did you mean Model?"),
        (NET, "net.py:Nope", [], "there is no 'Nope' in it; valid: Model"),
        ("class M(torch.nn.Module:\n    pass\n", "net.py:M", [], "net.py:3: invalid syntax"),
        ("import no_such_module\n" + NET, "net.py", [], "net.py:3: there is no module 'no_such_module' here"),
        (NET, "net.py", [], "net.py:Model: forward(x, y) has no input for 'x': --input 'x=float32[4,8]', or let get_"),
        (NET, "net.py", ["--input", "z=float32[4]"], "--input: net.py:Model: forward(x, y) has no argument 'z'"),
        (NET, "net.py", ["--input", "y=float32[4]"], "forward(x, y) has no input for 'x': --input 'x=float32[4,8]'"),
    ],
)
def test_what_the_source_shows_is_said_before_anything_is_imported(
    source: str, model: str, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("net.py").write_text("import torch\n\n" + source + "\nraise SystemExit(7)\n")
    assert run("--model", model, *more) == BAD_INPUT
    told = capsys.readouterr()
    assert says in told.err and told.err.count("\n") == 1 and "probing" not in told.out


@pytest.mark.parametrize(
    "source",
    [
        "globals()['Net'] = torch.nn.ReLU\ninputs = [torch.ones(3)]\n",
        "try:\n    import no_such_module\nexcept ImportError:\n    pass\nNet = torch.nn.ReLU\ninputs = [torch.ones(3)]\n",
        "class Net(torch.nn.Module):\n    def forward(self, *x): return x[0]\ninputs = torch.ones(3),\n",
        "# é\nNet = torch.nn.ReLU\ninputs = [torch.ones(3)]\n",
        "class Net(torch.nn.Module):\n    pass\nNet.forward = lambda self, x: x\nx = torch.ones(3)\n",
        "def make():\n    global Net\n    Net = torch.nn.ReLU()\nmake()\ninputs = [torch.ones(3)]\n",
    ],
)
def test_what_the_source_does_not_show_is_imported(source: str) -> None:
    Path("net.py").write_text("# coding: latin-1\nimport torch\n" + source, encoding="latin-1")
    assert torch_run("--model", "net.py:Net") == OK, rows()


ONE = """
import torch
from torch import nn
class Part(nn.Module):
    def __init__(self, n, *, m=2):
        super().__init__()
        self.w = nn.Linear(n, n)
    def forward(self, x): return self.w(x)
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * x
class Config:
    def forward(self): return 1
class Net(Part):
    def __init__(self, n=4, *more):
        super().__init__(n)
def get_inputs(): return [torch.randn(2, 4)]
"""
SEVERAL = ONE + "class More(nn.Sequential): pass\nclass Base(Net): pass\n"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (ONE, "Net"),
        (SEVERAL + "class Model(Net): pass\n", "Model"),
        (ONE.replace("n=4, *more", "n") + "def get_init_inputs(): return [4]\n", ""),
        (ONE.replace("n=4, *more", "n").replace("Part", "Model") + "def get_init_inputs(): return [4]\n", "Model"),
    ],
)
def test_a_file_is_its_one_model(source: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(source)
    if not name:
        assert torch_run("--model", "net.py") == BAD_INPUT
        assert "net.py has 2 models; name one: net.py:Part, net.py:Net" in capsys.readouterr().err
        return
    assert torch_run("--model", "net.py") == OK
    assert {x[:2] for x in rows()} == {(f"forward/models:{name}/float32/{i}", "pass") for i in range(2)}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (SEVERAL, "net.py has 3 models; name one: net.py:Net, net.py:More, net.py:Base"),
        ("x = 1\n", "net.py has no class of torch.nn.Module; name what makes the model, net.py:NAME"),
        (
            ONE.replace("n=4, *more", "n, *, deep"),
            "net.py has only models that need arguments, Part(n) and Net(n, deep): let get_init_inputs() in it return these arguments, or",
        ),
        ("class M(\n", "net.py:1: '(' was never closed"),
    ],
)
def test_a_file_that_is_no_one_model_is_refused_before_anything_is_imported(
    source: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("net.py").write_text("raise SystemExit(7)\n" * ("class M(" not in source) + source)
    assert torch_run("--model", "net.py") == BAD_INPUT
    said = capsys.readouterr().err
    assert says in said and said.count("\n") == 1
    Path("c.yaml").write_text(
        "catalogs:\n- name: models\n  own:\n  - {name: a, model: net.py}\nbackends: [torch-cpu]\n"
    )
    assert run("c.yaml") == BAD_INPUT and "c.yaml:4:15: catalogs.0.own.0.model: " in capsys.readouterr().err


def test_a_module_s_case_has_a_script_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.layers = torch.nn.Sequential(torch.nn.Linear(n, 4), torch.nn.ReLU())\n"
        "        self.more = [torch.randn(4)]\n        self.register_buffer('calls', torch.zeros(4))\n"
        "    def forward(self, x):\n        self.calls += 1\n        return {'y': self.layers(x) + self.more[0], 'n': self.calls * 1}\n"
        "def get_inputs():\n    return [torch.randn(3, 6)]\ndef get_init_inputs():\n    return [6]\n"
    )
    assert torch_run("--model", "net.py:Net", "--samples", "1") == OK
    opened = lake.open_lake("lake")
    (key,) = (f"{x.run_id}:{x.case_id}:{x.backend}" for x in lake.read(opened, lake.run_ids(opened)[-1]).itertuples())
    monkeypatch.setenv("FARM_CACHE", str(Path("empty").resolve()))  # the same inputs and weights are made again
    assert reproduce([key, "--results", "lake", "--out", "case"]) == 0
    said = capsys.readouterr().out
    assert "shows the pass: it ends with exit code 0" in said and "reproduced: same status and same metrics" in said
    text = Path("case/program.py").read_text()
    assert "net = net.Net(*net.get_init_inputs()).eval()" in text and "more.0:<f4" in np.load("case/weights.npz")
