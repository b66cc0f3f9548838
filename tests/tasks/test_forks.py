"""Work done beside in forked processes: what is taken, and what is left of them."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks import forks, heap
from tasks.forks import fork_beside
from tasks.relay import list_child_processes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing can be forked")
HERE = os.getpid()


@pytest.fixture
def list_forks() -> Callable[[], set[int]]:
    """Lists the children that the test has started: another of the same process may have left some."""
    before = set(list_child_processes(HERE))
    return lambda: set(list_child_processes(HERE)) - before


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does nothing is found out in less than a second."""
    monkeypatch.setattr(forks, "LOOK_S", 0.1)
    monkeypatch.setattr(forks, "LOOKS", 5)


def work(number: int) -> list[Any]:
    return [number, os.getpid(), 0.1 + number, math.inf]


@pytest.mark.parametrize("places", [1, 2, 4])
def test_each_work_is_taken_once_from_another_process(
    places: int, monkeypatch: pytest.MonkeyPatch, list_forks: Callable[[], set[int]]
) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: places)
    found: list[Any] = []
    with fork_beside() as beside:
        for number in range(5):
            beside.do(lambda n=number: work(n), found.append)  # type: ignore[misc]
            assert len(list_forks()) < places
    assert sorted(x[0] for x in found) == [0, 1, 2, 3, 4]
    assert all(x[1] != os.getpid() and x[2:] == [0.1 + x[0], math.inf] for x in found)
    assert not list_forks()


def test_work_sees_what_was_there_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 9)
    state, found = [0], list[int]()
    with fork_beside() as beside:
        for number in range(3):
            state[0] = number
            beside.do(lambda: state[0], found.append)
    assert sorted(found) == [0, 1, 2]


def test_what_is_forgotten_there_is_still_here_and_is_so_before_this_process_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 9)
    kept, found = ["large"], list[int]()
    begun = multiprocessing.get_context("fork").Event()

    def forget() -> None:
        kept.clear()
        begun.set()

    with fork_beside() as beside:
        beside.do(lambda: len(kept), found.append, forget)
        assert begun.is_set() and kept == ["large"]
    assert found == [0]


@pytest.mark.parametrize(
    ("ends", "failure", "again"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "a forked process ended with status -9", True),
        (lambda: os._exit(3), "a forked process ended with status 3", False),
        (lambda: os._exit(0), "a forked process ended with status 0", False),
        (lambda: 1 / 0, "ZeroDivisionError: division by zero", False),
    ],
)
def test_what_ends_without_an_answer_is_done_here(
    ends: Any, failure: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """again: whether another is forked after it."""
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 1)

    def work() -> int:
        if os.getpid() != HERE:
            ends()
        return os.getpid()

    found: list[int] = []
    with fork_beside() as beside:
        beside.do(work, found.append)
        beside.do(os.getpid, found.append)
    assert found[0] == HERE and (found[1] != HERE) is again
    assert beside.failure == failure


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """One whose thread is there."""
    with ThreadPoolExecutor(1) as made:
        made.submit(int).result()
        yield made


@pytest.mark.usefixtures("looks")
def test_what_does_nothing_any_more_is_done_here(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, list_forks: Callable[[], set[int]]
) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 3)
    found: list[Any] = []
    with fork_beside() as beside:
        for _ in range(3):
            beside.do(lambda: executor.submit(os.getpid).result(), found.append)
        beside.do(os.getpid, found.append)
    assert found == [HERE] * 4 and beside.failure == "a forked process did nothing any more"
    assert not list_forks()


@pytest.mark.usefixtures("looks")
def test_what_works_for_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "LOOK_S", 0.3)  # on a machine that is busy it may not work for as long

    def work() -> int:
        while time.process_time() < 2.0:
            pass
        return os.getpid()

    found: list[int] = []
    with fork_beside() as beside:
        beside.do(work, found.append)
    assert found != [HERE] and not beside.failure


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("answers", [True, False])
def test_a_process_that_a_fork_has_left_is_not_waited_for(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if answers:  # at once
        monkeypatch.setattr(forks, "LOOKS", 1000)

    def work() -> int:
        if os.getpid() == HERE:
            return HERE
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        if not answers:
            os._exit(1)
        return os.getpid()

    found: list[int] = []
    before = time.monotonic()
    with fork_beside() as beside:
        beside.do(work, found.append)
    assert (found != [HERE]) is answers and time.monotonic() - before < 20


def test_what_cannot_be_forgotten_is_said_and_the_work_done_here() -> None:
    found: list[int] = []
    with fork_beside() as beside:
        beside.do(os.getpid, found.append, lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert found == [HERE] and beside.failure == "ZeroDivisionError: division by zero"


def test_a_process_may_have_more_files_open_than_select_takes(list_forks: Callable[[], set[int]]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip("no more than so many files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held, found = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)], list[int]()
    try:
        with fork_beside() as beside:
            beside.do(os.getpid, found.append)
    finally:
        for one in held:
            os.close(one)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found != [HERE] and not list_forks()


def test_work_that_reads_no_file_keeps_nobody_waiting_for_the_end_of_one() -> None:
    ours, theirs = socket.socketpair()
    beside, found = forks.Forks(closes=True), list[int]()
    try:
        beside.do(lambda: (time.sleep(1.0), os.getpid())[1], found.append)
        theirs.close()
        ours.settimeout(0.9)
        assert ours.recv(1) == b""
        beside.finish()
    finally:
        beside.end()
        ours.close()
    assert found != [HERE] and not beside.failure


def raise_interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def alarm() -> Iterator[None]:
    """SIGALRM raises KeyboardInterrupt. No garbage is collected: what is raised in a callback of that is lost."""
    before = signal.signal(signal.SIGALRM, raise_interrupt)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm", "executor")
@pytest.mark.parametrize("delay", [0.001, 0.003, 0.01, 0.03])
def test_an_interrupt_while_processes_are_made_leaves_none(delay: float, list_forks: Callable[[], set[int]]) -> None:
    until = time.monotonic() + 10.0
    with pytest.raises(KeyboardInterrupt), fork_beside() as beside:
        signal.setitimer(signal.ITIMER_REAL, delay)
        while time.monotonic() < until:
            beside.do(lambda: time.sleep(0.005), lambda _: None)
    assert not list_forks() and not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.getsignal(signal.SIGALRM) is raise_interrupt


@pytest.mark.usefixtures("alarm", "executor")
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_that_another_thread_is_given_comes_when_the_process_is_known(
    when: str, monkeypatch: pytest.MonkeyPatch, list_forks: Callable[[], set[int]]
) -> None:
    fork, swallowed = os.fork, list[int]()

    def interrupt() -> None:
        """As a hook of the fork: what is raised is lost."""
        try:
            os.kill(HERE, signal.SIGALRM)
            time.sleep(0.05)
        except KeyboardInterrupt:
            swallowed.append(1)

    def fork_and_interrupt() -> int:
        if when == "before":
            interrupt()
        pid = fork()
        if pid and when == "after":
            interrupt()
        return pid

    monkeypatch.setattr(os, "fork", fork_and_interrupt)
    taken = list[int]()
    with pytest.raises(KeyboardInterrupt), fork_beside() as beside:
        beside.do(os.getpid, taken.append)
    assert not swallowed and not taken and not list_forks()
    assert signal.getsignal(signal.SIGALRM) is raise_interrupt


def raise_timeout(*_: object) -> None:
    raise TimeoutError


@pytest.fixture
def terminate() -> Iterator[list[int]]:
    """What has come of SIGTERM, which is handled."""
    came = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("alarm", "executor")
def test_whatever_comes_meanwhile_is_handled_once(
    terminate: list[int], monkeypatch: pytest.MonkeyPatch, list_forks: Callable[[], set[int]]
) -> None:
    """Though what is handled before it raises, and this thread has blocked it, so that another is given it."""
    fork = os.fork

    def fork_and_interrupt() -> int:
        if pid := fork():
            for number in (signal.SIGALRM, signal.SIGTERM):
                os.kill(HERE, number)
            time.sleep(0.05)
        return pid

    monkeypatch.setattr(os, "fork", fork_and_interrupt)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with pytest.raises(KeyboardInterrupt), fork_beside() as beside:
            beside.do(os.getpid, lambda _: None)
        assert not signal.sigpending() and terminate == [signal.SIGTERM] and not list_forks()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("alarm")
def test_a_time_limit_that_ends_as_a_process_is_made_is_no_want_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGALRM, raise_timeout)
    install = signal.signal

    def end_time(number: int, handler: Any) -> Any:
        if number == signal.SIGALRM and handler is not raise_timeout:
            signal.raise_signal(number)
        return install(number, handler)

    monkeypatch.setattr(signal, "signal", end_time)
    beside = forks.Forks()
    with pytest.raises(TimeoutError):
        beside.do(os.getpid, lambda _: None)
    assert not beside.failure and signal.getsignal(signal.SIGALRM) is raise_timeout


@pytest.mark.usefixtures("alarm")
def test_a_handler_that_a_fork_sets_in_its_process_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    fork, found = os.fork, list[Any]()

    def fork_and_reset() -> int:
        if not (pid := fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        return pid

    monkeypatch.setattr(os, "fork", fork_and_reset)
    with fork_beside() as beside:
        beside.do(lambda: signal.getsignal(signal.SIGALRM), found.append)
    assert found == [signal.SIG_DFL] and signal.getsignal(signal.SIGALRM) is raise_interrupt


@pytest.mark.usefixtures("alarm")
def test_a_signal_that_is_sent_to_a_process_that_works_is_handled_there() -> None:
    def work() -> str:
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(5)
        return "not handled"

    found: list[str] = []
    with fork_beside() as beside, pytest.raises(KeyboardInterrupt):
        beside.do(work, found.append)
        beside.finish()
    assert not found and beside.failure == "KeyboardInterrupt: "


class Last:
    """Says where it is finalised."""

    def __init__(self, path: Path) -> None:
        self.path, self.me = path, self

    def __del__(self) -> None:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")


def test_garbage_of_this_process_is_finalised_here_alone(tmp_path: Path) -> None:
    gc.disable()
    try:
        Last(tmp_path / "said")
        with fork_beside() as beside:
            beside.do(gc.collect, lambda _: None)
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / "said").read_text() == f"{HERE}\n"


def test_nobody_need_wait_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 9)
    found: list[int] = []
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with fork_beside() as beside:
            beside.do(os.getpid, found.append)
        with pytest.raises(ZeroDivisionError), fork_beside() as others:
            for _ in range(2):
                others.do(lambda: time.sleep(60), found.append)
            raise ZeroDivisionError
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert len(found) == 1 and found != [HERE] and not beside.failure


@pytest.mark.skipif(sys.platform != "linux", reason="the score is Linux's")
def test_a_fork_is_ended_before_its_parent_where_memory_is_wanted() -> None:
    found: list[str] = []
    with fork_beside() as beside:
        beside.do(lambda: Path("/proc/self/oom_score_adj").read_text(), found.append)
    assert found == ["1000\n"]


def test_an_error_of_the_work_is_raised_and_the_others_end(
    monkeypatch: pytest.MonkeyPatch, list_forks: Callable[[], set[int]]
) -> None:
    monkeypatch.setattr(forks, "count_processes_at_once", lambda _: 9)
    with pytest.raises(ZeroDivisionError), fork_beside() as beside:
        beside.do(lambda: time.sleep(60), lambda _: None)
        beside.do(lambda: 1 / 0, lambda _: None)
    assert not list_forks()


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
forks.count_processes_at_once = lambda _: 9
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
    assert forks.count_processes_at_once(1 << 30) == 8
    monkeypatch.setenv("FARM_MEMORY", str(5 << 29))
    assert forks.count_processes_at_once(1 << 30) == 2
    monkeypatch.setenv("FARM_MEMORY", "1000")
    assert forks.count_processes_at_once(1 << 30) == 1


def test_what_a_fork_takes_is_the_most_that_this_process_had(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []
    sizes = iter([5, 7, 6])
    monkeypatch.setattr(heap, "measure_own_memory", lambda: next(sizes))
    monkeypatch.setattr(forks, "count_processes_at_once", lambda largest: given.append(largest) or 9)
    with fork_beside() as beside:
        for _ in range(3):
            beside.do(os.getpid, lambda _: None)
    assert given == [5, 7, 7]
