"""Process groups with one planted fault each, in place of torch.distributed's functions; ranks that can be held up, on any device."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.backends.base import Backend
from tasks.backends.collectives import Gloo
from tasks.backends.training_ranks import Ddp
from tasks.model import Form, Program

#: Elements of the chunk that is lost, and from which size on there are several.
CHUNK = 1024


class Wrapped:
    def __init__(self, group: Any) -> None:
        self.group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


#: Variable that names a file with the fault that ranks have from now on; an empty file: none.
FAULT = "FARM_PLANTED_RANKS"


class Chosen(Wrapped):
    """The fault that a file names when a function is called: ranks import torch once, and serve tests of all faults."""

    def __getattr__(self, name: str) -> Any:
        fault = Path(os.environ[FAULT]).read_text()
        return getattr(globals()[fault](self.group) if fault else self.group, name)


class Dropped(Wrapped):
    """The last rank's second chunk never arrives."""

    def all_reduce(self, data: Any, op: Any) -> None:
        if self.group.get_rank() == self.group.get_world_size() - 1 and data.numel() > CHUNK:
            data[CHUNK : 2 * CHUNK] = 0
        self.group.all_reduce(data, op=op)


class Coarse(Wrapped):
    """Sums are made in float16."""

    def all_reduce(self, data: Any, op: Any) -> None:
        made = data.half()
        self.group.all_reduce(made, op=op)
        data.copy_(made)


class WrongRoot(Wrapped):
    def broadcast(self, data: Any, src: int) -> None:
        self.group.broadcast(data, src=src - 1)


class Held(Backend):
    """Ranks that can be held up, and take the devices of the vendor its device names, to compute on the CPU all the same.

    Options: ranks; hold, a file: a case of each process waits for it, the second or that of the number `at`, and says
    so in another file with ".held" at its end.
    """

    takes = ("ranks", "hold", "at")
    closed = False

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        super().__init__(name, device, options)
        self.device = "cpu"
        if device != "cpu":
            self.device_vendor = device
        self.uses = 0

    def wait(self) -> None:
        """Called as each case begins."""
        self.uses += 1
        hold = Path(str(self.options.get("hold", "")))
        if self.uses == int(self.options.get("at", 2)) and "hold" in self.options and not hold.exists():
            hold.with_suffix(".held").write_text(str(os.getpid()))
            while not hold.exists():
                time.sleep(0.05)


class HeldGloo(Held, Gloo):
    def build(self, form: Form) -> Program:
        program = super().build(form)

        def run() -> Any:
            self.wait()
            return program.run()

        return Program(run, self.device, flags=program.flags)


class HeldDdp(Held, Ddp):
    def build(self, form: Form) -> Program:
        program = super().build(form)
        assert program.session is not None
        opened = program.session

        def open_session() -> Any:
            self.wait()
            return opened()

        return replace(program, session=open_session)


class Hangs(Wrapped):
    """One rank never begins; the others wait for it."""

    def all_gather_into_tensor(self, made: Any, data: Any) -> None:
        if self.group.get_rank() == 2:
            time.sleep(3600)
        self.group.all_gather_into_tensor(made, data)


class Dies(Wrapped):
    """One rank raises; the others would wait for it for ever."""

    def all_gather_into_tensor(self, made: Any, data: Any) -> None:
        if self.group.get_rank() == 2:
            raise RuntimeError("rank 2 lost its link")
        self.group.all_gather_into_tensor(made, data)
