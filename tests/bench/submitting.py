"""A bench of the search loop's door: submissions to a small task that are judged in a minute, one after another."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import farm
from tasks.stranger.nursery import measure_stranger_cpu
from tests.bench.record import ROOT, Result
from tests.bench.running import Size, environment

TASK = ROOT / "examples" / "leaderboard"
#: prctl(2): what is left of a tree of processes comes to this one.
PR_SET_CHILD_SUBREAPER = 36
#: Seconds between two looks at what processes have used: so much of one's end is not seen.
LOOK_S = 0.02


def submissions(folder: Path, size: Size) -> Result:
    """Submissions a minute, by wall clock and of one core's time, once the task's cases are made: of a search that
    judges all files, less one that judges a single one. size: files, samples."""
    files = sorted((TASK / "submissions").glob(size["files"]))
    first = files[-1]  # an honest one: what is made once for those that are timed is made for it
    once, _ = _search(folder, [first], size["samples"])
    cpu, told = _search(folder, [first, *files], size["samples"])
    wall, statuses = sum(x for x, _ in told[1:]), [x for _, x in told[1:]]
    figures = {"a minute": 60 * len(files) / wall, "a core and minute": 60 * len(files) / (cpu - once)}
    words = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    return Result(
        figures,
        f"{len(files)} submissions ({words}): {figures['a core and minute']:.0f} a minute of one core's time, "
        f"{figures['a minute']:.0f} by the clock",
    )


def _search(folder: Path, files: Sequence[Path], samples: int) -> tuple[float, list[tuple[float, str]]]:
    """CPU seconds of a search and of all that it started; of each file seconds by the clock, and its status."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    command = [sys.executable, "-m", "tests.bench.submitting", str(samples), *map(str, files)]
    with subprocess.Popen(command, env=environment(folder), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        spent = dict[int, float]()
        while (
            process.poll() is None
        ):  # the system counts a kernel's processes for nobody: their keeper is killed before it has waited for them
            spent |= measure_stranger_cpu(os.getpid())
            time.sleep(LOOK_S)
        assert process.stdout is not None and not process.returncode
        told = json.loads(process.stdout.read())
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass
    return sum(x for pid, x in spent.items() if pid != os.getpid()), [
        (float(wall), str(status)) for wall, status in told
    ]


def _judge_all(samples: int, files: Sequence[str]) -> list[tuple[float, str]]:
    told = []
    for file in files:
        begin = time.perf_counter()
        status = farm.judge(TASK, Path(file), samples=samples).status
        told.append((time.perf_counter() - begin, str(status)))
    return told


if __name__ == "__main__":
    print(json.dumps(_judge_all(int(sys.argv[1]), sys.argv[2:])))
