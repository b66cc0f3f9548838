"""What it costs that a kernel runs in a process of its own."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs import user_definitions
from tasks.judge import verdict
from tasks.model import Group
from tasks.prepare.cases import prepare
from tasks.runner import Runner, whole
from tasks.stranger.nursery import Nursery
from tasks.stranger.proxy import Remote, Rooms, remote
from tasks.stranger.serve import serve
from tasks.wire import ToRun
from tests.bench.record import Result
from tests.bench.running import Size

KERNEL = "import torch\ndef kernel(x): return x * 2\ndef reference(x): return 2 * x\n"
#: Elements of a case of 10 kB.
SMALL = 2560
OPS = (
    "add",
    "sum",
    "softmax",
    "matmul",
    "nn.functional.gelu",
    "sort",
    "cumsum",
    "std",
    "where",
    "nn.functional.conv2d",
)


def isolation(folder: Path, size: Size) -> Result:
    """Microseconds of CPU time that a case of 10 kB takes more, of both processes, and op_db's cases as a ratio. size: rounds."""
    import json

    (folder / "k.py").write_text(KERNEL)
    kernel = {"name": "op", "kernel": "k.py:kernel", "reference": "k.py:reference", "inputs": {"x": [SMALL]}}
    text = json.dumps({"sources": [{"at": 0, "root": str(folder), "modules": [], "kernels": [kernel]}]})
    user_definitions.announce(text)
    spec = BackendSpec.parse("torch-cpu")
    shut_in, here = remote(Nursery(serve), Rooms(spec, text)), spec.create()
    arms = {"isolated": _runner(shut_in), "here": _runner(here)}
    own = [whole(prepare(Group("user:op", "", "float32", 64), folder)[1])]
    ops = [whole(prepare(Group(f"torch:{x}", "", "float32", 8), folder)[1]) for x in OPS]
    small, library = (_compare(arms, items, int(str(size["rounds"]))) for items in (own, ops))
    arms["isolated"].close()
    figures = {
        "µs a case of 10 kB": (small["isolated"] - small["here"]) * 1e6,
        "cases of 10 kB, times as long": small["isolated"] / small["here"],
        "op_db, times as long": library["isolated"] / library["here"],
        "op_db, µs a case": (library["isolated"] - library["here"]) * 1e6,
    }
    words = ", ".join(f"{name}: {x:.3g}" for name, x in figures.items())
    return Result(figures, f"A kernel in a process of its own: {words}.")


def _runner(backend: Backend) -> Runner:
    return Runner(backend, backend.start(), verdict.load("error_units"), lambda *step: None)


def _compare(arms: dict[str, Runner], items: list[ToRun], rounds: int) -> dict[str, float]:
    """CPU seconds that a case takes, of all processes, the least of rounds in turn: what others do to caches only adds."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    cases = sum(len(x.positions) for x in items)
    for turn in range(rounds + 1):
        for name, runner in arms.items():
            begin = cpu_s(runner)
            assert all(x.row.status != "error" for x in runner.run(items))
            if turn:
                times[name].append((cpu_s(runner) - begin) / cases)
    return {name: min(found) for name, found in times.items()}


def cpu_s(runner: Runner) -> float:
    """CPU seconds of this process, and of the one that the backend computes in."""
    return time.process_time() + (runner.backend.cpu_s() if isinstance(runner.backend, Remote) else 0.0)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        print(isolation(Path(scratch), {"rounds": int(sys.argv[1])}).text)
