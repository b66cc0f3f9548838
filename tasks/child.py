"""The process that runs cells: commands come in over one pipe, rows go out over another, one at a time.

Started as ``python -m tasks.child IN OUT PROGRESS OWNER``: three inherited file descriptors, and the number of the
process that started it. Commands and answers are lines (`tasks.wire`). PROGRESS is a shared page that says what is in
flight, written before every step with at most one system call, so that whoever finds this process dead knows whom to
blame.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from tasks import heap, wire
from tasks.arrays.pack import PackError, StorageError
from tasks.catalogs.user_definitions import USER, announce_definitions, do_definitions_isolate
from tasks.importing import pause_garbage_collector
from tasks.judge import policy_files
from tasks.model import BackendInfo, Broken, Unavailable
from tasks.passport.known_passports import choose_passport
from tasks.relay import ProgressPage
from tasks.searches import find_hunt_search
from tasks.surroundings import Surroundings
from tasks.variables import MEMORY

PR_SET_PDEATHSIG = 1

#: Errors of the cache's disk (full, read-only, emptied under a run) rather than of a case.
STORAGE = (errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)

#: Messages of a command, then its answer.
Steps = Generator[Any, None, wire.Answer]


class Child:
    """Serves commands; `steps` yields a command's messages as they come, and its answer as the last."""

    def __init__(self, page: Any, isolates: bool = True) -> None:
        """page: a `ProgressPage`, or what is written to as one is; isolates: whether kernels of the user's run in a
        process of their own."""
        self.page, self._isolates = page, isolates
        #: What runs cases in this process, and what runs those of kernels that nobody vouches for in another one.
        self.runner: Any = None
        self.guarded: Any = None
        self.canary: Any = None
        self._searcher: Any = None
        self.surroundings = Surroundings()
        self._serve: dict[type, Callable[[Any], Steps]] = {
            wire.Hello: self._hello,
            wire.List: self._list,
            wire.Prepare: self._prepare,
            wire.Export: self._export,
            wire.Run: self._run,
            wire.Search: self._search,
            wire.Tried: self._search,
            wire.Screen: self._screen,
        }

    def steps(self, command: Any) -> Iterator[Any]:
        try:
            answer = yield from self._serve[type(command)](command)
        except OSError as error:
            if not isinstance(error, StorageError) and error.errno not in STORAGE:
                raise
            # No case is to blame for a full disk: whoever gave the command must stop.
            answer = wire.Stopped(f"{error.strerror}: {error.filename or getattr(command, 'cache', '')}")
        except PackError as error:
            answer = wire.Stopped(str(error))
        self.page.write(-1, 0, 0)
        yield answer

    @property
    def is_broken(self) -> bool:
        """True when the device is unusable in this process."""
        return any(x is not None and x.broken for x in (self.runner, self.guarded))

    def _hello(self, command: wire.Hello) -> Steps:
        from tasks.canary import Canary

        yield from ()
        announce_definitions(command.kernels)
        if command.backend is None:
            return wire.Ready()
        self.page.write(-1, 1)
        wanted = self._isolates and do_definitions_isolate(command.kernels) and sys.platform == "linux"
        try:
            made = self._make_remote(command) if wanted else None
            guards = made is not None
            if not guards and self.runner is not None and self.runner.backend.spec == command.backend:
                made, runtime = self.runner.backend, self.runner.info  # it has begun already
            else:
                made = made or command.backend.create()
                with pause_garbage_collector():
                    runtime = made.start()
                    self.canary = Canary(made)
                if wanted and not guards:
                    made.identity = (*made.identity, "isolation=none")
        except Unavailable as error:
            return wire.Refused(str(error), getattr(error, "installs", ()), broken=isinstance(error, Broken))
        except Exception as error:
            return wire.Refused(f"{type(error).__name__}: {error}")
        if guards:
            self.guarded = self._make_runner(made, runtime, command)
            self._start_runner = lambda: self._make_local_runner(command)
        else:
            self.runner = self._make_runner(made, runtime, command)
        return wire.Ready(
            BackendInfo(
                runtime,
                made.vendor,
                made.device_vendor,
                made.resource,
                made.alone,
                made.emulated,
                dict(made.found),
                self.canary.dtypes,
            )
        )

    def _make_runner(self, made: Any, runtime: Any, command: wire.Hello) -> Any:
        from tasks.runner import JUDGE, RUN, Runner

        before = -1, 0

        def progress(number: int, stage: int, together: int) -> None:
            nonlocal before
            if stage == RUN and before != (
                number,
                JUDGE,
            ):  # else a step of a run that goes on: what it has set is its own
                self.surroundings.runs()
            before = number, stage
            self.page.write(number, stage, together)

        passport = choose_passport(command.passports, runtime) if command.passports else None
        policy = command.policy or policy_files.load_policy("error_units")
        return Runner(made, runtime, policy, progress, command.race_s, passport)

    def _make_local_runner(self, command: wire.Hello) -> Any:
        assert command.backend is not None
        made = command.backend.create()
        with pause_garbage_collector():
            runtime = made.start()
        return self._make_runner(made, runtime, command)

    def _make_remote(self, command: wire.Hello) -> Any:
        """The backend in processes that are forked from this one, which has read nothing yet; None where the system
        does not let them."""
        from tasks.confine import PR_SET_DUMPABLE, call_prctl
        from tasks.stranger.nursery import Nursery
        from tasks.stranger.proxy import StrangerRooms, make_remote_backend
        from tasks.stranger.serve import serve_as_stranger

        assert command.backend is not None
        call_prctl(PR_SET_DUMPABLE, 0)  # no process of the same user looks into the memory of this one
        rooms = StrangerRooms(command.backend, command.kernels, memory=int(os.environ.get(MEMORY, "0")))
        try:
            nursery = Nursery(serve_as_stranger, self.page.close)
        except OSError as error:
            print(f"kernels are judged in the process that runs them: {error}", file=sys.stderr, flush=True)
            return None
        return make_remote_backend(nursery, rooms, begun=self.page.name_other)

    def _runner_of(self, catalog: str) -> Any:
        """What runs cases of a catalog."""
        if self.guarded is not None and catalog == USER:
            return self.guarded
        if self.runner is None:
            self.runner = self._start_runner()
        return self.runner

    def _list(self, command: wire.List) -> Steps:
        import tasks.catalogs as catalogs

        yield from ()
        announce_definitions(command.kernels)
        made = catalogs.get_catalog(command.catalog)
        try:
            return wire.Listed(tuple(made.entries()))
        except catalogs.CatalogError as error:
            return wire.Misconfigured(str(error), tuple(error.key), error.lacks)

    def _prepare(self, command: wire.Prepare) -> Steps:
        from tasks.prepare.cases import prepare_group

        for number, item in self._todo(command):
            bad = {b.position: b.failure for b in item.bad}
            started = functools.partial(self.page.write, number, 1, 1)  # is told which sample is made next
            name, made = prepare_group(
                item.group, Path(command.cache), bad=bad or None, started=started, with_products=item.with_products
            )
            yield wire.Prepared(number, name, str(made.pack.path), tuple(s.index for s in made.samples))
        return wire.Finished()

    def _export(self, command: wire.Export) -> Steps:
        from tasks.prepare.forms import export_prepared_forms

        for number, item in self._todo(command):
            bad = {b.position: b.failure.error for b in item.bad}
            started = functools.partial(self.page.write, number, 1, 1)
            path = export_prepared_forms(Path(item.pack), Path(command.cache), item.form, item.count, bad, started)
            yield wire.Exported(number, str(path))
        return wire.Finished()

    @staticmethod
    def _todo(command: wire.Prepare | wire.Export) -> list[tuple[int, Any]]:
        return [(number, item) for number, item in enumerate(command.items) if number not in command.skip]

    def _run(self, command: wire.Run) -> Steps:
        self.page.write(-1, 1)
        self.surroundings = Surroundings()
        watched, asked = command.canary_s is not None and bool(self.canary.dtypes), False
        for done in self._run_items(command):
            yield done
            self.surroundings.put_back()
            # A device that an error has spoilt answers nothing: the error says more.
            if asked := watched and not self.is_broken and self.canary.due(command.canary_s):
                yield self._check_canary()
        if watched and not (asked or self.is_broken):
            yield self._check_canary()
        return wire.Finished()

    def _run_items(self, command: wire.Run) -> Iterator[wire.Done]:
        """Each stretch of items by the runner of its catalog."""
        first, skip, solo = 0, set(command.skip), set(command.solo)
        if self.guarded is not None:
            self.guarded.backend.hide({x for item in command.items for x in (item.pack, item.exported) if x})
        for runner, stretch in itertools.groupby(command.items, lambda item: self._runner_of(item.group.catalog)):
            items = list(stretch)
            yield from runner.run(items, skip, solo, first)
            if runner.broken:
                return
            first += sum(len(item.positions) for item in items)

    def _check_canary(self) -> wire.Canary:
        self.page.write(-1, 1)
        return wire.Canary(self.canary.describe_change())

    def _screen(self, command: wire.Screen) -> Steps:
        from tasks.runner import RUN
        from tasks.screen.passes import screen_device
        from tasks.screen.probe import screen_device_features

        self.page.write(-1, 1)
        runner = self._runner_of("screen")
        backend = runner.backend
        if command.probe:
            yield wire.Probed(dict(screen_device_features(backend)))
            return wire.Finished()

        def tick(number: int) -> None:
            self.page.write(number, RUN, 1)

        def measure() -> str:
            return backend.hardware.describe_condition(os.environ) if backend.hardware else ""

        with pin_thread_to_core(command.core):
            yield from screen_device(
                backend, runner.info.compute_precision, command.seconds, command.seed, tick, measure, command.skip
            )
        return wire.Finished()

    def _search(self, command: wire.Search | wire.Tried) -> Steps:
        yield from ()
        self.page.write(-1, 1)
        if isinstance(command, wire.Tried):
            return self._searcher.go_on(command)
        search = find_hunt_search(type(command.what).__name__)
        assert search, "asked of an installation without it"
        self._searcher = search.load()(command)
        return self._searcher.begin()


@contextlib.contextmanager
def pin_thread_to_core(place: int) -> Iterator[None]:
    """Run this thread on one of the CPUs that it may use, by place among them; on all of them where ``place`` is -1, or
    the system says nothing of them."""
    if place < 0 or not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {sorted(allowed)[place % len(allowed)]})
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def end_child_with_owner(owner: int) -> None:
    """End this process with the one that started it, however that ends: an orphan would hold the device. owner: 0 where
    a tool that stands before this process has started it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if owner and os.getppid() != owner:  # it ended before that; in a container the owner itself may be process 1
            os._exit(1)


def settle_child_process() -> None:
    """What holds for a process of the farm's for as long as it lives; done before a runtime is imported."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    heap.keep_freed_memory()
    warnings.simplefilter("ignore")


def serve_child_commands(read_fd: int, write_fd: int, page_fd: int) -> None:
    """Do the commands that come, to the last; the process ends with them."""
    page = ProgressPage(page_fd)

    def send(message: Any) -> None:
        data = wire.encode_wire_message(message)
        while data:
            data = data[os.write(write_fd, data) :]

    with os.fdopen(read_fd, "r", encoding="utf-8") as commands:
        child = Child(page)
        for line in commands:
            for message in child.steps(wire.decode_wire_message(line)):
                send(message)
            if child.is_broken:
                break
    # Leave without the runtimes' exit handlers: they have nothing to save and some hang.
    os._exit(0)


def main() -> None:
    """Entry point; see the module's docstring for the arguments."""
    read_fd, write_fd, page_fd, owner = map(int, sys.argv[1:5])
    end_child_with_owner(owner)
    settle_child_process()
    serve_child_commands(read_fd, write_fd, page_fd)


if __name__ == "__main__":
    main()
