"""The lowest versions that pyproject.toml allows, installed and run: `make lowest` runs more."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from farm import lake
from farm.fleet import envs
from tests import lowest


@pytest.mark.nightly
def test_quick_yaml_runs_and_is_reported_with_the_lowest_versions(tmp_path: Path, results: Path, cache: Path) -> None:
    """Every view is made: one that fails is a warning."""
    try:
        python = lowest.build(tmp_path / "env")
    except envs.EnvError as error:
        if "cannot be reached" not in str(error):
            raise
        pytest.skip(str(error))
    narrow = ["--dtypes", "float32,float16", "--samples", "1", "--backends", "torch-cpu,ort-cpu,openvino-cpu"]
    ops = ["--ops", "log_softmax,nn.functional.gelu,matmul,cumsum,argmax,Softmax,TopK,critical:softmax"]
    command = ["farm.launch", "configs/quick.yaml", "--on", "processes", "--results", results, *narrow, *ops]
    done = lowest.run(python, command, cache)
    assert done.returncode in (0, 1) and "ViewWarning" not in done.stdout, done.stdout
    assert "Traceback" not in done.stdout and "could not be written" not in done.stdout, done.stdout
    (run,) = lake.run_ids(results)
    rows, record = lake.read(results, run), lake.read_run(results, run)
    bounds = {x.name: x.specifier for x in map(Requirement, lowest.requirements())}
    for name in ("numpy", "pandas", "pyarrow", "onnx", "onnxruntime", "ray"):
        assert any(x.operator == ">=" and Version(x.version) == Version(record["versions"][name]) for x in bounds[name])
    assert len(rows) == record["planned"] > 30 and (rows["status"] == "pass").mean() > 0.8
