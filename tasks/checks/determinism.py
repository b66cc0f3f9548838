"""The checks determinism and threads: the same bytes in run after run, in another process, and with other numbers of threads."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tasks.checks.base import Observation, Scenario
from tasks.checks.same_bytes import APART, copy_program_outputs, observe_same_again
from tasks.model import Form, OpClass, Program, Session, Unsupported, flags

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: Runs in one process.
RUNS = 3
#: Numbers of threads besides the one that every run of the farm has.
THREADS = (2, 4)


class Determinism(Scenario):
    """A second process of the backend builds and runs the same sample: what hangs on addresses, on hashes, on what was
    compiled or measured at the start differs there. ``flags``: how many runs were compared, and in how many
    processes."""

    name = "determinism"
    whole = True
    about = "the same bytes in three runs and in another process"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """Kinds: "nondeterministic" and "process"."""
        first = copy_program_outputs(session.step())
        yield Observation("run 1", first)
        for number in range(2, RUNS + 1):
            words, outputs = f"in run {number} on the same inputs", copy_program_outputs(session.step())
            seen = observe_same_again(f"run {number}", outputs, first, "nondeterministic", program, words)
            if seen.error is not None and program.again is not None:
                from tasks.checks.two_orders import explain_two_runs  # all that reads orders, for this alone

                two = [(first, "run 1"), (outputs, f"run {number}")]
                program.explain = functools.partial(explain_two_runs, program.again, form.arrays, two)
            yield seen
        yield observe_same_again("in another process", _run_in_twin(form), first, "process", program)
        program.flags = flags.join_row_flags(program.flags, runs=RUNS, processes=2)
        program.columns = program.columns | {APART: 0.0}


class Threads(Scenario):
    """Every run of the farm computes with one thread. Here other processes of the backend have 2 and 4: a sum that is
    divided among threads is rounded elsewhere."""

    name = "threads"
    whole = True
    about = "the same bytes with one, two and four threads, for runtimes that take a thread count"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def unfit(self, backend: Backend) -> str:
        if backend.device_vendor:
            return "it does not compute on the CPU"
        return "" if backend.takes_threads else "it takes no number of threads"

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """Kind: "threads"."""
        first = copy_program_outputs(session.step())
        yield Observation("one thread", first)
        for number in THREADS:
            yield observe_same_again(f"with {number} threads", _run_in_twin(form, number), first, "threads", program)
        program.flags = flags.join_row_flags(program.flags, threads=",".join(map(str, (1, *THREADS))))
        program.columns = program.columns | {APART: 0.0}


def _run_in_twin(form: Form, threads: int = 1) -> Sequence[Any]:
    """The same sample, run by another process. Raises Unsupported where there can be none."""
    if form.elsewhere is None:
        raise Unsupported("this backend is of no config: another process cannot get it")
    return form.elsewhere(threads)
