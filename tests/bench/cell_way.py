"""How many functions of the farm one cell passes through, from a config to a report: what a reader has to go through to know all of it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

from tests.bench.record import ROOT, Result
from tests.bench.running import Size, environment, run, write_config

TRACED = str(ROOT / "tests" / "bench" / "traced_cell.py")


def cell_way(folder: Path, size: Size) -> Result:
    """One op of torch in float32 on the CPU, with an empty cache and again. size: op; rooms: how many of the largest
    are told."""
    catalogs = [{"name": "torch", "ops": [size["op"]], "samples": 1}]
    config = write_config(folder, "one", catalogs, ["torch-cpu"], dtypes=["float32"])
    env = environment(folder / "cache")
    figures: dict[str, float] = {}
    told: list[str] = []
    for name in ("cold", "warm"):
        _, _, out = run([sys.executable, TRACED, str(config), str(folder / "lake")], env)
        found = json.loads(out.splitlines()[-1])
        functions, imported = found["functions"], found["imported"]
        figures |= {f"functions, {name}": len(functions), f"while importing, {name}": len(imported)}
        rooms = Counter("/".join(PurePosixPath(x.partition(":")[0]).parts[:2]) for x in functions)
        largest = ", ".join(f"{room} {count}" for room, count in rooms.most_common(size["rooms"]))
        told.append(f"{name} {len(functions)} and {len(imported)} more while importing ({largest})")
    return Result(figures, f"functions of the farm that one cell passes through: {'; '.join(told)}")
