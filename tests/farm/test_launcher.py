"""A launcher in front of a child's interpreter: what passes through it, and what is said of one that does not do its part."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from farm import lake
from farm.fleet import channel, envs, existing_interpreter
from farm.fleet.ask_backends import probe_backends
from farm.fleet.channel import LAUNCHER
from farm.fleet.child_process import ChildDeath, ChildProcess, Limits
from farm.fleet.envs import EnvError, Environment
from farm.plan.config import ConfigError, load_config
from farm.plan.match_known import _match_known_version
from farm.report.tables.history import sort_version_texts
from farm.reproduction.pinned_versions import _read_row_versions
from tasks import wire
from tasks.backends import BackendSpec
from tests.conftest import here, refusal_of
from tests.farm.test_faults import EXPECTED, SAMPLES, config
from tests.plugin import planted

#: A launcher that starts its command as a process of its own, as ssh and a container's client do, and says something
#: first.
STAND_IN = """#!{python}
import subprocess, sys
print("Welcome to the board", flush=True)
process = subprocess.Popen(sys.argv[1:])
sys.exit(process.wait() % 256)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    return script(tmp_path / "board", STAND_IN.format(python=sys.executable))


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def behind(launcher: list[str], cache: Path) -> envs.Interpreter:
    return envs.build_interpreter(Environment((), "", tuple(launcher)), cache)


@pytest.fixture
def child(stand_in: Path, tmp_path: Path) -> Iterator[ChildProcess]:
    made = ChildProcess(behind([str(stand_in)], tmp_path / "cache"), Limits())
    yield made
    made.close()


def test_a_child_answers_through_a_launcher_and_leaves_nothing(child: ChildProcess) -> None:
    assert child.ask(wire.Hello(), 60) == wire.Ready()
    below = psutil.Process(child.process.pid).children(recursive=True)
    assert len(below) == 2  # the relay and the child
    assert child.resident() > 1 << 20
    child.close()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert not alive and child.process.poll() is not None


def test_a_launcher_that_dies_takes_no_case_with_it(child: ChildProcess) -> None:
    child.ask(wire.Hello(), 60)
    below = psutil.Process(child.process.pid).children(recursive=True)
    os.kill(child.process.pid, signal.SIGKILL)
    for process in below:
        process.suspend()  # no answer comes of what it has left, as of a board that has gone
    death = child.ask(wire.Hello(), 60)
    for process in below:
        process.resume()
    assert isinstance(death, ChildDeath) and (death.status, death.kind, death.was_killed) == ("crash", LAUNCHER, True)
    assert "ended (SIGKILL), and its process with it" in death.text
    child.close()
    assert not psutil.wait_procs(below, timeout=10)[1]


def test_a_launcher_that_is_heard_of_no_more_is_ended(child: ChildProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    child.ask(wire.Hello(), 60)
    monkeypatch.setattr(channel, "SILENT_S", 0.5)
    monkeypatch.setattr(channel, "ENDING_S", 0.5)
    os.killpg(child.process.pid, signal.SIGSTOP)
    time.sleep(0.6)
    child.channel._heard_at -= 1.0  # type: ignore[attr-defined]
    said = list(child.call(wire.Hello(), 30))[-1]
    assert isinstance(said, ChildDeath) and said.kind == LAUNCHER and "nothing is heard" in said.text


@pytest.mark.parametrize(
    ("launcher", "says"),
    [
        ("#!/bin/sh\nexit 3\n", "ended before a Python answered (exit code 3): mend the launcher"),
        ("#!/bin/sh\necho no route to board >&2\nexit 255\n", "(exit code 255; no route to board)"),
        ('#!/bin/sh\nexec "$@" </dev/null\n', "gives its process no stdin"),
        ("#!/bin/sh\nshift 2\nexec python3 /nowhere/tasks/interpreter.py\n", "before a Python answered"),
        ('#!/bin/sh\ncat >/dev/null & echo /nowhere/token | "$@"\n', "is not: share it there"),
        ('#!/bin/sh\nPYTHONPATH=${0%/*} exec "$@"\n', "to where no temporary file can be written: give it a folder"),
        ("#!/bin/sh\nexec sleep 1000\n", "has not answered in 2 s"),
    ],
)
def test_a_launcher_that_cannot_serve_is_one_line_with_the_fix(
    launcher: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(existing_interpreter, "LAUNCH_S", 2.0 if "sleep" in launcher else 60.0)
    path = script(tmp_path / "launch", launcher)
    # Where a launcher makes Python look here first, there is no folder for temporary files: a root that is read-only.
    (tmp_path / "sitecustomize.py").write_text("import tempfile\ntempfile._candidate_tempdir_list = list\n")
    with pytest.raises(EnvError) as caught:
        behind([str(path)], tmp_path / "cache")
    said = str(caught.value)
    assert said.startswith(f"launcher: {path}") and says in said and "\n" not in said
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "1000"]]


def test_a_launcher_that_is_not_there_and_a_folder_that_it_does_not_see(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match="there is no no-such-launcher on this node; install it, or name its path"):
        behind(["no-such-launcher", "run"], tmp_path / "cache")
    # As in a container without the mount: the program that it is given is not there.
    path = script(tmp_path / "launch", '#!/bin/sh\necho "cannot open $2: No such file" >&2\nexit 2\n')
    with pytest.raises(EnvError, match="leads to where the cache .* is not: share it there under the same path"):
        behind([str(path)], tmp_path / "cache")


def test_a_launcher_that_ends_before_its_process_is_one_line_with_the_fix(tmp_path: Path) -> None:
    """Having shown an interpreter, it does not run what the farm starts with it."""
    path = script(tmp_path / "launch", '#!/bin/sh\ncase "$2" in *relay.py) exit 9;; esac\nexec "$@"\n')
    spec = BackendSpec.parse("ort-cpu", launcher=(str(path),))
    said = refusal_of(probe_backends([spec], tmp_path / "cache")["ort-cpu"])
    assert said.startswith(f"the launcher {path} ended (exit code 9) before its process began") and "\n" not in said
    assert said.endswith(
        f"it has to run until its process ends, and to pass on all that is said; by hand: {path} {sys.executable} -V"
    )


def test_every_fault_is_blamed_behind_a_launcher_as_without_one(stand_in: Path, tmp_path: Path) -> None:
    faults = ["segfault", "exit", "sleep", "allocate", "raise", "sigkill", "noise_on_stdout", "none"]
    plugin = str(Path(planted.__file__).parent)
    backend = {"name": "planted-cpu", "launcher": ["env", f"PYTHONPATH={plugin}", str(stand_in)], "memory_gib": 0.5}
    done = here(config(tmp_path / "c.yaml", [backend], faults, deadline_s=12), "--results", tmp_path / "results")
    assert done.returncode == 1, done.stdout + done.stderr
    frame = lake.read(tmp_path / "results", lake.run_ids(tmp_path / "results")[-1])
    assert len(frame) == SAMPLES * len(faults)
    for row in frame.to_dict("records"):
        fault = row["op"].partition(":")[2]
        struck = row["sample"] in planted.STRUCK
        assert (row["status"], row["kind"]) == (EXPECTED[fault] if struck else ("pass", "")), row["error"]
        assert str(stand_in) in row["environment"]


@pytest.mark.parametrize(
    ("backend", "says"),
    [
        ("{name: torch-cpu, launcher: ssh board}", r"a command as a list of words, e.g. \[ssh, board\]"),
        ("{name: torch-cpu, launcher: [ssh, 3]}", "a command as a list of words"),
        (
            "{name: torch-cpu, launcher: []}",
            r"yaml:2:\d+: backends\.0\.launcher: it is empty: .*, or leave the key out",
        ),
        ("{name: torch-cpu, python: python3}", "a name, behind a launcher"),
        ("{name: torch-cpu, launcher: [nice], python: python3, packages: [torch]}", "leave out one of the two"),
    ],
)
def test_a_launcher_is_a_list_of_words(backend: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"catalogs: [torch]\nbackends: [{backend}]\n")
    with pytest.raises(ConfigError, match=says):
        load_config(str(tmp_path / "c.yaml"))


def test_an_old_python_is_named(tmp_path: Path) -> None:
    """One that says that it is Python 3.8."""
    answer = '{"python": "3.8", "stdin": true, "shared": true, "lacking": [], "versions": {}}'
    path = script(tmp_path / "python", f"#!/bin/sh\necho 'farm-interpreter {answer}'\n")
    with pytest.raises(EnvError, match=r"is Python 3\.8, and tasks needs 3\.9 or later: name a later one"):
        envs.build_interpreter(Environment((), str(path)), tmp_path)


def test_a_folder_is_no_interpreter(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"cannot be started \(Permission denied\): name the interpreter in it"):
        envs.build_interpreter(Environment((), str(tmp_path)), tmp_path)


def test_an_interpreter_of_another_machine_is_named(tmp_path: Path) -> None:
    path = tmp_path / "python"
    path.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(11) + b"\xf3\x00" + bytes(44))  # RISC-V
    path.chmod(0o755)
    with pytest.raises(EnvError, match="is no program of this machine .*: name an interpreter built for it"):
        envs.build_interpreter(Environment((), str(path)), tmp_path)


def test_what_an_interpreter_lacks_is_laid_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in it is changed; where no index can be had, the farm's own packages serve one of its kind."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare" / "bin" / "python"
    before = sorted(str(p) for p in (tmp_path / "bare").rglob("*"))

    def install(arguments: object, *more: object) -> str:
        raise EnvError("the index cannot be reached")

    monkeypatch.setattr(envs, "_run_uv_command", install)
    made = envs.build_interpreter(Environment((), str(python)), tmp_path / "cache")
    assert made.folders and made.launcher == ()
    child = ChildProcess(made, Limits())
    assert child.ask(wire.Hello(), 60) == wire.Ready()
    child.close()
    assert sorted(str(p) for p in (tmp_path / "bare").rglob("*")) == before


@pytest.mark.skipif(not shutil.which("unshare") or os.getuid() != 0, reason="needs unshare and root")
def test_a_launcher_of_namespaces(tmp_path: Path) -> None:
    launcher = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*launcher, "true"], capture_output=True).returncode:
        pytest.skip("namespaces cannot be made here")
    child = ChildProcess(behind(launcher, tmp_path / "cache"), Limits())
    assert child.ask(wire.Hello(), 60) == wire.Ready()
    child.close()


@pytest.mark.parametrize("label", ["2.9.0a0+git1234abc", "2.9.0a0+ecf3bae40a.nv25.09"])
def test_a_build_of_ones_own_is_read_as_its_release(label: str) -> None:
    told = f"torch {label}, cuDNN 9.1"
    assert _match_known_version(">=2.9", told) and _match_known_version("==2.9.*", told)
    assert not _match_known_version("<2.9", told) and not _match_known_version(">=2.10", told)
    assert sort_version_texts("torch 2.8.0") < sort_version_texts(told) < sort_version_texts("torch 2.10.0")
    assert _read_row_versions(told, "torch") == {}
    assert not _match_known_version(">=2.9", "torch 2.9.0rc1")
