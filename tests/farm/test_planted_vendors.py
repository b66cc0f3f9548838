"""Machines with devices of NVIDIA's, Intel's and Habana's, as a new user meets them: detect, run, report, reproduce.

The backends are `torch-cuda`, `torch-xpu` and `torch-hpu` as they stand, on devices that are the CPU's memory (`tests/machines.py`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from farm import lake
from tests.conftest import ROOT, launch
from tests.machines import planted

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

#: Device: what `detect` says of it, what it says to type next, the row's device.
MACHINES = {
    "cuda": ("2 × NVIDIA H200: nvidia-smi -L lists 2", "configs/cuda.yaml", "NVIDIA H200, sm_90"),
    "xpu": ("1 × Intel(R) Data Center GPU Max 1550: xpu-smi", "configs/xpu.yaml", "Intel(R) Data Center GPU Max 1550"),
    "hpu": ("2 × HL-325L: hl-smi", "configs/gaudi.yaml", "GAUDI3"),
}


def farm(machine: dict[str, str], *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "farm", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | machine, cwd=ROOT)


@pytest.mark.parametrize("device", MACHINES)
def test_a_device_is_found_runs_is_reported_and_its_error_is_shown_again(
    device: str, tmp_path: Path, results: Path
) -> None:
    """The device is spoilt by one op: that one's case is a crash, the others' are judged."""
    machine, (found, config, name) = planted(device, tmp_path), MACHINES[device]
    said = farm(machine, "node", "detect").stdout
    assert found in said and said.splitlines()[-1] == f"next, on this machine alone: farm run {config}"

    ops = ["critical:add", "critical:relu", "critical:matmul"]
    spoilt = machine | {"FARM_DEVICE_SPOILT_BY": "aten::relu"}
    file = tmp_path / "c.yaml"
    named = yaml.safe_load((ROOT / config).read_text())
    (backend,) = (b for b in named["backends"] if isinstance(b, dict) and b["name"] == f"torch-{device}")
    catalog = {"name": "critical", "samples": 1, "ops": [x.partition(":")[2] for x in ops], "dtypes": ["float32"]}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [backend]}))
    done = launch(file, "--no-ray", "--results", results, **spoilt)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1]).set_index("op")
    assert [rows.loc[op, "status"] for op in ops] == ["pass", "crash", "pass"], done.stdout
    assert set(rows["device"]) == {name}

    told = farm(spoilt, "report", "last", "--results", results)
    assert "critical:relu" in told.stdout and "farm reproduce" in told.stdout
    again = farm(
        spoilt, "reproduce", f"last:forward/critical:relu/float32/0:torch-{device}", "--results", results, "--child"
    )
    assert "reproduced: same status" in again.stdout, again.stdout + again.stderr
    assert "Traceback" not in done.stdout + done.stderr + told.stderr + again.stderr


#: What is wrong with the machine or the config → what the run says of it, and what to do.
NO_CODE = {
    "FARM_DEVICE_SPOILT_BY": "aten::add",
    "FARM_DEVICE_SAYS": "CUDA error: no kernel image is available for execution on the device",
}
BAD = [
    pytest.param(
        {"CUDA_VISIBLE_DEVICES": "zero"},
        {},
        "'zero' is no device; say numbers (0,1), ids (GPU-…, MIG-…), or unset it",
        id="nonsense",
    ),
    pytest.param(
        {"CUDA_VISIBLE_DEVICES": "7"},
        {},
        "$CUDA_VISIBLE_DEVICES is '7', and this machine has devices 0 to 1",
        id="number",
    ),
    pytest.param({"CUDA_VISIBLE_DEVICES": ""}, {}, "finds no cuda device ($CUDA_VISIBLE_DEVICES is '')", id="none"),
    pytest.param(
        NO_CODE, {}, "this torch has no code for this device: name one that has among its packages", id="architecture"
    ),
    pytest.param({}, {"options": {"tf3": True}}, "unknown option 'tf3'; it takes tf32, ", id="option"),
]


@pytest.mark.parametrize(("env", "backend", "says"), BAD)
def test_what_is_wrong_is_a_line_that_says_what_to_do(
    env: dict[str, str], backend: dict[str, object], says: str, tmp_path: Path, results: Path
) -> None:
    file = tmp_path / "c.yaml"
    catalog = {"name": "critical", "samples": 1, "ops": ["add"], "dtypes": ["float32"]}
    named = {"name": "mine", "like": "torch-cuda", **backend}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [named]}))
    done = launch(file, "--no-ray", "--results", results, **planted("cuda", tmp_path), **env)
    lines = [x for x in (done.stdout + done.stderr).splitlines() if says in x]
    assert len(lines) == 1 and done.returncode == 2 and "Traceback" not in done.stderr, done.stdout + done.stderr
