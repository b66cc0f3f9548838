"""Runs the folder of a finding in this process: faster than one of its own, which `farm.reproduction.finding_trial` starts."""

from __future__ import annotations

import runpy
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from farm.reproduction import finding_trial
from farm.reproduction.finding_folder import COMPARE, DEFINITION, PROGRAM


def exit_code(files: Mapping[str, bytes]) -> int:
    """What its run.py ends with: 1 where the failure is there, 0 where it is not."""
    for name, data in files.items():
        assert not name.endswith(".py") or (b"import farm" not in data and b"from tasks" not in data)
    before, own = set(sys.modules), [Path(x).stem for x in (COMPARE, PROGRAM, DEFINITION)]
    path = list(sys.path)
    with tempfile.TemporaryDirectory() as folder:
        finding_trial.write_finding_files(files, Path(folder))
        try:
            with pytest.raises(SystemExit) as end:
                runpy.run_path(f"{folder}/run.py", run_name="__main__")
        finally:
            sys.path[:] = path
            inside = [
                k for k, x in sys.modules.items() if k not in before and folder in str(getattr(x, "__file__", ""))
            ]
            for name in {*own, *inside}:
                sys.modules.pop(name, None)
    assert isinstance(end.value.code, int)
    return end.value.code
