"""Killing the driver, a supervisor or a child at any moment: the run ends with exactly the planned rows."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest
import yaml

from farm import lake
from farm.report.tables.coverage import keep_distinct_rows
from farm.work import fleet_changes
from tests.conftest import PATIENCE_S, ROOT, here

OPS, SAMPLES = 10, 20
CASES = OPS * 2 * SAMPLES


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "load.yaml"
    catalog = {"name": "load", "dtypes": ["float32", "float64"], "samples": SAMPLES}
    backend = {"name": "held-cpu", "like": "null-cpu", "options": {"hold": str(tmp_path / "released")}}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [backend]}))
    return path


@pytest.fixture
def release(tmp_path: Path) -> Callable[[], None]:
    """Let go of runs that are held up in the midst of their cases: as long as they are, whatever is killed is at
    work."""
    return (tmp_path / "released").touch


@pytest.fixture(autouse=True)
def load_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARM_LOAD_OPS", str(OPS))


def start(config: Path, results: Path, how: str = "--on=ray") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "farm.launch", str(config), "--results", str(results), "--no-dashboard", how]
    # A shell's background job, and so its children, ignore Ctrl-C unless told otherwise.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, preexec_fn=heed
    )


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> object:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


def parts(results: Path) -> list[Path]:
    return list(results.glob("run=*/part-*.parquet"))


def descendants(pid: int, word: str) -> list[psutil.Process]:
    """Processes under ``pid`` whose command line holds ``word``."""
    found = []
    for process in psutil.Process(pid).children(recursive=True):
        try:
            if word in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def rows(results: Path) -> pd.DataFrame:
    return lake.read(results, lake.run_ids(results)[-1])


def complete(frame: pd.DataFrame) -> None:
    assert len(frame) == CASES
    assert frame["case_id"].is_unique
    assert len(keep_distinct_rows(frame)) == CASES


@pytest.fixture
def running(request: pytest.FixtureRequest, config: Path, results: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has rows on disk and goes on; the parameter says where (default: on Ray)."""
    process = start(config, results, getattr(request, "param", "--on=ray"))
    try:
        wait_for(lambda: parts(results), "the first rows")
        assert process.poll() is None
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("running", "how"), [("--on=ray", "last"), ("--on=processes", "id"), ("--on=inline", "id")], indirect=["running"]
)
def test_a_killed_driver_is_resumed_to_exactly_the_planned_rows(
    running: subprocess.Popen[str], release: Callable[[], None], config: Path, results: Path, how: str
) -> None:
    alive = [p.pid for p in descendants(running.pid, "")]
    running.kill()
    running.wait()
    before = rows(results)
    assert 0 < len(before) < CASES
    wait_for(lambda: not any(map(is_child, alive)), "the children of a killed driver to be gone")
    release()
    known = lake.run_ids(results)
    done = (
        here("--resume", known[0], "--results", results)
        if how == "id"
        else here(config, "--resume", "last", "--results", results)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert lake.run_ids(results) == known
    after = rows(results)
    complete(after)
    # Durable rows were not made anew.
    both = before.merge(after, on="case_id", suffixes=("", "_after"))
    assert len(both) == len(before)
    assert (both["started_at"] == both["started_at_after"]).all()


def is_child(pid: int) -> bool:
    try:
        return "tasks.child" in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def test_a_killed_supervisor_and_a_killed_child_blame_nobody(
    running: subprocess.Popen[str], release: Callable[[], None], results: Path
) -> None:
    def working() -> list[psutil.Process]:
        return [c for w in descendants(running.pid, "held-cpu") for c in w.children(recursive=True) if is_child(c.pid)]

    workers = descendants(running.pid, "held-cpu")
    assert workers, [p.cmdline() for p in descendants(running.pid, "")]
    children = [c.pid for w in workers[:1] for c in w.children(recursive=True)]
    workers[0].send_signal(signal.SIGKILL)
    wait_for(lambda: not any(map(is_child, children)), "the children of a killed supervisor to be gone")
    wait_for(working, "a child at work")[-1].send_signal(signal.SIGKILL)  # type: ignore[index]
    release()
    out, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, out
    frame = rows(results)
    complete(frame)
    assert set(frame["status"]) == {"pass"}, out


@pytest.mark.nightly
def test_a_killed_raylet_stops_the_run_which_is_resumed(
    running: subprocess.Popen[str], release: Callable[[], None], results: Path
) -> None:
    descendants(running.pid, "raylet/raylet")[0].send_signal(signal.SIGKILL)
    out, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 3, out
    assert "stopped: Ray on this machine has died" in out
    assert set(rows(results)["status"]) == {"pass"}
    release()
    assert here("--resume", "last", "--results", results, "--on=processes").returncode == 0
    complete(rows(results))


@pytest.mark.parametrize(
    "running", [pytest.param("--on=ray", marks=pytest.mark.nightly), "--on=processes"], indirect=True
)
def test_ctrl_c_flushes_and_is_resumable(
    running: subprocess.Popen[str], release: Callable[[], None], results: Path
) -> None:
    os.kill(running.pid, signal.SIGINT)
    out, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 3, out
    assert "--resume" in out
    assert 0 < len(rows(results)) < CASES
    release()
    assert here("--resume", "last", "--results", results).returncode == 0
    complete(rows(results))


def test_a_backend_that_is_gone_when_the_run_is_resumed_leaves_rows_that_are_run_later(
    tmp_path: Path, release: Callable[[], None], results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "vanishing.yaml"
    catalog = {"name": "load", "dtypes": ["float32", "float64"], "samples": SAMPLES}
    vanishing = {"name": "vanishing-cpu", "options": {"hold": str(tmp_path / "released")}}
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": [vanishing, "null-cpu"]}))
    monkeypatch.setenv("FARM_VANISHED", str(tmp_path / "vanished"))
    process = start(file, results, "--on=processes")
    wait_for(lambda: parts(results), "the first rows")
    process.kill()
    process.communicate()
    release()
    (tmp_path / "vanished").touch()
    monkeypatch.setattr(fleet_changes, "REST_S", (0.1, 0.2))
    done = here("--resume", "last", "--results", results)
    assert done.returncode == 3, done.stdout + done.stderr
    frame = rows(results)
    assert frame.groupby("backend").size().to_dict() == {"null-cpu": CASES, "vanishing-cpu": CASES}
    gone = frame[frame["status"] == "unavailable"]
    assert set(gone["backend"]) == {"vanishing-cpu"}
    assert gone["error"].str.contains("gone since: planted: it has gone").all()
    assert f"{len(gone)} cases were not run because their backend went away (vanishing-cpu {len(gone)})" in done.stderr
    (tmp_path / "vanished").unlink()
    assert here("--resume", "last", "--results", results).returncode == 0
    complete(rows(results).query("backend == 'vanishing-cpu'"))
    assert set(rows(results)["status"]) == {"pass"}
    # A finished run stays as it is, whatever is there now.
    (tmp_path / "vanished").touch()
    done = here("--resume", "last", "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"is finished: {2 * CASES} rows" in done.stdout
    assert set(rows(results)["status"]) == {"pass"}


@pytest.mark.parametrize("flag", ["--ops=softmax", "--dtypes=float32", "--backends=null-cpu", "--samples=1"])
def test_flags_that_a_resumed_run_cannot_obey_are_refused(results: Path, flag: str) -> None:
    done = here("--resume", "last", flag, "--results", results)
    assert done.returncode == 2
    assert f"{flag.partition('=')[0]}: a resumed run keeps the cells that it was started with" in done.stderr
