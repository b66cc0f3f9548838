"""The farm on the lowest versions that pyproject.toml allows: `python -m tests.lowest` builds their environment, runs quick.yaml in it and
the tests of what reads tables. `make lowest` is the same."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from farm.fleet import envs
from tests.conftest import ROOT

#: Tests of what another pandas or pyarrow may do otherwise.
TESTS = [f"tests/farm/test_{x}.py" for x in "report view lake vendor_view history page compaction gate".split()]


def requirements() -> list[str]:
    """What the farm needs; torch as it is installed here, since an older one is gigabytes of another build."""
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return [f"torch=={metadata.version('torch')}" if Requirement(x).name == "torch" else x for x in asked]


def build(folder: Path, *more: str) -> Path:
    """The interpreter of a new environment with the lowest versions, and ``more``, which may be of any. Raises
    EnvError."""
    patience, python = envs.Patience(time.monotonic() + 600), folder / "bin" / "python"
    envs._run_uv_command(["venv", "--python", sys.executable, str(folder)], patience)
    envs._run_uv_command(
        ["pip", "install", "--python", str(python), "--resolution", "lowest-direct", *requirements()], patience
    )
    if more:
        lowest = folder / "lowest.txt"
        lowest.write_text(envs._run_uv_command(["pip", "freeze", "--python", str(python)], patience))
        envs._run_uv_command(["pip", "install", "--python", str(python), "-c", str(lowest), *more], patience)
    return python


def run(python: Path, command: Sequence[object], cache: Path) -> subprocess.CompletedProcess[str]:
    """A module of the farm's with that interpreter: its text on both streams together."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "FARM_CACHE": str(cache)}
    words = [str(python), "-m", *map(str, command)]
    return subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, cwd=ROOT)


def main() -> int:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        python = build(folder / "env", "pytest", "quickjs-ng", "hypothesis", "psutil", "jsonschema", "xmlschema")
        for command in (
            ["farm.launch", "configs/quick.yaml", "--results", folder / "lake"],
            ["pytest", "-p", "no:xdist", *TESTS],
        ):
            done = run(python, command, folder / "cache")
            print(done.stdout, flush=True)
            if done.returncode not in ((0, 1) if command[0] == "farm.launch" else (0,)):
                return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
