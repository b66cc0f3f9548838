"""The replay check: a program that is run again gives the same bytes, whatever else was run in between or beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tasks.checks.base import Observation, Scenario
from tasks.checks.same_bytes import copy_program_outputs, observe_same_again
from tasks.model import Form, OpClass, Program, Session, flags, is_inexact_dtype

#: Runs of one kind.
RUNS = 3


class Replay(Scenario):
    """Run three times; after a run on other inputs; and from two threads, one of which gives it other inputs.

    The last two where the runtime takes other inputs for a program (`Program.again`) and promises that threads may
    (`Program.threads`). Flags say what was done: ``replay=3,other,threads``. What the first run returns is judged as
    well.
    """

    name = "replay"
    whole = True
    about = "the same bytes three times, after a run on other inputs, and while a thread runs on other inputs"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """Kinds: "nondeterministic" (the same run gave other bytes), "state" (after another input), "threads" (beside
        another thread)."""
        first = copy_program_outputs(session.step())
        done = [str(RUNS)]

        def same(
            name: str, outputs: Sequence[Any], kind: str, when: str, expected: list[Any] | None = None
        ) -> Observation:
            seen = observe_same_again(name, copy_program_outputs(outputs), first, kind, program, when, expected)
            if seen.error is not None:
                program.flags = flags.join_row_flags(program.flags, replay=",".join(done))
            return seen

        yield Observation("run 1", first)
        for number in range(2, RUNS + 1):
            words = f"in run {number} on the same inputs"
            yield same(f"run {number}", session.step(), "nondeterministic", words)
        other = _make_other_inputs(form.arrays)
        others = _try_replay(session, other)
        if others is not None:
            done.append("other")
            for given in (form.arrays, None):
                words = "after a run on other inputs"
                yield same(words, session.step(given), "state", words)
            if program.threads:
                done.append("threads")
                words = "while another thread ran the program on other inputs"
                for k, (expected, found) in enumerate(
                    zip((first, others), _run_on_two_threads(session, form.arrays, other))
                ):
                    for number, outputs in enumerate(found, 1):
                        yield same(f"thread {k + 1}, run {number}", outputs, "threads", words, expected)
        program.flags = flags.join_row_flags(program.flags, replay=",".join(done))


def _make_other_inputs(arrays: list[Any]) -> list[Any]:
    """Other inputs that are as valid: those of two dimensions and more changed, or, where there are none, the floating
    ones.

    What has one dimension or none may say what is computed: sizes, scales, axes, counts.
    """
    known = [isinstance(x, np.ndarray) and x.dtype.kind not in "OUS" for x in arrays]
    wide = [is_known and x.ndim > 1 for is_known, x in zip(known, arrays)]
    floating = [is_known and is_inexact_dtype(x.dtype.name) for is_known, x in zip(known, arrays)]
    return [_reverse_input_elements(x) if change else x for x, change in zip(arrays, wide if any(wide) else floating)]


def _reverse_input_elements(array: np.ndarray) -> np.ndarray:
    """The elements the other way round, floating ones halved."""
    turned = np.ascontiguousarray(array.reshape(-1)[::-1]).reshape(array.shape)
    return (turned * array.dtype.type(0.5)).astype(array.dtype) if array.dtype.kind in "fc" else turned


def _try_replay(session: Session, arrays: list[Any]) -> list[Any] | None:
    """What a step gives for these inputs; None where it does not take them: a shape or an index among them may not
    be valid the other way round."""
    try:
        return copy_program_outputs(session.step(arrays))
    except Exception:
        return None


def _run_on_two_threads(session: Session, *inputs: list[Any]) -> list[list[list[Any]]]:
    """What two threads get that take steps at the same time, each on its inputs. Raises what one of them raised."""
    found: list[list[list[Any]]] = [[], []]
    raised: list[BaseException] = []
    together = threading.Barrier(2)

    def runs(given: list[Any], kept: list[list[Any]]) -> None:
        try:
            for _ in range(RUNS):
                together.wait(timeout=60)
                kept.append(copy_program_outputs(session.step(given)))
        except BaseException as error:
            together.abort()
            raised.append(error)

    threads = [threading.Thread(target=runs, args=x) for x in zip(inputs, found)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = [x for x in raised if not isinstance(x, threading.BrokenBarrierError)]
    if first:
        raise first[0]
    return found
