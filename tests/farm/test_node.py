"""What a node is taken to have: from device files, sysfs and commands that are planted, by hand, by variable."""

from __future__ import annotations

import os
import shlex
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from farm.commands import node as node_command
from farm.fleet import ask_backends, detect_vendors, inventory, node, visible_devices
from farm.fleet.channel import Interpreter
from farm.fleet.child_process import Limits
from farm.fleet.inventory import BackendOffer
from farm.plan.config import BackendConfig
from farm.work import catalog_lists, child_pool, gangs, ray_cluster
from farm.work.claims import DeviceClaim
from farm.work.job import Job
from tasks import wire
from tasks.backends import BackendSpec
from tasks.backends.base import FRACTION
from tasks.catalogs.user import load_kernels
from tasks.devices import BY_LABEL, DEVICE_NUMBER, DEVICE_VENDOR, DEVICES, Device
from tasks.model import BackendInfo
from tests.conftest import ROOT, refusal_of

#: What nvidia-smi says of two cards.
CARDS = "echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H200 (UUID: GPU-2)'"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file tree of a machine without devices, and no commands."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv(detect_vendors.OVERRIDE, raising=False)
    (tmp_path / "bin").mkdir()
    return tmp_path


def plant(root: Path, path: str, text: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def pci(root: Path, vendor: str, kind: str, name: str = "0000:01:00.0") -> None:
    plant(root, f"/sys/bus/pci/devices/{name}/vendor", f"0x{vendor}\n")
    plant(root, f"/sys/bus/pci/devices/{name}/class", f"0x{kind}00\n")


def command(root: Path, name: str, script: str) -> None:
    file = root / "bin" / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


def found(root: Path) -> dict[str, tuple[int, tuple[str, ...]]]:
    return {label: (f.count, f.models) for label, f in detect_vendors.detect_vendors(root).items() if f.count}


def test_a_machine_without_devices_has_none_and_says_what_was_looked_for(root: Path) -> None:
    assert found(root) == {}
    reason = detect_vendors.detect_vendors(root)["nvidia"].reason
    assert (
        reason
        == "no NVIDIA device on this node (no /dev/nvidia*, no /dev/nvhost-gpu, no such PCI device, nvidia-smi not found)"
    )


def test_devices_are_counted_and_named_by_the_best_source(root: Path) -> None:
    for i in range(2):
        plant(root, f"/dev/nvidia{i}")
    plant(root, "/dev/nvidia-uvm")
    assert found(root) == {"nvidia": (2, ("", ""))}
    plant(root, "/proc/driver/nvidia/gpus/0000:01:00.0/information", "Model: \t\t NVIDIA A10\nIRQ: 12\n")
    assert found(root) == {"nvidia": (1, ("NVIDIA A10",))}
    command(root, "nvidia-smi", CARDS)
    assert found(root) == {"nvidia": (2, ("NVIDIA H200", "NVIDIA H200"))}


def test_a_card_that_is_cut_into_slices_counts_as_its_slices_called_by_their_ids(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    plant(root, "/dev/nvidia0")
    slices = "echo '  MIG 3g.40gb     Device  0: (UUID: MIG-a1)'; echo '  MIG 3g.40gb     Device  1: (UUID: MIG-a2)'"
    command(root, "nvidia-smi", f"{CARDS}; {slices}")
    seen = detect_vendors.detect_vendors(root)["nvidia"]
    assert (seen.count, seen.models, seen.uuids, seen.parts) == (
        3,
        ("NVIDIA H200", "3g.40gb", "3g.40gb"),
        ("GPU-1", "MIG-a1", "MIG-a2"),
        True,
    )
    command(root, "nvidia-smi", f"echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)'; {slices}")
    made = node.make_ray_node(node.find_devices_here([], detect_vendors.detect_vendors(root)))
    assert made.resources == {"GPU": 2} and made.variables == {"CUDA_VISIBLE_DEVICES": "MIG-a1,MIG-a2"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a2")  # as a scheduler gives one of them
    made = node.make_ray_node(node.find_devices_here([], detect_vendors.detect_vendors(root)))
    assert made.resources == {"GPU": 1} and not made.variables
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b1")  # another node's
    with pytest.raises(ValueError, match=r"is 'MIG-b1', and this machine has MIG-a1, MIG-a2 of NVIDIA"):
        node.find_devices_here([], detect_vendors.detect_vendors(root))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1")  # the card, which is not listed any more
    assert node.find_devices_here([], detect_vendors.detect_vendors(root))["nvidia"].count == 1


@pytest.mark.parametrize(
    ("variable", "value", "count"),
    [
        ("CUDA_VISIBLE_DEVICES", "1", 1),
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3", 2),
        ("CUDA_VISIBLE_DEVICES", "1,7,0", 1),  # what comes before the first that is not there
        ("CUDA_VISIBLE_DEVICES", "GPU-1", 1),
        ("CUDA_VISIBLE_DEVICES", "", 0),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles", 0),
        ("CUDA_VISIBLE_DEVICES", "all", 2),
        ("HIP_VISIBLE_DEVICES", "", 2),
    ],
)
def test_no_more_is_offered_than_the_process_was_given(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, count: int
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    command(root, "nvidia-smi", CARDS)
    monkeypatch.setenv(variable, value)
    made = node.make_ray_node(node.find_devices_here([], detect_vendors.detect_vendors(root)))
    assert made.resources.get("GPU", 0) == count


@pytest.mark.parametrize(
    ("env", "count"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, 1),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0,1"}, 2),  # HIP's own counts
        ({"CUDA_VISIBLE_DEVICES": "0", "ROCR_VISIBLE_DEVICES": "0,1"}, 1),
        ({}, 2),
    ],
)
def test_cudas_variable_bounds_amds_devices_where_hips_is_not_set(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], env: dict[str, str], count: int
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", *BY_LABEL["amd"].visible):
        monkeypatch.delenv(name, raising=False)
    command(root, "rocm-smi", "for i in 0 1; do echo card$i,AMD Instinct MI300X,0x1; done")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert (
        node.make_ray_node(node.find_devices_here([], detect_vendors.detect_vendors(root))).resources.get("GPU", 0)
        == count
    )
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "zero")
    assert node_command.main(["detect"]) == 2 and "$CUDA_VISIBLE_DEVICES is 'zero'" in capsys.readouterr().err
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "9")
    assert node_command.main(["detect"]) == 2
    assert "$HIP_VISIBLE_DEVICES is '9', and this machine has devices 0 to 1 of AMD" in capsys.readouterr().err
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "1")  # among which HIP's numbers count
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "1")
    assert node_command.main(["detect"]) == 2
    assert "$HIP_VISIBLE_DEVICES is '1', and this machine has device 0 of AMD" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "code", "says"),
    [
        ({"ASCEND_RT_VISIBLE_DEVICES": "7"}, 2, "$ASCEND_RT_VISIBLE_DEVICES is '7', and this machine has devices 0 to 1 of Huawei"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "1"}, 0, "lists 2; $ASCEND_RT_VISIBLE_DEVICES is '1': offering 1"),
        ({"ASCEND_RT_VISIBLE_DEVICES": ""}, 0, "lists 2; $ASCEND_RT_VISIBLE_DEVICES is '': offering none"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "0,1"}, 0, "npu-smi info -m lists 2\n"),
    ],
)  # fmt: skip
def test_a_variable_that_leaves_devices_out_is_told_where_they_are_found(
    env: dict[str, str],
    code: int,
    says: str,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command(root, "npu-smi", "for i in 0 1; do echo $i 0 $i Ascend 910B3; done")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert node_command.main(["detect"]) == code
    assert says in "".join(capsys.readouterr())


def test_nonsense_in_a_variable_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command(root, "nvidia-smi", CARDS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "first two")
    for args in (["start", "--head", "--dry-run"], ["detect"]):
        assert node_command.main(args) == 2
        assert "$CUDA_VISIBLE_DEVICES is 'first two'" in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    assert node_command.main(["detect"]) == 2
    said = "$CUDA_VISIBLE_DEVICES is '7', and this machine has devices 0 to 1 of NVIDIA; name those, or unset it"
    assert said in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3")
    assert node_command.main(["detect"]) == 2
    said = "$CUDA_VISIBLE_DEVICES is 'GPU-3', and this machine has GPU-1, GPU-2 of NVIDIA; name those, or unset it"
    assert said in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert node_command.main(["start", "--head", "--dry-run", "--vendor", "nvidia=2"]) == 2
    assert "$CUDA_VISIBLE_DEVICES gives this process 1" in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")  # of a machine that shows two of its four
    assert node_command.main(["start", "--head", "--dry-run", "--vendor", "nvidia=4"]) == 0


@pytest.mark.parametrize(
    ("env", "added"),
    [
        ({"ROCR_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "0,1"}),  # as Slurm gives two of a node's
        ({"ROCR_VISIBLE_DEVICES": ""}, {"HIP_VISIBLE_DEVICES": "-1"}),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1"}, {}),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "CUDA_VISIBLE_DEVICES": "1"}, {"HIP_VISIBLE_DEVICES": "1"}),
        ({}, {}),
    ],
)
def test_ray_is_not_left_with_rocrs_variable_alone(env: dict[str, str], added: dict[str, str]) -> None:
    """Ray, where AMD's driver is, refuses to be imported with it: "Please use HIP_VISIBLE_DEVICES instead"."""
    assert visible_devices.make_variables_for_ray(env) == added


def test_a_node_of_amds_that_slurm_gave_some_of_is_started_with_hips_variable(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIP_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "2,3")
    command(root, "rocm-smi", "for i in 0 1 2 3; do echo card$i,AMD Instinct MI300X,0x1; done")
    made = node.make_ray_node(node.find_devices_here([], detect_vendors.detect_vendors(root)))
    assert made.resources == {"GPU": 2} and made.variables == {"HIP_VISIBLE_DEVICES": "0,1"}


def test_what_was_found_is_folded_to_a_terminal(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert node_command.main(["detect"]) == 0
    *said, start, then = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= 80 and said[0].startswith("nvidia      none: ") and said[1].startswith(" " * 12)
    assert start.startswith("ray start ") and then.startswith("next, ")  # to be copied


def test_detection_ends_with_the_command_to_type_next(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label, config in (("", "vendors"), ("nvidia", "cuda"), ("amd", "rocm"), ("intel", "xpu"), ("gaudi", "gaudi")):
        os.environ[detect_vendors.OVERRIDE] = label and f"{label}=2"
        try:
            assert node_command.main(["detect"]) == 0
        finally:
            del os.environ[detect_vendors.OVERRIDE]
        assert capsys.readouterr().out.splitlines()[-1].endswith(f"farm run configs/{config}.yaml")
        assert (ROOT / "configs" / f"{config}.yaml").exists()


@pytest.mark.parametrize(
    ("label", "numbers", "env", "given"),
    [
        ("amd", ["1"], {}, {"HIP_VISIBLE_DEVICES": "1"}),
        ("amd", ["1"], {"HIP_VISIBLE_DEVICES": "1"}, {"HIP_VISIBLE_DEVICES": "1"}),  # Ray has set it
        ("amd", ["1"], {"HIP_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "3"}),  # the node was given two of four
        ("amd", ["1"], {"ROCR_VISIBLE_DEVICES": "2,3"}, {"HIP_VISIBLE_DEVICES": "1"}),  # numbers among those
        (
            "amd",
            ["0"],
            {"CUDA_VISIBLE_DEVICES": "1"},
            {"HIP_VISIBLE_DEVICES": "1"},
        ),  # which ROCm reads where HIP's is not set
        ("amd", ["0"], {"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "3"}, {"HIP_VISIBLE_DEVICES": "3"}),
        (
            "amd",
            ["1"],
            {"CUDA_VISIBLE_DEVICES": "1"},
            {"HIP_VISIBLE_DEVICES": "1"},
        ),  # Ray has set that one: the same card
        (
            "amd",
            ["1"],
            {"CUDA_VISIBLE_DEVICES": ""},
            {"HIP_VISIBLE_DEVICES": "1"},
        ),  # beside NVIDIA's, of which it has none
        ("nvidia", ["0"], {"HIP_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "0"}),
        ("intel", ["0", "1"], {}, {"ONEAPI_DEVICE_SELECTOR": "level_zero:0,1"}),
        ("intel", ["0"], {"ONEAPI_DEVICE_SELECTOR": "level_zero:3"}, {"ONEAPI_DEVICE_SELECTOR": "level_zero:3"}),
        ("intel", ["0"], {"ONEAPI_DEVICE_SELECTOR": "level_zero:gpu"}, {"ONEAPI_DEVICE_SELECTOR": "level_zero:0"}),
        ("aws", ["1"], {"NEURON_RT_VISIBLE_CORES": "4-7"}, {"NEURON_RT_VISIBLE_CORES": "5"}),
        ("rockchip", ["0"], {}, {}),
        ("", [], {}, {}),
    ],
)
def test_a_task_sees_the_devices_that_ray_gave_it(
    label: str, numbers: list[str], env: dict[str, str], given: dict[str, str]
) -> None:
    assert visible_devices.build_vendor_variable(label, numbers, env) == given


def test_a_job_is_told_its_share_of_a_device_and_which_one_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ray's task: the share is what bounds a runtime's memory, the number what those compute on that heed no
    variable."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    sent: list[Any] = []
    task = types.SimpleNamespace(remote=lambda *given: sent.append(given) or len(sent))  # type: ignore[func-returns-value]
    cluster: Any = object.__new__(ray_cluster.RayCluster)
    cluster.nodes, cluster.ship, cluster._asked, cluster._next = [], False, None, 0
    cluster._running, cluster._load = {}, {}
    cluster._task = types.SimpleNamespace(options=lambda **how: sent.append(how) or task)  # type: ignore[func-returns-value]
    offer = BackendOffer("torch-cuda", "NVIDIA", "nvidia", "GPU", [], False, node_ids=["n"], resources={"n": "GPU"})
    cluster.submit(
        Job(name="j", cache=str(tmp_path), limits=Limits(), env={FRACTION: "0.25"}), offer, DeviceClaim(0.25)
    )
    (how, (job, *where)) = sent
    assert how["num_gpus"] == 0.25 and job.env == {FRACTION: "0.25"}
    monkeypatch.setattr(gangs, "find_ray_node_here", lambda: ("n", ["1"]))
    monkeypatch.setattr(ray_cluster, "run_supervised_job_items", lambda job: iter([job]))
    _, (told,) = ray_cluster._run_supervisor_task(job, *where)
    assert told.env == {FRACTION: "0.25", "CUDA_VISIBLE_DEVICES": "1", DEVICE_NUMBER: "1"} and told.device == "1"
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "2,3")  # which Ray does not know to be AMD's without AMD's own package
    _, (told,) = ray_cluster._run_supervisor_task(job, where[0], "amd", *where[2:])
    assert told.device == told.env["HIP_VISIBLE_DEVICES"] == "3"


def test_rows_of_another_farms_columns_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node says which rows it will send before it sends any; an older farm on it says nothing."""
    exceptions = pytest.importorskip("ray.exceptions")
    monkeypatch.setattr(gangs, "find_ray_node_here", lambda: ("n", []))
    monkeypatch.setattr(ray_cluster, "run_supervised_job_items", lambda job: iter(()))
    (begun,) = ray_cluster._run_supervisor_task(Job(name="j", cache=str(tmp_path), limits=Limits()), {}, "", "CPU", 1)
    older = object.__new__(wire.Begun)
    older.__dict__["place"] = begun.place
    cluster: Any = object.__new__(ray_cluster.RayCluster)
    cluster.nodes, cluster._ray = [{"id": "n", "host": "gpu-7"}], types.SimpleNamespace(exceptions=exceptions)
    cluster._ray.wait = lambda streams, **how: (streams, [])
    cluster._ray.get = lambda message: message
    for message in (begun, older, replace(begun, columns="0123abcd")):
        cluster._running, cluster._parcels = {iter([message]): 1}, {}
        if message is begun:
            assert list(cluster.poll(0.0)) == [(1, begun)]
            continue
        with pytest.raises(
            OSError, match=rf"^gpu-7 has farm .*columns {message.columns or 'unknown'}\).*{begun.columns}"
        ):
            list(cluster.poll(0.0))


@pytest.mark.parametrize(
    ("backend", "env", "called"),
    [
        ("torch-cuda", {}, "0"),
        ("torch-cuda", {"CUDA_VISIBLE_DEVICES": "3,5"}, "3"),  # as Slurm gives two of a node's
        ("torch-cuda", {"CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2"}, "MIG-1"),
        ("nccl-cuda", {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "4,5,6,7"),
        ("torch-rocm", {"HIP_VISIBLE_DEVICES": "2,3"}, "2"),
        ("torch-cpu", {"CUDA_VISIBLE_DEVICES": "3"}, ""),
        (None, {}, ""),
    ],
)
def test_what_nobody_was_given_by_number_is_the_first_that_is_visible(
    backend: str | None, env: dict[str, str], called: str
) -> None:
    assert visible_devices.name_first_visible_device(BackendSpec.parse(backend) if backend else None, env) == called


@pytest.mark.parametrize(
    ("backend", "hidden"),
    [
        (None, {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ONEAPI_DEVICE_SELECTOR": "*:cpu"}),
        ("torch-cpu", {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1", "ONEAPI_DEVICE_SELECTOR": "*:cpu"}),
        ("torch-cuda", {"HIP_VISIBLE_DEVICES": "-1", "ONEAPI_DEVICE_SELECTOR": "*:cpu"}),
        ("torch-rocm", {"ONEAPI_DEVICE_SELECTOR": "*:cpu"}),  # it reads CUDA's variable as well
        ("torch-xpu", {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "-1"}),
    ],
)
def test_a_child_sees_no_devices_but_its_backends(backend: str | None, hidden: dict[str, str]) -> None:
    env = visible_devices.build_child_variables(BackendSpec.parse(backend) if backend else None)
    vendor = env.pop(DEVICE_VENDOR)
    assert env == hidden
    assert vendor == {"torch-cuda": "nvidia", "torch-rocm": "amd", "torch-xpu": "intel"}.get(backend or "", "")


def test_preparing_and_listing_children_are_started_without_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    given: list[dict[str, str]] = []

    def asked(python: str, limits: Limits, env: dict[str, str], *more: object) -> tuple[Any, Any]:
        given.append(env)
        told = {
            "alive": lambda: True,
            "cpu_s": lambda: 0.0,
            "resident": lambda: 0,
            "process": types.SimpleNamespace(pid=1),
        }
        return types.SimpleNamespace(close=lambda: None, **told), wire.Ready()

    monkeypatch.setattr(child_pool.ChildProcess, "start_and_ask", asked)
    child_pool.ChildPool().get(Job(name="p", cache=str(tmp_path), limits=Limits()))
    catalog_lists._ask_for_catalog_list("torch", 1.0)
    assert [env["CUDA_VISIBLE_DEVICES"] for env in given] == ["", ""]


@pytest.mark.parametrize(
    ("vendor", "backends", "mode", "most"),
    [
        ("google", ("jax-tpu", "torch-xla"), "", 1),
        ("amd", ("jax-rocm", "torch-rocm"), "", 2),
        ("nvidia", ("jax-cuda", "torch-cuda"), "Default", 2),
        ("nvidia", ("jax-cuda", "torch-cuda"), "Default\nExclusive_Process", 1),  # as nvidia-smi -c has set the second
    ],
)
def test_backends_of_a_device_that_one_process_may_open_are_asked_one_after_another(
    vendor: str,
    backends: tuple[str, ...],
    mode: str,
    most: int,
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if mode:
        command(root, "nvidia-smi", f"echo '{mode}'")
    detect_vendors.allows_one_process.cache_clear()
    asked_now: list[int] = []
    seen: list[int] = []

    def asked(*how: object) -> tuple[Any, Any]:
        asked_now.append(1)
        until = time.monotonic() + (0.3 if most == 1 else 20)
        while time.monotonic() < until and max(seen, default=0) < 2:
            seen.append(len(asked_now))
            time.sleep(0.01)
        return types.SimpleNamespace(close=asked_now.pop), wire.Ready(BackendInfo(device_vendor=vendor))

    monkeypatch.setattr(ask_backends.ChildProcess, "start_and_ask", asked)
    monkeypatch.setattr(ask_backends.envs, "find_environment", lambda spec: None)
    monkeypatch.setattr(ask_backends.envs, "build_interpreter_of_backend", lambda *a: Interpreter(sys.executable))
    specs = [BackendSpec.parse(name) for name in backends]
    answers = ask_backends.probe_backends(specs, tmp_path)
    assert max(seen) == most and {isinstance(a, BackendInfo) and a.exclusive for a in answers.values()} == {most == 1}
    assert child_pool._is_device_exclusive(wire.Ready(BackendInfo(device_vendor=vendor))) is (most == 1)
    info = next(iter(answers.values()))
    assert isinstance(info, BackendInfo)
    offer = BackendOffer("x", "V", vendor, "GPU", [], False, True, nodes=["here"], info=info)
    shared = ": nvidia-smi -c DEFAULT lets several share it" * (vendor == "nvidia")
    assert (f"one process at a time{shared}, on here" in offer.words) is (most == 1)
    detect_vendors.allows_one_process.cache_clear()


@pytest.mark.parametrize(("vendor", "interpreted"), [("", "1"), ("intel", None), ("nvidia", None)])
def test_tritons_interpreter_is_for_backends_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, vendor: str, interpreted: str | None
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "to be put back")
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setenv(DEVICE_VENDOR, vendor)
    monkeypatch.setattr(load_kernels.importlib.util, "find_spec", lambda name: object())
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    load_kernels._switch_triton_to_interpreter()
    assert os.environ.get("TRITON_INTERPRET") == interpreted


def test_a_device_node_of_a_common_class_is_the_vendors_whose_it_is(root: Path) -> None:
    plant(root, "/dev/accel/accel0")
    plant(root, "/sys/class/accel/accel0/device/vendor", "0x8086\n")
    plant(root, "/sys/class/accel/accel0/device/class", "0x120000\n")
    plant(root, "/dev/dri/renderD128")
    plant(root, "/sys/class/drm/renderD128/device/vendor", "0x1002\n")
    plant(root, "/sys/class/drm/renderD128/device/class", "0x030000\n")
    plant(root, "/dev/vfio/12")
    assert found(root) == {"intel-npu": (1, ("",))}


def test_amds_one_device_node_is_not_one_gpu(root: Path) -> None:
    plant(root, "/dev/kfd")
    for i, simds in enumerate((0, 440, 440)):
        plant(root, f"/sys/class/kfd/kfd/topology/nodes/{i}/properties", f"cpu_cores_count 0\nsimd_count {simds}\n")
    assert found(root)["amd"][0] == 2
    command(
        root,
        "rocm-smi",
        "printf 'device,Card Series,Card Model\\ncard0,AMD Instinct MI300X,0x1\\ncard1,AMD Instinct MI300X,0x1\\n'",
    )
    assert found(root)["amd"] == (2, ("AMD Instinct MI300X",) * 2)


def shut(monkeypatch: pytest.MonkeyPatch, *nodes: str, group: int = 109, mode: int = 0o20660) -> None:
    """Device nodes that this user may not open. A test's user may be root, who may open anything."""
    monkeypatch.setattr(detect_vendors.os, "access", lambda path, mode: not str(path).endswith(nodes))
    monkeypatch.setattr(detect_vendors.os, "stat", lambda path: types.SimpleNamespace(st_gid=group, st_mode=mode))
    monkeypatch.setattr("grp.getgrgid", lambda number: types.SimpleNamespace(gr_name={109: "render"}[number]))


def test_a_device_node_that_this_user_may_not_open_is_told_with_the_group_that_may(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /dev/kfd is of the groups render and video: Ray is offered none of its devices, and no environment is
    built."""
    topology = "/sys/class/kfd/kfd/topology/nodes/1/properties"
    plant(root, "/dev/kfd")
    plant(root, topology, "simd_count 440\n")
    command(root, "rocm-smi", "printf 'device,Card Series\\ncard0,AMD Instinct MI300X\\n'")  # which reads sysfs
    assert "may not open" not in detect_vendors.detect_vendors(root)["amd"].words
    with monkeypatch.context() as made:
        shut(made, "/dev/kfd")
        found = detect_vendors.detect_vendors(root)
        words = "this user may not open /dev/kfd, so none is offered: sudo usermod -aG render $USER, and log in again"
        assert found["amd"].words.startswith("1 × AMD Instinct MI300X: /dev/kfd; ")
        assert found["amd"].words.endswith(f"; {words}") and node.find_devices_here([], found) == {}
        made.setattr(detect_vendors, "detect_this_machine", lambda: found)
        assert "amd" not in detect_vendors.list_node_devices()
        assert detect_vendors.explain_missing_vendor("amd") == f"{words} ($FARM_VENDORS=amd tries anyway)"
        made.setenv("FARM_VENDORS", "amd=1")
        assert (
            detect_vendors.explain_missing_vendor("amd") == "" and node.find_devices_here([], found)["amd"].count == 1
        )
    shut(monkeypatch, "/dev/kfd", mode=0o20000)
    assert detect_vendors.detect_vendors(root)["amd"].words.endswith(
        "; this user may not open /dev/kfd, so none is offered"
    )


def test_a_gpu_of_amds_takes_its_render_node_as_well(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may be given the one device node of all, and the render nodes of some; a user may open neither."""
    plant(root, "/dev/kfd")
    for i, render in enumerate(("0", "128", "129", "130")):
        said = f"cpu_cores_count 0\nsimd_count {i and 440}\nvendor_id 4098\ndrm_render_minor {render}\n"
        plant(root, f"/sys/class/kfd/kfd/topology/nodes/{i}/properties", said)
    command(root, "rocm-smi", "for i in 0 1 2; do echo card$i,AMD Instinct MI300X,0x1; done")  # of all that sysfs has
    found = detect_vendors.detect_vendors(root)["amd"]
    assert node.find_devices_here([], {"amd": found}) == {} and found.shut
    absent = "there is no /dev/dri/renderD128, /dev/dri/renderD129, /dev/dri/renderD130 (docker run --device=/dev/dri)"
    assert found.words.endswith(f"; {absent}, so none is offered")
    for number in (128, 129):
        plant(root, f"/dev/dri/renderD{number}")
    found = detect_vendors.detect_vendors(root)["amd"]
    assert (
        found.words.startswith("2 × AMD Instinct MI300X: ")
        and node.find_devices_here([], {"amd": found})["amd"].count == 2
    )
    shut(monkeypatch, "/dev/dri/renderD129")
    found = detect_vendors.detect_vendors(root)["amd"]
    denied = (
        "this user may not open /dev/dri/renderD129 and there is no /dev/dri/renderD130 (docker run --device=/dev/dri)"
    )
    assert found.count == 1 and found.words.endswith(f"; {denied}: sudo usermod -aG render $USER, and log in again")


def test_of_several_cards_those_that_this_user_may_open_are_offered(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        plant(root, f"/dev/nvidia{number}")
        plant(root, f"/proc/driver/nvidia/gpus/0000:0{number}:00.0/information", "Model: \t NVIDIA L4\n")
    shut(monkeypatch, "/dev/nvidia1")
    found = detect_vendors.detect_vendors(root)["nvidia"]
    assert found.words.startswith("1 × NVIDIA L4: ") and found.words.split("; ")[-1].startswith(
        "this user may not open /dev/nvidia1: sudo"
    )
    # What NVIDIA's command lists it has opened: where a node's mode is wrong, the driver's helper puts it right.
    command(root, "nvidia-smi", 'for i in 0 1; do echo "GPU $i: NVIDIA L4 (UUID: GPU-$i)"; done')
    assert detect_vendors.detect_vendors(root)["nvidia"].count == 2


def test_a_device_without_a_driver_is_seen_and_not_offered(root: Path) -> None:
    pci(root, "10de", "0302")
    finding = detect_vendors.detect_vendors(root)["nvidia"]
    assert (finding.count, finding.because) == (0, ("PCI device 0000:01:00.0",))
    assert node.find_devices_here([], detect_vendors.detect_vendors(root)) == {}


@pytest.mark.parametrize(
    "script, why",
    [
        ("sleep 60", "nvidia-smi did not answer within 0.3 s"),
        ("echo no driver; exit 9", "nvidia-smi failed: no driver"),
        ("exit 0", "nvidia-smi lists none"),
    ],
)
def test_a_command_that_fails_or_hangs_is_a_reason(
    root: Path, script: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect_vendors, "COMMAND_S", 0.3)
    command(root, "nvidia-smi", script.replace("sleep", "/bin/sleep"))
    assert why in detect_vendors.detect_vendors(root)["nvidia"].reason


def test_cores_are_counted_where_ray_counts_cores(root: Path) -> None:
    plant(root, "/dev/neuron0")
    command(root, "neuron-ls", """echo '[{"neuron_device": 0, "nc_count": 8}, {"neuron_device": 1, "nc_count": 8}]'""")
    assert detect_vendors.detect_vendors(root)["aws"].count == 16


def test_one_vendor_owns_rays_resource_and_all_are_counted_in_labels() -> None:
    devices = {
        label: node.NodeDevices(BY_LABEL[label], n, (model,) * n)
        for label, n, model in [
            ("intel", 1, "Intel(R) Arc(TM) A770"),
            ("nvidia", 2, "NVIDIA H200"),
            ("huawei", 8, "Ascend 910B3"),
        ]
    }
    made = node.make_ray_node(devices)
    assert made.resources == {"GPU": 2, "intel-GPU": 1, "NPU": 8}
    assert made.labels == {
        "vendor": "nvidia",
        "device-model": "H200",
        "farm.io/nvidia": "2",
        "farm.io/intel": "1",
        "model.farm.io/intel": "Arc-A770",
        "farm.io/huawei": "8",
        "model.farm.io/huawei": "Ascend-910B3",
    }
    assert "--num-gpus=2" in made.arguments()


def start(*args: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = node_command.main(["start", "--head", "--dry-run", *args])
    said = capsys.readouterr()
    return code, said.out + said.err


def test_by_hand_overrides_detection(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = start("--vendor", "huawei=4", "--labels", "rack=7,device-model=910", "--num-cpus=3", capsys=capsys)
    assert code == 0
    assert shlex.split(said) == [
        "ray",
        "start",
        "--head",
        "--num-gpus=0",
        '--resources={"NPU": 4.0}',
        "--labels=vendor=huawei,farm.io/huawei=4,rack=7,device-model=910",
        "--num-cpus=3",
    ]


def test_ray_is_offered_the_cpus_that_this_process_may_use(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler's step has few of the machine's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5})
    code, said = start("--vendor", "nvidia=2", capsys=capsys)
    assert code == 0 and "--num-cpus=2" in shlex.split(said)
    told: list[dict[str, Any]] = []

    def refuse(**options: Any) -> None:
        told.append(options)
        raise RuntimeError("enough is known")

    monkeypatch.setattr("ray.init", refuse)
    for given in (None, 7):
        with pytest.raises(OSError, match="enough is known"):
            ray_cluster.RayCluster(None, given)
    assert [x["num_cpus"] for x in told] == [2, 7]


@pytest.mark.parametrize(
    "args",
    [
        ("--vendor", "nvida"),
        ("--labels", "vendor=nvida"),
        ("--vendor", "nvidia=two"),
        ("--labels", "rack"),
        ("--resources", "NPU=1"),
    ],
)
def test_bad_input_is_named(root: Path, args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, said = start(*args, capsys=capsys)
    assert code == 2
    assert args[1].partition("=")[0] in said
    if "nvida" in args[1]:
        assert "known: nvidia, amd" in said


def test_a_label_nobody_knows_is_said_in_the_preflight() -> None:
    odd = {"id": "a", "host": "a", "resources": {"GPU": 1.0}, "labels": {"vendor": "nvida"}}
    offer = inventory.join_node_offers(
        [BackendConfig(name="torch-cuda").spec()], [odd], {"a": {"torch-cuda": BackendInfo()}}
    )["torch-cuda"]
    assert not offer.available
    assert "unknown vendor label 'nvida' on the node; known: nvidia" in offer.reason


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_what_can_be_used_on_one_node_is_not_broken(order: list[str]) -> None:
    """A file that one node lacks."""
    cpu = {"resources": {"CPU": 1.0}, "labels": {}}
    nodes = [{"id": name, "host": name} | cpu for name in order]
    broken = {"torch-cpu": wire.Refused("no such file", broken=True)}
    specs = [BackendConfig(name="torch-cpu").spec()]

    def join(**answers: Any) -> BackendOffer:
        return inventory.join_node_offers(specs, nodes, answers)["torch-cpu"]

    assert join(a=broken, b=broken).broken and join(a=broken, b=broken).record()["broken"]
    assert not join(a=broken, b={"torch-cpu": BackendInfo()}).broken
    assert not join(a={"torch-cpu": wire.Refused("no torch")}).broken


def test_no_environment_is_built_where_no_device_is(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = BackendSpec("gpu-nvidia", "gpu", "nvidia", packages=("no-such-package-of-gigabytes==1",))
    monkeypatch.setattr(detect_vendors, "detect_this_machine", lambda: detect_vendors.detect_vendors(root))
    monkeypatch.setattr("farm.fleet.envs.build_environment", lambda *a, **k: pytest.fail("it was built"))
    assert refusal_of(ask_backends.probe_backends([spec], tmp_path)["gpu-nvidia"]).startswith(
        "no NVIDIA device on this node"
    )
    monkeypatch.setenv(detect_vendors.OVERRIDE, "amd")
    assert "FARM_VENDORS" in refusal_of(ask_backends.probe_backends([spec], tmp_path)["gpu-nvidia"])


@pytest.mark.parametrize(
    "labels", [{"vendor": "nvidia"}, {"vendor": "intel", "farm.io/intel": "1", "farm.io/nvidia": "1"}]
)
def test_a_node_is_believed_what_its_labels_say(
    root: Path, labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detect_vendors, "detect_this_machine", lambda: detect_vendors.detect_vendors(root))
    assert detect_vendors.explain_missing_vendor("nvidia", labels) == ""
    assert detect_vendors.explain_missing_vendor("amd", labels) != ""


def test_the_variable_names_known_vendors_alone(root: Path) -> None:
    os.environ[detect_vendors.OVERRIDE] = "nvida"
    try:
        with pytest.raises(detect_vendors.UnknownVendor, match="known: nvidia"):
            detect_vendors.list_node_devices()
    finally:
        del os.environ[detect_vendors.OVERRIDE]


def test_the_table_is_consistent() -> None:
    assert len(BY_LABEL) == len(DEVICES)
    for vendor in DEVICES:
        assert vendor.files or vendor.pci or vendor.commands, vendor.label


@pytest.mark.parametrize("vendor", DEVICES, ids=lambda v: v.label)
def test_what_is_to_be_typed_next_runs_on_the_vendors_device(vendor: Device) -> None:
    """Or on the vendor's own simulator of it."""
    backends = yaml.safe_load((ROOT / vendor.config).read_text())["backends"]
    named = [{"name": b} if isinstance(b, str) else b for b in backends]
    keys = ("name", "like", "options")
    made = [BackendSpec.parse(**{k: b[k] for k in keys if k in b}).create() for b in named]
    assert [b for b in made if b.device_vendor == vendor.label or (b.emulated and b.vendor == vendor.name)]
