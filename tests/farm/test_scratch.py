"""Temporary folders: what a child or a process that was killed leaves behind goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from farm.fleet import scratch_folders
from farm.fleet.child_process import ChildProcess, Limits
from tasks import wire

#: Tells its folder, with something in it, then waits to be killed.
WAITS = """
import sys
from farm.fleet import scratch_folders
place = scratch_folders.make_scratch_folder()
(place / "left").mkdir()
print(place, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty temporary folder, for this process and those that it starts."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    scratch_folders._make_process_folder.cache_clear()
    yield tmp_path
    scratch_folders._make_process_folder.cache_clear()


def test_what_a_child_leaves_goes_with_it(elsewhere: Path) -> None:
    child = ChildProcess(sys.executable, Limits())
    assert child.ask(wire.Hello(), deadline_s=120) == wire.Ready()
    environment = dict(x.split("=", 1) for x in Path(f"/proc/{child.process.pid}/environ").read_text().split("\0") if x)
    place = Path(environment["TMPDIR"])
    assert elsewhere in place.parents
    (place / "mnn-left").mkdir()
    child.close()
    assert not place.exists()
    assert scratch_folders.make_scratch_folder().exists()


def test_what_a_killed_process_leaves_is_removed_by_the_next(elsewhere: Path) -> None:
    def begun() -> tuple[subprocess.Popen[str], Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout
        return process, Path(process.stdout.readline().strip())

    killed, its = begun()
    alive, others = begun()
    assert its.exists()
    killed.kill()
    killed.wait()
    assert scratch_folders.make_scratch_folder().exists()
    assert not its.exists()
    assert (others / "left").exists()  # its process lives
    alive.communicate("")
    assert not others.exists()
