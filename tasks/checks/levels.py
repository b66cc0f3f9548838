"""The levels check: a program built at each level of optimisation, the least first; the first that differs is to blame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks.base import Check, Stage
from tasks.model import Fallback, Form, Program, Unsupported, Vacuous

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: What a backend says of a case without being at fault.
_SAID = (Unsupported, Fallback, Vacuous)


@dataclass
class _Ladder(Program):
    """The program of the last level, and how each level is run, by name."""

    steps: dict[str, Callable[[], Sequence[Any]]] = field(default_factory=dict)


class Levels(Check):
    """Rows are those of the backend as it is configured, which is its last level.

    A level that refuses with a word of its own (unsupported) is left out, unless it is the last; any other error is the
    level's.
    """

    name = "levels"
    about = (
        "the outputs at each level of optimisation, from none to the one that is asked for: the first that is off is the "
        "culprit (ORT, OpenVINO, inductor, JAX, TensorRT)"
    )

    def fits(self, backend: Backend) -> bool:
        return len(backend.levels()) > 1

    def build(self, backend: Backend, form: Form) -> Program:
        """The program of the last level with those of the others; raises what building the last one raises.

        Raises Unsupported where the backend has but one level.
        """
        levels = backend.levels()
        if len(levels) < 2:
            raise Unsupported(f"{backend.name} has no levels of optimisation that could be asked for")
        last = list(levels)[-1]
        steps: dict[str, Callable[[], Sequence[Any]]] = {}
        top: Program | None = None
        failure: Exception | None = None
        for name, level in levels.items():
            try:
                top = level.build(form)
                steps[name] = top.run
            except _SAID:
                if name == last:
                    raise
            except Exception as error:
                if backend.is_sticky(error) or backend.is_out_of_memory(error):
                    raise
                if not backend.is_unsupported(error):
                    failure, steps[name] = error, functools.partial(_raise, error)
                elif name == last:
                    raise
        if top is None:
            assert failure is not None
            raise failure  # no level builds it: as the forward check says
        own = {f.name: getattr(top, f.name) for f in fields(Program)}
        ladder = _Ladder(**own, steps=steps)
        ladder.flags = f"{top.flags} levels={','.join(steps)}".strip()
        return ladder

    def stages(self, program: Program, form: Form) -> Iterator[Stage]:
        """Each level's outputs; ``flags`` of the program then names those that are not the first one's byte for byte."""
        assert isinstance(program, _Ladder)
        first: list[bytes] | None = None
        changed = []
        for name, run in program.steps.items():
            try:
                outputs = [np.array(x) for x in run()]
            except Exception as error:
                yield Stage(f"level {name}", error=error)
                return
            said = [x.tobytes() for x in outputs]
            first = said if first is None else first
            if said != first:
                changed.append(name)
            yield Stage(f"level {name}", outputs)
        program.flags += f" changed={','.join(changed) or 'none'}"


def _raise(error: Exception) -> Sequence[Any]:
    raise error
