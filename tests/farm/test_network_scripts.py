"""Scripts of few lines for networks and training steps: sound ones say nothing, and one whose gradients are off by a percent is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farm.minimise.network import packages
from farm.minimise.script import short
from tasks.arrays.tree import TensorSpec, encode_tensor
from tasks.backends import BackendSpec
from tasks.backends.shared.few_lines import NoScript
from tasks.catalogs.models import architectures, training
from tasks.model import Form, Group

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
    assert len(text.splitlines()) <= 40 and "farm" not in text
    assert ("autograd.grad" in text) is (check != "forward") and ("torch.autocast" in text) is (check == "amp")
    assert said_here(text) == 0
    assert said_here(text.replace("got = [", "got = [3 * ")) == "wrong"


def test_a_network_is_compiled_and_is_where_the_device_is() -> None:
    assert "torch.compile(call" in script("vit_b16", "backward", "float32", "inductor-cpu")
    assert "net = net.to('cuda')" in script("vit_b16", "forward", "float32", "torch-cuda")


def test_a_network_without_a_config_is_there_in_its_source() -> None:
    text = script("unet", "forward", "float32")
    assert "class UNet" in text and said_here(text) == 0
    assert not packages(Group("models:unet", "small", "float32", 1))
    assert packages(Group("models:vit_b16", "small", "float32", 1)) == ("transformers",)


def test_a_network_of_ones_own_has_the_long_script() -> None:
    group = Group("models:mine", "", "float32", 1)
    form = Form("torch", group.op, "float32", [], call=lambda: None, args={"$": "tuple", "v": []})
    with pytest.raises(NoScript, match="one of your own"):
        short(form, group, [], {"status": "wrong", "kind": "numbers"}, BackendSpec.parse("torch-cpu").create(), "t", [])
