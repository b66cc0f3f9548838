"""The check graph: a captured run that is replayed on changed inputs computes on those, as the eager run does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tasks.arrays.varied import vary_input_arrays
from tasks.checks.base import Observation, Scenario
from tasks.checks.same_bytes import APART, ByteDifference, copy_program_outputs, find_byte_difference
from tasks.checks.speedup import are_race_outputs_apart
from tasks.model import (
    EPS,
    Form,
    Misbehaviour,
    OpClass,
    Program,
    Replayed,
    Session,
    Unsupported,
    Vacuous,
    flags,
    run_session,
)

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: Rounds of changed inputs.
ROUNDS = 2
#: The same kernels on the same inputs: an element that is off by this share of itself, or of the output's root mean
#: square, is no matter of rounding.
GROSS = 0.1


class Graph(Scenario):
    """What is returned is the replay on the sample's own inputs, after others: it is judged as the forward check's
    outputs. The flag ``replayed`` says whether its bytes were the eager run's; ``apart_units`` how far they were at
    most, which is no fault."""

    name = "graph"
    whole = True
    about = "a captured run (CUDA graphs), replayed on changed inputs, matches the eager run on them"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def unfit(self, backend: Backend) -> str:
        return "" if backend.captures else "its programs cannot be captured in a graph"

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        """Kinds: "stale" where a replay heeds no new inputs, "other inputs" where it gives something else on them.
        Raises Vacuous where the op does not depend on what can be changed."""
        if program.capture is None or program.again is None:
            raise Unsupported("this program cannot be captured")
        session.step()
        with run_session(Replayed(program)) as replay:
            first = copy_program_outputs(replay.step(form.arrays))
            told, worst = 0, 0.0
            for turn in range(ROUNDS):
                for moved in (True, False):
                    other = vary_input_arrays(form.arrays, turn, moved)
                    try:
                        eager = copy_program_outputs(session.step(other))
                    except Exception:
                        continue  # perhaps no valid inputs
                    found = copy_program_outputs(replay.step(other))
                    apart = find_byte_difference(eager, found)
                    units = apart.units if apart else 0.0
                    seen = Observation(f"round {turn + 1}", found, judged=False, apart=units)
                    if are_race_outputs_apart(eager, first):
                        told += 1
                        if find_byte_difference(first, found) is None:
                            words = "a replay on changed inputs gives the outputs of the first ones"
                            seen = replace(seen, error=Misbehaviour("stale", words), kind="stale")
                    if seen.error is None and apart and _is_gross_difference(apart, eager):
                        words = "a replay on changed inputs gives another result than the eager run"
                        seen = replace(seen, error=Misbehaviour("other inputs", words), kind="other inputs")
                    yield seen
                    worst = max(worst, units or 0.0)
                    break
            if not told:
                raise Vacuous(
                    "its outputs do not depend on inputs that can be changed: a replay that ignores them would pass"
                )
            last = copy_program_outputs(replay.step(form.arrays))
        program.columns = program.columns | {APART: worst}
        program.flags = flags.join_row_flags(program.flags, replayed="other_bytes" if worst else "same_bytes")
        yield Observation("the sample's own inputs again", last)


def _is_gross_difference(apart: ByteDifference, outputs: Sequence[Any]) -> bool:
    eps = max((EPS.get(x.dtype.name, 0.0) for x in outputs if x is not None), default=0.0)
    return apart.units is None or apart.units * eps > GROSS
