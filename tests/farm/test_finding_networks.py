"""Findings of networks and training steps: sound ones show nothing, and one whose results are off by a half is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm.reproduction import finding_requirements
from farm.reproduction.finding_folder import PROGRAM, RUN, FindingCase, write_finding_folder
from tasks.arrays.training import TrainingStep
from tasks.arrays.tree import TensorSpec, encode_argument_tree, encode_tensor_spec
from tasks.backends import BackendSpec
from tasks.backends.shared.recipe import NoProgram
from tasks.catalogs.models import architectures, own_models, training
from tasks.judge import policy_files
from tasks.model import Form, Group, Leaf
from tests.farm.in_process import exit_code

pytest.importorskip("transformers")


def case(name: str, check: str, dtype: str, backend: str = "torch-cpu") -> FindingCase:
    """That of a network, whose expected outputs are its own, in a range that rounding explains."""
    import torch

    group = Group(f"models:{name}", "small", dtype, 1, check=check)
    arrays = list(architectures.draw_architecture_example(name, "small", 0).values())
    call: Any = architectures.build_architecture(name, "small")
    if check != "forward":
        call = training.make_training_step(group)
        arrays.append(np.array([0, 9], np.int64))
    tensors = [torch.from_numpy(x) for x in arrays]
    if isinstance(call, TrainingStep):
        taken = [x.detach().numpy() for x in call.run_first_step(call, tensors)]
        judged = len(call.names)
        right = call.consistent(taken[:judged], dict(zip(call.named, taken[judged:], strict=True)))
    else:
        with torch.no_grad():
            right = [x.numpy() for x in call(*tensors)]
    args = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(k)) for k in range(len(arrays))]}
    form = Form("torch", group.op, dtype, arrays, call=call, args=args, kwargs=encode_argument_tree({}), check=check)
    leaves = [Leaf("float32", y.shape, y.astype(np.float64), np.full(y.shape, 1e-5 * np.abs(y).max())) for y in right]
    row = {"status": "wrong", "kind": "numbers", "op_class": "composite", "limit": 16.0, "error": ""}
    made, policy = BackendSpec.parse(backend).create(), policy_files.load_policy("error_units")
    return FindingCase("A title.", form, group, made, policy, row, leaves)


@pytest.mark.parametrize(("check", "dtype"), [("forward", "float32"), ("backward", "float32"), ("amp", "bfloat16")])
def test_a_finding_of_a_network_knows_right_from_wrong(check: str, dtype: str) -> None:
    one = case("vit_b16", check, dtype)
    files = write_finding_folder(one, ["torch"])
    text = files[PROGRAM].decode()
    assert ("autograd.grad" in text) is (check != "forward") and ("torch.autocast" in text) is (check == "amp")
    assert exit_code(files) == 0
    off = [replace(x, reference=1.5 * np.asarray(x.reference)) for x in one.expected]
    assert exit_code(write_finding_folder(replace(one, expected=off), ["torch"])) == 1


def test_a_network_is_compiled_and_is_where_the_device_is() -> None:
    assert (
        b'compiled={"backend": "inductor"'
        in write_finding_folder(case("vit_b16", "backward", "float32", "inductor-cpu"), [])[RUN]
    )
    assert b'device="cuda"' in write_finding_folder(case("vit_b16", "forward", "float32", "torch-cuda"), [])[RUN]


def test_a_network_without_a_config_is_there_in_its_source() -> None:
    files = write_finding_folder(case("unet", "forward", "float32"), [])
    assert b"class UNet" in files[PROGRAM] and exit_code(files) == 0
    assert not finding_requirements._list_imported_packages(Group("models:unet", "small", "float32", 1))
    assert finding_requirements._list_imported_packages(Group("models:vit_b16", "small", "float32", 1)) == (
        "transformers",
    )


def test_a_network_of_ones_own_comes_with_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "layers.py").write_text("import torch\nLAYER = torch.nn.Linear\n")
    (tmp_path / "net.py").write_text("import layers\ndef small():\n    return layers.LAYER(6, 4)\n")
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    one = own_models.OwnModelFile("small", "net.py:small", (), str(tmp_path))
    monkeypatch.setattr(own_models, "list_own_models", lambda: {"small": one})
    module = one.module(tmp_path)
    state = {k: v.detach().numpy() + 1 for k, v in module.state_dict().items()}
    weight, bias = (
        next(v for k, v in state.items() if k.endswith(name)).astype(np.float64) for name in ("weight", "bias")
    )
    right = x.astype(np.float64) @ weight.T + bias
    args = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(0))]}
    form = Form("torch", "models:small", "float32", [x], call=module, args=args, kwargs=encode_argument_tree({}))
    row = {"status": "wrong", "kind": "numbers", "op_class": "composite", "limit": 32.0, "error": ""}
    backend, policy = BackendSpec.parse("torch-cpu").create(), policy_files.load_policy("error_units")
    group = Group("models:small", "", "float32", 1)
    for off, code in ((0.0, 0), (0.5, 1)):
        leaf = Leaf("float32", right.shape, right + off)
        files = write_finding_folder(
            FindingCase("A title.", form, group, backend, policy, row, [leaf], state=state), []
        )
        assert {"net.py", "layers.py"} <= set(files) and str(tmp_path) not in files[PROGRAM].decode()
        for path in (tmp_path / "net.py", tmp_path / "layers.py"):
            path.rename(path.with_suffix(".away"))  # the folder needs it no longer
        assert exit_code(files) == code
        for path in (tmp_path / "net.away", tmp_path / "layers.away"):
            path.rename(path.with_suffix(".py"))


def test_a_network_that_came_without_its_source_is_not_written_down() -> None:
    form = Form(
        "torch",
        "models:magika",
        "float32",
        [],
        call=lambda: None,
        args={"$": "tuple", "v": []},
        kwargs=encode_argument_tree({}),
    )
    row, group = (
        {"status": "wrong", "kind": "numbers", "error": "", "op_class": "", "limit": 1.0},
        Group("models:magika", "", "float32", 1),
    )
    backend, policy = BackendSpec.parse("torch-cpu").create(), policy_files.load_policy("error_units")
    with pytest.raises(NoProgram, match="comes without its source"):
        write_finding_folder(FindingCase("A title.", form, group, backend, policy, row, []), [])
