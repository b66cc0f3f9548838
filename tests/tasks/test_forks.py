"""Work done beside in forked processes: what is taken, and what is left of them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tasks import forks
from tasks.forks import fork_beside
from tasks.relay import list_child_processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing can be forked")
HERE = os.getpid()


def work(number: int) -> list[Any]:
    return [number, os.getpid(), 0.1 + number, math.inf]


@pytest.mark.parametrize("places", [1, 2, 4])
def test_each_work_is_taken_once_from_another_process(places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda: places)
    found: list[Any] = []
    with fork_beside() as beside:
        for number in range(5):
            beside.do(lambda n=number: work(n), found.append)  # type: ignore[misc]
            assert len(list_child_processes(HERE)) < places
    assert sorted(x[0] for x in found) == [0, 1, 2, 3, 4]
    assert all(x[1] != os.getpid() and x[2:] == [0.1 + x[0], math.inf] for x in found)
    assert not list_child_processes(HERE)


def test_work_sees_what_was_there_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda: 9)
    state, found = [0], list[int]()
    with fork_beside() as beside:
        for number in range(3):
            state[0] = number
            beside.do(lambda: state[0], found.append)
    assert sorted(found) == [0, 1, 2]


@pytest.mark.parametrize("ends", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: os._exit(3), lambda: 1 / 0])
def test_what_ends_without_an_answer_is_done_here(ends: Any) -> None:
    def work() -> int:
        if os.getpid() != HERE:
            ends()
        return os.getpid()

    found: list[int] = []
    with fork_beside() as beside:
        beside.do(work, found.append)
    assert found == [HERE]


def test_an_error_of_the_work_is_raised_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda: 9)
    with pytest.raises(ZeroDivisionError), fork_beside() as beside:
        beside.do(lambda: time.sleep(60), lambda _: None)
        beside.do(lambda: 1 / 0, lambda _: None)
    assert not list_child_processes(HERE)


def test_work_is_done_here_where_nothing_can_be_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "fork", refuse)
    before, found = os.listdir("/proc/self/fd"), list[int]()
    with fork_beside() as beside:
        beside.do(os.getpid, found.append)
    assert found == [HERE] and os.listdir("/proc/self/fd") == before


KILLED = """
import sys, time
from tasks import forks
forks.count_processes_at_once = lambda: 9
with forks.fork_beside() as beside:
    beside.do(lambda: (print(__import__("os").getpid(), flush=True), time.sleep(60)), print)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ends with its parent on Linux")
def test_nothing_outlives_a_process_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = Path("/proc") / process.stdout.readline().strip()
        assert child.exists()
        process.kill()
    until = time.monotonic() + 10
    while child.exists() and "\nState:\tZ" not in (child / "status").read_text():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_no_more_at_once_than_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "count_usable_processors", lambda: 8)
    monkeypatch.setenv("FARM_MEMORY", str(1 << 50))
    monkeypatch.setattr(forks, "measure_machine_memory", lambda: 1 << 50)
    assert forks.count_processes_at_once() == 8
    monkeypatch.setenv("FARM_MEMORY", "1000")
    assert forks.count_processes_at_once() == 1
