"""A bench of the search loop's door: submissions to a small task that are judged in a minute, one after another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import farm
from farm.work import supervisor
from farm.work.child_pool import POOL
from tasks import wire
from tests.bench.record import ROOT, Result
from tests.bench.running import Size, environment

TASK = ROOT / "examples" / "leaderboard"


def submissions(folder: Path, size: Size) -> Result:
    """Submissions a minute, by wall clock and of one core, once the task's cases are made."""
    files = sorted((TASK / "submissions").glob(size["files"]))
    spent_s, run_job = [0.0], supervisor.run_job

    def counted(*given: Any) -> Iterator[Any]:
        for message in run_job(*given):
            spent_s[0] += message.cpu_s if isinstance(message, wire.Spent) else 0.0
            yield message

    with mock.patch.dict("os.environ", environment(folder)), mock.patch.object(supervisor, "run_job", counted):
        farm.judge(TASK, files[0], samples=size["samples"])
        POOL.take_costs()
        spent_s[0] = 0.0
        began, own = time.perf_counter(), time.process_time()
        statuses = [str(farm.judge(TASK, file, samples=size["samples"]).status) for file in files]
        wall, cpu = time.perf_counter() - began, time.process_time() - own + spent_s[0] + POOL.take_costs().cpu_s
    figures = {"a minute": 60 * len(files) / wall, "a core and minute": 60 * len(files) / cpu}
    told = ", ".join(f"{statuses.count(name)} {name}" for name in dict.fromkeys(statuses))
    return Result(
        figures,
        f"{len(files)} submissions ({told}): {figures['a core and minute']:.0f} a minute of one core's time, "
        f"{figures['a minute']:.0f} by the clock",
    )
