"""Collectives of torch.distributed: gloo on the CPU, NCCL and RCCL on GPUs, as processes that hold a rank each."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from tasks.backends.base import Backend
from tasks.backends.shared import ranks, torch_switches
from tasks.backends.shared.rank_hosts import RankHosts, start_ranks_here
from tasks.backends.shared.torch_devices import find_torch_device
from tasks.model import Form, Hung, Program, RuntimeInfo, Unavailable, Unsupported, errors, flags
from tasks.variables import DEADLINE

#: Seconds that other ranks have to answer when one has failed.
_AFTER_S = 2.0
#: Of a case's deadline, what ranks wait for one another: whoever waited can still say so; and the deadline in seconds
#: where none is told.
_WAITING, _DEADLINE_S = 0.5, 120.0
#: Of that time, by how much one may have begun to wait later than another.
_MORE = 0.1
_RANKS = 4


def find_rank_patience() -> float:
    """Seconds that the ranks of a case wait for one another, by its deadline."""
    return _WAITING * float(os.environ.get(DEADLINE, _DEADLINE_S))


class RankConnections:
    """Connections to ranks, in their order, and the processes that were started for these."""

    def __init__(self, patience_s: float) -> None:
        """patience_s: how long a rank waits for the others before it says so."""
        self._patience_s = patience_s
        self.processes: list[subprocess.Popen[bytes]] = []
        self.connections: list[socket.socket] = []
        self._sinks: list[BinaryIO] = []
        self._sources: list[BinaryIO] = []

    def _connect(self, connection: socket.socket, source: BinaryIO | None = None) -> None:
        """The next rank's connection. source: what reads from it, where something was read already."""
        self.connections.append(connection)
        self._sinks.append(connection.makefile("wb"))
        self._sources.append(source or connection.makefile("rb"))

    def _hang_up(self) -> None:
        files: list[Any] = [*self._sinks, *self._sources, *self.connections]
        for file in files:
            with contextlib.suppress(OSError):
                file.close()
        self.connections = []

    def close(self) -> None:
        """End the processes and hang up; a second time nothing is left to do."""
        for process in self.processes:
            process.kill()
            process.wait()
        self._hang_up()
        self.processes = []

    def _answers(self) -> list[tuple[dict[str, Any], np.ndarray | None]]:
        """What every rank says. Raises RuntimeError in the words of the first that failed, Hung where others waited for
        one, the group closed."""
        said: dict[int, tuple[dict[str, Any], np.ndarray | None]] = {}
        waiting = {source: number for number, source in enumerate(self._sources)}
        while waiting:
            for source in select.select(list(waiting), [], [])[0]:
                number = waiting.pop(source)
                try:
                    said[number] = ranks.read_from_rank(source)
                except (EOFError, OSError):
                    said[number] = {"error": f"rank {number} ended"}, None
                if said[number][0].get("waited"):
                    self._tell_waiting(number, str(said[number][0]["error"]), waiting)
                if "error" in said[number][0]:
                    # The others wait for this one for ever, unless they have failed as well: of those, one that has
                    # ended is the cause.
                    also = select.select(list(waiting), [], [], _AFTER_S)[0] if waiting else []
                    ended = [waiting[other] for other in also if not other.peek(1)]  # type: ignore[attr-defined]
                    self.close()
                    if ended:
                        raise RuntimeError(f"rank {ended[0]} ended")
                    raise RuntimeError(
                        f"rank {number} alone: " * (bool(waiting) and not also) + str(said[number][0]["error"])
                    )
        return [said[number] for number in range(len(self._sources))]

    def _tell_waiting(self, first: int, words: str, waiting: dict[BinaryIO, int]) -> None:
        """One rank has waited for others in vain, and says so in ``words``; those that wait as well soon do. Raises
        Hung with these, the group closed."""
        until = time.monotonic() + _AFTER_S + _MORE * self._patience_s
        while waiting and (left := until - time.monotonic()) > 0:
            for source in select.select(list(waiting), [], [], left)[0]:
                waiting.pop(source)
        self.close()
        silent = ", ".join(f"rank {number}" for number in sorted(waiting.values()))
        if not silent:
            raise Hung(f"every rank waited {self._patience_s:.0f} s for others (rank {first} said so first): {words}")
        waited = f"others (rank {first} first) waited {self._patience_s:.0f} s for it"
        raise Hung(f"{silent} answered nothing: {waited}: {words}")

    @staticmethod
    def _tell(sink: BinaryIO, header: dict[str, Any], array: np.ndarray | None = None) -> None:
        with contextlib.suppress(OSError):  # of a rank that has ended: `_answers` says so, and closes the group
            ranks.write_to_rank(sink, header, array)

    def run(self, op: str, reduction: str, data: np.ndarray) -> np.ndarray:
        """What the ranks receive, a row each, of data (ranks, elements)."""
        for sink, row in zip(self._sinks, data):
            self._tell(sink, {"op": op, "reduction": reduction}, row)
        return np.stack([made for _, made in self._answers() if made is not None])

    def ask(self, header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> list[list[np.ndarray]]:
        """What each rank's session answers (`tasks.backends.shared.ranks`): arrays, in order. arrays: every rank's."""
        for sink in self._sinks:
            self._tell(sink, dict(header))
            for x in arrays.values():
                self._tell(sink, {}, x)
        counts = [int(said["count"]) for said, _ in self._answers()]
        parts = zip(self._sources, counts)
        return [
            [x for x in (ranks.read_from_rank(source)[1] for _ in range(n)) if x is not None] for source, n in parts
        ]


class RankGroup(RankConnections):
    """The processes of a group, on this machine or on ``hosts`` as well, in turn. Raises OSError where a host does not
    answer, and RuntimeError where the ranks do not come together."""

    def __init__(self, library: str, device: str, count: int, wrap: str, hosts: RankHosts | None) -> None:
        super().__init__(find_rank_patience())
        self._folder = tempfile.TemporaryDirectory(prefix="farm-ranks-")
        store = f"tcp://{hosts.own}:{_find_free_port()}" if hosts else f"file://{self._folder.name}/store"
        places = 1 + len(hosts.others) if hosts else 1

        def list_arguments(numbers: Sequence[int]) -> list[str]:
            # A process sees the devices that it was lent, and numbers them from 0.
            place = device if device == "cpu" else f"{device}:{numbers[0] // places}"
            return [",".join(map(str, numbers)), str(count), store, library, place, str(self._patience_s), wrap]

        here = dict[int, socket.socket]()
        try:
            with contextlib.ExitStack() as ends:
                for rank in range(count):
                    if hosts and (at := rank % places):
                        self._connect(hosts.start(at - 1, list_arguments([rank])))
                    else:
                        own, end = socket.socketpair()
                        self._connect(own)
                        here[rank] = ends.enter_context(end)
                # Those of the CPU are forked from one process. A device's driver may do what it likes when torch is
                # imported.
                for numbers in [[*here]] if device == "cpu" else [[rank] for rank in here]:
                    given = [here[rank] for rank in numbers]
                    self.processes.append(start_ranks_here(given, list_arguments(numbers), sys.executable, os.environ))
            self._answers()
        except OSError:
            self.close()
            raise

    def _hang_up(self) -> None:
        """Wait for the ranks to hang up as well, for a moment: only those that have ended leave the folder alone, and
        the leader of forked ones ends before they do."""
        until = time.monotonic() + _AFTER_S
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.settimeout(max(0.0, until - time.monotonic()))
                while connection.recv(1 << 16) and time.monotonic() < until:
                    pass
        super()._hang_up()

    def close(self) -> None:
        super().close()
        with contextlib.suppress(OSError):  # of a rank that not even a signal ends
            self._folder.cleanup()


def _find_free_port() -> int:
    with socket.create_server(("", 0)) as found:
        return int(found.getsockname()[1])


class Collectives(Backend):
    """``ranks``: as many as a sample has data of (4), each on a device of its own; ranks of gloo share the CPUs there
    are."""

    forms = ("collective",)
    takes: tuple[str, ...] | None = ("ranks",)
    closed = True
    library = ""
    wrap = ""
    unsupported = re.compile(
        r"[Uu]nsupported|[Nn]ot (?:supported|implemented)|does not support|[Ii]nvalid scalar type|[Uu]nhandled"
    )

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.ranks = self.number("ranks", _RANKS)
        self.device_vendor = {"cpu": "", "cuda": "nvidia", "rocm": "amd"}.get(device, "")
        self.ordinals = tuple(range(self.ranks))
        self.packages = find_torch_device(device).packages if device in ("cuda", "rocm") else ()
        self._group: RankConnections | None = None
        self._hosts: RankHosts | None = None

    def probe(self) -> RuntimeInfo:
        """Bring the group together and add ones. Raises Unavailable in the library's words.

        A node that is asked may have fewer devices than there are ranks, and offers those: then so many add ones.
        """
        try:
            import torch
        except ImportError as error:
            raise Unavailable(f"torch is not installed ({error})") from error
        if not torch.distributed.is_available():
            raise Unavailable(f"torch {torch.__version__} was built without torch.distributed")
        self._hosts, count = RankHosts.from_env(), self.ranks
        if self.device != "cpu" and not self._hosts:
            count = min(count, torch.cuda.device_count())
            if not count:
                raise Unavailable(f"{self.library} needs a device for each rank, this process sees none")
        # What is described are the devices of this process; of other nodes' nobody here knows.
        self.ordinals = tuple(range(1 if self._hosts else count))
        try:
            total = self._ready(count).run("all_reduce", "sum", np.ones((count, 2), np.float32))
        except Exception as error:
            raise Unavailable(f"{self.library}: {errors.find_error_text(error)}") from None
        if not (total == count).all():
            raise Unavailable(f"{self.library}: {count} ones add up to {total[0, 0]:g}")
        return RuntimeInfo(
            f"torch {torch.__version__}, {self.library}", self.device, build=torch_switches.read_torch_commit()
        )

    def _ready(self, count: int) -> RankConnections:
        if self._group is None or len(self._group.connections) != count:
            self.close()
            target = "cpu" if self.device == "cpu" else "cuda"
            self._group = RankGroup(self.library, target, count, self.wrap, self._hosts)
        return self._group

    def close(self) -> None:
        """End the ranks; the next case starts others."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def build(self, form: Form) -> Program:
        op, reduction = form.op.partition(":")[2], form.args["v"][1]

        def bind_inputs(arrays: Sequence[Any]) -> Any:
            if len(arrays[0]) != self.ranks:
                raise Unsupported(f"the sample has data of {len(arrays[0])} ranks, there are {self.ranks}")
            return lambda: [self._ready(self.ranks).run(op, reduction, arrays[0])]

        return Program(bind_inputs(form.arrays), self.device, flags=self.flags, given=bind_inputs)

    @property
    def flags(self) -> str:
        """How many ranks there are, and on how many nodes where it is more than one."""
        nodes = self._hosts.nodes if self._hosts else 1
        return flags.join_row_flags("", ranks=self.ranks, **({"nodes": nodes} if nodes > 1 else {}))


class Gloo(Collectives):
    vendor, library, devices = "Meta", "gloo", ("cpu",)


class Nccl(Collectives):
    vendor, library, devices = "NVIDIA", "nccl", ("cuda",)


class Rccl(Collectives):
    """ROCm's torch calls RCCL "nccl"."""

    vendor, library, devices = "AMD", "nccl", ("rocm",)
