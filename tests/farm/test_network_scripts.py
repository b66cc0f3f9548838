"""Scripts of few lines for networks and training steps: sound ones say nothing, and one whose gradients are off by a percent is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from farm.minimise.network import judged, packages
from farm.minimise.script import short
from tasks.backends.shared.few_lines import NoScript

from tasks.arrays.tree import TensorSpec, encode_tensor
from tasks.backends import BackendSpec
from tasks.catalogs.models import architectures, own, training
from tasks.model import Form, Group, Leaf

pytest.importorskip("transformers")


def said_here(text: str) -> Any:
    """What a script ends with in this process: "wrong", or 0."""
    with pytest.raises(SystemExit) as end:
        exec(compile(text, "script", "exec"), {})
    return end.value.code


def script(name: str, check: str, dtype: str, backend: str = "torch-cpu") -> str:
    group = Group(f"models:{name}", "small", dtype, 1, check=check)
    arrays = list(architectures.example(name, "small", 0).values())
    call: Any = architectures.build(name, "small")
    if check != "forward":
        call = training.step(group)
        arrays.append(np.array([0, 9], np.int64))
    args = {"$": "tuple", "v": [encode_tensor(TensorSpec(k)) for k in range(len(arrays))]}
    form = Form("torch", group.op, dtype, arrays, call=call, args=args, check=check)
    row = {"status": "wrong", "kind": "numbers", "op_class": "model", "limit": 16.0, "error": ""}
    return short(form, group, [], row, BackendSpec.parse(backend).create(), "a title", ["torch"])


@pytest.mark.parametrize(("check", "dtype"), [("forward", "float32"), ("backward", "float32"), ("amp", "bfloat16")])
def test_a_network_has_a_script_of_few_lines_that_knows_right_from_wrong(check: str, dtype: str) -> None:
    text = script("vit_b16", check, dtype)
    assert "farm" not in text
    assert ("autograd.grad" in text) is (check != "forward") and ("torch.autocast" in text) is (check == "amp")
    assert said_here(text) == 0
    assert said_here(text.replace("got = [", "got = [3 * ")) == "wrong"


@pytest.mark.parametrize(
    ("made", "off", "says"),
    [
        ("net(x).log()", "", 0),  # of what is negative it is NaN
        ("net(x).log()", "0 * ", "wrong"),
        ("net(x) / (net(x) > 0)", "", 0),
        ("net(x) / (net(x) > 0)", "np.nan_to_num", "wrong"),
        ("net(x)", "np.nan * ", "wrong"),
    ],
)
@pytest.mark.parametrize("rule", [{"limit": 16.0}, {"rule": "classic"}, {"rule": "absolute", "bound": 0.1}])
def test_what_is_not_finite_is_to_be_so_in_both(made: str, off: str, says: Any, rule: dict[str, Any]) -> None:
    row = {"limit": None, **rule}
    form = Form("torch", "models:any", "float32", [np.ones((3, 6), np.float32)])
    lines = [
        "import numpy as np, torch",
        "net, given = torch.nn.Linear(6, 4), [torch.ones(3, 6)]",
        "wanted, call = list(net.parameters()), lambda x: " + made,
        "step = lambda f, x: [f(*x)]",
        f"got = [{off}(y.detach().numpy()) for y in step(call, given)]",
    ]
    assert (
        said_here(
            "\n".join(
                ["import torch; torch.manual_seed(0)", *lines, *judged(form, [Leaf("float32", (3, 4), None)], row)]
            )
        )
        == says
    )


def test_a_network_is_compiled_and_is_where_the_device_is() -> None:
    assert "torch.compile(call" in script("vit_b16", "backward", "float32", "inductor-cpu")
    assert "net = net.to('cuda')" in script("vit_b16", "forward", "float32", "torch-cuda")


def test_a_network_without_a_config_is_there_in_its_source() -> None:
    text = script("unet", "forward", "float32")
    assert "class UNet" in text and said_here(text) == 0
    assert not packages(Group("models:unet", "small", "float32", 1))
    assert packages(Group("models:vit_b16", "small", "float32", 1)) == ("transformers",)


def test_a_network_of_ones_own_is_loaded_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\ndef small():\n    torch.manual_seed(0)\n    return torch.nn.Linear(6, 4)\n"
    )
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    np.savez(tmp_path / "net.npz", x=x)
    one = own.Own("small", "net.py:small", (str(tmp_path / "net.npz"),), str(tmp_path))
    monkeypatch.setattr(own, "declared", lambda: {"small": one})
    args = {"$": "tuple", "v": [encode_tensor(TensorSpec(0))]}
    form = Form("torch", "models:small", "float32", [x], call=one.module(tmp_path), args=args)
    row, group = (
        {"status": "wrong", "kind": "numbers", "limit": 32.0, "error": ""},
        Group("models:small", "", "float32", 1),
    )
    backend = BackendSpec.parse("torch-cpu").create()
    text = short(form, group, [], row, backend, "t", [])
    assert said_here(text) == 0 and said_here(text.replace("got = [", "got = [3 * ")) == "wrong"
    form.arrays = [x + 1]
    with pytest.raises(NoScript, match="no longer in a file"):
        short(form, group, [], row, backend, "t", [])


def test_a_network_that_came_without_its_source_has_no_short_script() -> None:
    form = Form("torch", "models:magika", "float32", [], call=lambda: None, args={"$": "tuple", "v": []})
    row, group = {"status": "wrong", "kind": "numbers", "error": ""}, Group("models:magika", "", "float32", 1)
    with pytest.raises(NoScript, match="comes without its source"):
        short(form, group, [], row, BackendSpec.parse("torch-cpu").create(), "t", [])
