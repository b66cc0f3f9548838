"""A bench of starting children: what it takes until the first sample is prepared, forked from a server and started plainly."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

from farm.fleet.child_process import ChildProcess, Limits, name_compiler_caches
from tasks import catalogs, wire
from tasks.model import Group
from tests.bench.record import Result
from tests.bench.running import Size, environment, median

#: Seconds that an answer is waited for.
PATIENCE_S = 600.0


def starts(folder: Path, size: Size) -> Result:
    """Wall and CPU time of a child, from its start to its first sample, by what that is made with."""
    figures: dict[str, float] = {}
    said = []
    for op in size["ops"]:
        group = Group(op, "", "float32", 1)
        imports: tuple[str, ...] = catalogs.get_catalog(group.catalog).imports
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        with mock.patch.dict("os.environ", environment(folder)):
            first = _start(group, folder / f"{group.catalog}-first", imports)
            for k in range(size["times"]):
                for forked, many in found.items():
                    many.append(_start(group, folder / f"{group.catalog}-{k}-{forked}", imports if forked else None))
        wall, cpu = ({how: median([one[i] for one in many]) for how, many in found.items()} for i in (0, 1))
        figures |= {
            f"{op} {name}": value
            for name, value in {
                "plain ms": 1e3 * wall[False],
                "forked ms": 1e3 * wall[True],
                "plain CPU ms": 1e3 * cpu[False],
                "forked CPU ms": 1e3 * cpu[True],
                "first CPU ms": 1e3 * first[1],
                "ratio": cpu[True] / cpu[False],
            }.items()
        }
        said.append(
            f"{op}: {1e3 * cpu[False]:.0f} ms plain, {1e3 * cpu[True]:.0f} ms forked (the first, with its server, "
            f"{1e3 * first[1]:.0f} ms), ratio {cpu[True] / cpu[False]:.3f}"
        )
    return Result(
        figures, f"CPU time from the start of a child to its first sample, median of {size['times']}: {'; '.join(said)}"
    )


def _start(group: Group, cache: Path, imports: Any) -> tuple[float, float]:
    """(wall, CPU seconds) of a child that prepares a group."""
    began = time.perf_counter()
    child = ChildProcess(sys.executable, Limits(), name_compiler_caches(cache), imports)
    *_, answer = child.call(wire.Prepare((wire.ToPrepare(group),), str(cache)), PATIENCE_S)
    wall, cpu = time.perf_counter() - began, child.cpu_s()
    child.close()
    if not isinstance(answer, wire.Finished):
        sys.exit(f"{group.label} was not prepared: {answer}")
    return wall, cpu
