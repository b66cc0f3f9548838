"""A machine of one's own: its devices are offered without a cluster, also in a container whose first process the farm is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from farm import lake
from farm.fleet.child_process import make_child_environment
from tasks import variables
from tests.conftest import ROOT, here, launch


def config(path: Path, *backends: object) -> Path:
    catalog = {"name": "load", "dtypes": ["float32"], "samples": 2}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": list(backends)}))
    return path


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs pid namespaces")
@pytest.mark.parametrize("how", [pytest.param("--on=ray", marks=pytest.mark.nightly), "--on=processes"])
def test_the_farm_may_be_process_1(tmp_path: Path, results: Path, how: str) -> None:
    run = [sys.executable, "-m", "farm.launch", config(tmp_path / "c.yaml", "null-cpu"), how, "--results", results]
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    env = os.environ | {"FARM_LOAD_OPS": "4"}
    done = subprocess.run([*alone, *map(str, run), "--no-dashboard"], cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(lake.read(results, lake.run_ids(results)[-1])["status"]) == {"pass"}


@pytest.mark.nightly
def test_a_local_run_offers_the_devices_of_this_machine(tmp_path: Path, results: Path) -> None:
    file = config(tmp_path / "c.yaml", "gpu-amd", "gpu-intel", "npu-huawei", "gpu-nvidia")
    vendors = "amd=2,intel=1,huawei=1"
    done = launch(file, "--on", "ray", "--results", results, FARM_LOAD_OPS="4", FARM_VENDORS=vendors)
    rows = lake.read(results, lake.run_ids(results)[-1])
    statuses = rows.groupby("backend")["status"].unique().map(set).to_dict()
    assert statuses == {"gpu-amd": {"pass"}, "gpu-intel": {"pass"}, "npu-huawei": {"pass"}}, done.stdout
    assert "gpu-nvidia  unavailable" in done.stdout


@pytest.mark.parametrize("how", [pytest.param("--on=ray", marks=pytest.mark.nightly), "--on=processes"])
def test_nonsense_in_a_variable_ends_the_run_before_it_begins(how: str, tmp_path: Path, results: Path) -> None:
    file, env = config(tmp_path / "c.yaml", "gpu-nvidia"), {"CUDA_VISIBLE_DEVICES": "two"}
    done = launch(file, how, "--results", results, FARM_VENDORS="nvidia", **env)
    assert done.returncode == 2
    assert "$CUDA_VISIBLE_DEVICES is 'two'" in done.stdout + done.stderr


def test_out_of_memory_is_believed_of_a_case_that_is_alone_in_its_process(tmp_path: Path, results: Path) -> None:
    leaks = {"name": "leaks", "like": "gpu-nvidia", "options": {"full_after": 3}}
    full = {"name": "full", "like": "gpu-nvidia", "options": {"full_after": 0}}
    here(config(tmp_path / "c.yaml", leaks, full), "--on", "processes", "--results", results, FARM_LOAD_OPS="4")
    rows = lake.read(results, lake.run_ids(results)[-1]).groupby("backend")
    leaky, small = rows.get_group("leaks"), rows.get_group("full")
    assert set(leaky["status"]) == {"pass"}
    again = leaky[leaky["attempts"] > 1]
    assert len(again) >= 2 and again["note"].fillna("").str.contains("alone in a new process it is not").all()
    assert set(small["status"]) == {"oom"} and set(small["attempts"]) == {2}
    assert not small["flags"].fillna("").str.contains("alone").any()


def test_variables_that_change_numbers_are_left_out_or_named(tmp_path: Path, results: Path) -> None:
    env = {"NVIDIA_TF32_OVERRIDE": "1", "HSA_OVERRIDE_GFX_VERSION": "11.0.0"}
    here(config(tmp_path / "c.yaml", "null-cpu"), "--on", "processes", "--results", results, FARM_LOAD_OPS="1", **env)
    flags = lake.read(results, lake.run_ids(results)[-1])["flags"]
    assert flags.str.contains("HSA_OVERRIDE_GFX_VERSION=11.0.0").all()
    assert not flags.str.contains("TF32").any()
    assert "NVIDIA_TF32_OVERRIDE" not in make_child_environment() | variables.drop_overriding_variables(env)
