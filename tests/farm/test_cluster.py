"""Clusters of several (simulated) nodes: one that dies, caches that are not shared (placement: `test_heterogeneous`)."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from farm import lake
from farm.work import ray_cluster
from farm.work.ray_cluster import RayCluster
from tests.clusters import Cluster
from tests.conftest import PATIENCE_S, ROOT, launch
from tests.farm.test_resume import parts, wait_for


@pytest.fixture(scope="module")
def head() -> Iterator[Cluster]:
    made = Cluster(num_cpus=1)
    yield made
    made.shutdown()


@pytest.fixture
def cluster(head: Cluster) -> Iterator[Cluster]:
    """The head, with nodes that are this test's only."""
    yield head
    for node in list(head.worker_nodes):
        head.remove_node(node, allow_graceful=False)
    head.wait_for_nodes()


def config(path: Path, backends: list[object], samples: int = 10, **more: object) -> Path:
    catalog = {"name": "load", "dtypes": ["float32"], "samples": samples}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": backends, **more}))
    return path


def rows(results: Path) -> pd.DataFrame:
    return lake.read(results, lake.run_ids(results)[-1])


def test_a_node_that_dies_blames_nobody(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    go = tmp_path / "go"
    file = config(tmp_path / "c.yaml", [{"name": "null-cpu", "options": {"hold": str(go)}}], samples=60)
    command = [sys.executable, "-m", "farm.launch", str(file), "--address", cluster.address, "--results", str(results)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    wait_for(lambda: parts(results), "the first rows")
    cluster.remove_node(node, allow_graceful=False)
    go.touch()
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, out
    frame = rows(results)
    assert len(frame) == 600
    assert set(frame["status"]) == {"pass"}


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs mount namespaces")
def test_nodes_without_a_common_cache_are_sent_the_prepared_cases(
    cluster: Cluster, tmp_path: Path, results: Path, cache: Path
) -> None:
    """The second node's cache directory is a file system of its own: what the other prepared is not there."""
    script = f"mount -t tmpfs tmpfs {cache} && exec {sys.executable} -m ray.scripts.scripts start --address={cluster.address} --num-cpus=1 --block"
    node = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: sum(n["Alive"] for n in cluster.global_state.node_table()) == 2, "the second node")
        file = config(tmp_path / "c.yaml", ["null-cpu"], samples=40, seed=int(time.time()))
        done = launch(file, "--address", cluster.address, "--results", results)
        assert done.returncode == 0, done.stdout + done.stderr
        frame = rows(results)
        assert len(frame) == 400
        assert set(frame["status"]) == {"pass"}
    finally:
        node.terminate()
        node.wait()


def test_no_cluster_at_the_address_is_said_at_once(tmp_path: Path, results: Path) -> None:
    done = launch(config(tmp_path / "c.yaml", ["null-cpu"]), "--address", "127.0.0.1:1", "--results", results)
    assert done.returncode == 2
    assert "no Ray cluster at '127.0.0.1:1'" in done.stderr


def test_a_head_that_is_away_stops_the_run_and_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray would end the driver after a minute, with the exit code of one that has found something wrong."""

    class Gone(Exception):
        pass

    def never(*args: object, **how: object) -> None:
        raise AssertionError("it waits for the head until Ray ends this process")

    def fails(stream: object) -> None:
        raise Gone("its node has died")

    monkeypatch.setattr(ray_cluster, "LOOK_S", -1.0)
    made = RayCluster.__new__(RayCluster)
    with socket.create_server(("127.0.0.1", 0)) as head:
        made._head, made._answered = f"127.0.0.1:{head.getsockname()[1]}", time.monotonic()
        assert made._head_answers()
    errors = SimpleNamespace(
        RayError=Gone, **{n: type(n, (Gone,), {}) for n in ("TaskUnschedulableError", "LocalRayletDiedError")}
    )
    made._ray = SimpleNamespace(
        nodes=never, get=fails, exceptions=errors, wait=lambda streams, **how: (list(streams), [])
    )
    made._asked, made._looked, made.nodes = ([], "", Path()), 0.0, []
    made._running, made._parcels = {iter("x"): 1}, {}
    assert not made.changes().gone  # it may come back
    with pytest.raises(OSError, match="does not answer"):
        list(made.poll(0.0))
    monkeypatch.setattr(ray_cluster, "HEAD_S", -1.0)
    with pytest.raises(OSError, match="does not answer"):
        made.changes()


#: Slurm's commands, for whose nodes this machine stands, and a GPU's; whoever sleeps waits for one node more.
SLURM = {
    "srun": 'while [ "${1#-}" != "$1" ]; do case "$1" in -w|-x) shift;; esac; shift; done; CUDA_VISIBLE_DEVICES=1 exec "$@"',
    "scontrol": "echo 127.0.0.1; echo second",
    "nvidia-smi": 'for i in 0 1; do echo "GPU $i: NVIDIA H200 (UUID: GPU-$i)"; done',
    "sleep": """echo >> slept
until [ "$(grep -c 'Ray runtime started' log)" -ge "$(wc -l < slept)" ]; do /bin/sleep 0.2; done""",
}


@pytest.mark.nightly
def test_the_script_for_slurm_runs_on_what_it_was_given(tmp_path: Path, results: Path) -> None:
    """On two nodes, each with one GPU of two; the user has the token of an earlier run, which the head asks for
    then."""
    (script,) = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "clusters.md").read_text(), re.DOTALL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    script = (
        script.replace("6379", port)
        .replace("configs/cuda.yaml", "c.yaml")
        .replace("--block", "--block --include-dashboard=false", 1)
    )
    config(tmp_path / "c.yaml", ["gpu-nvidia"], samples=5)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-a-run-before-" * 4)
    (tmp_path / "bin").mkdir()
    for name, does in SLURM.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    given = {"HOME": tmp_path, "SLURM_NNODES": 2, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_PER_TASK": 2}
    env = os.environ | {k: str(v) for k, v in given.items()} | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    with open(tmp_path / "log", "w") as log:
        job = subprocess.Popen(
            ["bash", "-c", script], stdout=log, stderr=log, cwd=tmp_path, env=env, start_new_session=True
        )
    try:
        code = job.wait(PATIENCE_S)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
    said = (tmp_path / "log").read_text()
    assert code == 0, said
    assert f"{port} --block" in said and said.count("--num-cpus=") == said.count("--num-gpus=1") == 2
    frame = rows(results)
    assert set(frame["status"]) == {"pass"} and set(frame["device_ids"]) == {"1"}


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs mount namespaces")
def test_a_node_may_have_the_farm_at_another_path(cluster: Cluster, tmp_path: Path, results: Path) -> None:
    """As a pod of Kubernetes has it: where the driver has its farm, the node has an empty folder."""
    tree = tmp_path / "driver"
    for name in ("farm", "tasks"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    script = f"mount -t tmpfs tmpfs {tree} && exec {sys.executable} -m ray.scripts.scripts start --address={cluster.address} --num-cpus=1 --labels=where=apart --block"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    node = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env
    )
    try:
        wait_for(lambda: sum(n["Alive"] for n in cluster.global_state.node_table()) == 2, "the second node")
        file = tmp_path / "c.yaml"
        catalog = {"name": "critical", "ops": ["add"], "samples": 2, "dtypes": ["float32"]}
        backend = {"name": "ort-cpu", "labels": {"where": "apart"}}
        file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [backend]}))
        where = f"import farm; assert farm.__file__.startswith({str(tree)!r}); from farm.launch import main; raise SystemExit(main())"
        run = [sys.executable, "-c", where, str(file), "--address", cluster.address, "--results", str(results)]
        done = subprocess.run(run, capture_output=True, text=True, cwd=tree, env=env | {"PYTHONPATH": str(tree)})
        assert done.returncode == 0, done.stdout + done.stderr
        frame = rows(results)
        assert len(frame) == 2 and set(frame["status"]) == {"pass"}
    finally:
        node.terminate()
        node.wait()
