"""What the client is handed over keeps its strides, and what is found is told, made small and scripted with them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import farm
from farm import lake
from farm.client.cases import Cases
from farm.launch import main
from tests import prepared

torch = pytest.importorskip("torch")

KERNELS = """
import numpy as np
import torch

def as_dense(x):
    count = min(x.numel(), x.untyped_storage().nbytes() // x.element_size() - x.storage_offset())
    flat = torch.as_strided(x, (count,), (1,), x.storage_offset())
    return torch.nn.functional.pad(flat, (0, x.numel() - count)).view(x.shape).sum(-1)

def honest(x):
    return x.sum(-1)

def refusing(x):
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    return x.sum(-1)

def sums(x):
    return x.sum(-1)

def forwards(x):
    lowest = x[tuple(slice(None, None, -1 if s < 0 else 1) for s in x.strides)]
    found = np.lib.stride_tricks.as_strided(lowest, x.shape, [abs(s) for s in x.strides])
    return np.cumsum(found.astype(np.float64), -1).astype(x.dtype)

def running(x):
    return np.cumsum(x, -1)
"""


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "laid_kernels.py").write_text(KERNELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("laid_kernels", None)
    return tmp_path


GAPS, TURNED = "a gap between its rows", "its last two axes transposed in memory"


@pytest.mark.parametrize("isolate", [False, True], ids=["here", "in a child"])
@pytest.mark.parametrize("what", [GAPS, TURNED])
def test_a_tensor_that_is_handed_over_keeps_its_strides(kernels: Path, what: str, isolate: bool) -> None:
    import laid_kernels as k

    x = torch.randn(6, 12)[:, :8] if what == GAPS else torch.randn(8, 6).t()
    farm.assert_correct(k.honest, (x,), k.sums, op_class="reduction", isolate=isolate)
    with pytest.raises(AssertionError, match=f"only where x has {what}"):
        farm.assert_correct(k.as_dense, (x,), k.sums, op_class="reduction", isolate=isolate)
    with pytest.raises(AssertionError, match=r"error: only where x has .* x must be contiguous"):
        farm.assert_correct(k.refusing, (x,), k.sums, op_class="reduction", isolate=isolate)


def test_what_a_block_computes_of_such_a_tensor_is_told_with_it(kernels: Path) -> None:
    import laid_kernels as k

    x = torch.randn(6, 12)[:, :8]
    with farm.validate(k.honest, {"x": x}, k.sums, op_class="reduction") as v:
        v.output = k.honest(x)
    v.check()
    with farm.validate(k.as_dense, {"x": x}, k.sums, op_class="reduction") as v:
        v.output = k.as_dense(x)
    with pytest.raises(AssertionError, match=GAPS):
        v.check()


def test_an_array_may_run_backwards_and_torch_is_given_a_copy_with_a_warning(kernels: Path) -> None:
    import laid_kernels as k

    x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)[:, ::-1]
    with pytest.raises(AssertionError, match="a negative stride along its last axis"):
        farm.assert_correct(k.forwards, (x,), k.running, op_class="reduction", framework="numpy")
    with pytest.warns(UserWarning, match="torch has no negative strides"):
        farm.assert_correct(k.honest, (x,), k.sums, op_class="reduction")


INPUTS, DIMS = {"x": ["a", "b"]}, {"a": (2, 9), "b": (2, 40)}


def test_fuzzing_finds_the_layout_and_the_smallest_case_keeps_it(kernels: Path) -> None:
    import laid_kernels as k

    assert farm.fuzz(k.honest, k.sums, INPUTS, DIMS, cases=40, op_class="reduction", results=None).failed == 0
    refused = farm.fuzz(k.refusing, k.sums, INPUTS, DIMS, cases=40, op_class="reduction", results=None)
    assert refused.failed == 0 and refused.rows["refused_layout"].fillna("").str.contains("contiguous").sum() > 5
    found = farm.fuzz(k.as_dense, k.sums, INPUTS, DIMS, cases=40, op_class="reduction", results=kernels / "lake")
    assert found.findings
    for one in found.findings:
        small = farm.minimise(one.key, results=kernels / "lake")
        assert max(small.shapes["x"]) <= 3 and "only where x has " in small.message


@pytest.mark.parametrize("kernel", ["as_dense", "forwards"])
def test_the_script_of_a_finding_makes_the_same_strides(kernels: Path, kernel: str) -> None:
    framework, reference = ("numpy", "running") if kernel == "forwards" else ("torch", "sums")
    (kernels / "farm.yaml").write_text(
        f"""catalogs:
  - name: user
    samples: 8
    kernels:
      - {{name: f, kernel: "laid_kernels.py:{kernel}", reference: "laid_kernels.py:{reference}", framework: {framework},
         inputs: {{x: [a, b]}}, dims: {{a: [3, 8], b: [5, 33]}}, class: reduction}}
backends: [torch-cpu]
"""
    )
    assert main(["farm.yaml", "--on", "inline", "--results", "lake"]) == 1
    rows = lake.read("lake")
    row = rows[rows["status"] == "wrong"].iloc[0]
    key = f"{row['run_id']}:{row['case_id']}:{row['backend']}"
    command = [sys.executable, "-m", "farm", "reproduce", key, "--results", "lake", "--out", "found"]
    prepared.run(command)
    said = prepared.run([sys.executable, "found/run.py"])
    assert "as_strided" in Path("found/program.py").read_text()
    assert said.returncode, said.stdout + said.stderr
    assert "Traceback" not in said.stderr, said.stderr


def test_the_inputs_of_a_test_have_the_drawn_strides(kernels: Path) -> None:
    import laid_kernels as k

    cases = list(Cases.of(k.honest, k.sums, INPUTS, DIMS, cases=40, op_class="reduction"))
    laid = [case for case in cases if not case.inputs["x"].is_contiguous()]
    assert len(laid) > 5
    for case in laid:
        case.check(k.honest(**case.inputs))
    with pytest.raises(AssertionError, match="x has "):
        for case in laid:
            case.check(k.as_dense(**case.inputs))
