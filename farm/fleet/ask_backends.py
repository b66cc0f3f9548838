"""Asks the backends of this machine, in the background: each in a process of its own, environments built as they come up."""

from __future__ import annotations

import contextlib
import queue
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from farm.fleet import detect_vendors, envs, fork_server, probe_answers, visible_devices
from farm.fleet.channel import LAUNCHER, Interpreter
from farm.fleet.child_process import ChildDeath, ChildProcess, Limits, name_compiler_caches
from farm.fleet.inventory import UNBUILT, Answers
from tasks import wire
from tasks.backends import BackendSpec
from tasks.devices import BY_LABEL, DEVICE_VENDOR
from tasks.model import BackendInfo
from tasks.plugins import PluginError

#: Seconds a runtime may take to be imported, from a cold disk of the network's as well, and to find its device and try
#: it.
PROBE_DEADLINE_S = 300.0
#: Backends that are asked at once. Seconds for which an installer that nobody waits for any more is given to end.
AT_ONCE, ENDING_S = 2, 5.0


def probe_backends(specs: Sequence[BackendSpec], cache: Path, **how: Any) -> Answers:
    """Every backend's answer, when all are there. how: of `BackendAsking`."""
    asking = BackendAsking(specs, cache, **how)
    try:
        while asking.awaited_names:
            asking.take(wait=True)
        return asking.answers
    finally:
        asking.close()


class BackendAsking:
    """Tries every backend on this machine, beginning at once. answers: what was taken of them so far.

    Backends of one runtime, environment and vendor of devices share a process; one that dies in it is told from the
    others by its own answer. An environment that is missing is built, unless the node (its Ray ``labels``) has no
    device for it, or ``build`` is False; what needs none to be built is asked first. Unless ``fresh``, earlier answers
    of the same version count. env: further variables of the processes.
    """

    def __init__(
        self,
        specs: Sequence[BackendSpec],
        cache: Path,
        env: dict[str, str] | None = None,
        fresh: bool = True,
        labels: Mapping[str, str] | None = None,
        build: bool = True,
    ) -> None:
        # Who stands behind a launcher is asked by it anyway, which may take long: not here.
        asked = [] if fresh else [s for s in specs if not s.launcher]
        known = {s.name: probe_answers.read_probe_answer(s, cache) for s in asked}
        self.answers: Answers = {name: add_device_exclusion(a) for name, a in known.items() if a is not None}
        self._names = {s.name for s in specs}
        self._cache, self._env, self._given_up = cache, env, threading.Event()
        self._came: queue.SimpleQueue[Answers | BaseException] = queue.SimpleQueue()
        families: dict[tuple[str, ...], list[BackendSpec]] = {}
        unbuilt: set[tuple[str, ...]] = set()
        for spec in specs:
            if spec.name in self.answers:
                continue
            environment = envs.find_environment(spec)
            missing = environment is not None and not environment.there(cache)
            if environment and (
                reason := explain_no_device(spec, labels) or (UNBUILT if missing and not build else "")
            ):
                self.answers[spec.name] = wire.Refused(reason, absent=find_absent_vendor(spec, labels))
                continue
            built = environment.label if environment else ""
            key: tuple[str, ...] = (spec.runtime, built, str(visible_devices.build_child_variables(spec)))
            families.setdefault(key, []).append(spec)
            unbuilt |= {key} if missing else set()
        self._left: queue.SimpleQueue[list[BackendSpec]] = queue.SimpleQueue()
        for key in sorted(families, key=lambda k: k in unbuilt):
            self._left.put(families[key])
        # A process dies with the thread that started it (PR_SET_PDEATHSIG), and must not keep one that ends.
        self._building: set[threading.Thread] = set()
        self._alone = threading.Lock()  # held by whoever asks of a device that one process at a time may open
        for _ in range(min(AT_ONCE, len(families))):
            threading.Thread(target=self._work, daemon=True).start()

    @property
    def awaited_names(self) -> set[str]:
        """Names of those whose answer has not been taken."""
        return self._names - self.answers.keys()

    def take(self, wait: bool = False) -> Answers:
        """What has come since the last call; if ``wait``, at least one answer if one is awaited."""
        new: Answers = {}
        while self.awaited_names - new.keys():
            try:
                came = self._came.get(block=wait and not new)
            except queue.Empty:
                break
            if isinstance(came, BaseException):
                raise came
            new |= came
        self.answers |= new
        return new

    def fail(self, error: BaseException) -> None:
        """Have ``error`` raised where an answer is waited for: nobody needs one any more."""
        self._came.put(error)

    def close(self) -> None:
        """Ask nobody any more. What is being built is left unbuilt."""
        self._given_up.set()
        for thread in list(
            self._building
        ):  # an installer must not outlive this process, as a process that is asked does not
            thread.join(ENDING_S)

    def _work(self) -> None:
        try:
            while not self._given_up.is_set():
                self._came.put(self._family(self._left.get_nowait()))
        except (queue.Empty, envs.GivenUp):
            pass
        except BaseException as error:  # raised where the answer is waited for
            self._came.put(error)

    def _family(self, specs: list[BackendSpec]) -> Answers:
        self._building.add(threading.current_thread())
        try:
            python = envs.build_interpreter_of_backend(specs[0], self._cache, self._given_up)
        except envs.EnvError as error:
            return {spec.name: wire.Refused(str(error)) for spec in specs}
        finally:
            self._building.discard(threading.current_thread())
        vendor = visible_devices.build_child_variables(specs[0])[DEVICE_VENDOR]
        with self._alone if detect_vendors.allows_one_process(vendor) else contextlib.nullcontext():
            return self._ask_child(specs, python)

    def _ask_child(self, specs: list[BackendSpec], python: Interpreter) -> Answers:
        answers: Answers = {}
        child: ChildProcess | None = None
        began = start_s = 0.0
        for spec in specs:
            said: Any = child.ask(wire.Hello(spec), PROBE_DEADLINE_S) if child else None
            if child and isinstance(said, ChildDeath) and said.was_killed:
                child.close()
                child = None
            if child is None:
                began = time.monotonic()
                # What it compiles to be tried, the child that runs cases need not compile again.
                env = (
                    name_compiler_caches(self._cache) | visible_devices.build_child_variables(spec) | (self._env or {})
                )
                imports = fork_server.list_early_imports(spec)
                child, said = ChildProcess.start_and_ask(
                    python, Limits(), env, wire.Hello(spec), PROBE_DEADLINE_S, imports
                )
            if isinstance(said, ChildDeath):
                child.close()
                child = None
                text = f"during its import, {said.text}"
                if said.kind == LAUNCHER:
                    hand = f"by hand: {shlex.join(python.command)} -V"
                    text = f"{said.text}: it has to run until its process ends, and to pass on all that is said; {hand}"
                said = wire.Refused(text)
            start_s = start_s or time.monotonic() - began  # that of the family's first: the import is most of it
            if isinstance(said, wire.Refused):
                answers[spec.name] = said
                continue
            info = replace(said.info, start_s=round(start_s, 3), environment=envs.label_environment(spec))
            probe_answers.keep_probe_answer(spec, info, self._cache)
            answers[spec.name] = add_device_exclusion(info)
        if child is not None:
            child.close()
        return answers


def add_device_exclusion(info: BackendInfo) -> BackendInfo:
    """An answer, with whether only one process at a time may open the backend's device here."""
    return replace(info, exclusive=detect_vendors.allows_one_process(info.device_vendor))


def find_absent_vendor(spec: BackendSpec, labels: Mapping[str, str] | None) -> str:
    """The vendor of a backend's device, where this node has no trace of any; "" where it has, or the backend needs
    none."""
    with contextlib.suppress(detect_vendors.UnknownVendor, PluginError):
        made = spec.create()
        if spec.launcher:
            return ""
        if (
            made.device_vendor
            and not made.emulated
            and detect_vendors.has_no_trace_of_vendor(made.device_vendor, labels)
        ):
            return BY_LABEL[made.device_vendor].name
    return ""


def explain_no_device(spec: BackendSpec, labels: Mapping[str, str] | None) -> str:
    """Why a backend's environment, which may be gigabytes, need not be built here; "" if it is to be tried, as behind a
    launcher, which may lead to where the device is."""
    if spec.launcher:
        return ""
    try:
        made = spec.create()
        return (
            detect_vendors.explain_missing_vendor(made.device_vendor, labels)
            if made.device_vendor and not made.emulated
            else ""
        )
    except (detect_vendors.UnknownVendor, PluginError) as error:
        return str(error)
