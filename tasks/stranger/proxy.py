"""The judge's side: a backend and programs that are requests to a stranger."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from tasks import wire as lines
from tasks.backends import BackendSpec
from tasks.backends.base import Arm, Backend
from tasks.backends.shared.artefacts import FOLDER
from tasks.catalogs.user.shown import definitions_for, hidden_files
from tasks.catalogs.user_definitions import parse_definitions
from tasks.model import Flushes, Form, Misbehaviour, Program, RuntimeInfo, Timed, Unsupported
from tasks.stranger import records
from tasks.stranger.confine import Rules
from tasks.stranger.nursery import ENDED, Nursery, find_parent, measure_cpu
from tasks.stranger.records import KIND_PROTOCOL
from tasks.stranger.serve import CALLS
from tasks.stranger.wire import Closed, Connection, Garbled

#: Seconds for which a stranger that says nothing more is given to end.
ENDING_S = 2.0


@dataclass
class Rooms:
    """What strangers are made of, and what they may not have. kernels: the user's definitions; hidden: files and folders that they may not
    read, beside those of references; memory: bytes of each, 0 for no limit; device: whether they open a device's files."""

    spec: BackendSpec
    kernels: str = ""
    hidden: set[str] = field(default_factory=set)
    memory: int = 0
    device: bool = False
    _defined: dict[str, str] = field(default_factory=dict)

    def define(self, op: str) -> str:
        """The definitions that a stranger of an op is told: ops with the same ones share it."""
        if op not in self._defined:
            self._defined[op] = definitions_for(self.kernels, op)
        return self._defined[op]

    def request(self, kernels: str, whole: bool = False) -> dict[str, Any]:
        """What a stranger with some definitions is told; of one that runs no kernel they are "". whole: it may read references. It has a scratch folder of its own, and one for
        compilers' caches that those with the same definitions share."""
        scratch = tempfile.mkdtemp(prefix="kernel-")
        kept = os.environ.get(FOLDER)
        folder = _cache_of(kept, kernels) if kept else scratch
        with contextlib.suppress(OSError):
            if kept and not os.path.exists(folder) and os.path.isdir(first := _cache_of(kept, "")):
                shutil.copytree(first, folder)  # what a compiler has made when no kernel was there
            os.makedirs(folder, exist_ok=True)
        told = parse_definitions(self.kernels)
        others = [os.path.join(kept, KERNELS)] if kept else []  # what compilers have made for other kernels
        hidden = {*self.hidden, *others, *told.get("hidden", ()), *([] if whole else hidden_files(self.kernels))}
        rules = Rules(tuple(sorted(hidden)), (scratch, folder), self.memory, self.device)
        return {
            "backend": lines.encode(self.spec).decode(),
            "kernels": kernels,
            "rules": vars(rules),
            "variables": {"TMPDIR": scratch} | {name: os.path.join(folder, where) for name, where in CACHES.items()},
        }

    def hide(self, pack: str) -> None:
        """Hide a pack, and all that lie beside it in a cache."""
        folder = Path(pack).parents[1:2]
        self.hidden.add(str(folder[0]) if folder and folder[0].name in ("cases", "forms") else pack)


#: The folder of what compilers make for kernels.
KERNELS = "kernels"
#: Where compilers keep what they make, by the variable that says so.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "NUMBA_CACHE_DIR": "numba",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "cache",
}


def _cache_of(kept: str, kernels: str) -> str:
    """Where compilers keep what they make for some definitions."""
    return os.path.join(kept, KERNELS, hashlib.sha256(kernels.encode()).hexdigest()[:16])


class Stranger:
    """A stranger as its judge holds it. died: is told how it ended, and does not return: its judge dies the same death.

    Any thread may ask; each has a connection of its own."""

    def __init__(self, nursery: Nursery, request: dict[str, Any], died: Callable[[int], NoReturn]) -> None:
        self._scratch = request["variables"]["TMPDIR"]
        own, self._lease, self.pid = nursery.fork(request)
        self._keeper = find_parent(self.pid)
        self._first, self._lanes, self._died = Connection(own), threading.local(), died
        self._lanes.connection = self._first
        self._numbers, self._making = itertools.count(1), threading.Lock()
        self._dropped: list[int] = []
        self._asked = 0
        self._closed = False

    def ask(self, verb: str, body: dict[str, Any], arrays: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
        """What a stranger answers to a request. Raises what it raised there; Misbehaviour where it breaks the protocol."""
        return self.hear(self.say(verb, body, arrays))

    def say(self, verb: str, body: dict[str, Any], arrays: Sequence[Any] = ()) -> int:
        """Make a request; its number."""
        number = self._asked = next(self._numbers)
        if self._dropped:
            body["drop"], self._dropped = self._dropped, []
        try:
            self._connection().send(number, verb, body, arrays)
        except Closed:
            self._bury()
        return number

    def is_next(self, number: int) -> bool:
        """Whether nothing has been asked since a request of that number, so that a second answer to it is still to be heard."""
        return self._asked == number

    def hear(self, number: int) -> tuple[Any, list[Any]]:
        """The next answer to a request of that number; what else was said before it is of requests whose answers nobody wanted."""
        try:
            while True:
                message, fds = self._connection().receive()
                for fd in fds:
                    os.close(fd)
                if message.number >= number:
                    break
        except Closed:
            self._bury()
        except Garbled as garbled:
            self.break_off(str(garbled))
        if message.number != number or message.verb not in ("done", "raised"):
            self.break_off(f"it answers what it was not asked ({message.verb} to {message.number})")
        try:
            if message.verb == "raised":
                raised = records.read_error(message.body, message.arrays)
            else:
                return message.body, message.arrays
        except Garbled as garbled:
            self.break_off(str(garbled))
        raise raised

    def measure_cpu(self) -> float:
        """CPU seconds of it and of all that it has started."""
        return 0.0 if self._closed else measure_cpu(self._keeper)

    def _connection(self) -> Connection:
        found: Connection | None = getattr(self._lanes, "connection", None)
        if found is None:
            with self._making:
                ours, its = socket.socketpair()
                with its:
                    self._first.send(0, "lane", None, (), [its.fileno()])
                    self._first.receive()
                found = self._lanes.connection = Connection(ours)
        return found

    def drop(self, number: int) -> None:
        """What has that number there is needed no more."""
        self._dropped.append(number)

    def _bury(self) -> NoReturn:
        """It has closed its connection: how it ended is how its judge ends."""
        self._lease.settimeout(ENDING_S)
        try:
            told = self._lease.recv(ENDED.size)
        except TimeoutError:
            self.break_off("it closed its connection and runs on")
        self._died(ENDED.unpack(told)[0] if told else -signal.SIGKILL)

    def break_off(self, why: str) -> NoReturn:
        """End it for breaking the protocol. Raises Misbehaviour."""
        self.close()
        raise Misbehaviour(KIND_PROTOCOL, f"the kernel's process does not keep to what was agreed: {why}")

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """End it and what it has started; return when that is done."""
        if not self._closed:
            self._closed = True
            self._first.close()
            with contextlib.suppress(OSError):
                self._lease.shutdown(socket.SHUT_WR)
                self._lease.settimeout(ENDING_S)
                self._lease.recv(ENDED.size)
            self._lease.close()
            shutil.rmtree(self._scratch, ignore_errors=True)


def die_alike(status: int) -> NoReturn:
    """End this process as another one has ended: whoever watches this one blames what was in flight."""
    if status < 0:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        time.sleep(1)
    os._exit(status if status >= 0 else 128 - status)


class Remote(Backend):
    """A backend whose programs run in strangers: one for each kernel of a config, which finds nothing that another has left, one for all that modules
    declare, and one in which no kernel ever runs, which says what the device is and what it does to small numbers.

    Made by `remote`; everything that a class of backends says of itself it has from the backend's own class."""

    by_name = True
    _nursery: Nursery
    _rooms: Rooms
    _end: Callable[[int], NoReturn]
    _begun: Callable[[int], None]
    #: The one without kernels; the one of the op in hand, and its definitions.
    _clean: Stranger | None = None
    _stranger: Stranger | None = None
    _kernels = ""
    #: The one that has what a kernel is timed against.
    _beside: Stranger | None = None
    _beside_kernels = ""
    #: Which backend of the stranger's this is, and how it was made: (method, arguments, name of the level).
    _way: tuple[tuple[str, tuple[Any, ...], str], ...] = ()
    _root: Remote

    def start(self) -> RuntimeInfo:
        told, _ = self._find_clean().ask("start", {})
        lacks = ",".join(dict.fromkeys((*self._nursery.lacks, *told["lacks"])))
        self.found = told["found"]
        self.identity = (*told["identity"], *([f"unconfined={lacks}"] if lacks else []))
        return lines.decode(told["info"])  # type: ignore[no-any-return]

    def _find_clean(self) -> Stranger:
        root = self._root
        if root._clean is None:
            root._clean = Stranger(self._nursery, self._rooms.request(""), self._end)
        return root._clean

    def _find(self, op: str) -> Stranger:
        """The stranger of an op; one of other definitions is ended."""
        root, kernels = self._root, self._rooms.define(op)
        if root._stranger is not None and (root._kernels != kernels or root._stranger.is_closed):
            root._stranger.close()
            root._stranger = None
        if root._stranger is None:
            made = root._stranger = Stranger(self._nursery, self._rooms.request(kernels), self._end)
            root._kernels, root._derived = kernels, {(): 0}
            root._begun(made.pid)
            made.ask("start", {})
        return root._stranger

    _derived: dict[tuple[Any, ...], int]

    def _number(self, stranger: Stranger) -> int:
        """Its number in a stranger."""
        known = self._root._derived
        for k in range(len(self._way) + 1):
            if self._way[:k] not in known:
                method, given, name = self._way[k - 1]
                made, _ = stranger.ask(
                    "derive", {"backend": known[self._way[: k - 1]], "method": method, "given": list(given)}
                )
                known[self._way[:k]] = made[name] if name else made
        return known[self._way]

    def _derive(self, method: str, *given: Any, level: str = "") -> Any:
        return self.but(_way=(*self._way, (method, given, level)))

    def hide(self, packs: Iterable[str]) -> None:
        """Hide what is prepared from the strangers that begin from now on."""
        for pack in packs:
            self._rooms.hide(pack)

    def close(self) -> None:
        for one in (self._root._stranger, self._root._beside, self._root._clean):
            if one is not None:
                one.close()
        self._root._stranger = self._root._beside = self._root._clean = None
        self._nursery.close()

    # --- what is asked of a backend ---

    def build(self, form: Form) -> Program:
        return self._build(form)

    def build_to_run(self, form: Form) -> Program:
        return self._build(form, ahead=True)

    def _build(self, form: Form, ahead: bool = False) -> Program:
        stranger, arrays = self._find(form.op), list[Any]()
        body = {"form": records.write_form(form, arrays), "backend": self._number(stranger), "ahead": ahead}
        number = stranger.say("build", body, arrays)
        return self._program(stranger, *stranger.hear(number), number if ahead else None)

    def build_all(self, forms: Sequence[Form]) -> list[Program | Exception]:
        if not forms:
            return []
        stranger, arrays = self._find(forms[0].op), list[Any]()
        body = {"forms": [records.write_form(x, arrays) for x in forms], "backend": self._number(stranger)}
        made, found = stranger.ask("build_all", body, arrays)
        built: list[Program | Exception] = []
        for one in made:
            if "raised" in one:
                error = records.read_error(one["raised"], found)
                built.append(error if isinstance(error, Exception) else RuntimeError(str(error)))
            else:
                built.append(self._program(stranger, one, found))
        return built

    def eager(self, form: Form) -> Arm:
        return self._arm("eager", self._find(form.op), form)

    def baseline(self, form: Form) -> Arm:
        """What a kernel is timed against, in a stranger that has its reference and that the kernel cannot touch."""
        root, kernels = self._root, definitions_for(self._rooms.kernels, form.op, whole=True)
        if root._beside is not None and (root._beside_kernels != kernels or root._beside.is_closed):
            root._beside.close()
            root._beside = None
        if root._beside is None:
            made = root._beside = Stranger(self._nursery, self._rooms.request(kernels, whole=True), self._end)
            root._beside_kernels = kernels
            made.ask("start", {})
        return self._arm("baseline", root._beside, form)

    def _arm(self, method: str, stranger: Stranger, form: Form) -> Arm:
        arrays: list[Any] = []
        others: dict[str, Form] = {}
        also: dict[str, Any] = {}
        if form.also is not None and form.kind != "torch":
            try:
                others["torch"] = form.also("torch")
                also["torch"] = records.write_form(others["torch"], arrays)
            except Unsupported as error:
                also["torch"] = str(error)
        body: dict[str, Any] = {"form": records.write_form(form, arrays), "also": also, "method": method}
        if stranger is self._root._stranger:
            body["backend"] = self._number(stranger)
        made, found = stranger.ask("arm", body, arrays)
        arm = Arm(str(made["name"]), self._program(stranger, made["program"], found), others.get(made["form"], form))
        products, *work = (x if type(x) is int else None for x in (made["products"], *made["work"]))
        moved, done = work
        return replace(
            arm, products=products, declared=bool(made["declared"]), work=(moved, done), views=bool(made["views"])
        )

    def canary(self, form: Form) -> Program:
        stranger = self._find_clean()
        return self._program(stranger, *stranger.ask("canary", {"kind": form.kind, "dtype": form.dtype}))

    def measure_flushing(self, dtype: str) -> Flushes:
        results, inputs = self._find_clean().ask("flushes", {"dtype": dtype})[0]
        return Flushes(tuple(results), tuple(inputs))

    def levels(self) -> Mapping[str, Backend]:
        names, _ = self._find_clean().ask("derive", {"method": "levels", "given": []})
        return {name: self._derive("levels", level=name) for name in names}

    def passes(self) -> tuple[str, ...]:
        return tuple(self._tell("passes"))

    def measure_ceiling(self, what: str) -> float:
        """What the device does at most; asked where no kernel is, and kept here: a stranger may write nothing."""
        return float(self._tell("measure_ceiling", what))

    def cache_bytes(self) -> int:
        return int(self._tell("cache_bytes"))

    def _tell(self, method: str, *given: Any) -> Any:
        return self._find_clean().ask("tell", {"method": method, "given": list(given)})[0]

    def without(self, passes: Collection[str]) -> Backend:
        return self._derive("without", list(passes))  # type: ignore[no-any-return]

    def precise(self) -> Backend | None:
        made, _ = self._find_clean().ask("derive", {"method": "precise", "given": []})
        return None if made is None else self._derive("precise")

    def any_size(self) -> Backend:
        return self._derive("any_size")  # type: ignore[no-any-return]

    def cpu_s(self) -> float:
        """CPU seconds of the stranger, by the system's clock of its process (clock_getcpuclockid(3))."""
        stranger = self._root._stranger
        return time.process_time() if stranger is None else time.clock_gettime(~stranger.pid << 3 | 2)

    def cpu_apart_s(self) -> tuple[float, float]:
        both = (self._root._stranger, self._root._beside)
        kernel, beside = (0.0 if x is None else x.measure_cpu() for x in both)
        return kernel, beside

    # --- what errors say ---

    def is_sticky(self, error: BaseException) -> bool:
        return _told(error, "is_sticky") if hasattr(error, "told") else super().is_sticky(error)

    def is_unsupported(self, error: BaseException) -> bool:
        return _told(error, "is_unsupported") if hasattr(error, "told") else super().is_unsupported(error)

    def refuses(self, error: BaseException) -> bool:
        return _told(error, "refuses") if hasattr(error, "told") else super().refuses(error)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return _told(error, "is_out_of_memory") if hasattr(error, "told") else super().is_out_of_memory(error)

    # --- programs ---

    def _program(self, stranger: Stranger, made: Any, found: list[Any], ahead: int | None = None) -> Program:
        try:
            return _program(stranger, made, found, ahead)
        except (KeyError, TypeError, ValueError, Garbled) as error:
            stranger.break_off(f"it describes no program: {error}")


def _told(error: Any, name: str) -> bool:
    return bool(error.told[name])


def _program(stranger: Stranger, made: Any, found: list[Any], ahead: int | None) -> Program:
    """A program that a stranger has. ahead: the number of the answer to its first run, where it runs already. Raises KeyError, TypeError, Garbled where it is not described as one."""
    number = int(made["of"])
    held, program = _Held(), Program(run=lambda: [], threads=made["threads"] is True)
    records.update_program(program, made["said"])
    program.ways = _ways(made["ways"], found)
    weakref.finalize(held, stranger.drop, number)
    told = weakref.ref(program)  # a check may keep what it returns in a program of its own

    coming = [] if ahead is None else [ahead]

    def run_number(which: int) -> list[Any]:
        waits = which == number and coming and stranger.is_next(coming[0])
        said, outputs = stranger.hear(coming.pop()) if waits else stranger.ask("run", {"of": which})
        try:
            _update(told(), said, outputs)
            return records.take(said["outputs"], outputs)
        except (KeyError, TypeError, ValueError, Garbled) as error:
            stranger.break_off(f"it ran no program: {error}")

    def run(held: _Held = held) -> list[Any]:
        return run_number(number)

    def given(arrays: list[Any], held: _Held = held) -> Callable[[], Sequence[Any]]:
        which, _ = stranger.ask("given", {"of": number, "arrays": [0, len(arrays)]}, arrays)

        def run(held: _Held = held) -> list[Any]:
            return run_number(which)

        weakref.finalize(run, stranger.drop, which)
        return run

    def timed(arrays: list[Any], cold: bool, probe: bool, held: _Held = held) -> Callable[[], Timed]:
        body = {"of": number, "arrays": [0, len(arrays)], "cold": cold, "probe": probe}
        which, _ = stranger.ask("timed", body, arrays)

        def run(held: _Held = held) -> Timed:
            said, outputs = stranger.ask("time", {"of": which})
            try:
                return records.read_timed(said, outputs)
            except (KeyError, TypeError, ValueError, Garbled) as error:
                stranger.break_off(f"it timed no call: {error}")

        weakref.finalize(run, stranger.drop, which)
        return run

    def capture(held: _Held = held) -> Callable[[list[Any]], Sequence[Any]]:
        which, _ = stranger.ask("capture", {"of": number})

        def replay(arrays: list[Any], held: _Held = held) -> list[Any]:
            return records.take(*stranger.ask("replay", {"of": which, "arrays": [0, len(arrays)]}, arrays))

        weakref.finalize(replay, stranger.drop, which)
        return replay

    def session(held: _Held = held) -> RemoteSession:
        return RemoteSession(stranger, number, told(), held)

    def call(name: str, arrays: list[Any], data: Any, held: _Held = held) -> list[Any]:
        body = {"of": number, "name": name, "arrays": [0, len(arrays)], "data": vars(data)}
        said, outputs = stranger.ask("call", body, arrays)
        try:
            _update(told(), said, outputs)
            return records.take(said["outputs"], outputs)
        except (KeyError, TypeError, ValueError, Garbled) as error:
            stranger.break_off(f"it ran no program: {error}")

    vars(program).update({name: functools.partial(call, name) for name in made["calls"] if name in CALLS})
    program.run = run
    program.given = given if made["given"] is True else None
    program.timed = timed if made["timed"] is True else None
    program.capture = capture if made["capture"] is True else None
    program.session = session if made["session"] is True else None
    return program


class _Held:
    """While anything has it, a stranger keeps its program."""


def _update(program: Program | None, said: Any, outputs: list[Any]) -> None:
    """What a program says after a run. Raises KeyError, TypeError, Garbled."""
    if program is not None:
        records.update_program(program, said["said"])
        program.ways = _ways(said["ways"], outputs)


def _ways(said: Any, found: list[Any]) -> dict[str, Sequence[Any]]:
    return {str(name): records.take(places, found) for name, places in said}


class RemoteSession:
    """A session that a stranger has."""

    def __init__(self, stranger: Stranger, program: int, told: Program | None, held: _Held) -> None:
        self._stranger, self._program, self._held = stranger, told, held
        self._number, _ = stranger.ask("open", {"of": program})

    def start(self) -> None:
        self._stranger.ask("session", {"of": self._number, "method": "start"})

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        arrays = [] if inputs is None else list(inputs)
        body = {"of": self._number, "arrays": None if inputs is None else [0, len(arrays)]}
        said, found = self._stranger.ask("step", body, arrays)
        _update(self._program, said, found)
        return records.take(said["outputs"], found)

    def state(self) -> Mapping[str, Any]:
        (names, places), found = self._stranger.ask("session", {"of": self._number, "method": "state"})
        return dict(zip(names, records.take(places, found)))

    def close(self) -> None:
        self._stranger.ask("session", {"of": self._number, "method": "close"})
        self._stranger.drop(self._number)


def remote(
    nursery: Nursery,
    rooms: Rooms,
    died: Callable[[int], NoReturn] = die_alike,
    begun: Callable[[int], None] = lambda pid: None,
) -> Remote:
    """The backend of some rooms, in strangers. died: is told how one has ended, and does not return; begun: is told the number of the process
    of a kernel. Raises what `BackendSpec.create` does; nothing is started."""
    made = rooms.spec.create()
    rooms.device = bool(made.device_vendor)
    kind: Any = type(f"Remote{type(made).__name__}", (Remote, type(made)), {})
    proxy: Remote = object.__new__(kind)
    vars(proxy).update(vars(made))
    proxy._nursery, proxy._rooms, proxy._root = nursery, rooms, proxy
    proxy._end, proxy._begun = died, begun
    return proxy
