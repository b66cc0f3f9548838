"""A second process of a backend, asked by the first for the outputs of the same sample."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks import checks, wire
from tasks.arrays.pack import ArrayPack
from tasks.backends import BackendSpec
from tasks.catalogs.user_definitions import drop_definitions_isolation, get_announced_definitions
from tasks.importing import make_module_command
from tasks.model import Ended, Unsupported
from tasks.variables import make_thread_variables

#: Processes that may stand by at a time: each holds a runtime.
MOST = 2
#: Variable that says so to the process itself.
TWIN = "FARM_TWIN"
#: Size of the page that a child says its progress on; nobody reads a twin's.
_PAGE = 4096


class TwinProcess:
    """A process that runs `tasks.child` and ends with this one. front: a command that stands before it; env: further
    variables.

    Raises Unsupported where it cannot have the backend, Ended if it ends before it says."""

    def __init__(
        self, spec: BackendSpec, threads: int, front: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        page = os.memfd_create("farm-twin")
        os.ftruncate(page, _PAGE)
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        fds = (commands, answers, page)
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))))
        # In this process's group: whoever ends this one ends both.
        self.process = subprocess.Popen(
            [
                *front,
                *make_module_command(sys.executable, "tasks.child"),
                *map(str, (*fds, 0 if front else os.getpid())),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env=os.environ | make_thread_variables(threads) | {"PYTHONPATH": path, TWIN: "1"} | dict(env or {}),
        )
        for fd in fds:
            os.close(fd)
        self._lines = os.fdopen(self._answers, "r", encoding="utf-8")
        # A tool in front watches this process, and not those that it would start.
        definitions = drop_definitions_isolation(get_announced_definitions()) if front else get_announced_definitions()
        (ready,) = self.ask(wire.Hello(spec, None, definitions))
        if isinstance(ready, wire.Refused):
            self.close()
            raise Unsupported(f"another process cannot have {spec.name}: {ready.reason}")

    def ask(self, command: Any) -> list[Any]:
        """What it says to a command. Raises Ended if it ended instead."""
        data = wire.encode_wire_message(command)
        try:
            while data:
                data = data[os.write(self._commands, data) :]
        except BrokenPipeError:
            pass
        said = []
        for line in self._lines:
            said.append(wire.decode_wire_message(line))
            if isinstance(said[-1], wire.Answer):
                return said
        code = self.process.wait()
        raise Ended(f"the other process of this backend ended (exit code {code})", code)

    def leave(self) -> None:
        """Let it come to its end, and what stands before it."""
        os.close(self._commands)
        self._lines.close()
        self.process.wait()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._lines.close()
        os.close(self._commands)


class TwinProcesses:
    """The other processes of one backend, by their number of threads; the one asked longest ago makes room."""

    def __init__(self, spec: BackendSpec) -> None:
        self.spec = spec
        self._by_threads: OrderedDict[int, TwinProcess] = OrderedDict()

    def outputs(
        self, asked: wire.ToRun, threads: int = 1, front: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> list[np.ndarray]:
        """What the forward check gives for the one case of ``asked`` there; with a command in ``front`` of the process,
        or other variables, in one that is started for it and comes to its end.

        Raises Unsupported where the backend cannot be had twice, Ended if the process ends, RuntimeError for anything
        but outputs.
        """
        if front or env:
            alone = TwinProcess(self.spec, threads, front, env)
            try:
                found = self._ask(alone, asked)
            except BaseException:
                alone.close()
                raise
            alone.leave()
            return found
        twin = self._by_threads.pop(threads, None)
        if twin is None:
            while len(self._by_threads) >= MOST:
                self._by_threads.popitem(last=False)[1].close()
            twin = TwinProcess(self.spec, threads)
        try:
            found = self._ask(twin, asked)
        except Ended:
            twin.close()
            raise
        except RuntimeError:  # it is there, and says why it has no outputs
            self._by_threads[threads] = twin
            raise
        except BaseException:
            twin.close()
            raise
        self._by_threads[threads] = twin
        return found

    @staticmethod
    def _ask(twin: TwinProcess, asked: wire.ToRun) -> list[np.ndarray]:
        with tempfile.TemporaryDirectory(prefix="farm-twin-") as folder:
            keep = f"{folder}/outputs.pack"
            group = replace(asked.group, check=checks.name_samples_of_check(asked.group.check))
            done, *_ = twin.ask(wire.Run((replace(asked, group=group, keep=keep),)))
            if not os.path.exists(keep):
                row = getattr(done, "row", None)
                why = f"{row.status}: {row.error}" if row is not None else str(done)
                raise RuntimeError(f"another process of this backend returned nothing: {why}")
            kept = ArrayPack(keep)
            return [np.array(kept.array(i)) for i in range(kept.header["outputs"])]

    def close(self) -> None:
        while self._by_threads:
            self._by_threads.popitem()[1].close()
