"""What a backend, a catalog or a kernel may raise, and what the farm makes of it."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np

#: Of an error of many lines: "Exception from src/core.cpp:105:", "FrontEnd API failed with OpConversionFailure:".
_AROUND = re.compile(r"\.(cpp|cc|cu|c|h|hpp|py):\d+|:\s*$|^\s*$")
#: What differs between errors that are alike: names in quotes, brackets or with a digit, numbers, paths.
_OWN_WORDS = re.compile(r"\"[^\"]*\"|'[^']*'|\([^()]*\)|\[[^\[\]]*\]|<[^<>]*>|\S*[\d/]\S*")
#: Characters of an error that tell what it is.
_ENOUGH = 2_000


class Refusal(Exception):
    """Something asked for cannot be done. The text says what is wrong, where, and the fix; a command ends with it."""


class Unavailable(Exception):
    """The backend cannot run in this process; the text says why."""


class Unsupported(Exception):
    """The backend says that it does not implement this case."""


class Fallback(Exception):
    """The backend could run this case only somewhere else than asked (and did not)."""


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


class Invalid(Exception):
    """The case itself is bad: it cannot be made, widened to float64, or its reference raises."""


def said(error: BaseException, limit: int) -> str:
    """What an exception says, as it is or in at most ``limit`` characters, of which up to half are then what caused it."""
    text, cause = str(error), str(error.__cause__ or "")
    if len(text) <= limit or not cause:
        return text
    end = f" … caused by: {cause}"[: limit // 2]
    return text[: limit - len(end)] + end


def gist(error: str) -> str:
    """What an error says, without its lines that name a place in a source or only announce another line."""
    said = [line for line in error.splitlines() if not _AROUND.search(line)]
    return "\n".join(said) or error


def masked(error: str, names: Collection[str] = ()) -> str:
    """What errors that are alike have in common: without numbers, addresses, paths, and names, those in ``names`` too."""
    text = gist(error)[:_ENOUGH]
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "", text)
    return " ".join(_OWN_WORDS.sub("", text).lower().split())
