"""A public op of torch is called by its name: the list of all ops takes longer to import than torch, and is not needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.catalogs.torch.opinfo import TorchOpInfo
from tasks.model import Group
from tasks.prepare.cases import prepare_group

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    ("op", "public"),
    [("softmax", True), ("nn.functional.gelu", True), ("linalg.norm", True), ("expand", False), ("normal", False)],
)
def test_it_is_what_the_list_says(cache: Path, op: str, public: bool) -> None:
    group = Group(f"torch:{op}", "", "float32", 1, 0)
    pack = prepare_group(group, cache)[1].pack
    assert pack.header["public"] is public
    if public:
        assert TorchOpInfo().public(group) is TorchOpInfo().call(group)


@pytest.mark.parametrize("name", ["load", "os.system", "hub.load", "nn", "no_such"])
def test_nothing_but_functions_of_tensors_is_found(name: str) -> None:
    from tasks.catalogs.torch.opinfo import _find_public_function

    assert _find_public_function(name) is None


def test_its_process_needs_no_list(cache: Path) -> None:
    path = prepare_group(Group("torch:softmax", "", "float32", 1, 0), cache)[1].pack.path
    code = (
        "import sys; from tasks.prepare.cases import PreparedGroup\n"
        "print(PreparedGroup(sys.argv[1]).samples[0].form('torch').call.__name__)\n"
        "print('torch.testing._internal.common_methods_invocations' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, env=os.environ)
    assert done.stdout.split() == ["softmax", "False"], done.stderr
