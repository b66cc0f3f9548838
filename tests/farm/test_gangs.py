"""Jobs of several devices: on one machine, over the nodes of a cluster of which one dies, and where there are too few."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from farm.fleet import detect_vendors
from farm.fleet.child_process import Limits
from farm.fleet.node import NodeDevices, make_ray_node
from farm.work import gangs, ray_cluster
from farm.work.job import Job
from tasks import wire
from tasks.backends.shared.rank_hosts import RankHosts
from tasks.devices import BY_LABEL
from tests.clusters import Cluster
from tests.conftest import PATIENCE_S, ROOT, here
from tests.farm.test_cluster import rows
from tests.farm.test_resume import wait_for

pytest.importorskip("torch")
OPS, SAMPLES = 7, 2
COLLECTIVES = {"name": "collective", "dtypes": ["float32"], "samples": SAMPLES}
TRAININGS = {"name": "training", "dtypes": ["float32"], "samples": 1, "ops": ["gpt.micro", "gpt.compressed"]}


def config(path: Path, backends: list[object], catalog: dict[str, Any] = COLLECTIVES, **more: object) -> Path:
    # A case that is held up until a node is gone is none that hangs, however long that takes.
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": backends, "deadline_s": 600, **more}))
    return path


# --- one machine
# --------------------------------------------------------------------------------------------------------


def test_a_job_on_one_machine_is_given_all_of_its_devices(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_VENDORS", "huawei=5")
    monkeypatch.setattr(
        detect_vendors, "detect_this_machine", detect_vendors.detect_vendors
    )  # which keeps what another machine had
    done = here(config(tmp_path / "c.yaml", ["heldgloo-huawei"]), "--on", "processes", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    frame = rows(results)
    assert len(frame) == OPS * SAMPLES and set(frame["status"]) == {"pass"}
    assert set(frame["device_ids"]) == {"0,1,2,3"} and set(frame["flags"]) == {"ranks=4"}
    assert "on 4 of 5 devices" in done.stdout


def test_too_few_devices_are_said_in_a_line_and_the_run_goes_on(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_VENDORS", "huawei=3")
    monkeypatch.setattr(
        detect_vendors, "detect_this_machine", detect_vendors.detect_vendors
    )  # which keeps what another machine had
    file = config(tmp_path / "c.yaml", ["gloo-cpu", "heldgloo-huawei"])
    done = here(file, "--on", "processes", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    assert "a job of heldgloo-huawei takes 4 devices (NPU), one for each rank, and there are 3: add nodes" in said
    assert set(rows(results)["backend"]) == {"gloo-cpu"}


# --- ranks that are lost
# --------------------------------------------------------------------------------------------------


def test_no_failure_is_told_where_ranks_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job is lost instead, and its cases are run again: a supervisor that has died is treated so as well."""
    failing = wire.Failing(0, "error", 1, "rank 2 ended")
    told = {
        "passed": wire.Rows(b"", (0,), {"pass": 1}, (0.0, 0.0), ()),
        "failed": wire.Rows(b"", (0,), {"error": 1}, (0.0, 0.0), (failing,)),
        "gone": wire.Gone("gloo: connection refused"),
    }
    monkeypatch.setattr(gangs, "find_ray_node_here", lambda: ("node", []))
    monkeypatch.setattr("farm.work.monitoring.observe_case_times", lambda *args: None)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    gang = gangs.DeviceGang(RankHosts("127.0.0.1", (address,), "token", 2))
    job = Job(name="gang", cache="", limits=Limits())
    for name, message in told.items():
        monkeypatch.setattr(ray_cluster, "run_supervised_job_items", lambda job, message=message: iter([message]))
        lost: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if name == "passed" else pytest.raises(gangs.RanksLost, match="127.0.0.1")
        )
        with lost:
            assert message in list(ray_cluster._run_supervised_job(job, {}, "", gang))


# --- a cluster
# ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    made = Cluster(num_cpus=1, node_name="head")
    yield made
    made.shutdown()


@pytest.fixture
def two(head: Cluster) -> Iterator[dict[str, Any]]:
    """Two nodes of two CPUs and two NPUs each, by name."""
    devices = make_ray_node({"huawei": NodeDevices(BY_LABEL["huawei"], 2)})
    made = {
        name: head.add_node(
            num_cpus=2,
            resources=devices.resources,
            labels=devices.labels | {"gang": "yes"},
            node_name=name,
            include_log_monitor=False,
        )
        for name in ("first", "second")
    }
    head.wait_for_nodes()
    yield made
    for node in made.values():
        if node in head.worker_nodes:
            head.remove_node(node, allow_graceful=False)


def killed_in_mid_job(
    head: Cluster, two: dict[str, Any], file: Path, results: Path, supervisors: bool, go: Path
) -> str:
    """Run a config on the cluster, and kill a node in the midst of a case: that of the supervisor, or the other one.
    Returns what the run said, after its exit code."""
    command = [sys.executable, "-m", "farm.launch", str(file), "--address", head.address, "--results", str(results)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    held = go.with_suffix(".held")

    def is_held() -> bool:
        assert process.poll() is None, f"no case was held up: {process.communicate()[0]}"
        return held.exists() and bool(held.read_text())

    wait_for(is_held, "a case in flight")
    above = {parent.pid for parent in psutil.Process(int(held.read_text())).parents()}
    raylets = {name: node.all_processes["raylet"][0].process.pid for name, node in two.items()}
    (dying,) = [name for name, raylet in raylets.items() if (raylet in above) == supervisors]
    there = psutil.Process(raylets[dying]).children(recursive=True)
    head.remove_node(two[dying], allow_graceful=False)
    psutil.wait_procs(
        there, timeout=PATIENCE_S
    )  # a worker outlives its raylet by a moment, and its ranks would do the case
    go.touch()
    out, _ = process.communicate(timeout=PATIENCE_S)
    return f"{process.returncode} {out}"


@pytest.mark.nightly  # on every commit test_cluster loses a node in the midst of a case, and blames nobody either
@pytest.mark.parametrize("supervisors", [False, True])
@pytest.mark.parametrize(
    ("backend", "at", "more", "cases"),
    [
        ("heldgloo-cpu", 2, {"catalog": COLLECTIVES}, OPS * SAMPLES),
        ("heldddp-cpu", 1, {"catalog": TRAININGS, "checks": ["train"]}, 2),  # a job of each training
    ],
)
def test_a_gang_over_two_nodes_of_which_one_dies_blames_nobody(
    head: Cluster,
    two: dict[str, Any],
    tmp_path: Path,
    results: Path,
    backend: str,
    at: int,
    more: dict[str, Any],
    cases: int,
    supervisors: bool,
) -> None:
    go = tmp_path / "go"
    gang = {"name": backend, "options": {"hold": str(go), "at": at, "ranks": 4}, "labels": {"gang": "yes"}}
    said = killed_in_mid_job(head, two, config(tmp_path / "c.yaml", [gang], **more), results, supervisors, go)
    assert said.startswith("0 "), said
    frame = rows(results)
    assert len(frame) == cases
    assert set(frame["status"]) == {"pass"}, frame[["op", "status", "error"]].to_string()
    # What was under way is done on the node that is left, whose two CPUs the four ranks share.
    assert "ranks=4" in set(frame["flags"]) <= {"ranks=4", "ranks=4 nodes=2"}


@pytest.mark.nightly  # on every commit test_dispatch does so on a simulated cluster
def test_a_gang_whose_devices_are_too_few_for_good_is_unavailable(
    head: Cluster, two: dict[str, Any], tmp_path: Path, results: Path
) -> None:
    go = tmp_path / "go"
    gang = {"name": "heldgloo-huawei", "options": {"hold": str(go)}}
    file = config(tmp_path / "c.yaml", [gang], node_wait_s=2)
    said = killed_in_mid_job(head, two, file, results, False, go)
    assert said.startswith("3 "), said
    frame = rows(results)
    assert len(frame) == OPS * SAMPLES
    assert {"unavailable"} <= set(frame["status"]) <= {"pass", "unavailable"}
    gone = frame[frame["status"] == "unavailable"]
    assert gone["error"].str.contains("takes 4 devices (NPU), one for each rank, and there are 2", regex=False).all()
