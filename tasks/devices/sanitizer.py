"""A tool that watches what a program does to a device's memory, and how to read what it says."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Kinds of rows: memory beside what a kernel was given.
READS_OUTSIDE, WRITES_OUTSIDE = "reads outside", "writes outside"
#: Lines of an error that are told.
_LINES = 4


@dataclass(frozen=True)
class Finding:
    """What a tool has found. kind: the row's; text: in its own words, with the place."""

    kind: str
    text: str


@dataclass(frozen=True)
class Sanitizer:
    """A maker's tool that stands before a program and its arguments.

    command: its name; folders: where it may be beside the PATH; installs: what brings it; tools: name → options of
    those it is asked for, one after the other; options: of all, with {tool} and {log}; variables: of the program,
    without which errors are hidden. errors: pattern of what the log says of an error → kind of a row; the earliest
    match counts, of one place the first; line: pattern of what stands before each of its lines; whole: of the end of a
    log that is complete.
    """

    command: str
    installs: str
    tools: Mapping[str, tuple[str, ...]] = field(hash=False)
    options: tuple[str, ...]
    errors: tuple[tuple[str, str], ...]
    line: str
    whole: str
    folders: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, hash=False)

    def find(self) -> str:
        """Its path; "" where it is not installed."""
        return shutil.which(self.command, path=os.pathsep.join([os.environ.get("PATH", ""), *self.folders])) or ""

    def call(self, tool: str, log: str) -> tuple[str, ...]:
        """The beginning of a command line that has a tool watch a program, and write to a log."""
        return (self.find(), *(x.format(tool=tool, log=log) for x in self.options), *self.tools[tool])

    def read(self, log: str) -> Finding | None:
        """The first error in a log; None where there is none."""
        text = re.sub(f"^{self.line}", "", log, flags=re.MULTILINE)
        matches = [
            (found.start(), k) for k, (pattern, _) in enumerate(self.errors) if (found := re.search(pattern, text))
        ]
        if not matches:
            return None
        begin, which = min(matches)
        lines = [x.strip() for x in text[begin:].splitlines()[:_LINES]]
        return Finding(self.errors[which][1], "; ".join(itertools.takewhile(bool, lines)))

    def is_whole(self, log: str) -> bool:
        return re.search(self.whole, log) is not None
