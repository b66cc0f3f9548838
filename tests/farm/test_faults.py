"""Faults on chosen cases: each gets its own status, its neighbours are unharmed, no row is missing."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pandas as pd
import planted
import pytest
import yaml

from farm import lake
from farm.fleet.child_process import ChildDeath, ChildProcess, Limits
from tests.conftest import PATIENCE_S, ROOT, here, launch

SAMPLES = 8
POPEN = subprocess.Popen

#: Fault → (status, kind) of the struck samples.
EXPECTED = {
    "segfault": ("crash", "SIGSEGV"),
    "abort": ("crash", "SIGABRT"),
    "exit": ("crash", "exit code 7"),
    "hold_gil": ("timeout", "timeout"),
    "sleep": ("timeout", "timeout"),
    "allocate": ("oom", "oom"),
    "hoard": ("pass", ""),
    "raise": ("error", ""),
    "unsupported": ("unsupported", ""),
    "fallback": ("fallback", ""),
    "sys_exit": ("error", ""),
    "sigkill": ("crash", "SIGKILL"),
    "deaf": ("pass", ""),  # ignores SIGTERM, which must not help the next one
    "sigterm": ("crash", "SIGTERM"),
    "surrogate": ("error", ""),
    "memory_error": ("oom", ""),
    "shape": ("wrong", "shape"),
    "dtype": ("wrong", "dtype"),
    "nan": ("wrong", "nonfinite"),
    "wrong": ("wrong", "numbers"),
    "imprecise": ("imprecise", "numbers"),
    "none": ("pass", ""),
    "noise_on_stdout": ("pass", ""),
    "close_pipes": ("pass", ""),
    "chdir": ("pass", ""),
    "fork_and_die": ("crash", "SIGABRT"),
    "flood": ("pass", ""),
    "threads": ("pass", ""),
    "reseed": ("pass", ""),
    "poison": ("pass", ""),
    "kill_supervisor": ("crash", "supervisor lost"),
}


def config(path: Path, backends: list[object], ops: list[str], **more: object) -> Path:
    catalog = {"name": "planted", "ops": ops, "dtypes": ["float32"], "samples": SAMPLES}
    path.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": backends, **more}))
    return path


#: They take their whole deadline: that of the others may be long, for none of them is to be decided by how busy the
#: machine is.
HANG = [fault for fault, (status, _) in EXPECTED.items() if status == "timeout"]
#: Its cases have to meet in one process: beside a supervisor that is killed they may be run again one by one.
TOGETHER = ["poison"]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Every fault: on a real local Ray cluster, and those that hang or have to stay together without one."""
    folder = tmp_path_factory.mktemp("faults")
    backends: list[object] = [{"name": "planted-cpu", "memory_gib": 0.5}]
    die = config(folder / "die.yaml", backends, [fault for fault in EXPECTED if fault not in HANG + TOGETHER])
    hang = config(folder / "hang.yaml", backends, HANG + TOGETHER, deadline_s=5)
    frames = []
    on_ray = functools.partial(launch, timeout=900)
    for run, file, *how in ((on_ray, die, "--on", "ray"), (here, hang, "--on", "processes", "--cpus", 1)):
        done = run(file, *how, "--results", folder / "results")
        assert done.returncode == 1, done.stdout + done.stderr
        run_id = lake.run_ids(folder / "results")[-1]
        frames.append(lake.read(folder / "results", run_id))
        assert len(frames[-1]) == lake.read_run(folder / "results", run_id)["planned"]
    frame = pd.concat(frames, ignore_index=True)
    assert len(frame) == SAMPLES * len(EXPECTED)
    return frame


@pytest.mark.parametrize("fault", EXPECTED)
def test_a_fault_is_blamed_on_its_own_cases_alone(rows: pd.DataFrame, fault: str) -> None:
    of_op = rows[rows["op"] == f"planted:{fault}"].set_index("sample")
    assert len(of_op) == SAMPLES
    for sample, row in of_op.iterrows():
        if sample in planted.STRUCK_ONCE.get(fault, planted.STRUCK):
            assert (row["status"], row["kind"]) == EXPECTED[fault], row["error"]
        else:
            assert row["status"] == "pass", row["error"]


def test_a_crash_that_is_another_cases_work_is_not_blamed(rows: pd.DataFrame) -> None:
    of_op = rows[rows["op"] == "planted:poison"].set_index("sample")
    innocent = of_op["note"].fillna("").str.contains(r"died of SIGABRT at stage \w+ in this one")
    assert innocent.any() and (of_op[innocent]["attempts"] > 1).all()


def test_a_crash_says_where_and_keeps_the_last_words(rows: pd.DataFrame) -> None:
    crashed = rows[rows["status"] == "crash"]
    assert set(crashed["stage"]) == {"run"}
    assert crashed["error"].str.contains("died of|exit code|supervisor").all()


def test_last_words_are_the_case_in_flights_own() -> None:
    script = """if 1:
        import os, sys
        from tasks.relay import ProgressPage
        page = ProgressPage(int(sys.argv[-2]))
        sys.stdin = os.fdopen(int(sys.argv[-4]))
        input()
        page.write(0, 2, 1); print("of an earlier case", flush=True)
        page.write(1, 2, 1); page.write(1, 3, 1); print("its own", flush=True); os._exit(5)
    """
    with mock.patch(
        "subprocess.Popen", side_effect=lambda command, **more: POPEN([command[0], "-c", script, *command[4:]], **more)
    ):
        child = ChildProcess(sys.executable, Limits())
    death = child.ask({})
    child.close()
    assert isinstance(death, ChildDeath) and death.kind == "exit code 5"
    assert "its own" in death.text and "earlier" not in death.text


def test_memory_that_other_cases_have_kept_is_not_blamed_on_the_one_that_is_too_much(rows: pd.DataFrame) -> None:
    said = rows.loc[rows["op"] == "planted:hoard", "note"].fillna("")
    assert said.str.contains("in a new process it does not").any(), list(said)


def test_metrics_are_there_only_where_they_were_measured(rows: pd.DataFrame) -> None:
    dead = rows[rows["status"].isin(["crash", "timeout", "oom", "error", "unsupported"])]
    assert dead[["max_diff", "error_units", "numel"]].isna().all().all()
    right = rows[rows["status"] == "pass"]
    assert right[["max_diff", "error_units", "numel"]].notna().all().all()


def test_a_preparer_that_dies_leaves_rows_that_say_so(results: Path, tmp_path: Path) -> None:
    ops = ["prepare_segfault", "prepare_raise", "prepare_exit", "none"]
    done = here(config(tmp_path / "c.yaml", ["planted-cpu"], ops), "--results", results, "--cpus", 1)
    assert done.returncode == 0, done.stdout + done.stderr
    frame = lake.read(results, lake.run_ids(results)[-1])
    assert (frame[frame["op"] == "planted:none"]["status"] == "pass").all()
    for op in ops[:3]:
        of_op = frame[frame["op"] == f"planted:{op}"]
        # A death costs one sample its row; an exception ends the making of the list, and says so.
        lost = [-1, 0, 1] if op == "prepare_raise" else list(range(SAMPLES))
        assert sorted(of_op["sample"]) == lost
        bad = of_op[of_op["status"] == "invalid"]
        assert list(bad["sample"]) == ([-1] if op == "prepare_raise" else [planted.STRUCK[0]])
        assert bad["error"].all()


def test_backends_that_cannot_be_had_are_lines_with_reasons(results: Path, tmp_path: Path) -> None:
    names = ["broken-raise", "broken-exit", "broken-segfault", "broken-unavailable"]
    done = here(config(tmp_path / "c.yaml", [*names, "planted-cpu"], ["none"]), "--results", results)
    assert done.returncode == 0, done.stdout + done.stderr
    run_id = lake.run_ids(results)[-1]
    inventory = lake.read_run(results, run_id)["inventory"]["backends"]
    assert "libplanted.so.1" in inventory["broken-raise"]["reason"]
    assert "exit code 4" in inventory["broken-exit"]["reason"]
    assert "SIGSEGV" in inventory["broken-segfault"]["reason"]
    assert inventory["broken-unavailable"]["reason"] == "planted: no such device"
    assert set(lake.read(results, run_id)["backend"]) == {"planted-cpu"}
    for name in names:
        assert name in done.stdout


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs mount namespaces")
@pytest.mark.parametrize("full", ["cache", "results"])
def test_a_full_disk_stops_the_run_which_is_resumed_later(tmp_path: Path, full: str) -> None:
    folders = {name: tmp_path / name for name in ("cache", "results")}
    for folder in folders.values():
        folder.mkdir()
    catalog = {"name": "load", "dtypes": ["float32"], "samples": 100}
    file = tmp_path / "c.yaml"
    file.write_text(yaml.safe_dump({"catalogs": [catalog], "backends": ["busy-cpu"]}))
    size = {"cache": "100k", "results": "48k"}[full]
    env = os.environ | {"FARM_CACHE": str(folders["cache"])}
    farm = f"{sys.executable} -m farm.launch --on inline --results {folders['results']}"
    # Both runs see the same small disk; before the second one it is enlarged.
    script = (
        f"mount -t tmpfs -o size={size} tmpfs {folders[full]}; {farm} {file}; echo first $?; "
        f"mount -o remount,size=100m {folders[full]}; {farm} --resume last; echo second $?"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, env=env, cwd=ROOT, timeout=PATIENCE_S
    )
    assert "first 3" in done.stdout, done.stdout + done.stderr
    assert "No space left on device" in done.stderr
    assert "second 0" in done.stdout, done.stdout + done.stderr
    assert "no failures in 1,000 results" in done.stdout
