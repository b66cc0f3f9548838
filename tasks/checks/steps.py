"""The check steps: a session is judged after each of its steps, not only by what it has come to at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tasks.arrays import contiguous
from tasks.checks.base import Observation, Scenario
from tasks.checks.same_bytes import copy_program_outputs
from tasks.model import Form, Misbehaviour, OpClass, Program, Session, Unsupported

if TYPE_CHECKING:
    from tasks.catalogs.base import Catalog, Entry


class Steps(Scenario):
    """The outputs of step k are held to row k of what is expected, and what the session keeps after it is in the trace
    by its digest.

    The first step that is among the worst is to blame. A session that returns or raises the wrong thing ends there.
    """

    name = "steps"
    about = "each step of a session (a decoder with a cache, an optimiser) by itself: the first that is off is named"
    lacking = "no session: a kernel of your own whose declaration has steps"
    without = (OpClass.RANDOM, OpClass.UNINITIALISED)

    def unasked(self, entry: Entry, catalog: Catalog) -> str:
        return "" if self.name in entry.checks else catalog.lacking.get(self.name) or self.lacking

    def observe(self, session: Session, program: Program, form: Form) -> Iterator[Observation]:
        if program.session is None:
            raise Unsupported("the backend runs the session as a whole only (check forward)")
        dense = contiguous.dense(form)
        program.columns = program.columns | {"layout": None}  # other layouts are the forward check's
        for k, inputs in enumerate(dense.steps()):
            try:
                outputs = copy_program_outputs(session.step(inputs))
            except Misbehaviour as error:
                yield Observation(f"step {k}", error=error, judged=False, kind=error.kind)
                return
            except Exception as error:
                yield Observation(f"step {k}", error=error)
                return
            yield Observation(f"step {k}", outputs, row=k, state=session.state())
