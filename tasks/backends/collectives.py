"""Collectives of torch.distributed: gloo on the CPU, NCCL and RCCL on GPUs, as processes of this machine that hold a rank each."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tasks.backends.base import Backend
from tasks.backends.shared import ranks, torch_switches
from tasks.backends.shared.torch_devices import device as torch_device
from tasks.devices import resource_of
from tasks.model import Form, Program, RuntimeInfo, Unavailable, Unsupported, errors

#: Seconds that other ranks have to answer when one has failed.
_AFTER_S = 2.0
_RANKS = 4


class Group:
    """The processes of a group. Raises Unavailable where they do not come together."""

    def __init__(self, library: str, device: str, count: int, wrap: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farm-ranks-")
        self.processes: list[subprocess.Popen[bytes]] = []
        self._sinks: list[BinaryIO] = []
        self._sources: list[BinaryIO] = []
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
        for rank in range(count):
            given, sink = os.pipe()
            source, made = os.pipe()
            where = (given, made, os.getpid(), rank, count, f"{self._folder.name}/store", library, device, wrap)
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-u", "-m", ranks.__name__, *map(str, where)],
                    stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno() if sys.stderr and hasattr(sys.stderr, "fileno") else None,
                    pass_fds=(given, made),
                    env=os.environ | {"PYTHONPATH": path},
                )
            )
            os.close(given)
            os.close(made)
            self._sinks.append(os.fdopen(sink, "wb"))
            self._sources.append(os.fdopen(source, "rb"))
        said = self._answers()
        self.version = str(said[0][0].get("version", ""))

    def _answers(self) -> list[tuple[dict[str, Any], np.ndarray | None]]:
        """What every rank says. Raises RuntimeError in the words of the first that failed, the group closed."""
        said: dict[int, tuple[dict[str, Any], np.ndarray | None]] = {}
        waiting = {source: number for number, source in enumerate(self._sources)}
        while waiting:
            for source in select.select(list(waiting), [], [])[0]:
                number = waiting.pop(source)
                try:
                    said[number] = ranks.read(source)
                except EOFError:
                    said[number] = {"error": f"rank {number} ended"}, None
                if "error" in said[number][0]:
                    # The others wait for this one for ever, unless they have failed as well.
                    alone = bool(waiting) and not select.select(list(waiting), [], [], _AFTER_S)[0]
                    self.close()
                    raise RuntimeError(f"rank {number} alone: " * alone + str(said[number][0]["error"]))
        return [said[number] for number in range(len(self._sources))]

    def run(self, op: str, reduction: str, data: np.ndarray) -> np.ndarray:
        """What the ranks receive, a row each, of data (ranks, elements)."""
        for sink, row in zip(self._sinks, data):
            ranks.write(sink, {"op": op, "reduction": reduction}, row)
        return np.stack([made for _, made in self._answers() if made is not None])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        for file in (*self._sinks, *self._sources):
            with contextlib.suppress(OSError):
                file.close()
        self._folder.cleanup()
        self.processes = []


class Collectives(Backend):
    """``ranks``: as many as a sample has data of (4); of NCCL, one for each device that this process sees."""

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
        self.count = self.number("ranks", _RANKS)
        self.device_vendor = {"cpu": "", "cuda": "nvidia", "rocm": "amd"}.get(device, "")
        self.resource = resource_of(self.device_vendor)
        self.ordinals = tuple(range(self.count))
        self.packages = torch_device(device).packages if device in ("cuda", "rocm") else ()
        self._group: Group | None = None

    def probe(self) -> RuntimeInfo:
        """Bring the group together and add ones. Raises Unavailable in the library's words."""
        try:
            import torch
        except ImportError as error:
            raise Unavailable(f"torch is not installed ({error})") from None
        if not torch.distributed.is_available():
            raise Unavailable(f"torch {torch.__version__} was built without torch.distributed")
        if self.device != "cpu" and torch.cuda.device_count() < self.count:
            raise Unavailable(
                f"{self.library} needs a device for each of {self.count} ranks, this process sees {torch.cuda.device_count()}"
            )
        try:
            total = self._ready().run("all_reduce", "sum", np.ones((self.count, 2), np.float32))
        except Exception as error:
            raise Unavailable(f"{self.library}: {errors.text_of(error)}") from None
        if not (total == self.count).all():
            raise Unavailable(f"{self.library}: {self.count} ones add up to {total[0, 0]:g}")
        return RuntimeInfo(f"torch {torch.__version__}, {self.library}", self.device, build=torch_switches.commit())

    def _ready(self) -> Group:
        if self._group is None or not self._group.processes:
            target = "cpu" if self.device == "cpu" else "cuda"
            self._group = Group(self.library, target, self.count, self.wrap)
        return self._group

    def build(self, form: Form) -> Program:
        op, reduction = form.op.partition(":")[2], form.args["v"][1]

        def given(arrays: Sequence[Any]) -> Any:
            if len(arrays[0]) != self.count:
                raise Unsupported(f"the sample has data of {len(arrays[0])} ranks, there are {self.count}")
            return lambda: [self._ready().run(op, reduction, arrays[0])]

        return Program(given(form.arrays), self.device, flags=f"ranks={self.count}", given=given)


class Gloo(Collectives):
    vendor, library, devices = "Meta", "gloo", ("cpu",)


class Nccl(Collectives):
    vendor, library, devices = "NVIDIA", "nccl", ("cuda",)


class Rccl(Collectives):
    """ROCm's torch calls RCCL "nccl"."""

    vendor, library, devices = "AMD", "nccl", ("rocm",)
