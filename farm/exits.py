"""How a command ends: its exit code, Ctrl-C at any moment, and one line for a failure of the farm's own."""

from __future__ import annotations

import os
import signal
import sys

if os.path.dirname(sys.argv[0]) == os.path.dirname(__file__) or os.path.basename(sys.argv[0]) == "farm":
    # This process is a command's and has started nothing yet: until `run_command_guarded` it just ends, without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import io
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

OK, FOUND, BAD_INPUT, INCOMPLETE = 0, 1, 2, 3
#: What they mean.
EXITS = {
    OK: "all is judged, and nothing is wrong beyond the known failures.",
    FOUND: "something is wrong.",
    BAD_INPUT: "the config or the command line is bad; one line says where, and what to do.",
    INCOMPLETE: "the run is incomplete (farm run --resume goes on), or the farm itself failed.",
}
#: Variable that asks for the whole story of a failure of the farm's own.
TRACE = "FARM_TRACE"

#: Held while a process is started, and from Ctrl-C on: whoever waits for a child that is killed would start the next.
starting = threading.RLock()
#: Seconds for which Ctrl-C waits for it.
STARTING_S = 2.0

#: What asks for help.
HELP = {"-h", "--help"}
Main = Callable[[Sequence[str] | None], int]


def open_command_door(name: str) -> Callable[..., int]:
    """The command line of a command, which is imported when it is called: from there on Ctrl-C is heeded. Without
    arguments it is that of this process."""
    return partial(run_command_guarded, partial(run_command, name))


def run_command(name: str, argv: Sequence[str] | None) -> int:
    """Import a command and run it; BAD_INPUT where the installation goes without what it needs."""
    from tasks.importing import pause_garbage_collector  # and numpy: Ctrl-C is heeded by now

    try:
        with pause_garbage_collector():
            if HELP.intersection(sys.argv[1:] if argv is None else argv):
                import_module(f"farm.options.{name}").make_parser().parse_known_args(argv)
            module = import_module(f"farm.commands.{name}")
    except ModuleNotFoundError as error:
        from farm.command_names import FORMER

        package = error.name or ""
        if package.partition(".")[0] not in ("farm", "tasks"):
            raise
        print(
            f"error: farm {' '.join(FORMER.get(name, [name]))} needs {package}, which is not installed here: install the whole farm",
            file=sys.stderr,
        )
        return BAD_INPUT
    return int(module.main(argv))


def run_command_guarded(main: Main, argv: Sequence[str] | None = None) -> int:
    """The exit code of a command, whatever it raises: 1 says that wrong numbers were found, and nothing else."""
    if argv is None:  # this process is the command's
        signal.signal(signal.SIGINT, _end_process_tree)
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(
                    errors="backslashreplace"
                )  # a name that the terminal has no letters for ends nothing
                setattr(sys, name, stream if stream.isatty() else _outlast_closed_stdout(stream))
    try:
        return main(argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except Exception as error:
        if os.environ.get(TRACE):
            traceback.print_exc()
        print(f"error: {_describe_command_error(error)}", file=sys.stderr)
    return INCOMPLETE


class _BrokenPipe(io.FileIO):
    """Output whose reader may leave (`farm report | head`): the rest goes nowhere, and the command does and says in its
    exit code what it would."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return super().write(data)


def _outlast_closed_stdout(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    stream.flush()
    raw = io.BufferedWriter(_BrokenPipe(stream.fileno(), "w", closefd=False))
    made = io.TextIOWrapper(raw, stream.encoding, stream.errors)
    made.reconfigure(line_buffering=stream.line_buffering, write_through=stream.write_through)
    return made


def _describe_command_error(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, OSError):
        return text
    last = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"the farm itself failed: {type(error).__name__}{': ' if text else ''}{text} ({last.filename}:{last.lineno}); "
        f"please report it with what {TRACE}=1 shows"
    )


@contextlib.contextmanager
def allow_interrupts() -> Iterator[None]:
    """While this lasts, Ctrl-C is a KeyboardInterrupt, for work that has something to save."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_process_tree(number: int, frame: FrameType | None) -> None:
    """End this process and all that it started, at once: an exception could be lost in a library's callback, and a
    library that is taken down while another thread is in it may crash."""
    starting.acquire(timeout=STARTING_S)
    killed: set[int] = set()
    while found := set(_list_descendants(os.getpid())) - killed:  # what is started elsewhere
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    with contextlib.suppress(Exception):  # it may have been interrupted in a print
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INCOMPLETE)


def _list_descendants(pid: int) -> Iterator[int]:
    """Of a process, where the kernel lists them."""
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, listed.read_text().split()):
                yield from _list_descendants(child)
                yield child
