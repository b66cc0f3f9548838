"""A machine with two Ascend devices that are the CPU's memory, as a new user meets it: detect, run, reproduce.

The backend is `torch-npu` as it stands; `tests/ascend` has the plug-in that it imports and the vendor's command.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from farm import lake
from farm.fleet import detect_vendors
from tests.conftest import PLUGIN, ROOT, here, launch
from tests.machines import ALONE

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

ASCEND = ROOT / "tests" / "ascend"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables of a machine that has them."""
    monkeypatch.setattr(
        detect_vendors, "detect_this_machine", detect_vendors.detect_vendors
    )  # which keeps what another machine had
    state = tmp_path / "devices"
    state.mkdir()
    path = os.pathsep.join([str(PLUGIN), str(ASCEND), str(ROOT)])
    return {"PYTHONPATH": path, "PATH": f"{ASCEND / 'bin'}:{os.environ['PATH']}", "FARM_DEVICES": str(state)}


def config(path: Path, samples: int, *ops: str) -> Path:
    catalog = {"name": "critical", "ops": list(ops), "samples": samples, "dtypes": ["float32"]}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["torch-npu"]}))
    return path


def test_its_devices_are_found_and_what_to_type_next_runs_on_them(machine: dict[str, str]) -> None:
    said = here("detect", command="node", **machine).stdout
    assert "2 × Ascend 910B3: npu-smi info -m lists 2" in said and '{"NPU": 2.0}' in said
    first, then = "farm run configs/first_contact.yaml --budget 10m", "farm run configs/accelerators.yaml"
    assert said.splitlines()[-1] == f"next, on this machine only: {first}, then {then}"


@pytest.mark.nightly  # on every commit test_planted_vendors does so on a device that torch has itself
def test_an_error_that_spoils_the_device_costs_its_own_case_and_is_shown_again(
    machine: dict[str, str], tmp_path: Path, results: Path
) -> None:
    file = config(tmp_path / "c.yaml", 1, "add", "gelu", "relu")
    spoilt = machine | {"FARM_DEVICE_SPOILT_BY": "aten::gelu"}
    done = here(file, *ALONE, "--results", results, **spoilt)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1]).set_index("op")
    assert rows["status"].to_dict() == {"critical:add": "pass", "critical:gelu": "crash", "critical:relu": "pass"}
    assert rows.loc["critical:gelu", "error"] == "aicore exception, error code is 507015 in aten::gelu"
    assert set(rows["device"]) == {"Ascend910B3"} and set(rows["flags"]) == {"hf32=off"}

    finding = tmp_path / "gelu"
    case = "last:forward/critical:gelu/float32/0:torch-npu"
    again = here(case, "--results", results, "--child", "--out", finding, command="reproduce", **spoilt)
    assert "reproduced: same status and same metrics" in again.stdout, again.stdout + again.stderr
    text = (finding / "run.py").read_text()
    assert "import torch_npu" in text and "torch.npu.conv.allow_hf32 = False" in text
    alone = subprocess.run(
        [sys.executable, finding / "run.py"], capture_output=True, text=True, env=os.environ | spoilt
    )
    assert alone.returncode == 1 and "507015 in aten::gelu" in alone.stderr, alone.stdout + alone.stderr


@pytest.mark.nightly  # on every commit test_dispatch does so on a simulated cluster, test_planted_vendors with the only device
@pytest.mark.parametrize("how", ["--on=ray", "--on=processes"])
def test_a_device_of_two_that_is_lost_in_mid_run_is_named_and_costs_no_case(
    how: str, machine: dict[str, str], tmp_path: Path, results: Path
) -> None:
    """The other device runs what the first had left."""
    ops = "add mul exp log sqrt tanh relu sigmoid silu sum mean max min softmax where clamp cat gather".split()
    file = config(tmp_path / "c.yaml", 2, *ops)
    done = here(file, how, "--results", results, FARM_DEVICES_LOSE="60", **machine)
    (lost,) = Path(machine["FARM_DEVICES"]).glob("lost-*")
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert set(rows["device_ids"]) <= {"0", "1"}
    failed = rows[rows["status"] != "pass"]
    assert done.returncode == 0 and failed.empty, done.stdout
    assert f"device {lost.name[-1]} of " in done.stdout and "finds no npu device" in done.stdout, done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_gradients_are_computed_on_it_and_its_rows_say_its_device(
    machine: dict[str, str], tmp_path: Path, results: Path
) -> None:
    """By autograd's own streams and events of the device: at first the stand-in had none of its number. Without Ray the
    device is the first of those that are visible; of the CPU's rows, none."""
    catalog = {"name": "torch", "ops": ["add", "cumsum", "softmax"], "samples": 2, "dtypes": ["float32"]}
    file = tmp_path / "c.yaml"
    file.write_text(
        yaml.safe_dump({"catalogs": [catalog], "checks": ["backward"], "backends": ["torch-npu", "torch-cpu"]})
    )
    done = here(file, *ALONE, "--results", results, **machine)
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert done.returncode == 0 and len(rows) >= 12 and set(rows["status"]) == {"pass"}, done.stdout
    said = rows.groupby("backend")["device_ids"].agg(lambda of: set(of.fillna("")))
    assert said.to_dict() == {"torch-npu": {"0"}, "torch-cpu": {""}}


@pytest.mark.nightly  # that another version is asked anew is in test_probing; this one is CANN's
def test_what_another_toolkit_did_not_have_is_asked_anew(
    machine: dict[str, str], tmp_path: Path, results: Path
) -> None:
    """CANN is no Python package: a new one changes nothing in the environment of the backend."""
    file, told = config(tmp_path / "c.yaml", 1, "add", "relu"), []
    toolkit = tmp_path / "latest" / f"{platform.machine()}-linux" / "ascend_toolkit_install.info"
    toolkit.parent.mkdir(parents=True)
    own = machine | {"ASCEND_TOOLKIT_HOME": str(tmp_path / "latest"), "FARM_CACHE": str(tmp_path / "cache")}
    for version in ("8.0.RC1", "8.0.RC1", "9.0.0"):
        toolkit.write_text(f"package_name=Ascend-cann-toolkit\nversion={version}\n")
        here(file, *ALONE, "--results", results, **own)
        row = lake.read(results, lake.run_ids(results)[-1]).set_index("op").loc["critical:relu"]
        assert row["runtime_version"].endswith(f"torch_npu 2.13.0, CANN {version}"), row["runtime_version"]
        told.append((row["status"], "as answered in run" in str(row["note"])))
    assert told == [("unsupported", False), ("unsupported", True), ("pass", False)]


def test_a_row_of_one_device_is_not_run_on_another_unsaid(
    machine: dict[str, str], tmp_path: Path, results: Path
) -> None:
    """The second device is spoilt by an op, the first is not."""
    case, spoilt = "last:forward/critical:relu/float32/0:torch-npu", {"FARM_DEVICE_SPOILT_BY": "aten::relu"}
    own = machine | {"FARM_CACHE": str(tmp_path / "cache")}
    file = config(tmp_path / "c.yaml", 1, "add", "relu")
    here(file, *ALONE, "--results", results, **own, **spoilt)
    run = lake.run_ids(results)[-1]
    part = next((results / f"run={run}").rglob("*.parquet"))
    table = pq.read_table(part, partitioning=None)
    place = table.schema.get_field_index("device_ids")  # as a cluster says it of the second of two
    said = pa.array(["1"] * len(table), table.schema.field(place).type)
    pq.write_table(table.set_column(place, table.schema.field(place), said), part)

    def reproduced(*more: object, **env: str) -> str:
        done = here(case, "--results", results, "--child", *more, command="reproduce", **own, **env)
        assert "Traceback" not in done.stderr
        return " ".join((done.stdout + done.stderr).split())

    host = socket.gethostname()
    told = reproduced()
    assert f"ran on device 0 of {host} (stored: device 1 of {host})" in told
    assert f"NOT reproduced: stored crash, now pass; the row is of device 1 of {host}, this ran on device 0" in told
    assert "--device 1 asks that number here" in told
    told = reproduced("--device", "1", **spoilt)
    assert "reproduced: same status" in told and f"ran on device 1 of {host}" in told and "stored: device" not in told
    assert "error: --device 2: this process has devices 0, 1 of Huawei" in reproduced("--device", "2")
    bound = reproduced("--device", "0", ASCEND_RT_VISIBLE_DEVICES="1")
    assert "--device 0: this process has device 1 of Huawei ($ASCEND_RT_VISIBLE_DEVICES is '1')" in bound
    for chosen in ([], ["--device", "1"]):  # the variable names the device that the row is of
        told = reproduced(*chosen, ASCEND_RT_VISIBLE_DEVICES="1", **spoilt)
        assert f"ran on device 1 of {host}" in told and "stored: device" not in told


def test_a_row_says_the_number_that_its_variable_gives_the_device(
    machine: dict[str, str], tmp_path: Path, results: Path
) -> None:
    catalog = {"name": "critical", "ops": ["add"], "samples": 1, "dtypes": ["float32"]}
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["torch-npu", "torch-cpu"]}))
    launch(file, "--on", "inline", "--results", results, **machine, ASCEND_RT_VISIBLE_DEVICES="1")
    rows = lake.read(results, lake.run_ids(results)[-1]).set_index("backend")
    assert rows["device_ids"].fillna("").to_dict() == {"torch-npu": "1", "torch-cpu": ""}
