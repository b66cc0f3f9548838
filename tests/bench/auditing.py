"""What the check audit takes, over what the check forward takes of the same kernel."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tasks.backends import BackendSpec
from tasks.catalogs import user_definitions
from tasks.judge import policy_files
from tasks.model import Group, Status
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tasks.stranger.nursery import Nursery
from tasks.stranger.proxy import RemoteBackend, StrangerRooms, make_remote_backend
from tasks.stranger.serve import serve_as_stranger
from tasks.wire import ToRun
from tests.bench.isolation import cpu_s
from tests.bench.record import Result
from tests.bench.running import Size

#: One that is over at once, one of microseconds in many calls, one of a large product, and one that takes its time.
KERNELS = """
import time
import torch

def softmax(x): return torch.softmax(x, -1)
def rows(x): return torch.stack([torch.softmax(row, -1) for row in x])
def matmul(a, b): return a @ b

def spin(seconds, x):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return torch.softmax(x, -1)

def brief(x): return spin(0.001, x)
def longer(x): return spin(0.004, x)
def slow(x): return spin(0.02, x)
"""
REFERENCES = """
import torch

def softmax(x): return torch.softmax(x, -1)
def matmul(a, b): return a @ b
"""
#: The inputs of each by its name, and its reference.
ROWS = {"x": [32, 129]}
GIVEN = {
    "softmax": (ROWS, "softmax"),
    "rows": (ROWS, "softmax"),
    "matmul": ({"a": [1024, 1024], "b": [1024, 1024]}, "matmul"),
    "brief": (ROWS, "softmax"),
    "longer": (ROWS, "softmax"),
    "slow": (ROWS, "softmax"),
}


def auditing(folder: Path, size: Size) -> Result:
    """Seconds of one case of audit over those of eight of forward, which are what a config has if it says nothing: of
    CPU time of both processes and by wall clock, the least of rounds in turn. size: rounds, kernels."""
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "references.py").write_text(REFERENCES)
    told = [
        {
            "name": name,
            "kernel": f"kernels.py:{name}",
            "reference": f"references.py:{reference}",
            "reference_framework": "torch",
            "inputs": inputs,
        }
        for name, (inputs, reference) in GIVEN.items()
    ]
    text = json.dumps({"sources": [{"at": 0, "root": str(folder), "modules": [], "kernels": told}]})
    user_definitions.announce_definitions(text)
    backend = make_remote_backend(Nursery(serve_as_stranger), StrangerRooms(BackendSpec.parse("torch-cpu"), text))
    runner = Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)
    figures: dict[str, float] = {}
    words = []
    for name in size["kernels"]:
        groups = {
            "forward": Group(f"user:{name}", "", "float32", 8),
            "audit": Group(f"user:{name}", "", "float32", 1, check="audit"),
        }
        cases = {check: make_item_of_whole_group(prepare_group(group, folder)[1]) for check, group in groups.items()}
        taken = _measure(runner, backend, cases, size["rounds"])
        cpu, wall = (taken["audit"][k] / taken["forward"][k] for k in range(2))
        figures |= {f"{name} by CPU time": cpu, f"{name} by wall clock": wall}
        words.append(
            f"{name} {cpu:.2f} times by CPU time ({taken['audit'][0] * 1e3:.0f} and {taken['forward'][0] * 1e3:.0f} ms), {wall:.2f} by wall clock"
        )
    runner.close()
    return Result(figures, f"One case of audit over eight of forward: {'; '.join(words)}.")


def _measure(
    runner: Runner, stranger: RemoteBackend, cases: dict[str, ToRun], rounds: int
) -> dict[str, tuple[float, float]]:
    """Seconds of each check by CPU time and by wall clock: the least of some rounds, of which the first does not
    count."""
    times: dict[str, list[tuple[float, float]]] = {check: [] for check in cases}
    for turn in range(rounds + 1):
        stranger._find(cases["audit"].group.op).calls.clear()  # as in a process that has run nothing
        for check, asked in cases.items():
            cpu, wall = cpu_s(runner), time.perf_counter()
            for done in runner.run([asked]):
                assert done.row.status == Status.PASS, done.row
            if turn:
                times[check].append((cpu_s(runner) - cpu, time.perf_counter() - wall))
    return {check: (min(x for x, _ in found), min(x for _, x in found)) for check, found in times.items()}
