"""A cluster of four vendors' (simulated) nodes: every cell on a node that fits, whatever comes, goes or falls sick."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from farm import lake
from farm.fleet.node import NodeDevices, make_ray_node
from farm.work import fleet_changes
from tasks.devices import BY_LABEL
from tests.clusters import Cluster
from tests.conftest import ROOT, here, launch
from tests.farm.test_resume import descendants, is_child, wait_for

OPS, SAMPLES = 10, 20


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    made = Cluster(num_cpus=2, node_name="head")
    yield made
    made.shutdown()


class Nodes:
    """The nodes of one test, beside the head."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.address = cluster, cluster.address
        self.there: list[Any] = []

    def add(self, name: str, sick: str = "", **counts: int) -> Any:
        """A node with devices as `farm.node start` would label it; each device's model is its vendor's name and
        "X1"."""
        made = make_ray_node({v: NodeDevices(BY_LABEL[v], n, (f"{v} X1",) * n) for v, n in counts.items()})
        gpus = int(made.resources.pop("GPU", 0))
        node = self.cluster.add_node(
            num_cpus=0,
            num_gpus=gpus,
            resources=made.resources,
            labels=made.labels,
            node_name=name,
            env_vars={"FARM_SICK": sick} if sick else None,
            wait=False,
            include_log_monitor=False,
        )
        self.there.append(node)
        return node

    def remove(self, node: Any) -> None:
        self.there.remove(node)
        self.cluster.remove_node(node, allow_graceful=False)


@contextlib.contextmanager
def beside(head: Cluster) -> Iterator[Nodes]:
    made = Nodes(head)
    yield made
    for node in list(made.there):
        made.remove(node)


@pytest.fixture
def nodes(head: Cluster) -> Iterator[Nodes]:
    with beside(head) as made:
        yield made


def config(path: Path, backends: list[object], samples: int = SAMPLES, **more: object) -> Path:
    catalog = {"name": "load", "dtypes": ["float32"], "samples": samples}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": backends, **more}))
    return path


def start(file: Path, nodes: Nodes, results: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "farm.launch", str(file), "--address", nodes.address, "--results", str(results)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def rows(results: Path) -> pd.DataFrame:
    return lake.read(results, lake.run_ids(results)[-1])


def record(results: Path) -> dict[str, Any]:
    return lake.read_run(results, lake.run_ids(results)[-1])


def ran_on(results: Path, node: str) -> bool:
    """Whether rows of a node are in the lake of the run that goes on."""
    return bool(lake.run_ids(results)) and node in set(rows(results)["node"])


@pytest.mark.nightly
def test_every_cell_lands_on_a_node_that_fits_while_nodes_come_and_go(
    nodes: Nodes, tmp_path: Path, results: Path
) -> None:
    nodes.add("nvidia-a", nvidia=2, huawei=1)
    nodes.add("nvidia-b", nvidia=1, intel=1)  # Ray's GPU is NVIDIA's there
    leaving = nodes.add("amd-a", amd=1)
    nodes.add("intel-a", intel=1, huawei=2)
    nodes.cluster.wait_for_nodes()
    go = tmp_path / "go"
    file = config(
        tmp_path / "c.yaml",
        [
            "null-cpu",
            "gpu-nvidia",
            "gpu-intel",
            "npu-huawei",
            {"name": "gpu-amd", "options": {"hold": str(go)}},
            "gpu-apple",
            {"name": "quarter", "like": "gpu-nvidia", "fraction": 0.25, "options": {"ms": 5}},
            {"name": "model", "like": "gpu-nvidia", "labels": {"device-model": "X*", "farm.io/intel": "1"}},
            {"name": "no-such-model", "like": "gpu-nvidia", "labels": {"device-model": "H200"}},
        ],
        node_wait_s=300,
    )
    process = start(file, nodes, results)
    wait_for(lambda: ran_on(results, "amd-a"), "rows of the node that is to leave")
    at_work = [p.pid for p in descendants(leaving.all_processes["raylet"][0].process.pid, "tasks.child")]
    assert at_work
    nodes.remove(leaving)
    # A worker outlives its raylet by a moment, in which it could do all that is held up.
    wait_for(lambda: not any(map(is_child, at_work)), "the children of the node that left to be gone")
    go.touch()
    nodes.add("amd-b", amd=1)
    out, _ = process.communicate(timeout=400)
    assert process.returncode == 0, out
    frame = rows(results)
    assert frame.groupby("backend").size().eq(OPS * SAMPLES).all()
    assert set(frame["status"]) == {"pass"}
    where = {backend: set(of["node"]) for backend, of in frame.groupby("backend")}
    assert where.pop("gpu-amd") == {"amd-a", "amd-b"}, out
    fitting = {
        "null-cpu": {"head"},
        "gpu-nvidia": {"nvidia-a", "nvidia-b"},
        "gpu-intel": {"intel-a", "nvidia-b"},
        "npu-huawei": {"intel-a", "nvidia-a"},
        "quarter": {"nvidia-a", "nvidia-b"},
        "model": {"nvidia-b"},
    }
    assert where.keys() == fitting.keys()
    assert all(where[backend] <= fitting[backend] for backend in fitting), where
    # Rows tell the devices of a node apart.
    of_one = frame[(frame["node"] == "nvidia-a") & (frame["backend"] == "gpu-nvidia")]
    assert set(of_one["device_ids"]) <= {"0", "1"} and (of_one["placement"] == "visible " + of_one["device_ids"]).all()
    offers = record(results)["inventory"]["backends"]
    assert "labelled device-model=X1, not H200" in offers["no-such-model"]["reason"]
    assert "vendor=amd, not apple" in offers["gpu-apple"]["reason"]
    assert "offers no Ray resource GPU" in offers["gpu-apple"]["reason"]
    assert "node amd-a left" in out
    assert "node amd-b joined with gpu-amd" in out
    assert not record(results)["quarantined"]


@dataclass(frozen=True)
class Done:
    """What a run left: its rows, its record, what it said."""

    rows: pd.DataFrame
    record: dict[str, Any]
    said: str


@pytest.fixture(scope="module")
def sick(head: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """A run on a cluster where a node's devices are sick, one device of another's, and all of a third vendor's."""
    folder = tmp_path_factory.mktemp("sick")
    with beside(head) as nodes:
        nodes.add("well", nvidia=1)
        nodes.add("sick", "wrong", nvidia=2)
        nodes.add("well-too", amd=1)
        nodes.add("sick-too", "crash:1", amd=2)
        for name in ("one", "two"):
            nodes.add(name, "wrong", intel=1)
        nodes.cluster.wait_for_nodes()
        slow = {"options": {"ms": 20}}
        backends = [{"name": name, **slow} for name in ("gpu-nvidia", "gpu-amd", "gpu-intel")]
        file = config(folder / "c.yaml", backends, samples=40)
        done = launch(file, "--address", nodes.address, "--results", folder)
    assert done.returncode == 1, done.stdout + done.stderr
    frame = rows(folder)
    assert frame.groupby("backend").size().eq(OPS * 40).all()
    return Done(frame, record(folder), done.stdout)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("backend", "status", "devices"),
    [("gpu-nvidia", "wrong", {("sick", "0"), ("sick", "1")}), ("gpu-amd", "crash", {("sick-too", "1")})],
)
def test_a_sick_device_is_quarantined_and_its_cells_are_run_elsewhere(
    sick: Done, backend: str, status: str, devices: set[tuple[str, str]]
) -> None:
    frame = sick.rows[sick.rows["backend"] == backend]
    assert set(frame["status"]) == {"pass"}
    quarantined = [q for q in sick.record["quarantined"] if backend in q["backends"]]
    assert {(q["node"], q["device"]) for q in quarantined} == devices
    again = frame[frame["attempts"] > 1]
    assert 0 < len(again) <= sum(q["failures"] for q in quarantined)
    assert {e["status"] for q in quarantined for e in q["evidence"]} == {status}
    assert "quarantined: device" in sick.said


@pytest.mark.nightly
def test_a_kernel_that_fails_everywhere_is_no_sickness(sick: Done) -> None:
    frame = sick.rows[sick.rows["backend"] == "gpu-intel"]
    assert set(frame["status"]) == {"wrong"}
    assert set(frame["node"]) == {"one", "two"}
    assert not [q for q in sick.record["quarantined"] if "gpu-intel" in q["backends"]]


@pytest.mark.nightly
def test_the_last_node_of_a_backend_leaves_rows_that_say_so(nodes: Nodes, tmp_path: Path, results: Path) -> None:
    leaving = nodes.add("amd-a", amd=1)
    nodes.cluster.wait_for_nodes()
    go = tmp_path / "go"
    held = {"name": "gpu-amd", "options": {"hold": str(go)}}
    file = config(tmp_path / "c.yaml", [held, "null-cpu"], node_wait_s=2)
    process = start(file, nodes, results)
    wait_for(lambda: ran_on(results, "amd-a"), "rows of the node that is to leave")
    nodes.remove(leaving)  # its cases are held to the end: what still runs there would pass else
    out, _ = process.communicate(timeout=400)
    go.touch()
    assert process.returncode == 3, out
    frame = rows(results)
    assert frame.groupby("backend").size().eq(OPS * SAMPLES).all()
    gone = frame[frame["status"] == "unavailable"]
    assert 0 < len(gone) < OPS * SAMPLES
    assert set(gone["backend"]) == {"gpu-amd"}
    assert gone["error"].str.contains("the last node that offered it left, and no other joined within 2 s").all()


def test_a_single_device_that_is_lost_costs_no_crash_for_every_case(
    tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without another device to compare with: a new child does not find it either."""
    monkeypatch.setattr(fleet_changes, "REST_S", (0.1, 0.2))
    file = config(tmp_path / "c.yaml", [{"name": "gpu-nvidia", "options": {"lost_after": 100}}, "null-cpu"])
    done = here(file, "--on", "processes", "--results", results, FARM_LOST=str(tmp_path / "lost"))
    assert done.returncode == 3, done.stdout + done.stderr
    frame = rows(results)
    assert frame.groupby("backend").size().eq(OPS * SAMPLES).all()
    of_gpu = frame[frame["backend"] == "gpu-nvidia"]["status"].value_counts()
    assert of_gpu.to_dict() == {"unavailable": OPS * SAMPLES - 100, "pass": 99, "crash": 1}
    assert (
        frame["error"].str.contains("gone since: planted: the device has fallen off the bus").sum()
        == of_gpu["unavailable"]
    )
