"""Inputs of a model of the user's: drawn from what a command line says, or from its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tasks.catalogs.models import drawn_inputs, of_file
from tasks.catalogs.models.drawn_inputs import DrawnInput
from tasks.catalogs.models.own_models import OwnModelFile
from tasks.graphs.given_model import GivenError


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("x=float32[4,8]", DrawnInput("x", "float32", (4, 8))),
        ("x = float32[4, 8]", DrawnInput("x", "float32", (4, 8))),
        ("ids=int64[2,16]<100", DrawnInput("ids", "int64", (2, 16), 100.0)),
        ("image=float32[1,3,8,8]<1", DrawnInput("image", "float32", (1, 3, 8, 8), 1.0)),
        ("sr=int64[]", DrawnInput("sr", "int64", ())),
        ("empty=float32[0,3]", DrawnInput("empty", "float32", (0, 3))),
        ("serving_default_input_2:0", DrawnInput("serving_default_input_2:0")),
        ("x=[4,8]", DrawnInput("x", "", (4, 8))),
        ("ids<100", DrawnInput("ids", "", None, 100.0)),
    ],
)
def test_an_input_is_read(text: str, made: DrawnInput) -> None:
    assert drawn_inputs.parse_drawn_input(text) == made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x=flot32[4]", "unknown dtype 'flot32'; did you mean float32"),
        ("x=float32[4", "the bracket is not closed"),
        ("x=float32[4,-1]", "'-1' is no size"),
        ("x=float32[4,]", "'' is no size"),
        ("x=float32[4,n]", "'n' is no size"),
        ("x=int64[4]<many", "'many' is no number"),
        ("x=int64[4]<0", "there are none"),
        ("x=int8[4]<1000", "more than int8 can hold"),
        ("x=int64[4]<1.5", "no whole number"),
        ("x=bool[4]<1", "values of bool have no end"),
        ("x=float32[100000,100000]", "more than 2147483648 elements"),
        ("x float32", "is no input: write NAME=DTYPE[SIZES]"),
        ("=float32[4]", "is no input"),
    ],
)
def test_what_is_malformed_is_said_with_the_fix(text: str, says: str) -> None:
    with pytest.raises(ValueError) as raised:
        drawn_inputs.parse_drawn_input(text)
    assert says in str(raised.value) and repr(text) in str(raised.value)


def test_the_same_names_have_the_same_bytes() -> None:
    given = [
        drawn_inputs.parse_drawn_input(x)
        for x in ("x=float32[4,8]", "ids=int64[200]<7", "sr=int64[]", "m=bool[9]", "h=bfloat16[3]")
    ]
    first, again = drawn_inputs.draw_model_inputs(given, 0, 0), drawn_inputs.draw_model_inputs(reversed(given), 0, 0)
    assert [(x.dtype.name, x.shape) for x in first.values()][:3] == [
        ("float32", (4, 8)),
        ("int64", (200,)),
        ("int64", ()),
    ]
    assert set(first["ids"]) == set(range(7)), "from 0 on, and below"
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    others = drawn_inputs.draw_model_inputs(given, 1, 0), drawn_inputs.draw_model_inputs(given, 0, 1)
    assert all(first["x"].tobytes() != other["x"].tobytes() for other in others)


def graph(text: str) -> Any:
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g {text} => (float[N] y) {{ y = Identity(x) }}'
    )


def test_an_onnx_model_knows_what_its_inputs_are() -> None:
    model = graph("(float[2, 3] x, int64[4] ids)")
    found = drawn_inputs.draw_inputs_of_graph(model, {"ids": drawn_inputs.parse_drawn_input("ids<9")}, "m.onnx")
    assert found == [DrawnInput("x", "float32", (2, 3)), DrawnInput("ids", "int64", (4,), 9.0)]
    for given, says in {
        "y=float32[2]": "the model has no input 'y'; valid: x, ids",
        "x=float64[2,3]": "'x' is float64, the model takes float32",
    }.items():
        one = drawn_inputs.parse_drawn_input(given)
        with pytest.raises(GivenError, match=says):
            drawn_inputs.draw_inputs_of_graph(model, {one.name: one}, "m.onnx")
    with pytest.raises(GivenError, match=r"leaves sizes of 'x' open \(\[\?,3\]\).*--input 'x=float32\[4,3\]'"):
        drawn_inputs.draw_inputs_of_graph(graph("(float[N, 3] x)"), {}, "m.onnx")


HEAD = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x, y=None):\n        return x\n"


def own(folder: Path, source: str, *inputs: str, name: str = "Model") -> OwnModelFile:
    (folder / "m.py").write_text(HEAD + source)
    return OwnModelFile("m", f"{folder}/m.py:{name}", (), str(folder), inputs)


@pytest.mark.parametrize(
    ("source", "names", "samples"),
    [
        ("def get_inputs():\n    return [torch.randn(2, 3)]\n", ["x"], None),
        ("def get_inputs():\n    return torch.randn(2, 3), torch.rand(2)\n", ["x", "y"], None),
        ("def get_inputs():\n    return {'y': torch.randn(2), 'x': torch.randn(2, 3)}\n", ["x", "y"], None),
        ("def get_inputs():\n    return [torch.ones(2, 3), 2.5]\n", ["x", "y"], 1),
        ("inputs = [torch.randn(2, 3)]\n", ["x"], 1),
        ("x = torch.randn(2, 3)\nother = torch.randn(7)\n", ["x"], 1),
    ],
)
def test_a_file_s_own_inputs_are_the_same_for_everyone(
    tmp_path: Path, source: str, names: list[str], samples: int | None
) -> None:
    made = own(tmp_path, source)
    torch.manual_seed(torch.seed())
    first = made.inputs(0, 0, tmp_path)
    assert list(first) == names and first["x"].shape == (2, 3)
    torch.rand(17)
    again = made.inputs(0, 0, tmp_path)
    assert all(first[name].tobytes() == again[name].tobytes() for name in first)
    assert (made.samples > 10**6) == (samples is None) and (samples is None or made.samples == samples)
    if samples is None:
        assert (
            made.inputs(1, 0, tmp_path)["x"].tobytes()
            != first["x"].tobytes()
            != made.inputs(0, 1, tmp_path)["x"].tobytes()
        )


def test_reading_them_leaves_the_user_s_generators_alone(tmp_path: Path) -> None:
    made = own(
        tmp_path,
        "import random, numpy\ndef get_inputs():\n    random.random(), numpy.random.rand()\n    return [torch.rand(2)]\n",
    )
    torch.manual_seed(3)
    np.random.seed(3)
    wanted = torch.rand(1), np.random.rand()
    torch.manual_seed(3)
    np.random.seed(3)
    made.inputs(0, 0, tmp_path)
    assert (torch.rand(1), np.random.rand()) == wanted


def test_a_class_is_made_with_its_init_inputs(tmp_path: Path) -> None:
    text = (
        "class Sized(torch.nn.Module):\n    def __init__(self, n, m):\n        super().__init__()\n        self.l = torch.nn.Linear(n, m)\n"
        "    def forward(self, x):\n        return self.l(x)\ndef get_init_inputs():\n    return [3, 5]\n"
    )
    made = own(tmp_path, text, "x=float32[2,3]", name="Sized")
    assert made.make_module().model.l.out_features == 5
    bad = own(tmp_path, text.replace("get_init_inputs", "other"), "x=float32[2,3]", name="Sized")
    with pytest.raises(
        GivenError,
        match=r"Sized\(n, m\) is called with nothing: missing a required argument: 'n'; let get_init_inputs\(\)",
    ):
        bad.make_module()


@pytest.mark.parametrize(
    ("source", "inputs", "says"),
    [
        ("", ("z=float32[2]",), "forward has no argument 'z'; valid: x, y"),
        ("", ("y=float32[2]",), "is called without 'x', which comes before 'y'"),
        ("", (), "no inputs are given: let them be drawn (--input 'x=float32[4,8]' --input 'y=float32[4,8]'"),
        ("def get_inputs():\n    return [None]\n", (), "get_inputs(): input 0 is a NoneType, no tensor and no number"),
        (
            "def get_inputs():\n    return torch.ones(2) + torch.ones(3)\n",
            (),
            "get_inputs(): RuntimeError: The size of tensor a (2) must",
        ),
        (
            "def get_inputs():\n    return [torch.ones(2)] * 3\n",
            (),
            "is called with input_0, input_1, input_2: too many positional",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_said_so(tmp_path: Path, source: str, inputs: tuple[str, ...], says: str) -> None:
    with pytest.raises(GivenError) as raised:
        own(tmp_path, source, *inputs).inputs(0, 0, tmp_path)
    assert says in str(raised.value) and "\n" not in str(raised.value)


def test_arrays_of_a_file_go_to_the_arguments_of_their_names(tmp_path: Path) -> None:
    forward = torch.nn.Bilinear(2, 3, 4).forward
    a, b = np.ones((5, 2), np.float32), np.zeros((5, 3), np.float32)
    assert list(of_file.order_model_inputs({"input2": b, "input1": a}, forward, "m.npz", strict=False)) == [
        "input1",
        "input2",
    ]
    assert list(of_file.order_model_inputs({"arr_0": a, "arr_1": b}, forward, "m.npz", strict=False)) == [
        "arr_0",
        "arr_1",
    ]
    with pytest.raises(GivenError, match="forward has no argument 'arr_1'"):
        of_file.order_model_inputs({"input1": a, "arr_1": b}, forward, "m.npz", strict=False)


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ("None", "returned nothing"),
        ("[]", "returned nothing"),
        ("[torch.eye(3).to_sparse()]", "input 0 is a tensor of torch.sparse_coo"),
        ("[torch.ones(3, device='meta')]", "input 0 is a tensor on meta"),
        ("[2**70]", "input 0 is 1180591620717411303424, which int64 does not hold"),
        ("{'x': np.array([object()])}", "input x is an array of object, which no tensor holds"),
        ("[np.array(['2020-01-01'], 'datetime64[D]')]", "input 0 is an array of datetime64[D], which no tensor holds"),
    ],
)
def test_inputs_that_no_tensor_holds_are_said(tmp_path: Path, returned: str, says: str) -> None:
    (tmp_path / "own.py").write_text(f"import numpy as np\nimport torch\ndef get_inputs(): return {returned}\n")
    with pytest.raises(GivenError) as raised:
        of_file.read_given_inputs("own.py:M", str(tmp_path), lambda x: x, 0, 0)
    assert says in str(raised.value) and str(raised.value).startswith("own.py:M: get_inputs()")


def test_what_is_true_is_a_tensor_of_no_dimension(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def get_inputs(): return [True]\n")
    made = of_file.read_given_inputs("own.py:M", str(tmp_path), lambda x: x, 0, 0)
    assert made is not None and (made["x"].dtype, made["x"].shape) == (np.dtype(bool), ())


def test_a_part_of_a_package_is_named_as_one(tmp_path: Path) -> None:
    folder = tmp_path / "whole" / "inner"
    folder.mkdir(parents=True)
    for file in (folder.parent / "__init__.py", folder / "__init__.py", folder.parent / "layers.py"):
        file.touch()
    (folder / "net.py").write_text("from ..layers import Layer\nclass Net: pass\n")
    with pytest.raises(GivenError, match=r"it is part of a package: write it as whole\.inner\.net:NAME, run"):
        of_file.make_module_of_file("whole/inner/net.py:Net", str(tmp_path))
