"""The sanitize check: what a kernel reads and writes beside its memory, as a tool of the device's maker or guard pages see it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tasks.arrays.guarded import GUARD, PageGuard
from tasks.checks.base import Check, Observation
from tasks.devices.sanitizer import READS_OUTSIDE, WRITES_OUTSIDE, Sanitizer
from tasks.model import Ended, Form, Misbehaviour, OpClass, Program, Unsupported, flags
from tasks.model.named import Named

if TYPE_CHECKING:
    from tasks.backends.base import Backend


#: Characters of a log that are told.
_LINE = 300


@dataclass
class Watched(Program):
    """A program whose memory is watched. tool: of its device's maker; None on the CPU."""

    tool: Sanitizer | None = None


class Sanitize(Check):
    """One case of a cell, in another process of the backend, under each tool that the maker of its device has for this
    (NVIDIA's compute-sanitizer: memcheck, racecheck, initcheck). A kernel of the user's that computes on the CPU is
    given inputs that lie against pages of memory that nobody may touch, at their end and at their start.

    ``flags`` say what looked on. A tool that is not installed, or a device that has none, makes the row `unsupported`.
    """

    name = "sanitize"
    about = "memory: nothing is read or written outside, no races, nothing uninitialised (compute-sanitizer; guard pages on a CPU)"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def wanted(self, samples: int) -> int:
        return min(samples, 1)

    def build(self, backend: Backend, form: Form) -> Program:
        if backend.device_vendor:
            tool = backend.hardware.sanitizer if backend.hardware else None
            if tool is None:
                raise Unsupported(f"no tool is known that watches the memory of {backend.device_vendor} devices")
            if not tool.find():
                raise Unsupported(f"{tool.command} is not installed: {tool.installs}")
        elif form.own is None and not (isinstance(form.call, Named) and form.call.own):
            raise Unsupported("on a CPU only kernels of your own are given guarded memory")
        else:
            tool = None
        if form.elsewhere is None:
            raise Unsupported("it takes a process of its own, which this backend has none of here")
        program = backend.build(form)
        return Watched(**{f.name: getattr(program, f.name) for f in fields(Program)}, tool=tool)

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        """What the first run gives. Kinds: "reads outside", "writes outside", "race", "uninitialised", …"""
        yield Observation("the first run", [np.array(x) for x in program.run()])
        assert isinstance(program, Watched)
        if program.tool is not None:
            _run_under_tools(program.tool, program, form)
        else:
            _run_beside_guard_pages(program, form)


def _run_under_tools(tool: Sanitizer, program: Program, form: Form) -> None:
    assert form.elsewhere is not None
    with tempfile.TemporaryDirectory(prefix="farm-sanitize-") as folder:
        for name in tool.tools:
            log = Path(folder, f"{name}.log")
            ended = ""
            try:
                form.elsewhere(1, front=tool.call(name, str(log)), env=tool.variables)
            except Ended as error:  # the tool may end a process that has gone wrong; it then says why
                ended = str(error)
            said = log.read_text(errors="replace") if log.exists() else ""
            if (found := tool.read(said)) is not None:
                raise Misbehaviour(found.kind, f"{tool.command} ({name}): {found.text}")
            if ended or not tool.is_whole(said):
                raise RuntimeError(
                    f"{tool.command} ({name}) did not come to an end: {ended or ' '.join(said.split())[-_LINE:]}"
                )
    program.flags = flags.join_row_flags(program.flags, sanitized=",".join(tool.tools))


def _run_beside_guard_pages(program: Program, form: Form) -> None:
    """Raises Misbehaviour where the program dies beside a page that nobody may touch, and does not in the same place
    where it may."""
    for place, words in (("end", "behind the end"), ("start", "before the start")):
        if not _does_guarded_case_die(form, PageGuard(place)) or _does_guarded_case_die(
            form, PageGuard(place, "write")
        ):
            continue  # else it is where its inputs lie that kills it: code for a vector takes it for granted that they are aligned
        writes = _does_guarded_case_die(form, PageGuard(place, "read"))
        kind, does = (WRITES_OUTSIDE, "writes") if writes else (READS_OUTSIDE, "reads")
        raise Misbehaviour(
            kind, f"it {does} {words} of an input: its process dies where that is a page that nobody may touch"
        )
    program.flags = flags.join_row_flags(program.flags, sanitized="guard-pages")


def _does_guarded_case_die(form: Form, guard: PageGuard) -> bool:
    """Whether the process of a case is killed where its inputs lie against guarded pages."""
    assert form.elsewhere is not None
    try:
        form.elsewhere(1, env={GUARD: str(guard)})
    except Ended as ended:
        return ended.killed
    return False
