"""A training script of the user's on several ranks, started by the user's own launcher (torchrun, srun): its ranks call `tasks.backends.training_hook`."""

from __future__ import annotations

import contextlib
import functools
import hmac
import json
import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tasks.backends.base import importing
from tasks.backends.collectives import RankConnections, find_rank_patience
from tasks.backends.shared import ranks, torch_switches
from tasks.backends.shared.training_form import TrainingForm
from tasks.backends.training_hook import HOOK
from tasks.backends.training_ranks import SessionOverRanks, TrainingRanks
from tasks.catalogs.training import own
from tasks.confine import end_with_parent
from tasks.model import Broken, Form, Program, RuntimeInfo, Unsupported, flags
from tasks.relay import list_descendant_processes
from tasks.training import networks

#: Seconds for all ranks of a script to call the hook.
START_S = 120.0
#: Seconds for a launcher to end, once its ranks have lost the farm and once it is asked to.
END_S = 5.0
#: Characters of what a script that failed has said.
SAID = 300


class LaunchedGroup(RankConnections):
    """The ranks of a script, in their order. folder: where the command runs, None for here. Raises RuntimeError where
    they do not come."""

    def __init__(self, command: str, folder: str | None = None) -> None:
        super().__init__(find_rank_patience())
        token, listener = secrets.token_hex(16), socket.create_server(("127.0.0.1", 0))
        host, port = listener.getsockname()
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
        where = {"host": host, "port": port, "token": token, "patience_s": self._patience_s}
        told = {HOOK: json.dumps(where), "PYTHONPATH": path}
        words = shlex.split(command)
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
                env=dict(os.environ) | told,
                cwd=folder,
                start_new_session=True,
                # Killed before all ranks have come, this process hangs up on none: the launcher is asked to end them.
                preexec_fn=functools.partial(end_with_parent, os.getpid(), signal.SIGTERM),
            )
        except OSError as error:
            raise RuntimeError(f"{words[0]}: {error.strerror}: the option command names no program") from None
        self.processes = [process]
        found: dict[int, Any] = {}
        try:
            with listener:
                self._gather(listener, process, token, found)
        except BaseException:
            for (
                connection,
                source,
            ) in found.values():  # else its ranks wait for the farm behind a launcher that has ended
                source.close()
                connection.close()
            self.close()
            raise

    def _gather(
        self, listener: socket.socket, process: subprocess.Popen[bytes], token: str, found: dict[int, Any]
    ) -> None:
        """Wait for all ranks. found: those that have come, by number: connection, and what reads from it."""
        wanted, until = 1, time.monotonic() + START_S
        while len(found) < wanted:
            if process.poll() is not None:
                raise RuntimeError(
                    f"the script ended with {process.returncode} before its ranks called tasks.backends.training_hook.serve"
                )
            if time.monotonic() > until:
                raise RuntimeError(
                    f"{len(found)} ranks called tasks.backends.training_hook.serve within {START_S:.0f} s"
                )
            if not select.select([listener], [], [], 0.2)[0]:
                continue
            connection = listener.accept()[0]
            source = connection.makefile("rb")
            said, _ = ranks.read_from_rank(source)
            if hmac.compare_digest(str(said.get("token")), token):
                wanted, found[int(said["rank"])] = int(said["ranks"]), (connection, source)
        for rank in sorted(found):
            self._connect(*found[rank])

    def close(self) -> None:
        """The ranks end with their connections, and the launcher with its ranks. Before they have connected the launcher
        is asked to end them: each may be in a session of its own (torchrun), where no signal of ours comes."""
        self._hang_up()
        for process in self.processes:
            if not _wait_for_end(process):
                started = list_descendant_processes(process.pid)
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGTERM)
                _wait_for_end(process)
                for end, pid in [(os.killpg, process.pid), *((os.kill, pid) for pid in started)]:
                    with contextlib.suppress(OSError):
                        end(pid, signal.SIGKILL)
                process.wait()
        self.processes = []


def _wait_for_end(process: subprocess.Popen[bytes]) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    return process.poll() is not None


class LaunchedTraining(TrainingRanks):
    """option command: what starts the script, "torchrun --nproc-per-node 2 train.py", in the root of the catalog, the
    folder of the config unless given. It trains what the op of the catalog training is made of, one of the user's own."""

    takes = ("command",)
    devices = ("cpu", "cuda", "rocm")

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.command = str(options.get("command") or "")
        self.ranks, self.ordinals = 1, (0,)  # how many there are, the launcher decides
        self._folder: str | None = None

    def probe(self) -> RuntimeInfo:
        with importing("torch"):
            import torch
        if not self.command:
            raise Broken('it needs the option command, such as "torchrun --nproc-per-node 2 train.py"')
        return RuntimeInfo(
            f"torch {torch.__version__}, launched", self.device, build=torch_switches.read_torch_commit()
        )

    def build(self, form: Form) -> Program:
        if not form.phases or form.op.partition(":")[2] in networks.BUILT_IN:
            raise Unsupported(f"{self.name} runs a training of one's own alone (the key own of the catalog training)")
        given = TrainingForm.read(form)
        loop = [given.recipe, given.precision]
        mine = own.list_own_trainings().get(given.network)
        self._folder = mine.root if mine else None
        said = flags.join_row_flags("", launched=self.command.split()[0].rpartition("/")[2])
        session = lambda: SessionOverRanks(self._find_group(), loop, given, "", "hook")  # noqa: E731
        return Program(lambda: [], self.device, flags=said, session=session)

    def _find_group(self) -> RankConnections:
        if self._group is None or not self._group.connections:
            self._group = LaunchedGroup(self.command, self._folder)
        return self._group
