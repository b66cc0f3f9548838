"""The checks determinism and threads: the same bytes in run after run, in another process, and with other numbers of threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.checks.base import Check
from tasks.checks.same import APART, broken, copied, difference
from tasks.model import Form, OpClass, Program, Unsupported, flags

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: Runs in one process.
RUNS = 3
#: Numbers of threads besides the one that every run of the farm has.
THREADS = (2, 4)


class Determinism(Check):
    """A second process of the backend builds and runs the same sample: what hangs on addresses, on hashes, on what was
    compiled or measured at the start differs there. ``flags``: how many runs were compared, and in how many processes."""

    name = "determinism"
    about = "the same bytes in three runs and in another process"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def run(self, program: Program, form: Form) -> Sequence[Any]:
        """The first run's outputs. Raises Misbehaviour with them: kind "nondeterministic" or "process"."""
        first = copied(program.run())
        for number in range(2, RUNS + 1):
            if found := difference(first, copied(program.run())):
                raise broken(program, found, "nondeterministic", f"in run {number} on the same inputs", first)
        if found := difference(first, _elsewhere(form)):
            raise broken(program, found, "process", "in another process", first)
        program.flags = flags.join(program.flags, runs=RUNS, processes=2)
        program.columns = program.columns | {APART: 0.0}
        return first


class Threads(Check):
    """Every run of the farm computes with one thread. Here other processes of the backend have 2 and 4: a sum that is
    divided among threads is rounded elsewhere."""

    name = "threads"
    about = "the same bytes with one, two and four threads, for runtimes that take a thread count"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def unfit(self, backend: Backend) -> str:
        if backend.device_vendor:
            return "it does not compute on the CPU"
        return "" if backend.takes_threads else "it takes no number of threads"

    def run(self, program: Program, form: Form) -> Sequence[Any]:
        """The outputs with one thread. Raises Misbehaviour with them: kind "threads"."""
        first = copied(program.run())
        for number in THREADS:
            if found := difference(first, _elsewhere(form, number)):
                raise broken(program, found, "threads", f"with {number} threads", first)
        program.flags = flags.join(program.flags, threads=",".join(map(str, (1, *THREADS))))
        program.columns = program.columns | {APART: 0.0}
        return first


def _elsewhere(form: Form, threads: int = 1) -> Sequence[Any]:
    """The same sample, run by another process. Raises Unsupported where there can be none."""
    if form.elsewhere is None:
        raise Unsupported("this backend is of no config: another process cannot get it")
    return form.elsewhere(threads)
