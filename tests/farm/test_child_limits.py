"""What a child may take: a backend's own, and of those that prepare as much as the largest that they prepare for; never
more than the machine has."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from farm.fleet import channel, child_process
from farm.fleet.child_process import ChildDeath, ChildProcess, Limits
from farm.plan.config_schema import BackendConfig, CatalogConfig, Config
from farm.work.state import RunPlan, make_child_limits
from tasks import variables, wire
from tasks.relay import count_memory_kills, measure_machine_memory, read_cpu_quota


def make_config(**memory_gib: float) -> Config:
    backends = [BackendConfig(name=f"{name}-cpu", memory_gib=size) for name, size in memory_gib.items()]
    return Config(catalogs=[CatalogConfig(name="critical")], backends=backends)


def test_a_backend_that_the_config_lacks_has_the_usual_limit() -> None:
    config = make_config(torch=2, ort=20)
    names = ("torch-cpu", "ort-cpu", "inductor-cpu")
    assert [make_child_limits(config, name).memory_gib for name in names] == [2, 20, 6]
    assert make_child_limits(config, "torch-cpu", preparing=True).memory_gib == 6


def test_what_prepares_for_backends_may_take_what_the_largest_of_these_may() -> None:
    config, wanted = make_config(torch=6, ort=20), np.array([[1, 0], [1, 4], [2, 0]])
    matrix: Any = SimpleNamespace(wanted=wanted, backends=config.backends)
    plan: Any = SimpleNamespace(matrix=matrix, request=SimpleNamespace(config=config))
    plan.name = lambda b: RunPlan.name(plan, b)
    found = [RunPlan.make_preparing_limits(plan, groups).memory_gib for groups in ([0], [1], [0, 2], range(3))]
    assert found == [6, 20, 6, 20]


def test_a_child_may_take_no_more_than_its_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "measure_machine_memory", lambda: 10 << 30)
    given: list[dict[str, str]] = []
    monkeypatch.setattr(
        child_process, "InheritedChannel", lambda python, env, *rest: given.append(env) or SimpleNamespace(process=None)
    )
    found = [ChildProcess("", Limits(memory_gib=size)).limits.memory_gib for size in (2, 200)]
    assert found == [2, 9] and [int(env[variables.MEMORY]) >> 30 for env in given] == [2, 9]


@pytest.mark.parametrize(("killed", "status"), [(1, "oom"), (0, "crash")])
def test_whom_the_kernel_ends_for_want_of_memory_was_out_of_memory(
    killed: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [7]
    monkeypatch.setattr(channel, "count_memory_kills", lambda: counts[-1])
    child = ChildProcess(sys.executable, Limits())
    os.kill(child.process.pid, signal.SIGSTOP)
    threading.Timer(1.0, lambda: (counts.append(7 + killed), child.kill())).start()
    death = child.ask(wire.Hello(), 60)
    child.close()
    assert isinstance(death, ChildDeath)
    assert (death.status, death.kind, death.was_killed) == (status, "SIGKILL", True)
    assert ("this machine had no memory left" in death.text) == (status == "oom")


V2 = "0::/\n"
JOB = "0::/system.slice/job.scope\n"
V1 = "12:cpu,cpuacct:/docker/5f\n4:memory:/docker/5f\n0::/\n"
HALF = {"quota": "50000", "period": "100000"}


@pytest.mark.parametrize(
    ("groups", "files", "size", "quota"),
    [
        (V2, {"memory.max": "4096", "cpu.max": "150000 100000"}, 4096, 1.5),
        (V2, {"memory.max": "max", "cpu.max": "max 100000"}, None, math.inf),
        (V2, {"memory.max": "max\n", "cpu.max": "0 100000\n"}, None, math.inf),
        (V2, {"memory.max": str(1 << 60), "cpu.max": ""}, None, math.inf),
        (V2, {}, None, math.inf),
        # Of a job or a service the limits are in its group's folder, and those of groups around it hold as well.
        (JOB, {"system.slice/job.scope/memory.max": "8192"}, 8192, math.inf),
        (JOB, {"system.slice/job.scope/memory.max": "max", "system.slice/memory.max": "4096"}, 4096, math.inf),
        (JOB, {f"system.slice/{x}cpu.max": f"{n}00000 100000" for x, n in (("", 2), ("job.scope/", 3))}, None, 2.0),
        (JOB, {"system.slice/other.scope/memory.max": "4096"}, None, math.inf),
        # cgroup v1, in a container that has a namespace of its own or none, and on the host.
        (V1, {"memory/memory.limit_in_bytes": "4096", "memory/docker/6a/memory.limit_in_bytes": "2"}, 4096, math.inf),
        (V1, {"memory/docker/5f/memory.limit_in_bytes": "4096"}, 4096, math.inf),
        (V1, {f"cpu/docker/5f/cpu.cfs_{x}_us": n for x, n in HALF.items()}, None, 0.5),
        (V1, {f"cpu/cpu.cfs_{x}_us": n for x, n in (("quota", "-1"), ("period", "100000"))}, None, math.inf),
        # The folder of two controllers, without a link for each.
        ("3:cpu,cpuacct:/a\n", {f"cpu,cpuacct/a/cpu.cfs_{x}_us": n for x, n in HALF.items()}, None, 0.5),
        # A sandbox that names no groups; names that are no text, and that a text's lines would end in.
        ("", {"memory.max": "4096", "cpu.max": "50000 100000"}, 4096, 0.5),
        ("0::/a\udcfcb\n", {"a\udcfcb/memory.max": "4096"}, 4096, math.inf),
        ("0::/a\u2028b\x0b:c\n", {"a\u2028b\x0b:c/memory.max": "4096"}, 4096, math.inf),
        ("0::/../other\n", {"memory.max": "4096", "../other/memory.max": "2"}, 4096, math.inf),
    ],
)
def test_a_container_and_a_job_have_what_their_groups_allow(
    tmp_path: Path, groups: str, files: dict[str, str], size: int | None, quota: float
) -> None:
    whole = measure_machine_memory(tmp_path)
    assert whole > 1 << 28 and read_cpu_quota(tmp_path) == math.inf
    for name, text in {"../../../proc/self/cgroup": groups, **files}.items():
        file = Path(os.path.normpath(tmp_path / "sys/fs/cgroup" / name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.fsencode(text))
    assert measure_machine_memory(tmp_path) == (size or whole)
    assert read_cpu_quota(tmp_path) == quota


@pytest.mark.parametrize(
    ("groups", "files", "count"),
    [
        (JOB, {"system.slice/job.scope/memory.events": "oom 9\noom_kill 2\n", "memory.events": "oom_kill 5\n"}, 2),
        (V2, {}, 7),  # nobody counts those of the root's group
        (V1, {"memory/docker/5f/memory.oom_control": "under_oom 0\noom_kill 3\n"}, 3),
        (V1, {"memory/memory.oom_control": "under_oom 0\noom_kill 4\n"}, 4),  # a container's own, by the host's name
    ],
)
def test_who_was_ended_for_want_of_memory_is_counted_in_the_own_group(
    tmp_path: Path, groups: str, files: dict[str, str], count: int
) -> None:
    assert count_memory_kills(tmp_path) == 0
    given = {"../../../proc/self/cgroup": groups, "../../../proc/vmstat": "pgfault 1\noom_kill 7\n", **files}
    for name, text in given.items():
        file = Path(os.path.normpath(tmp_path / "sys/fs/cgroup" / name))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert count_memory_kills(tmp_path) == count
