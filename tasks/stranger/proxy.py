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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tasks import wire as lines
from tasks.backends import BackendSpec
from tasks.backends.base import Backend, BaselineArm
from tasks.backends.shared.artefacts import FOLDER
from tasks.catalogs.user.shown_definitions import list_files_hidden_from_kernel, show_definitions_to_kernel
from tasks.catalogs.user_definitions import list_other_submissions, parse_definitions
from tasks.confine import Rules
from tasks.model import Chain, Flushes, Form, Misbehaviour, Program, RuntimeInfo, Timed, TimedCalls, Unsupported
from tasks.model.kind import KIND_PROTOCOL
from tasks.relay import remove_folder
from tasks.run_queue import RunQueueClock
from tasks.stranger import records
from tasks.stranger.nursery import ENDED, Nursery, find_parent_process, measure_stranger_cpu
from tasks.stranger.records import RemoteProgramRecord, StrangerRan
from tasks.stranger.serve import CALLS, WAYS
from tasks.stranger.wire import Closed, Garbled, StrangerConnection, StrangerMessage

#: Seconds for which a stranger that says nothing more is given to end.
ENDING_S = 2.0
#: What one does that describes nothing, in words.
NO_PROGRAM = "describes no program"

T = TypeVar("T")


@dataclass
class StrangerRooms:
    """What strangers are made of, and what they may not have. kernels: the user's definitions; hidden: files and
    folders that they may not read, beside those of references; memory: bytes of each, 0 for no limit; device: whether
    they open a device's files."""

    spec: BackendSpec
    kernels: str = ""
    hidden: set[str] = field(default_factory=set)
    memory: int = 0
    device: bool = False
    _defined: dict[str, str] = field(default_factory=dict)

    def define(self, op: str) -> str:
        """The definitions that a stranger of an op is told: ops with the same ones share it."""
        if op not in self._defined:
            self._defined[op] = show_definitions_to_kernel(self.kernels, op)
        return self._defined[op]

    def request(self, kernels: str, whole: bool = False) -> dict[str, Any]:
        """What a stranger with some definitions is told; of one that runs no kernel they are "". whole: it may read
        references and the declarations of tasks. It has a scratch folder of its own, and one for compilers' caches, with
        what was compiled when no kernel was there, that those with the same definitions share from run to run. That of a
        submission ends with it: what it knows, it has from its own calls."""
        scratch = tempfile.mkdtemp(prefix="kernel-")
        kept, told = os.environ.get(FOLDER), parse_definitions(self.kernels)
        lasts = kept and not parse_definitions(kernels).get("kernel")
        folder = _find_kernel_cache(kept, kernels) if kept and lasts else os.path.join(scratch, KERNELS)
        with contextlib.suppress(OSError):
            if kept and not os.path.exists(folder) and os.path.isdir(first := _find_kernel_cache(kept, "")):
                shutil.copytree(first, folder, copy_function=_take_over_kernel_file)
            os.makedirs(folder, exist_ok=True)
        others = [os.path.join(kept, KERNELS)] if kept else []  # what compilers have made for other kernels
        hidden = {*self.hidden, *others, *told.get("hidden", ()), *list_other_submissions(told)}
        hidden |= set() if whole else {*told.get("declarations", ()), *list_files_hidden_from_kernel(self.kernels)}
        rules = Rules(tuple(sorted(hidden)), (scratch, folder), self.memory, self.device)
        return {
            "backend": lines.encode_wire_message(self.spec).decode(),
            "kernels": kernels,
            "rules": vars(rules),
            "variables": {"TMPDIR": scratch} | {name: os.path.join(folder, where) for name, where in CACHES.items()},
        }

    def hide(self, pack: str) -> None:
        """Hide a pack, and all that lie beside it in a cache."""
        folder = Path(pack).parents[1:2]
        self.hidden.add(str(folder[0]) if folder and folder[0].name in ("cases", "forms") else pack)


#: The folder of what compilers make for kernels, and the one of what they made when no kernel was there, which all may
#: read.
KERNELS, NO_KERNEL = "kernels", "no_kernel"
#: Bytes from which a file that was compiled without a kernel is linked to, not copied: inductor's compiled headers are
#: 150 MB.
LINKED = 2**20
#: Where compilers keep what they make, by the variable that says so.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "NUMBA_CACHE_DIR": "numba",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "cache",
}


def _find_kernel_cache(kept: str, kernels: str) -> str:
    """Where compilers keep what they make for some definitions."""
    if not kernels:
        return os.path.join(kept, NO_KERNEL)
    return os.path.join(kept, KERNELS, hashlib.sha256(kernels.encode()).hexdigest()[:16])


def _take_over_kernel_file(made: str, path: str) -> None:
    """Give a kernel a file that was compiled without one: its own copy, or, of a large one, a link, which it cannot
    write through."""
    if os.path.getsize(made) < LINKED:
        shutil.copy2(made, path)
    else:
        os.symlink(os.path.realpath(made), path)


class Stranger:
    """A stranger as its judge holds it. died: is told how it ended, and does not return: its judge dies the same death.

    Any thread may ask; each has a connection of its own."""

    def __init__(self, nursery: Nursery, request: dict[str, Any], died: Callable[[int], NoReturn]) -> None:
        self._scratch = request["variables"]["TMPDIR"]
        own, self._lease, self.pid = nursery.fork(request)
        self._keeper = find_parent_process(self.pid)
        self._first, self._lanes, self._died = StrangerConnection(own), threading.local(), died
        self._lanes.connection = self._first
        self._numbers, self._making = itertools.count(1), threading.Lock()
        self._dropped: list[int] = []
        self._heard = 0
        #: How many answers to each request are still to come.
        self._owed: dict[int, int] = {}
        self._closed = False
        #: Calls of kernels that it has answered, by op and dtype.
        self.calls: Counter[tuple[str, str]] = Counter()

    def ask(self, verb: str, body: Any = None, arrays: Sequence[Any] = (), of: int = 0) -> StrangerMessage:
        """What a stranger answers to a request. Raises what it raised there; Misbehaviour where it breaks the
        protocol."""
        return self.hear(self.say(verb, body, arrays, of))

    def say(self, verb: str, body: Any = None, arrays: Sequence[Any] = (), of: int = 0, numbers: int = 1) -> int:
        """Make a request; its number. of: the number of what it is about; numbers: how many it takes, of which its own
        is the last."""
        for _ in range(numbers):
            number = next(self._numbers)
        dropped, self._dropped = self._dropped, []
        self._owed[number] = 1 + (body["runs"] if verb == "build" else 0)
        with contextlib.suppress(Closed):  # what it has answered by then can still be heard, and then how it has ended
            connection = self._connection()
            if len(dropped) > 1:
                connection.send(0, "drop", dropped[1:])
            connection.send(number, verb, body, arrays, of=of, dropped=dropped[0] if dropped else 0)
        return number

    def say_ahead(self, verb: str, body: Any, arrays: Sequence[Any], of: int) -> int | None:
        """Make a request before others are answered; its number, or None where the stranger had to be waited for, which
        may itself wait for its answers to be heard."""
        number = next(self._numbers)
        with contextlib.suppress(Closed):
            if not self._connection().send(number, verb, body, arrays, of=of, waits=False):
                return None
        self._owed[number] = 1
        return number

    def is_next(self, number: int) -> bool:
        """Whether nothing has been heard since an answer to a request of that number, so that a second one is still to
        come."""
        return self._heard == number

    def hear(self, number: int) -> StrangerMessage:
        """The next answer to a request of that number; what else was said before it is of requests whose answers nobody
        wanted."""
        try:
            while True:
                message, fds = self._connection().receive()
                for fd in fds:
                    os.close(fd)
                self._count_answer(message)
                if message.number >= number:
                    self._heard = message.number
                    break
        except Closed:
            self._bury()
        except Garbled as garbled:
            self.break_off(str(garbled))
        if message.number != number or message.verb not in ("done", "raised"):
            self.break_off(f"it answers what it was not asked ({message.verb} to {message.number})")
        if message.verb == "done":
            return message
        try:
            raised = records.read_error_record(message.body, message.arrays)
        except Garbled as garbled:
            self.break_off(str(garbled))
        raise raised

    def _count_answer(self, message: StrangerMessage) -> None:
        """Raises Misbehaviour where nobody waits for it: a kernel that answers in the place of the process that holds it
        cannot keep that from answering too."""
        left = self._owed.pop(message.number, 0)
        if not left:
            self.break_off(f"it answers what it was not asked, or twice ({message.verb} to {message.number})")
        if left > 1 and message.verb != "raised":  # after which nothing is run
            self._owed[message.number] = left - 1

    def measure_cpu(self) -> dict[int, float]:
        """CPU seconds of it and of all that it has started, by the numbers of processes."""
        return {} if self._closed else measure_stranger_cpu(self._keeper)

    def _connection(self) -> StrangerConnection:
        found: StrangerConnection | None = getattr(self._lanes, "connection", None)
        if found is None:
            with self._making:
                ours, its = socket.socketpair()
                with its:
                    self._first.send(0, "lane", None, (), [its.fileno()])
                    self._first.receive()
                found = self._lanes.connection = StrangerConnection(ours)
        return found

    def drop(self, number: int) -> None:
        """What has that number there is needed no more."""
        self._dropped.append(number)

    def read(self, how: Callable[[], T], what: str) -> T:
        """What is made of an answer; where that is nothing, it is ended. what: that it did not do, in words."""
        try:
            return how()
        except (KeyError, TypeError, ValueError, Garbled) as error:
            self.break_off(f"it {what}: {error}")

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
            remove_folder(self._scratch)


def die_like_stranger(status: int) -> NoReturn:
    """End this process as another one has ended: whoever watches this one blames what was in flight."""
    if status < 0:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        time.sleep(1)
    os._exit(status if status >= 0 else 128 - status)


class RemoteBackend(Backend):
    """A backend whose programs run in strangers: one for each kernel of a config, which finds nothing that another has
    left, one for all that modules declare, and one in which no kernel ever runs, which says what the device is and what
    it does to small numbers.

    Made by `make_remote_backend`; everything that a class of backends says of itself it has from the backend's own class."""

    by_name = True
    _nursery: Nursery
    _rooms: StrangerRooms
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
    _root: RemoteBackend

    def start(self) -> RuntimeInfo:
        told = self._find_clean().ask("start", {}).body
        lacks = ",".join(dict.fromkeys((*self._nursery.lacks, *told["lacks"])))
        self.found = told["found"]
        self.identity = (*told["identity"], *([f"unconfined={lacks}"] if lacks else []))
        return lines.decode_wire_message(told["info"])  # type: ignore[no-any-return]

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
                body = {"backend": known[self._way[: k - 1]], "method": method, "given": list(given)}
                made = stranger.ask("derive", body).body
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
        return self._build(form, form.repeats)

    def _build(self, form: Form, runs: int = 0) -> Program:
        """runs: how often it is run as soon as it is built."""
        stranger, arrays = self._find(form.op), list[Any]()
        body = {"form": records.write_form_record(form, arrays), "backend": self._number(stranger), "runs": runs}
        message = stranger.ask("build", body, arrays)
        said = stranger.read(lambda: message.text.read(RemoteProgramRecord), NO_PROGRAM)
        return _make_remote_program(stranger, message.number, said, message.arrays, form, runs)

    def count_calls(self, form: Form) -> int:
        return self._find(form.op).calls[form.op, form.dtype]

    def build_all(self, forms: Sequence[Form]) -> list[Program | Exception]:
        if not forms:
            return []
        stranger, arrays = self._find(forms[0].op), list[Any]()
        body = {"forms": [records.write_form_record(x, arrays) for x in forms], "backend": self._number(stranger)}
        message = stranger.hear(stranger.say("build_all", body, arrays, numbers=len(forms)))
        first, found = message.number - len(forms) + 1, message.arrays

        def read_one(number: int, made: Any, form: Form) -> Program | Exception:
            if "raised" not in made:
                return _make_remote_program(stranger, number, RemoteProgramRecord(made), found, form)
            error = records.read_error_record(made["raised"], found)
            return error if isinstance(error, Exception) else RuntimeError(str(error))

        return stranger.read(lambda: [read_one(first + k, x, forms[k]) for k, x in enumerate(message.body)], NO_PROGRAM)

    def eager(self, form: Form) -> BaselineArm:
        return self._arm("eager", self._find(form.op), form)

    def baseline(self, form: Form) -> BaselineArm:
        """What a kernel is timed against, in a stranger that has its reference and that the kernel cannot touch."""
        root, kernels = self._root, show_definitions_to_kernel(self._rooms.kernels, form.op, whole=True)
        if root._beside is not None and (root._beside_kernels != kernels or root._beside.is_closed):
            root._beside.close()
            root._beside = None
        if root._beside is None:
            made = root._beside = Stranger(self._nursery, self._rooms.request(kernels, whole=True), self._end)
            root._beside_kernels = kernels
            made.ask("start", {})
        return self._arm("baseline", root._beside, form)

    def _arm(self, method: str, stranger: Stranger, form: Form) -> BaselineArm:
        arrays: list[Any] = []
        others: dict[str, Form] = {}
        also: dict[str, Any] = {}
        if form.also is not None and form.kind != "torch":
            try:
                others["torch"] = form.also("torch")
                also["torch"] = records.write_form_record(others["torch"], arrays)
            except Unsupported as error:
                also["torch"] = str(error)
        body: dict[str, Any] = {"form": records.write_form_record(form, arrays), "also": also, "method": method}
        if stranger is self._root._stranger:
            body["backend"] = self._number(stranger)
        message = stranger.ask("arm", body, arrays)
        made = message.body
        said = stranger.read(lambda: RemoteProgramRecord(made["program"]), NO_PROGRAM)
        program = _make_remote_program(stranger, message.number, said, message.arrays, form)
        arm = BaselineArm(str(made["name"]), program, others.get(made["form"], form))
        products, *work = (x if type(x) is int else None for x in (made["products"], *made["work"]))
        moved, done = work
        return replace(
            arm, products=products, declared=bool(made["declared"]), work=(moved, done), views=bool(made["views"])
        )

    def canary(self, form: Form) -> Program:
        stranger = self._find_clean()
        message = stranger.ask("canary", {"kind": form.kind, "dtype": form.dtype})
        said = stranger.read(lambda: message.text.read(RemoteProgramRecord), NO_PROGRAM)
        return _make_remote_program(stranger, message.number, said, message.arrays, form)

    def measure_flushing(self, dtype: str) -> Flushes:
        results, inputs = self._find_clean().ask("flushes", {"dtype": dtype}).body
        return Flushes(tuple(results), tuple(inputs))

    def levels(self) -> Mapping[str, Backend]:
        names = self._find_clean().ask("derive", {"method": "levels", "given": []}).body
        return {name: self._derive("levels", level=name) for name in names}

    def passes(self) -> tuple[str, ...]:
        return tuple(self._tell("passes"))

    def measure_ceiling(self, what: str) -> float:
        """What the device does at most; asked where no kernel is, and kept here: a stranger may write nothing."""
        return float(self._tell("measure_ceiling", what))

    def cache_bytes(self) -> int:
        return int(self._tell("cache_bytes"))

    def _tell(self, method: str, *given: Any) -> Any:
        return self._find_clean().ask("tell", {"method": method, "given": list(given)}).body

    def without(self, passes: Collection[str]) -> Backend:
        return self._derive("without", list(passes))  # type: ignore[no-any-return]

    def precise(self) -> Backend | None:
        made = self._find_clean().ask("derive", {"method": "precise", "given": []}).body
        return None if made is None else self._derive("precise")

    def any_size(self) -> Backend:
        return self._derive("any_size")  # type: ignore[no-any-return]

    def cpu_s(self) -> float:
        """CPU seconds of the stranger, by the system's clock of its process (clock_getcpuclockid(3))."""
        stranger = self._root._stranger
        return time.process_time() if stranger is None else time.clock_gettime(~stranger.pid << 3 | 2)

    def cpu_apart_s(self) -> tuple[dict[int, float], dict[int, float]]:
        both = (self._root._stranger, self._root._beside)
        kernel, beside = ({} if x is None else x.measure_cpu() for x in both)
        return kernel, beside

    def open_queues(self) -> list[RunQueueClock]:
        root = self._root
        return [RunQueueClock(), *(RunQueueClock(x.pid) for x in (root._stranger, root._beside) if x is not None)]

    # --- what errors say ---

    def is_sticky(self, error: BaseException) -> bool:
        return _was_error_told(error, "is_sticky") if hasattr(error, "told") else super().is_sticky(error)

    def is_unsupported(self, error: BaseException) -> bool:
        return _was_error_told(error, "is_unsupported") if hasattr(error, "told") else super().is_unsupported(error)

    def refuses(self, error: BaseException) -> bool:
        return _was_error_told(error, "refuses") if hasattr(error, "told") else super().refuses(error)

    def is_out_of_memory(self, error: BaseException) -> bool:
        return _was_error_told(error, "is_out_of_memory") if hasattr(error, "told") else super().is_out_of_memory(error)


def _was_error_told(error: Any, name: str) -> bool:
    return bool(error.told[name])


def _make_remote_program(
    stranger: Stranger, number: int, said: RemoteProgramRecord, arrays: list[Any], form: Form, runs: int = 0
) -> Program:
    """A program of a form that a stranger has under some number. runs: how often it runs there already."""
    program = said.make_program(arrays)
    kept = RemoteProgram(stranger, number, program, form, runs)
    program.run, program.abandon = kept.run, stranger.close
    for name in said.calls:
        if name in WAYS:
            setattr(program, name, getattr(kept, name))
        elif name in CALLS:
            setattr(program, name, functools.partial(kept.call, name))
            setattr(program, f"begin_{name}", functools.partial(kept.begin, name))
    return program


class Kept:
    """What a stranger has under a number, and keeps while anything has this."""

    def __init__(self, stranger: Stranger, number: int) -> None:
        self.stranger, self.number = stranger, number

    def __del__(self) -> None:
        self.stranger.drop(self.number)


class RemoteProgram(Kept):
    """What the judge's program calls. A check may keep one of these calls in a program of its own, and nothing else of
    it."""

    def __init__(self, stranger: Stranger, number: int, program: Program, form: Form, runs: int) -> None:
        super().__init__(stranger, number)
        self._told, self._coming, self._of = weakref.ref(program), runs, (form.op, form.dtype)

    def run(self) -> list[Any]:
        coming, self._coming = self._coming, 0
        if coming and self.stranger.is_next(self.number):
            message = self.stranger.hear(self.number)
            self._coming = coming - 1
            return self.read_run(message)
        return self.run_number(self.number)

    def run_number(self, number: int) -> list[Any]:
        """The outputs of a run of what has some number."""
        return self.read_run(self.stranger.ask("run", None, of=number))

    def count(self, calls: int = 1) -> None:
        """Note calls (`Remote.count_calls`)."""
        self.stranger.calls[self._of] += calls

    def read_run(self, message: StrangerMessage) -> list[Any]:
        self.count()
        return self.stranger.read(
            lambda: message.text.read(StrangerRan).read(self._told(), message.arrays), "ran no program"
        )

    def given(self, arrays: list[Any]) -> Callable[[], Sequence[Any]]:
        return RemoteRun(self, self.stranger.ask("given", None, arrays, of=self.number).number)

    def timed(self, arrays: list[Any], chain: Chain) -> TimedCalls:
        made = self.stranger.ask("timed", vars(chain), arrays, of=self.number)
        return RemoteTimed(self, made.number, chain)

    def capture(self) -> Callable[[list[Any]], Sequence[Any]]:
        return RemoteCapture(self.stranger, self.stranger.ask("capture", None, of=self.number).number)

    def session(self) -> RemoteSession:
        return RemoteSession(self)

    def call(self, name: str, arrays: list[Any], data: Any) -> list[Any]:
        return self.read_run(self.stranger.ask("call", {"name": name, "data": vars(data)}, arrays, of=self.number))

    def begin(self, name: str, arrays: list[Any], data: Any) -> Callable[[], list[Any]] | None:
        number = self.stranger.say_ahead("call", {"name": name, "data": vars(data)}, arrays, of=self.number)
        return None if number is None else lambda: self.read_run(self.stranger.hear(number))


class RemoteCall(Kept):
    """A call of a program that is ready to be made."""

    def __init__(self, program: RemoteProgram, number: int) -> None:
        super().__init__(program.stranger, number)
        self._program = program


class RemoteRun(RemoteCall):
    """A run of a program on other inputs."""

    def __call__(self) -> list[Any]:
        return self._program.run_number(self.number)


class RemoteTimed(RemoteCall):
    """Calls that are timed by themselves."""

    def __init__(self, program: RemoteProgram, number: int, chain: Chain) -> None:
        super().__init__(program, number)
        self._chain, self._digests = chain, tuple[str, ...]()

    def __call__(self) -> Timed:
        self._program.count(self._chain.calls)
        message = self.stranger.ask("time", None, of=self.number)
        found = self.stranger.read(lambda: records.read_timed_record(message.body, self._chain), "timed no call")
        self._digests = found.digests
        return found

    def results(self) -> list[list[Any]]:
        """Raises Misbehaviour where these are not what it had when the calls were over."""
        message = self.stranger.ask("results", None, of=self.number)
        return self.stranger.read(
            lambda: records.read_remote_results(message.body, message.arrays, self._chain, self._digests),
            "kept no results",
        )


class RemoteCapture(Kept):
    """A recorded run."""

    def __call__(self, arrays: list[Any]) -> list[Any]:
        message = self.stranger.ask("replay", None, arrays, of=self.number)
        return self.stranger.read(lambda: records.take_crossing_arrays(message.body, message.arrays), "replayed no run")


class RemoteSession(Kept):
    """A session that a stranger has."""

    def __init__(self, program: RemoteProgram) -> None:
        super().__init__(program.stranger, program.stranger.ask("open", None, of=program.number).number)
        self._program = program

    def start(self) -> None:
        self._ask("start")

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        arrays = [] if inputs is None else list(inputs)
        message = self.stranger.ask("step", {"inputs": inputs is not None}, arrays, of=self.number)
        return self._program.read_run(message)

    def state(self) -> Mapping[str, Any]:
        message = self._ask("state")

        def read_state() -> dict[str, Any]:
            names, places = message.body
            return dict(zip(map(str, names), records.take_crossing_arrays(places, message.arrays)))

        return self.stranger.read(read_state, "keeps no state")

    def close(self) -> None:
        self._ask("close")

    def _ask(self, method: str) -> StrangerMessage:
        return self.stranger.ask("session", {"method": method}, of=self.number)


def make_remote_backend(
    nursery: Nursery,
    rooms: StrangerRooms,
    died: Callable[[int], NoReturn] = die_like_stranger,
    begun: Callable[[int], None] = lambda pid: None,
) -> RemoteBackend:
    """The backend of some rooms, in strangers. died: is told how one has ended, and does not return; begun: is told the
    number of the process of a kernel. Raises what `BackendSpec.create` does; nothing is started."""
    made = rooms.spec.create()
    rooms.device = bool(made.device_vendor)
    kind: Any = type(f"Remote{type(made).__name__}", (RemoteBackend, type(made)), {})
    proxy: RemoteBackend = object.__new__(kind)
    vars(proxy).update(vars(made))
    proxy._nursery, proxy._rooms, proxy._root = nursery, rooms, proxy
    proxy._end, proxy._begun = died, begun
    return proxy
