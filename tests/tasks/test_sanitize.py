"""The check sanitize: a maker's tool in front of a second process, and guard pages beside the inputs of kernels on a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farm import lake
from tasks.arrays.guarded import GUARD, PageGuard
from tasks.backends.base import Backend
from tasks.checks.sanitize import Sanitize
from tasks.devices.nvidia import GPU
from tasks.model import Ended, Form, Misbehaviour, OwnKernel, Program, Unsupported
from tests.conftest import here

assert GPU.sanitizer is not None
SANITIZER = GPU.sanitizer
CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
WRITE = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at scale(float *, int)+0x90 in kernels.cu:13
=========     by thread (31,0,0) in block (0,0,0)
=========     Address 0x7f6510c00080 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6510c00000 of size 128 bytes
=========
========= ERROR SUMMARY: 1 error
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at sum(int *, int *)+0x80 in kernels.cu:20
=========     and Read access at sum(int *, int *)+0xc0 in kernels.cu:27 [12 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
UNWRITTEN = """========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at sum(int *, int *)+0x70 in kernels.cu:7
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize(
    ("log", "kind"),
    [
        (WRITE, "writes outside"),
        (WRITE.replace("write", "read"), "reads outside"),
        (WRITE.replace("write", "atomic"), "writes outside"),
        (WRITE.replace("out of bounds", "misaligned"), "misaligned"),
        (RACE, "race"),
        (RACE.replace("Error:", "Warning:").replace("1 error, 0", "0 errors, 1"), ""),
        (UNWRITTEN, "uninitialised"),
        (UNWRITTEN + WRITE, "uninitialised"),
        (CLEAN, ""),
    ],
)
def test_what_compute_sanitizer_prints_is_read(log: str, kind: str) -> None:
    found = SANITIZER.read(log)
    assert (found.kind if found else "") == kind and SANITIZER.is_whole(log)
    assert found is None or ("kernels.cu" in found.text and "=====" not in found.text)


def test_a_log_that_was_cut_short_is_not_whole() -> None:
    assert not SANITIZER.is_whole("========= COMPUTE-SANITIZER\n")


class OnCard(Backend):
    device_vendor = "nvidia"

    def build(self, form: Form) -> Program:
        return Program(lambda: [np.ones(3)])


@dataclass
class Process:
    """Stands for another process of the backend: runs the command that is to stand before it, and what it does
    itself."""

    code: int = 0
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def __call__(self, threads: int, front: tuple[str, ...] = (), env: Any = None) -> list[np.ndarray]:
        self.asked.append(front)
        subprocess.run([*front, sys.executable, "-c", "pass"], check=True, env=os.environ | dict(env or {}))
        if self.code:
            raise Ended(f"ended (exit code {self.code})", self.code)
        return [np.ones(3)]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A program on the PATH that is called as compute-sanitizer is, runs what it is to run, and writes a log of the
    tool's name."""
    file = tmp_path / "compute-sanitizer"
    file.write_text(
        "#!/bin/sh\nwhile [ $# -gt 0 ]; do\n case $1 in\n --tool) tool=$2; shift 2;; --log-file) log=$2; shift 2;;\n"
        ' --*) shift 2;; *) break;;\n esac\ndone\n"$@"\ncp "$(dirname "$0")/$tool.txt" "$log"\n'
    )
    file.chmod(0o755)
    for tool in SANITIZER.tools:
        (tmp_path / f"{tool}.txt").write_text(CLEAN)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    yield tmp_path


def sanitized(process: Process) -> Program:
    """A program on a card, after the check."""
    form = Form("torch", "user:op", "float32", [], elsewhere=process)
    program = Sanitize().build(OnCard("on-card", "card", {}), form)
    list(Sanitize().stages(program, form))
    return program


def test_all_tools_stand_before_a_process_of_their_own(stand_in: Path) -> None:
    process = Process()
    assert "sanitized=memcheck,racecheck,initcheck" in sanitized(process).flags
    assert [call[:3] for call in process.asked] == [
        (str(stand_in / "compute-sanitizer"), "--tool", x) for x in SANITIZER.tools
    ]


@pytest.mark.parametrize(
    ("tool", "log", "kind"),
    [("memcheck", WRITE, "writes outside"), ("racecheck", RACE, "race"), ("initcheck", UNWRITTEN, "uninitialised")],
)
@pytest.mark.parametrize("code", [0, 1])
def test_what_a_tool_finds_is_wrong_whatever_becomes_of_the_process(
    stand_in: Path, tool: str, log: str, kind: str, code: int
) -> None:
    (stand_in / f"{tool}.txt").write_text(log)
    with pytest.raises(Misbehaviour, match="kernels.cu") as found:
        sanitized(Process(code if tool == "memcheck" else 0))
    assert found.value.kind == kind


def test_a_tool_that_does_not_come_to_an_end_is_an_error_and_no_verdict(stand_in: Path) -> None:
    (stand_in / "memcheck.txt").write_text("========= COMPUTE-SANITIZER\n========= Internal Sanitizer Error\n")
    with pytest.raises(RuntimeError, match="did not come to an end.*Internal Sanitizer Error"):
        sanitized(Process())


def test_a_tool_that_is_not_installed_is_one_line_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(SANITIZER), "find", lambda self: "")
    with pytest.raises(Unsupported, match="compute-sanitizer is not installed: it comes with the CUDA toolkit"):
        sanitized(Process())


@pytest.mark.parametrize("vendor", ["amd", "intel"])
def test_a_maker_without_such_a_tool_is_named(vendor: str) -> None:
    backend = OnCard("on-card", "card", {})
    backend.device_vendor = vendor
    with pytest.raises(Unsupported, match=f"no tool is known that watches the memory of {vendor}"):
        Sanitize().build(backend, Form("torch", "user:op", "float32", [], own=OwnKernel()))


# --- guard pages --------------------------------------------------------------------------------------------------

PROBE = """
import ctypes, sys
import numpy as np
from tasks.arrays.guarded import PageGuard
x = PageGuard(sys.argv[1], sys.argv[2]).copy(np.arange(1000, dtype=np.float32).reshape(10, 100))
assert (x == np.arange(1000).reshape(10, 100)).all() and x.flags.c_contiguous
x[0, 0], x[9, 99] = 1, 2
place = x.ctypes.data + (x.nbytes if sys.argv[1] == "end" else -4)
cell = ctypes.c_float.from_address(place)
if sys.argv[3] == "read": cell.value
if sys.argv[3] == "write": cell.value = 1
"""


@pytest.mark.parametrize("place", ["end", "start"])
@pytest.mark.parametrize(
    ("access", "does", "dies"),
    [
        *(("none", "nothing", False), ("none", "read", True), ("none", "write", True)),
        *(("read", "read", False), ("read", "write", True), ("write", "write", False)),
    ],
)
def test_the_page_beside_an_array_may_be_touched_as_it_is_told(place: str, access: str, does: str, dies: bool) -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, place, access, does], capture_output=True, text=True)
    assert (done.returncode < 0) == dies, done.stderr
    assert dies or done.returncode == 0, done.stderr


def test_an_array_without_elements_needs_no_memory() -> None:
    assert PageGuard().copy(np.zeros((0, 3))).shape == (0, 3)


def on_cpu(dies: Any) -> tuple[str, str]:
    """(kind, flags) of a kernel whose process dies where ``dies`` says so of a guard."""

    def elsewhere(threads: int, front: Any = (), env: Any = None) -> list[np.ndarray]:
        if dies(*env[GUARD].split(":")):
            raise Ended("ended (exit code -11)", -11)
        return []

    class OnCpu(OnCard):
        device_vendor = ""

    form = Form("torch", "user:op", "float32", [], own=OwnKernel(), elsewhere=elsewhere)
    program = Sanitize().build(OnCpu("on-cpu", "cpu", {}), form)
    try:
        list(Sanitize().stages(program, form))
    except Misbehaviour as error:
        return error.kind, program.flags
    return "", program.flags


@pytest.mark.parametrize(
    ("dies", "kind"),
    [
        (lambda place, access: False, ""),
        (lambda place, access: place == "end" and access == "none", "reads outside"),
        (lambda place, access: place == "start" and access != "write", "writes outside"),
        (
            lambda place, access: place == "end",
            "",
        ),  # wherever its inputs end there: it takes for granted that they are aligned
    ],
)
def test_who_dies_beside_a_page_and_not_where_it_may_be_touched_is_outside(dies: Any, kind: str) -> None:
    found, flags = on_cpu(dies)
    assert found == kind and ("sanitized=guard-pages" in flags) == (not kind)


KERNELS = """
import ctypes

def right(x): return x * 2
def good(x): return x * 2

def over(x):
    ctypes.c_float.from_address(x.data_ptr() + 4 * x.numel()).value
    return x * 2
"""


def test_a_kernel_that_reads_behind_its_input_is_wrong_in_a_run(tmp_path: Path, results: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "k.py").write_text(KERNELS)
    kernel = '{{name: {0}, kernel: "k.py:{0}", reference: "k.py:right", inputs: {{x: [7, 9]}}, layouts: [contiguous]}}'
    kernels = "\n".join(f"  - {kernel.format(name)}" for name in ("good", "over"))
    config = tmp_path / "c.yaml"
    config.write_text(
        f"dtypes: [float32]\nchecks: [sanitize]\ncatalogs:\n- name: user\n  samples: 1\n  kernels:\n{kernels}\nbackends: [torch-cpu]\n"
    )
    done = here(config, "--on", "inline", "--results", results)
    rows = lake.read(results, lake.run_ids(results)[-1]).set_index("op")
    assert list(rows["status"].sort_index()) == ["pass", "wrong"], done.stdout + done.stderr
    assert rows.loc["user:over", "kind"] == "reads outside" and "behind the end" in rows.loc["user:over", "error"]
