"""farm minimise of rows of other checks than forward: the case becomes small, and is judged by the same check."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from farm import lake
from farm.commands import minimise
from farm.commands import run as launch
from farm.commands.minimise import NO_SCRIPT, SMALLER
from farm.lake import minimal

pytestmark = pytest.mark.usefixtures("no_environments", "children")

CONFIG = """
catalogs: [{{name: {catalog}, ops: [{ops}], dtypes: [float32], samples: 1}}]
backends: [{backend}]
checks: [{check}]
deadline_s: 30
"""


def minimised(folder: Path, check: str, catalog: str, ops: str, backend: str) -> tuple[pd.Series, int, dict[str, Any]]:
    """(the first row of a run of one op, exit code, what is kept of its minimal case)."""
    return of_config(folder, CONFIG.format(check=check, catalog=catalog, ops=ops, backend=backend), backend)


def of_config(folder: Path, text: str, backend: str) -> tuple[pd.Series, int, dict[str, Any]]:
    (folder / "one.yaml").write_text(text)
    results = folder / "results"
    launch.main([str(folder / "one.yaml"), "--on", "processes", "--results", str(results)])
    row = lake.read(results, lake.run_ids(results)[-1]).sort_values("case_id").iloc[0]
    code = minimise.main([f"last:{row.case_id}:{backend}", "--results", str(results)])
    found = minimal.read_minimal_cases(results)
    return row, code, found[-1] if found else {}


@pytest.mark.usefixtures("cache")
def test_what_does_not_build_is_cut_to_the_node_that_does_not(tmp_path: Path) -> None:
    row, code, found = minimised(tmp_path, "build", "small", "errors", "small-unbuilt")
    assert (row.check, row.status) == ("build", "error")
    assert code == NO_SCRIPT  # nobody planted one: what is small is kept all the same
    assert (found["nodes"], found["finding"]["ops"], found["finding"]["modes"]) == ([2, 1], ["Abs"], ["build"])
    assert found["elements"][1] == 1 and "no lowering of Abs" in found["outcome"]["error"]


@pytest.mark.usefixtures("cache")
def test_a_model_of_another_opset_is_cut_to_the_node_that_is_wrong(tmp_path: Path) -> None:
    row, _, found = minimised(tmp_path, "opsets", "small", "chain", "small-op.Tanh")
    assert (row.check, row.status) == ("opsets", "wrong")
    assert (found["nodes"], found["finding"]["ops"], found["elements"][1]) == ([8, 1], ["Tanh"], 1)


@pytest.mark.usefixtures("cache")
def test_a_module_whose_exported_graph_is_wrong_is_cut_to_the_node_that_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
    made = "import torch\n\ndef made(): return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh())\n"
    (tmp_path / "layer.py").write_text(made)
    own = "[{name: layer, model: 'layer.py:made', inputs: x.npz}]"
    text = f"catalogs: [{{name: models, own: {own}}}]\nbackends: [small-op.Tanh]\nchecks: [roundtrip]\n"
    row, _, found = of_config(tmp_path, text, "small-op.Tanh")
    assert (row.check, row.status) == ("roundtrip", "wrong")
    assert (found["nodes"], found["finding"]["ops"], found["elements"][1]) == ([2, 1], ["Tanh"], 1)
    assert found["finding"]["modes"] == ["roundtrip"]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    ("backend", "culprit"), [("small-op.Tanh", ""), ("small-open.Tanh", "open dimensions 4x6 4x6")]
)
def test_a_size_that_is_wrong_is_cut_to_the_node_that_is(backend: str, culprit: str, tmp_path: Path) -> None:
    """Whatever its program is for, and where it is for any size alone."""
    row, _, found = minimised(tmp_path, "shapes", "small", "chain", backend)
    assert (row.check, row.status, row.culprit) == ("shapes", "wrong", culprit)
    assert (found["nodes"], found["finding"]["ops"], found["elements"][1]) == ([8, 1], ["Tanh"], 1)


@pytest.mark.usefixtures("cache")
def test_what_differs_from_run_to_run_is_small(tmp_path: Path) -> None:
    row, _, found = minimised(tmp_path, "determinism", "critical", "softmax", "same-runs")
    assert (row.check, row.status, row.kind) == ("determinism", "wrong", "nondeterministic")
    assert (found["outcome"]["status"], found["outcome"]["kind"]) == ("wrong", "nondeterministic")
    assert found["elements"][0] > 1000 and found["elements"][1] == 1 and found["finding"]["modes"] == ["determinism"]


@pytest.mark.usefixtures("cache")
def test_a_row_that_differs_in_a_batch_is_small(tmp_path: Path) -> None:
    row, _, found = minimised(tmp_path, "batch_invariance", "critical", "softmax", "same-position")
    assert (row.check, row.status, row.kind) == ("batch_invariance", "wrong", "batch")
    assert (found["outcome"]["status"], found["outcome"]["kind"]) == ("wrong", "batch")
    assert found["elements"][0] > 1000 and found["elements"][1] <= 8


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("backend", ["torch-cpu", "ort-cpu"])
def test_a_product_that_differs_in_a_batch_is_written_down(backend: str, tmp_path: Path) -> None:
    """MKL and MLAS take another kernel for another number of rows, on most processors; one is given a call, one a
    graph."""
    row, code, found = minimised(tmp_path, "batch_invariance", "critical", "linear", backend)
    if row.status == "pass":
        pytest.skip("on this processor a row is the same alone and among others")
    assert code == SMALLER and found["elements"][1] < found["elements"][0] / 1000
    text = (Path(found["folder"]) / "run.py").read_text()
    assert "compare_batches(run, inputs, " in text and "shows the wrong result" in found["script_said"]
