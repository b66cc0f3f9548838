"""The farm's own command as it is typed: what it is called, how it names a lake and goes on with a run."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def name_farm_program() -> str:
    """ "farm" where that is on PATH, else the way to it: from the working directory where it lies below that."""
    return _find_farm_program(os.environ.get("PATH", ""), Path.cwd(), Path(sys.prefix))


@functools.lru_cache(maxsize=8)
def _find_farm_program(path: str, here: Path, prefix: Path) -> str:
    own = prefix / ("Scripts/farm.exe" if os.name == "nt" else "bin/farm")
    if shutil.which("farm", path=path) or not own.exists():
        return "farm"
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))


def write_results_option(results: str) -> str:
    """The option of a command that names the lake, quoted for a POSIX shell; "" for the usual one."""
    return "" if results == "results" else f" --results {shlex.quote(results)}"


def write_resume_command(run: Mapping[str, Any], results: str) -> str:
    """The command that goes on with a run, by its record; results: its lake."""
    command = "fuzz" if "fuzz" in run else "node screen" if "screen" in run else "run"
    return f"{name_farm_program()} {command} --resume {run.get('run_id')}{write_results_option(results)}"
