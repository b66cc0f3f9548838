"""A training script of one's own on two ranks of torchrun: right, with a gradient that one rank loses, and scripts that do not come."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.backends import BackendSpec, training_launched
from tasks.backends.training_launched import LaunchedGroup, LaunchedTraining
from tasks.catalogs.training import own
from tasks.catalogs.training.own import OwnTraining
from tasks.judging import Judgement
from tasks.model import Group, Hung, Status
from tasks.prepare.cases import PreparedSample, prepare_group
from tasks.variables import DEADLINE
from tests.bench.training_faults import judge_form
from tests.conftest import ROOT

pytest.importorskip("torch")

SCRIPT = ROOT / "examples/own_ranks/train.py"
LOST = """    if dist.get_rank() == 1:
        module[2].weight.register_hook(lambda g: g * 0)
    model = Dist"""


@pytest.fixture
def sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PreparedSample:
    mine = {"mine": OwnTraining("mine", f"{SCRIPT.name}:make", str(SCRIPT.parent))}
    monkeypatch.setattr(own, "list_own_trainings", lambda: mine)
    return prepare_group(Group("training:mine", "", "float32", 1, 0, "train"), tmp_path)[1].samples[0]


HANGS = """    if dist.get_rank() == 1:
        hang = lambda *given: __import__("time").sleep(3600)
        module.register_forward_hook(hang)
    model = Dist"""
ENDS = """    if dist.get_rank() == 1:
        module.register_forward_hook(lambda *given: __import__("os")._exit(3))
    model = Dist"""


def judge_script(sample: PreparedSample, script: Path) -> Judgement:
    command = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 {script}"
    backend = BackendSpec.parse("launched-cpu").create().but(command=command)
    assert isinstance(backend, LaunchedTraining)
    form = sample.form("torch")
    try:
        return judge_form(sample, backend, replace(form, arrays=[x[:2] for x in form.arrays]))[0]
    finally:
        backend.close()


def test_a_script_is_right_and_a_gradient_that_one_rank_loses_is_named(sample: PreparedSample, tmp_path: Path) -> None:
    found = judge_script(sample, SCRIPT)
    assert found.status is Status.PASS, found.columns.get("error")
    found = judge_script(sample, Path("train.py"))  # from the folder of the config
    assert found.status is Status.PASS, found.columns.get("error")
    broken = tmp_path / "broken.py"
    broken.write_text(SCRIPT.read_text().replace("    model = Dist", LOST))
    found = judge_script(sample, broken)
    assert (found.status, found.kind, found.columns["culprit"]) == (Status.WRONG, "own gradients", "rank 1: 2.weight")


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (HANGS, Hung, "rank 1 answered nothing: others (rank 0 first) waited 3 s for it"),
        (ENDS, RuntimeError, "rank 1 ended"),
    ],
)
def test_a_rank_that_hangs_or_ends_is_named(
    fault: str,
    kind: type[Exception],
    said: str,
    sample: PreparedSample,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(DEADLINE, "6")
    broken = tmp_path / "broken.py"
    broken.write_text(SCRIPT.read_text().replace("    model = Dist", fault))
    with pytest.raises(kind) as raised:
        judge_script(sample, broken)
    assert str(raised.value).startswith(said)
    assert not list_processes_of(broken)


def test_a_rank_that_hangs_ends_though_the_farm_was_killed(tmp_path: Path) -> None:
    """Its connections are then closed, and nothing else is done."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.read_text())
    group = LaunchedGroup(f"{sys.executable} -m torch.distributed.run --nproc-per-node 2 {script}")
    try:
        group._tell(group._sinks[1], {"open": "time:sleep", "arguments": [3600], "plant": ""})
        group._hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            group.processes[0].wait(30)
        left = list_processes_of(script)
    finally:
        group.close()
    assert not left


WAITS = """
import pathlib, time
pathlib.Path(__file__).with_suffix(".begun").touch()
time.sleep(3600)
"""


def test_a_launcher_ends_with_the_process_that_waits_for_its_ranks(tmp_path: Path) -> None:
    """Killed then, it has no connection that it could close."""
    script = tmp_path / "train.py"
    script.write_text(WAITS)
    command = f"{sys.executable} -m torch.distributed.run --nproc-per-node 1 {script}"
    code = "import sys; from tasks.backends.training_launched import LaunchedGroup; LaunchedGroup(sys.argv[1])"
    with subprocess.Popen([sys.executable, "-c", code, command]) as farm:
        until = time.monotonic() + 60
        while not script.with_suffix(".begun").exists() and time.monotonic() < until:
            time.sleep(0.1)
        assert any("torch.distributed.run" in one for one in list_processes_of(script, wait_s=0.0))
        farm.kill()
    assert not list_processes_of(script)


STAYS = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", FOLDER], start_new_session=True).wait()
"""


@pytest.mark.parametrize("ignores", [False, True])
def test_what_a_launcher_has_started_ends_with_it_whatever_it_does(
    ignores: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that passes no signal on, or none of whose ranks calls the hook."""
    monkeypatch.setattr(training_launched, "START_S", 2.0)
    monkeypatch.setattr(training_launched, "END_S", 1.0)
    script = tmp_path / "launcher.py"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" if ignores else ""
    script.write_text(deaf + STAYS.replace("FOLDER", repr(str(script))))
    with pytest.raises(RuntimeError, match="0 ranks called"):
        LaunchedGroup(f"{sys.executable} {script}")
    assert not list_processes_of(script)


def list_processes_of(script: Path, wait_s: float = 5.0) -> list[str]:
    """The command lines of the processes that still run a script, after a moment: who was killed has not yet ended."""
    until, found = time.monotonic() + wait_s, [""]
    while found:
        commands = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has just ended
                commands.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        found = [x for x in commands if str(script) in x]
        if time.monotonic() >= until:
            break
        time.sleep(0.1 * bool(found))
    return found


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "no-such-launcher train.py",
            "no-such-launcher: No such file or directory: the option command names no program",
        ),
        (f"{sys.executable} -c pass", "the script ended with 0 before its ranks called"),
    ],
)
def test_a_script_that_does_not_come_is_one_line(command: str, said: str) -> None:
    with pytest.raises(RuntimeError) as raised:
        LaunchedGroup(command)
    assert said in str(raised.value) and "\n" not in str(raised.value)
