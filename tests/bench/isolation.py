"""What it costs that a kernel runs in a process of its own."""

from __future__ import annotations

import functools
import json
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs import user_definitions
from tasks.catalogs.user import load_kernels
from tasks.judge import policy_files
from tasks.model import Form, Group, Program
from tasks.model.named import Named
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tasks.stranger import records
from tasks.stranger.nursery import Nursery
from tasks.stranger.proxy import RemoteBackend, StrangerRooms, make_remote_backend
from tasks.stranger.serve import serve_as_stranger
from tasks.stranger.wire import StrangerConnection
from tasks.wire import ToRun
from tests.bench.record import Result
from tests.bench.running import Size

KERNEL = "import torch\ndef kernel(x): return x * 2\ndef reference(x): return 2 * x\n"
#: Cases that are timed together: so few that where the machine is busy some rounds are over before anybody else has the
#: processor.
CASES = 8
#: Elements of a case of 10 kB.
SMALL = 2560
OPS = (
    "add",
    "sum",
    "softmax",
    "matmul",
    "nn.functional.gelu",
    "sort",
    "cumsum",
    "std",
    "where",
    "nn.functional.conv2d",
)


#: Bytes of an output that crosses in memory of its own.
WIDE = 1 << 26


def isolation(folder: Path, size: Size) -> Result:
    """Microseconds of CPU time that a case of 10 kB takes more, of both processes, beside what two processes take that
    do nothing but to send each other as many bytes, and op_db's cases as a ratio. size: rounds."""
    (folder / "k.py").write_text(KERNEL)
    kernel = {"name": "op", "kernel": "k.py:kernel", "reference": "k.py:reference", "inputs": {"x": [SMALL]}}
    text = json.dumps({"sources": [{"at": 0, "root": str(folder), "modules": [], "kernels": [kernel]}]})
    user_definitions.announce_definitions(text)
    # Looking at a kernel's files again for each case takes longer than all else, in either process, and would hide what
    # is measured.
    once: dict[str, Any] = {
        "digest_user_listing": functools.cache(load_kernels.digest_user_listing),
        "load_user_module": functools.cache(load_kernels.load_user_module),
    }
    with mock.patch.multiple(load_kernels, **once):
        figures = _measure(folder, text, int(str(size["rounds"])))
    words = ", ".join(f"{name}: {x:.3g}" for name, x in figures.items())
    return Result(figures, f"A kernel in a process of its own: {words}.")


def _measure(folder: Path, text: str, rounds: int) -> dict[str, float]:
    spec = BackendSpec.parse("torch-cpu")
    shut_in, here = make_remote_backend(Nursery(serve_as_stranger), StrangerRooms(spec, text)), spec.create()
    waiting = Waiting(spec.create())
    arms = {"isolated": _runner(shut_in), "here": _runner(here), "waiting": _runner(waiting.backend)}
    own = [make_item_of_whole_group(prepare_group(Group("user:op", "", "float32", CASES), folder)[1])]
    ops = [make_item_of_whole_group(prepare_group(Group(f"torch:{x}", "", "float32", 8), folder)[1]) for x in OPS]
    small, library = (_compare(arms, items, count, waiting) for items, count in ((own, 8 * rounds), (ops, rounds)))
    arms["isolated"].close()
    waiting.close()
    more = (small["isolated"] - small["here"]) * 1e6
    floors = {way: min(_measure_floor(connect) for _ in range(4 * rounds)) * 1e6 for way, connect in FLOORS.items()}
    messages = min(_measure_messages() for _ in range(4 * rounds)) * 1e6
    return {
        "µs a case of 10 kB": more,
        "µs a case of 10 kB that waits for one that does nothing": (small["waiting"] - small["here"]) * 1e6,
        "µs a case of 10 kB here": small["here"] * 1e6,
        "cases of 10 kB, times as long": small["isolated"] / small["here"],
        **{f"µs of a case's bare bytes by {way}": x for way, x in floors.items()},
        "µs to write and read the messages of a case": messages,
        "op_db, times as long": library["isolated"] / library["here"],
        "op_db, µs a case": (library["isolated"] - library["here"]) * 1e6,
        "a large output, times as long as a copy": _measure_wide(rounds),
    }


class _Socket:
    """One end of a connection, that sends and hears bytes and does nothing with them."""

    def __init__(self, end: socket.socket) -> None:
        self._end, self._room = end, memoryview(bytearray(SMALL * 4))

    def say(self, count: int) -> None:
        self._end.sendall(self._room[:count])

    def hear(self, count: int) -> None:
        had = 0
        while had < count:
            had += self._end.recv_into(self._room[had:count])


class _Shared:
    """One end of memory that both sides may write to, which no judge could believe, with a count of the system's for
    each direction."""

    def __init__(self, memory: mmap.mmap, out: int, back: int) -> None:
        self._memory, self._out, self._back, self._own = memory, out, back, bytes(SMALL * 4)

    def say(self, count: int) -> None:
        self._memory[:count] = self._own[:count]
        os.eventfd_write(self._out, 1)

    def hear(self, count: int) -> None:
        os.eventfd_read(self._back)


def _connect_sockets() -> list[_Socket]:
    return [_Socket(x) for x in socket.socketpair()]


def _connect_shared() -> list[_Shared]:
    memory, counts = mmap.mmap(-1, SMALL * 4), [os.eventfd(0, os.EFD_SEMAPHORE) for _ in range(2)]
    return [_Shared(memory, *counts), _Shared(memory, *counts[::-1])]


#: Bytes that a stranger answers a case with: that it is built, and the outputs of two runs.
ANSWERS = (256, SMALL * 4, SMALL * 4)


#: Ways to send bytes from one process to another.
FLOORS: dict[str, Callable[[], list[Any]]] = {"socket": _connect_sockets, "shared memory": _connect_shared}


def _measure_floor(connect: Callable[[], list[Any]], times: int = 50) -> float:
    """CPU seconds of two processes that send each other as many bytes as a case of 10 kB takes, in as many messages,
    and do nothing else."""
    ours, its = connect()
    pid = os.fork()
    if pid == 0:
        while True:
            its.hear(SMALL * 4)
            for count in ANSWERS:
                its.say(count)
    begin = time.process_time() + _cpu_of(pid)
    for _ in range(times):
        ours.say(SMALL * 4)
        for count in ANSWERS:
            ours.hear(count)
    took = time.process_time() + _cpu_of(pid) - begin
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return took / times


def _cpu_of(pid: int) -> float:
    """CPU seconds of a process (clock_getcpuclockid(3))."""
    return time.clock_gettime(~pid << 3 | 2)


class Waiting:
    """A backend that computes here, and twice in each case, as it is built and when it has run, waits for the answer of
    a process that does nothing: what it takes more than without is what two processes that wait for each other cost,
    whatever they say."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._ours, its = _connect_sockets()
        self.pid = os.fork()
        if self.pid == 0:
            while True:
                its.hear(ANSWERS[0])
                its.say(SMALL * 4)
        build = backend.build

        def build_and_wait(form: Form) -> Program:
            program = build(form)
            run = program.run

            def run_and_wait() -> Sequence[Any]:
                program.run = run
                outputs = run()
                self._wait()
                return outputs

            self._wait()
            program.run = run_and_wait
            return program

        vars(backend)["build"] = build_and_wait

    def _wait(self) -> None:
        self._ours.say(ANSWERS[0])
        self._ours.hear(SMALL * 4)

    def cpu_s(self) -> float:
        return _cpu_of(self.pid)

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _measure_messages(times: int = 50) -> float:
    """CPU seconds of what a case of 10 kB says, written and read in one process: there is nobody to wait for."""
    judge, stranger = (StrangerConnection(x) for x in socket.socketpair())
    values, specs = np.ones(SMALL, np.float32), [{"tensor": 0, "shape": [SMALL], "strides": [1]}]
    named = Named(Group("user:op", "", "float32", CASES), own=True)
    form = Form("torch", "user:op", "float32", [values], named, args=[], kwargs={"x": specs}, repeats=2)
    said = {"said": {"flags": "a=b"}, "ways": [], "threads": True, "calls": ["given"]}
    begin = time.process_time()
    for number in range(1, times + 1):
        arrays: list[Any] = []
        body = {"form": records.write_form_record(form, arrays), "backend": 0, "runs": 2}
        judge.send(number, "build", body, arrays, dropped=number - 1)
        stranger.receive()[0].text.read(lambda x: x)
        stranger.send(number, "done", said)
        program = judge.receive()[0].text.read(records.RemoteProgramRecord).make_program([])
        for _ in range(form.repeats):
            stranger.send(number, "done", {"outputs": [0, 1], "said": {}, "ways": []}, [values])
            heard, _ = judge.receive()
            heard.text.read(records.StrangerRan).read(program, heard.arrays)
    took = (time.process_time() - begin) / times
    judge.close()
    stranger.close()
    return took


def _measure_wide(rounds: int) -> float:
    """CPU time of an output that crosses and is read, as a multiple of one copy of it to new memory that is read."""
    wide, ends = np.ones(WIDE, np.uint8), [StrangerConnection(x) for x in socket.socketpair()]

    def crossed() -> np.ndarray:
        ends[0].send(1, "done", None, [wide])
        found: np.ndarray = ends[1].receive()[0].arrays[0]
        return found

    def take(make: Callable[[], np.ndarray]) -> float:
        begin = time.process_time()
        assert make().view(np.uint64)[:: 1 << 9].all()  # every page is looked at
        return time.process_time() - begin

    times = [(take(crossed), take(wide.copy)) for _ in range(max(rounds, 3))]
    return min(x for x, _ in times) / min(x for _, x in times)


def _runner(backend: Backend) -> Runner:
    return Runner(backend, backend.start(), policy_files.load_policy("error_units"), lambda *step: None)


def _compare(arms: dict[str, Runner], items: list[ToRun], rounds: int, waiting: Waiting) -> dict[str, float]:
    """CPU seconds that a case takes, of all processes, the least of rounds in turn: what others do to caches only
    adds."""
    times: dict[str, list[float]] = {name: [] for name in arms}
    cases = sum(len(x.positions) for x in items)
    for turn in range(rounds + 1):
        for name, runner in arms.items():
            begin = cpu_s(runner) + waiting.cpu_s()
            assert all(x.row.status != "error" for x in runner.run(items))
            if turn:
                times[name].append((cpu_s(runner) + waiting.cpu_s() - begin) / cases)
    return {name: min(found) for name, found in times.items()}


def cpu_s(runner: Runner) -> float:
    """CPU seconds of this process, and of the one that the backend computes in."""
    return time.process_time() + (runner.backend.cpu_s() if isinstance(runner.backend, RemoteBackend) else 0.0)


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        print(isolation(Path(scratch), {"rounds": int(sys.argv[1])}).text)
