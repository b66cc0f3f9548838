"""What the farm's own command is called where it is typed."""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import sys
from pathlib import Path


def name_farm_program() -> str:
    """ "farm" where that is on PATH, else the way to it: from the working directory where it lies below that."""
    return _find_farm_program(os.environ.get("PATH", ""), Path.cwd(), Path(sys.prefix))


@functools.lru_cache(maxsize=8)
def _find_farm_program(path: str, here: Path, prefix: Path) -> str:
    own = prefix / ("Scripts/farm.exe" if os.name == "nt" else "bin/farm")
    if shutil.which("farm", path=path) or not own.exists():
        return "farm"
    return shlex.quote(str(own.relative_to(here) if own.is_relative_to(here) else own))
