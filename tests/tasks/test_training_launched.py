"""A training script of one's own on two ranks of torchrun: right, with a gradient that one rank loses, and scripts that do not come."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.backends import BackendSpec, collectives
from tasks.backends.training_launched import LaunchedGroup, LaunchedTraining
from tasks.catalogs.training import own
from tasks.catalogs.training.own import OwnTraining
from tasks.judging import Judgement
from tasks.model import Group, Hung, Status
from tasks.prepare.cases import PreparedSample, prepare_group
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
    monkeypatch.setattr(collectives, "_LEAST_S", 3.0)
    broken = tmp_path / "broken.py"
    broken.write_text(SCRIPT.read_text().replace("    model = Dist", fault))
    with pytest.raises(kind) as raised:
        judge_script(sample, broken)
    assert str(raised.value).startswith(said)
    assert not list_processes_of(broken)


def list_processes_of(script: Path) -> list[str]:
    """The command lines of the processes that still run a script."""
    commands = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            commands.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [x for x in commands if str(script) in x]


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
