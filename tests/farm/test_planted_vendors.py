"""Machines with devices of NVIDIA's, AMD's, Intel's and Habana's, as a new user meets them: detect, run, report, reproduce.

The backends are `torch-cuda`, `torch-rocm`, `torch-xpu` and `torch-hpu` as they stand, on devices that are the CPU's
memory (`tests/machines.py`).
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from farm import lake
from farm.commands import node
from farm.exits import OK
from farm.fleet import detect_vendors
from farm.work import fleet_changes, supervisor
from tasks.devices import BY_LABEL, TORCH_DEVICES
from tests.conftest import ROOT, farm, here, launch
from tests.machines import ALONE, planted

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")

#: Device: what `detect` says of it, what it says to type next, the row's device.
MACHINES = {
    "cuda": ("2 × NVIDIA H200: nvidia-smi -L lists 2", "configs/cuda.yaml", "NVIDIA H200, sm_90"),
    "rocm": ("2 × AMD Instinct MI300X: rocm-smi", "configs/rocm.yaml", "AMD Instinct MI300X, gfx942:sramecc+:xnack-"),
    "xpu": ("1 × Intel(R) Data Center GPU Max 1550: xpu-smi", "configs/xpu.yaml", "Intel(R) Data Center GPU Max 1550"),
    "hpu": ("2 × HL-325L: hl-smi", "configs/gaudi.yaml", "GAUDI3"),
}


#: On every commit one device that torch has itself; one that a module brings is in `test_planted_device`. What differs
#: between the others (commands, names, variables, errors that spoil a device) has tests of its own, which start
#: nothing.
DEVICES = [d if d == "cuda" else pytest.param(d, marks=pytest.mark.nightly) for d in MACHINES]


#: What `detect` says last.
NEXT = "next, on this machine only: farm run configs/first_contact.yaml --budget 10m, then farm run {}"


@pytest.fixture(autouse=True)
def another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was detected of one is not kept for the next, where a test runs in this process."""
    monkeypatch.setattr(detect_vendors, "detect_this_machine", detect_vendors.detect_vendors)


def config(file: Path, samples: int, backend: object, *ops: str) -> Path:
    catalog = {"name": "critical", "samples": samples, "ops": list(ops), "dtypes": ["float32"]}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [backend]}))
    return file


@pytest.mark.parametrize("device", MACHINES)
def test_the_command_of_each_vendor_is_read(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", planted(device, tmp_path)["PATH"])
    assert node.main(["detect"]) == OK
    said, (found, typed, _) = capsys.readouterr().out, MACHINES[device]
    assert found in said and said.splitlines()[-1] == NEXT.format(typed)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_is_found_runs_is_reported_and_its_error_is_shown_again(
    device: str, tmp_path: Path, results: Path
) -> None:
    """The device is spoilt by one op: that one's case is a crash, the others' are judged."""
    machine, (found, typed, name) = planted(device, tmp_path), MACHINES[device]
    said = farm("node", "detect", **machine).stdout
    assert found in said and said.splitlines()[-1] == NEXT.format(typed)

    spoilt = machine | {"FARM_DEVICE_SPOILT_BY": "aten::relu"}
    named = yaml.safe_load((ROOT / typed).read_text())
    (backend,) = (b for b in named["backends"] if isinstance(b, dict) and b["name"] == f"torch-{device}")
    file = config(tmp_path / "c.yaml", 1, backend, "add", "relu", "matmul")
    done = launch(file, *ALONE, "--results", results, **spoilt)
    assert done.returncode == 1, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1]).set_index("op")
    statuses = {"critical:add": "pass", "critical:relu": "crash", "critical:matmul": "pass"}
    assert rows["status"].to_dict() == statuses, done.stdout
    assert set(rows["device"]) == {name}
    if device == "xpu":
        assert set(rows["driver_version"]) == {"1.6.33578+15"}

    told = farm("report", "--results", results, **spoilt)
    assert "critical:relu" in told.stdout and "farm reproduce" in told.stdout
    case, finding = f"last:forward/critical:relu/float32/0:torch-{device}", tmp_path / "relu"
    again = farm("reproduce", case, "--results", results, "--child", "--out", finding, **spoilt)
    assert "reproduced: same status" in again.stdout, again.stdout + again.stderr
    if (
        device == "hpu"
    ):  # by a module, as where it is really installed; for others the build of torch itself is another one
        assert "relu: shows the crash: it raises the same" in again.stdout, again.stdout
    assert "Traceback" not in done.stdout + done.stderr + told.stderr + again.stderr


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cuda", "hpu"])
def test_first_contact_runs_what_is_there_and_says_in_a_line_each_what_is_not(
    device: str, tmp_path: Path, results: Path
) -> None:
    """One file for all vendors. Nothing is downloaded: it would take minutes."""
    narrow = ["--ops", "critical:add", "--dtypes", "float32", *ALONE, "--results", results]
    empty = {"UV_CACHE_DIR": str(tmp_path / "uv")}  # what was downloaded before is there
    done = launch("configs/first_contact.yaml", *narrow, COLUMNS="80", **planted(device, tmp_path), **empty)
    assert done.returncode in (0, 1) and "Traceback" not in done.stdout + done.stderr, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1])
    rows = rows[rows["check"] != "graph"]  # a torch for CPUs has no streams to capture on
    expected = {"cuda": {"torch-cuda", "torch-cuda-tf32"}, "hpu": {"torch-hpu"}}[device]
    assert set(rows["backend"]) == expected and set(rows["status"]) == {"pass"}, done.stdout
    assert {"forward", "determinism", "batch_invariance"} <= set(rows["check"])
    preflight = [x for x in done.stdout.splitlines() if "available  " in x]
    (ours,) = (x for x in preflight if "  available  " in x)
    assert f"torch-{device}" in ours and "on " in ours
    (nowhere,) = (x for x in preflight if "no device of" in x)
    assert "backends" in nowhere and "AMD, " in nowhere and "node detect" in nowhere
    assert len(preflight) <= 9, preflight
    if device == "cuda":
        (unbuilt,) = (x for x in preflight if "nothing is downloaded" in x)
        assert "jax-cuda" in unbuilt and "python: /path/to/python" in unbuilt


def test_first_contact_on_a_machine_without_a_device_says_what_to_do(results: Path) -> None:
    done = here("configs/first_contact.yaml", *ALONE, "--ops", "critical:add", "--results", results)
    (said,) = done.stderr.splitlines()
    assert done.returncode == 2 and "none of the config's devices is here" in said, done.stderr
    assert "node detect says what was looked for" in said and "configs/quick.yaml" in said
    assert not lake.run_ids(results)


@pytest.mark.parametrize("device", DEVICES)
def test_a_device_that_is_lost_for_good_costs_no_case_and_its_run_is_resumed(
    device: str, tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the only one: what it had left is no crash, and is run when it is back."""
    monkeypatch.setattr(fleet_changes, "REST_S", ())
    monkeypatch.setattr(supervisor, "PAUSES", (0.1,))  # each is a process that imports torch and finds nothing
    ops = "add mul exp sqrt relu sum mean max where gather".split()
    state, file = tmp_path / "devices", config(tmp_path / "c.yaml", 2, f"torch-{device}", *ops)
    state.mkdir()
    only = {variable: "0" for variable in BY_LABEL[TORCH_DEVICES[device][1]].visible[:1] if device != "xpu"}
    machine = planted(device, tmp_path) | only | {"FARM_DEVICES": str(state)}
    monkeypatch.syspath_prepend(str(tmp_path / device))
    # A process that says hello waits 26 times; the 20 cases wait 40 times, and a slow machine asks for known answers after each.
    done = here(file, *ALONE, "--results", results, FARM_DEVICES_LOSE="50", **machine)
    assert done.returncode == 3, done.stdout + done.stderr
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert len(rows) == 20 and set(rows["status"]) == {"pass", "unavailable"}, done.stdout
    said = done.stdout + done.stderr
    assert f"a new process of torch-{device} cannot find device 0 of " in said and "farm run --resume" in said
    (state / "lost-0").unlink()
    again = here("--resume", "last", *ALONE, "--results", results, **machine)
    rows = lake.read(results, lake.run_ids(results)[-1])
    assert again.returncode == 0 and len(rows) == 20 and set(rows["status"]) == {"pass"}, again.stdout
    assert "Traceback" not in said + again.stdout + again.stderr


#: Kernels of NumPy arrays: two that copy them to the device, one of which is wrong, and one that stays on the CPU.
NUMPY = """
import torch

def reference(x): return 2 * x
def doubled(x): return (torch.from_numpy(x).to("DEVICE") * 2).cpu().numpy()
def tripled(x): return (torch.from_numpy(x).to("DEVICE") * 3).cpu().numpy()
def hosted(x): return x * 2
"""


@pytest.mark.parametrize("device", ["cuda", pytest.param("hpu", marks=pytest.mark.nightly)])
def test_a_kernel_of_numpy_arrays_runs_where_the_device_is_and_its_row_says_what_is_known_of_the_place(
    device: str, tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What used the device's memory ran there; of what did not use torch's, nothing says where it ran."""
    machine = planted(device, tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / device))
    (tmp_path / "mine.py").write_text(NUMPY.replace("DEVICE", device))
    kernels = [
        {"name": name, "kernel": f"mine:{name}", "reference": "mine:reference", "framework": "numpy"}
        | {"inputs": {"x": [4]}, "class": "elementary"}
        for name in ("doubled", "tripled", "hosted")
    ]
    file = tmp_path / "c.yaml"
    catalog = {"name": "user", "samples": 1, "kernels": kernels}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [f"torch-{device}"]}))
    done = here(file, *ALONE, "--results", results, **machine)
    rows = lake.read(results, lake.run_ids(results)[-1]).set_index("op")
    assert rows["status"].to_dict() == {"user:doubled": "pass", "user:tripled": "wrong", "user:hosted": "pass"}, (
        done.stdout
    )
    there = f"{device}, by its own copies"
    assert set(rows["placement"]) == {there}
    assert rows["execution"].to_dict() == {"user:doubled": "", "user:tripled": "", "user:hosted": "unverified"}
    assert "1 row whose device is unverified" in done.stdout and done.returncode == 1


#: Device of the machine, what is wrong with it or with the config → what the run says of it, and what to do.
NO_CODE = {
    "FARM_DEVICE_SPOILT_BY": "aten::add",
    "FARM_DEVICE_SAYS": "CUDA error: no kernel image is available for execution on the device",
}
CARDS, SELECTED, MODULES = "CUDA_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR", "HABANA_VISIBLE_MODULES"
BAD: dict[str, tuple[str, dict[str, str], dict[str, object], str]] = {
    "nonsense": (
        "cuda",
        {CARDS: "zero"},
        {},
        "'zero' is not a device; use numbers (0,1), ids (GPU-…, MIG-…), or unset it",
    ),
    "nonsense of oneAPI": ("xpu", {SELECTED: "first"}, {}, "'first' is not a device; use level_zero:0,1, or unset it"),
    "nonsense of Habana": (
        "hpu",
        {MODULES: "a"},
        {},
        f"${MODULES} is 'a': 'a' is not a device; use numbers (0,1), or unset it",
    ),
    "number": ("cuda", {CARDS: "7"}, {}, f"${CARDS} is '7', and this machine has devices 0 to 1"),
    "number of oneAPI": (
        "xpu",
        {SELECTED: "level_zero:3"},
        {},
        f"No XPU devices are available. (${SELECTED} is 'level_zero:3': name what exists, or unset it)",
    ),
    "number of Habana": (
        "hpu",
        {MODULES: "9"},
        {},
        f"Device acquire failed. (${MODULES} is '9': name what exists, or unset it)",
    ),
    "none": ("cuda", {CARDS: ""}, {}, f"No CUDA GPUs are available (${CARDS} is '': name what exists, or unset it)"),
    "another vendor's": ("cuda", {}, {"like": "torch-xpu"}, "no Intel device on this node (no /dev/dri/renderD*, "),
    "driver": (
        "cuda",
        {"FARM_DEVICE_DRIVER": "12020", CARDS: "0"},
        {},
        "version of the CUDA driver; or add a torch for this driver to its packages",
    ),
    "architecture": ("cuda", NO_CODE, {}, "this torch has no code for this device: add one that has to its packages"),
    "option": ("cuda", {}, {"options": {"tf3": True}}, "unknown option 'tf3'; it takes tf32, "),
}


@pytest.mark.parametrize("device, env, backend, says", BAD.values(), ids=BAD)
def test_what_is_wrong_is_a_line_that_says_what_to_do(
    device: str,
    env: dict[str, str],
    backend: dict[str, object],
    says: str,
    tmp_path: Path,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / device))
    file = config(tmp_path / "c.yaml", 1, {"name": "mine", "like": f"torch-{device}", **backend}, "add")
    done = here(file, *ALONE, "--results", results, **planted(device, tmp_path), **env)
    lines = [x for x in (done.stdout + done.stderr).splitlines() if says in x]
    assert len(lines) == 1 and done.returncode == 2 and "Traceback" not in done.stderr, done.stdout + done.stderr
