"""What the README shows works as it stands there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml

from farm import lake
from farm.plan import config
from tasks.model import Status
from tests.conftest import PLUGIN, ROOT, launch

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_the_backend_of_the_readme_runs(tmp_path: Path, results: Path) -> None:
    (source,) = [b for b in blocks("python") if "class OnnxPython" in b]
    assert len(source.splitlines()) < 50
    (tmp_path / "onnx_python.py").write_text(source)
    info = tmp_path / "onnx_python-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onnx_python\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[farm.backends]\nonnx_python = onnx_python:OnnxPython\n")
    file = tmp_path / "c.yaml"
    catalog = {"name": "onnx", "ops": ["Relu", "Softmax"], "dtypes": ["*"], "samples": 1}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["onnx_python-cpu", "onnx_python-gpu"]}))
    path = os.pathsep.join([str(tmp_path), str(PLUGIN), str(ROOT)])
    done = launch(file, "--inline", "--results", results, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert set(rows["backend"]) == {"onnx_python-cpu"}
    assert (rows["status"] == "pass").all()
    assert "runs on the CPU alone, not on gpu" in done.stdout


def test_the_config_of_the_readme_is_valid(tmp_path: Path) -> None:
    (text,) = [block for block in blocks("yaml") if "backends:" in block]
    (tmp_path / "c.yaml").write_text(text)
    assert config.load(tmp_path / "c.yaml").known_failures


def test_every_status_is_explained() -> None:
    for status in Status:
        assert f"`{status}`" in README


def test_the_shipped_configs_are_valid() -> None:
    for path in (ROOT / "configs").glob("*.yaml"):
        config.load(path)
