"""Process groups with one planted fault each, in place of torch.distributed's functions; gloo that can be held up, on any device."""

from __future__ import annotations

import os
import time
from typing import Any

from tasks.backends.collectives import Gloo
from tasks.model import Form, Program

#: Elements of the chunk that is lost, and from which size on there are several.
CHUNK = 1024


class Wrapped:
    def __init__(self, group: Any) -> None:
        self.group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


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


class HeldGloo(Gloo):
    """gloo that takes the devices of the vendor its device names, and computes on the CPU all the same.

    Options: ranks; hold, a file: as long as it is not there, each case after a process's first three takes a second.
    """

    takes = ("ranks", "hold")
    closed = False

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        super().__init__(name, device, options)
        self.device = "cpu"
        if device != "cpu":
            self.device_vendor = device
        self.uses = 0

    def build(self, form: Form) -> Program:
        program = super().build(form)

        def run() -> Any:
            self.uses += 1
            if "hold" in self.options and self.uses > 3 and not os.path.exists(str(self.options["hold"])):
                time.sleep(1)
            return program.run()

        return Program(run, self.device, flags=program.flags)


class Dies(Wrapped):
    """One rank raises; the others would wait for it for ever."""

    def all_gather_into_tensor(self, made: Any, data: Any) -> None:
        if self.group.get_rank() == 2:
            raise RuntimeError("rank 2 lost its link")
        self.group.all_gather_into_tensor(made, data)
