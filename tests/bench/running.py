"""How benches run the farm: commands in processes of their own, with a cache and a lake of their own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from farm import lake
from tests.bench.record import ROOT

PLUGIN = ROOT / "tests" / "plugin"
LOOPS = str(ROOT / "tests" / "bench" / "loops.py")

#: The size of a bench: what it is told, by name.
Size = Mapping[str, Any]


def environment(cache: Path, **more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(PLUGIN), str(ROOT), os.environ.get("PYTHONPATH")]))
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as a user's
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return usual | threads | {"PYTHONPATH": path, "FARM_CACHE": str(cache), "PYTHONWARNINGS": "ignore"} | more


def run(command: Sequence[str], env: Mapping[str, str], codes: Sequence[int] = (0,)) -> tuple[float, float, str]:
    """(wall seconds, CPU seconds of it and its reaped children, stdout). Exits unless it ends with one of ``codes``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    done = subprocess.run(list(command), env=dict(env), cwd=ROOT, capture_output=True, text=True)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def launch(config: Path, results: Path, env: Mapping[str, str], *more: str) -> float:
    """Wall seconds of a run of a config."""
    command = [sys.executable, "-m", "farm.launch", str(config), "--results", str(results), *more]
    return run(command, env, (0, 1))[0]


def write_config(folder: Path, name: str, catalogs: object, backends: object, **more: object) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"catalogs": catalogs, "backends": backends, **more}))
    return path


def write_one_op(folder: Path) -> Path:
    """A config of one case of one op."""
    catalogs = [{"name": "torch", "ops": ["softmax"], "samples": 1}]
    return write_config(folder, "tiny", catalogs, ["torch-cpu"], dtypes=["float32"])


def run_command(config: Path, results: Path) -> list[str]:
    """`farm run` in child processes."""
    return [sys.executable, "-m", "farm", "run", str(config), "--results", str(results), "--on", "processes"]


def config_of(folder: Path, size: Size) -> Path:
    """The config that a size names, or the one that it holds."""
    if isinstance(size["config"], str):
        return ROOT / "configs" / f"{size['config']}.yaml"
    return write_config(folder, "small", size["config"]["catalogs"], size["config"]["backends"])


def newest(results: Path) -> pd.DataFrame:
    return lake.read(results, lake.run_ids(results)[-1])


def median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
