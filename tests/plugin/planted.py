"""Planted faults: a catalog of trivial ops and backends that die, hang, leak, lie on chosen samples."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.tree import TensorSpec
from tasks.backends.base import Backend
from tasks.backends.needs import INSTALLERS, Need
from tasks.backends.torch import TorchEager
from tasks.catalogs.base import Catalog, Entry, Sample
from tasks.devices import BY_LABEL
from tasks.model import EPS, Fallback, Form, Group, Leaf, Program, RuntimeInfo, Unavailable, Unsupported

#: Samples of an op on which its fault strikes; all others are computed rightly.
STRUCK = (2, 5)
#: Those of faults that strike once: a case that kills its supervisor takes as many with it as may be killed at random.
STRUCK_ONCE = {"kill_supervisor": STRUCK[:1]}


def segfault() -> None:
    ctypes.string_at(0)


def kill_supervisor() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)


def hold_gil() -> None:
    # A C call that never comes back, made without releasing the lock.
    ctypes.PyDLL(None).sleep(600)


def hoard() -> None:
    """Keep 240 MiB: one such case is within a process's bound, two are not."""
    hoarded.append(np.ones(30 << 20))
    time.sleep(0.3)


def allocate() -> None:
    kept = []
    while True:
        kept.append(b"x" * (1 << 26))


def fork_and_die() -> None:
    if not os.fork():
        time.sleep(600)  # holds every pipe of its parent
    os.abort()


def flood() -> None:
    for _ in range(512):
        os.write(1, b"flood " * (1 << 15))
        time.sleep(0.001)


def threads() -> None:
    for _ in range(48):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def reseed() -> None:
    random.seed(0)
    np.random.seed(0)


def fail() -> None:
    raise RuntimeError("planted failure")


def garble() -> None:
    raise RuntimeError("planted: half a pair \udce9")


def refuse() -> None:
    raise Unsupported("planted: not implemented here")


def elsewhere() -> None:
    raise Fallback("planted: only on the CPU")


#: Fault → what it does before the computation.
BEFORE: dict[str, Callable[[], None]] = {
    "segfault": segfault,
    "abort": os.abort,
    "exit": lambda: os._exit(7),
    "hold_gil": hold_gil,
    "sleep": lambda: time.sleep(600),
    "allocate": allocate,
    "hoard": hoard,
    "raise": fail,
    "surrogate": garble,
    "fork_and_die": fork_and_die,
    "flood": flood,
    "threads": threads,
    "reseed": reseed,
    "deaf": lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None,
    "unsupported": refuse,
    "fallback": elsewhere,
    "sys_exit": lambda: sys.exit(3),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigterm": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "memory_error": lambda: bytearray(1 << 60) and None,
    "kill_supervisor": kill_supervisor,
    "noise_on_stdout": lambda: print("x" * 100_000, flush=True),
    "close_pipes": lambda: os.closerange(0, 3),
    "chdir": lambda: os.chdir("/"),
}
#: Fault → what it does to the right result.
AFTER: dict[str, Callable[[np.ndarray], Any]] = {
    "shape": lambda y: y[:-1],
    "dtype": lambda y: y.astype(np.float64),
    "nan": lambda y: np.where(y == y[0], np.nan, y),
    "wrong": lambda y: y * np.float32(1.5),
    "imprecise": lambda y: y * np.float32(1 + 4.2e-6),
    "none": lambda y: y,
}
FAULTS = (*BEFORE, *AFTER, "poison")


#: Not empty once a case has spoilt this process; what cases have left in its memory.
poisoned: list[int] = []
hoarded: list[np.ndarray] = []


class PlantedCatalog(Catalog):
    """Ops named after their fault; each adds one to eight float32 numbers. Sample i has x[0] == i / 8."""

    name = "planted"
    forms = ("planted",)

    def version(self) -> str:
        return "2"

    def entries(self) -> list[Entry]:
        # The preparer's own faults stand in ops of their own.
        return [
            Entry(f"planted:{name}", "", ("float32",))
            for name in (*FAULTS, "prepare_segfault", "prepare_raise", "prepare_exit")
        ]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        for i in range(group.samples):
            if i in skip:
                yield Sample(i)
                continue
            if i == STRUCK[0]:
                if group.op_name == "prepare_segfault":
                    segfault()
                if group.op_name == "prepare_raise":
                    raise ValueError("planted: no sample")
                if group.op_name == "prepare_exit":
                    os._exit(9)
            x = ((np.arange(8) + i) / 8).astype(np.float32)
            exact = x.astype(np.float64) + 1
            yield Sample(i, (TensorSpec(0),), {}, [x], [Leaf("float32", (8,), exact)])

    def call(self, group: Group) -> Callable[..., Any]:
        return lambda x: x + np.float32(1)


class Planted(Backend):
    """Computes rightly but for the planted faults; option after: a file whose presence switches faults off."""

    vendor = "Planted"
    forms = ("planted",)

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("planted 1", "none")

    def build(self, form: Form) -> Program:
        fault = form.op.partition(":")[2]
        struck = round(float(form.arrays[0][0]) * 8) in STRUCK_ONCE.get(fault, STRUCK)
        if fault == "build_segfault" and struck:
            segfault()

        def run() -> list[Any]:
            if fault == "poison":  # what one case spoils kills the next
                if poisoned:
                    os.abort()
                poisoned.extend([1] * struck)
            if struck and fault in BEFORE:
                BEFORE[fault]()
            y = form.arrays[0] + np.float32(1)
            return [AFTER[fault](y)] if struck and fault in AFTER else [y]

        return Program(run, placement="planted")


class Broken(Backend):
    """Cannot be had. device says how: raise, exit, segfault, unavailable, hang."""

    vendor = "Planted"
    forms = ("planted",)

    def probe(self) -> RuntimeInfo:
        if self.device == "unavailable":
            raise Unavailable("planted: no such device")
        if self.device == "exit":
            os._exit(4)
        if self.device == "segfault":
            segfault()
        raise ImportError("planted: libplanted.so.1: cannot open shared object file")

    def build(self, form: Form) -> Program:
        raise AssertionError


class Coarse(TorchEager):
    """torch on the CPU whose float32 inputs and results are rounded to ``computes``; it says that it ``declares``.

    declares, computes: names of compute precisions, "" for float32; of_products: whether the declaration holds for
    products alone.
    """

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        self.declares, self.computes = options.pop("declares", ""), options.pop("computes", "")
        self.of_products = options.pop("of_products", False)
        super().__init__(name, "cpu", options)

    def probe(self) -> RuntimeInfo:
        return replace(super().probe(), compute_precision=self.declares, of_products=self.of_products)

    def arguments(self, form: Form) -> tuple[tuple[Any, ...], dict[str, Any]]:
        arrays = [self._rounded(a) for a in form.arrays]
        return super().arguments(replace(form, arrays=arrays))

    def build(self, form: Form) -> Program:
        program = super().build(form)
        exact = program.run
        program.run = lambda: [self._rounded(np.asarray(y)) for y in exact()]
        return program

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        if not self.computes or x.dtype != np.float32:
            return x
        significand, exponent = np.frexp(x.astype(np.float64))
        unit = EPS[self.computes] / 2  # frexp's significand lies between a half and one
        return np.asarray(np.ldexp(np.round(significand / unit) * unit, exponent), np.float32)


class LoadCatalog(Catalog):
    """As many trivial ops as $FARM_LOAD_OPS says (default 10), of one number each: for measuring the engine."""

    name = "load"
    forms = ("planted",)

    def version(self) -> str:
        return os.environ.get("FARM_LOAD_OPS", "10")

    def entries(self) -> list[Entry]:
        return [Entry(f"load:op{i:06d}", "", ("float32", "float64")) for i in range(int(self.version()))]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        for i in range(group.samples):
            x = np.full(1, i, dtype=group.dtype)
            yield Sample(i, (TensorSpec(0),), {}, [x], [Leaf(group.dtype, (1,), x.astype(np.float64))])

    def call(self, group: Group) -> Callable[..., Any]:
        return lambda x: x


#: Cases that a process runs at once before it heeds the option hold, and seconds for each of those that follow.
HELD_AFTER, HELD_S = 20, 0.25


class Null(Backend):
    """Does nothing, at once. The device is any name, so that there can be many.

    Options: ms, milliseconds that a case takes; hold, a file: as long as it is not there, a process is slow from some
    case on, and the run goes on until then.
    """

    vendor = "Planted"
    forms = ("planted",)

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        super().__init__(name, device, options)
        self.uses = 0

    def used(self) -> None:
        """Count a case, and hold it up if it is to be."""
        self.uses += 1
        time.sleep(float(self.options.get("ms", 0)) / 1e3)
        hold = self.options.get("hold")
        if hold and self.uses > HELD_AFTER and not os.path.exists(hold):
            time.sleep(HELD_S)

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("null 1", "none")

    def build(self, form: Form) -> Program:
        def run() -> list[Any]:
            self.used()
            return form.arrays

        return Program(run)


class Busy(Null):
    """Computes for five milliseconds of processor time."""

    def build(self, form: Form) -> Program:
        def run() -> list[Any]:
            end = time.perf_counter() + 0.005
            while time.perf_counter() < end:
                pass
            return form.arrays

        return Program(run)


class Vanishing(Null):
    """There until the file that $FARM_VANISHED names exists."""

    def probe(self) -> RuntimeInfo:
        if os.path.exists(os.environ.get("FARM_VANISHED", "")):
            raise Unavailable("planted: it has gone")
        return super().probe()


class Needy(Null):
    """Needs the file that $NEEDY_TOOL names, and notes there that it was led to it; says that it is emulated."""

    emulated = True
    needs = (
        Need(
            "planted tool",
            lambda: next((x for x in [os.environ.get("NEEDY_TOOL", "")] if os.path.exists(x)), ""),
            dict.fromkeys(INSTALLERS, "planted-tool"),
            lambda where: os.environ.update(FARM_LED=where),
        ),
    )

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("needy 1", f"led to {os.environ['FARM_LED']}")


class Nothing(Null):
    """Forgets to return what `probe` is to return."""

    def probe(self) -> RuntimeInfo:
        return None  # type: ignore[return-value]


class FakeGpu(Null):
    """A backend of a GPU of the vendor its device names; its placement says which device it was given.

    Options beside those of Null: ranks, devices that a job of it takes; compile_ms, milliseconds that building a case
    takes; memory_gib, of the device (default: not told); lost_after, cases of all processes after which it makes the
    file that $FARM_LOST names: while that exists, the device is lost, also for a new process; full_after, cases of one
    process after which its memory is full (0: for every case); bad_after, cases of one process after which it adds one
    to what it computes, as the device does to whatever any process computes if $FARM_BAD names a file, which it makes
    then; spoils, the number that a case's input has after which its process does so; killed_at, the case of a process
    at which it is killed. $FARM_SICK, a variable of a node: what is the matter with its devices, "wrong" numbers or
    "crash"; after a colon, the number of the one device.
    """

    resource = "GPU"

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        super().__init__(name, device, options)
        self.device_vendor, self.bad = device, False
        self.ranks = int(options.get("ranks", 1))
        if {"bad_after", "spoils"} & set(options):
            self.forms = (*self.forms, "torch")  # so it is asked what it has answered before
        variable = BY_LABEL[device].visible[0] if device in BY_LABEL and BY_LABEL[device].visible else ""
        self.given = os.environ.get(variable, "nothing").rpartition(":")[2]
        what, _, number = os.environ.get("FARM_SICK", "").partition(":")
        self.sick = what if number in ("", self.given) else ""

    def lost(self) -> bool:
        return os.path.exists(os.environ.get("FARM_LOST", ""))

    def uses_of_all(self) -> int:
        """One more use of the device, whichever process it is in: a job may go to another one's child."""
        with open(os.environ["FARM_LOST"] + ".uses", "ab") as file:
            file.write(b".")
            file.flush()
            return file.tell()

    def probe(self) -> RuntimeInfo:
        if self.lost():
            raise Unavailable("planted: the device has fallen off the bus")
        return RuntimeInfo("fake 1", f"Fake {self.device}", memory=int(self.options.get("memory_gib", 0)) << 30)

    def is_sticky(self, error: BaseException) -> bool:
        return "unspecified launch failure" in str(error)

    def canary(self, form: Form) -> Program:
        return Program(lambda: [form.call(*form.arrays) + self.is_bad()] if form.call else [])

    def is_bad(self) -> bool:
        return self.bad or os.path.exists(os.environ.get("FARM_BAD", ""))

    def build(self, form: Form) -> Program:
        def run() -> list[Any]:
            self.used()
            if "lost_after" in self.options and self.uses_of_all() == self.options["lost_after"]:
                open(os.environ["FARM_LOST"], "w").close()
            if self.uses > int(self.options.get("full_after", 1 << 30)):
                raise MemoryError("planted: out of memory")
            if self.lost():
                raise RuntimeError("planted: unspecified launch failure")
            if self.sick == "crash":
                os.abort()
            if self.uses == self.options.get("killed_at"):
                os.kill(os.getpid(), signal.SIGKILL)
            if self.uses == self.options.get("bad_after"):
                self.bad = True
                if os.environ.get("FARM_BAD"):
                    open(os.environ["FARM_BAD"], "w").close()
            wrong = self.sick == "wrong" or self.is_bad()
            self.bad |= form.arrays[0].flat[0] == self.options.get("spoils")
            return [x + 1 for x in form.arrays] if wrong else form.arrays

        time.sleep(float(self.options.get("compile_ms", 0)) / 1e3)
        return Program(run, placement=f"visible {self.given}")


class FakeNpu(FakeGpu):
    """The same as an NPU: a resource and a variable of its own."""

    resource = "NPU"

    def __init__(self, name: str, device: str, options: dict[str, Any]) -> None:
        super().__init__(name, device, options)
        self.given = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "nothing")
