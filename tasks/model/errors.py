"""What a backend, a catalog or a kernel may raise, and what the farm makes of it."""

from __future__ import annotations

import functools
import re
import signal
import traceback
from collections.abc import Collection
from pathlib import Path

import numpy as np

from tasks.packages import list_library_folders

#: Of an error of many lines: "Exception from src/core.cpp:105:", "FrontEnd API failed with OpConversionFailure:".
_AROUND = re.compile(r"\.(cpp|cc|cu|c|h|hpp|py):\d+|:\s*$|^\s*$")
#: What differs between errors that are alike: names in quotes, brackets or with a digit, numbers, paths.
_OWN_WORDS = re.compile(r"\"[^\"]*\"|'[^']*'|\([^()]*\)|\[[^\[\]]*\]|<[^<>]*>|\S*[\d/]\S*")
#: Characters of an error that tell what it is.
_ENOUGH = 2_000
#: Characters of an error that is told on one line.
_LINE = 500
#: Most errors that are followed, each from the one before: a user's may lead round in a circle.
_LINKS = 100
#: Escape sequences of terminals: colours.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Where a framework has said what is wrong, and goes on to advise or to describe itself.
_ADVICE = re.compile(
    r"^\s*(Hint:|Explanation:|Developer debug context|Next steps|For more |For extended |For C\+\+ |from user code|Set TORCH|"
    r"You can suppress|To fix the error|CUDA kernel errors might|Compile with |Exception raised from |C\+\+ CapturedTraceback|"
    r"The error above|The above exception|\(Refer to|If you suspect|consider using )|"
    r"(?<=[.!]) (Next steps:|Hint:|Please (file|report|double check|visit)\b)",
    re.MULTILINE,
)
#: An error that dynamo has met when it traced, within its own, and the place of the code that it traced.
_TRACED = re.compile(r"got (\w+)\((['\"])(.*?)\2\)\s*$", re.MULTILINE | re.DOTALL)
_TRACED_AT = re.compile(r'from user code:\s+(?:.*\n\s*)*?File "([^"]+)", line (\d+)')


class Refusal(Exception):
    """Something asked for cannot be done. The text says what is wrong, where, and the fix; a command ends with it."""


class Unavailable(Exception):
    """The backend cannot run in this process; the text says why."""


class Broken(Unavailable):
    """What the user gives the backend cannot be used: an option, a class. It is no lack of the machine's, and
    a run ends as if it had failed."""


class Unsupported(Exception):
    """The backend says that it does not implement this case."""


class Fallback(Exception):
    """The backend could run this case only somewhere else than asked (and did not). raises: the compiler leaves it to
    eager torch because the program itself raises. broken: it made no one graph of the program."""

    def __init__(self, text: str = "", raises: bool = False, broken: bool = False) -> None:
        super().__init__(text)
        self.raises, self.broken = raises, broken


class Vacuous(Exception):
    """There is nothing to compute or to compare in this case."""


class Misbehaviour(Exception):
    """The kernel broke a promise beside its numbers; ``kind`` is the row's: "mutation", "aliasing", "invariant", …

    outputs: what it returned all the same, flat, to be measured; None where there is nothing to measure.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.outputs: list[np.ndarray] | None = None


class Ended(RuntimeError):
    """Another process ended in the middle of what it was asked. code: its exit code, below 0 the signal that killed
    it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code

    @property
    def killed(self) -> bool:
        """Whether an access to memory killed it."""
        return self.code in (-signal.SIGSEGV, -signal.SIGBUS)


class Hung(RuntimeError):
    """A part of what runs a case did not answer in time, and the text says which."""


class Invalid(Exception):
    """The case itself is bad: it cannot be made, widened to float64, its reference raises, or what it is held to is
    wrong (``kind``: the row's)."""

    def __init__(self, text: str = "", kind: str = "") -> None:
        super().__init__(text)
        self.kind = kind


def shorten_error(error: BaseException, limit: int) -> str:
    """What an exception says, as it is or in at most ``limit`` characters, of which up to half are then what caused
    it."""
    text, cause = str(error), "" if error.__cause__ is None else str(error.__cause__)
    if len(text) <= limit or not cause:
        return text
    end = f" … caused by: {cause}"[: limit // 2]
    return text[: limit - len(end)] + end


def list_error_causes(error: BaseException, contexts: bool = False) -> list[BaseException]:
    """An error, what it was raised from, and so on. contexts: of one that was raised from none, what it was raised in
    the handling of."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and len(chain) < _LINKS:
        chain.append(following)
        before = following.__context__ if contexts else None
        following = before if following.__cause__ is None else following.__cause__
    return chain


def find_error_essence(error: BaseException) -> tuple[str, str]:
    """(type, text on one line) of what went wrong: of what a framework made of another error that error alone, without
    advice, the framework's own stack and colours. An error that the user's code raises from another is the user's word
    and stays."""
    chain = list_error_causes(error)
    cause = next((x for x in chain if _is_user_file(_find_file_raising_error(x))), chain[-1])
    kind = type(cause).__name__
    text = drop_terminal_escapes(str(cause.msg) if isinstance(cause, SyntaxError) else str(cause)).strip()
    if traced := _TRACED.search(text):
        kind, text = traced[1], traced[3]
    said = (_ADVICE.split(text, maxsplit=1)[0].strip() or text).split("\n\n")
    while said[0].endswith(":") and len(said) > 1:  # which announces what follows
        said[:2] = [f"{said[0]} {said[1]}"]
    line = " ".join(said[0].split())
    return kind, line if len(line) <= _LINE else f"{line[:_LINE]}…"


def find_error_text(error: BaseException) -> str:
    """The text of `find_error_essence`; of an error without one, its type."""
    kind, text = find_error_essence(error)
    return text or kind


def format_error_essence(error: BaseException) -> str:
    """`find_error_essence` as "type: text"."""
    return ": ".join(filter(None, find_error_essence(error)))


def find_error_place(error: BaseException) -> str:
    """ "file:line" of the user's code that an error came from; "" where none is known."""
    for one in reversed(list_error_causes(error)):
        if isinstance(one, SyntaxError) and one.filename:
            return f"{one.filename}:{one.lineno}"
        if traced := _TRACED_AT.search(str(one)):
            return f"{traced[1]}:{traced[2]}"
        if own := [f for f in traceback.extract_tb(one.__traceback__) if _is_user_file(f.filename)]:
            return f"{own[-1].filename}:{own[-1].lineno}"
    return ""


def describe_error_with_place(error: BaseException) -> str:
    """`format_error_essence`, and in brackets the place in the user's code."""
    where = find_error_place(error)
    return format_error_essence(error) + (f" ({where})" if where else "")


def drop_terminal_escapes(text: str) -> str:
    """A text without the escape sequences of a terminal."""
    return _ESCAPES.sub("", text)


def _find_file_raising_error(error: BaseException) -> str:
    """The file in which an error was raised; "" if it is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else ""


def _is_user_file(file: str) -> bool:
    """Whether a file of a traceback is the user's: not an installed package's, Python's or the farm's."""
    return (
        bool(file)
        and not file.startswith("<")
        and not any(Path(file).is_relative_to(x) for x in _list_folders_of_others())
    )


@functools.cache
def _list_folders_of_others() -> tuple[Path, ...]:
    here = Path(__file__).parents[1]
    return (*list_library_folders(), here, here.parent / "farm")


def shorten_error_gist(error: str) -> str:
    """What an error says, without its lines that name a place in a source or only announce another line."""
    said = [line for line in error.splitlines() if not _AROUND.search(line)]
    return "\n".join(said) or error


def mask_error_details(error: str, names: Collection[str] = ()) -> str:
    """What errors that are alike have in common: without numbers, addresses, paths, and names, those in ``names``
    too."""
    text = shorten_error_gist(error)[:_ENOUGH]
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "", text)
    return " ".join(_OWN_WORDS.sub("", text).lower().split())
