"""The levels check: a program built at each level of optimisation, the least first; the first that differs is to blame."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.checks.base import Check, Observation
from tasks.model import Fallback, Form, Program, Unsupported, Vacuous, flags

if TYPE_CHECKING:
    from tasks.backends.base import Backend

#: What a backend says of a case without being at fault.
_SAID = (Unsupported, Fallback, Vacuous)


@dataclass
class _LevelLadder(Program):
    """The program of the last level, and how each level is run, by name."""

    steps: dict[str, Callable[[], Sequence[Any]]] = field(default_factory=dict)


class Levels(Check):
    """Rows are those of the backend as it is configured, which is its last level.

    A level that refuses with a word of its own (unsupported) is left out, unless it is the last; any other error is the
    level's.
    """

    name = "levels"
    about = (
        "the outputs at each optimisation level, from none to the one asked for: the first level that is off in both of "
        "two runs is the culprit (ORT, OpenVINO, inductor, JAX, TensorRT)"
    )

    def unfit(self, backend: Backend) -> str:
        return "" if len(backend.levels()) > 1 else "it has no levels of optimisation to choose from"

    def build(self, backend: Backend, form: Form) -> Program:
        """The program of the last level with those of the others; raises what building the last one raises.

        Raises Unsupported where the backend has but one level.
        """
        levels = backend.levels()
        if len(levels) < 2:
            raise Unsupported(f"{backend.name} has no optimisation levels to choose from")
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
                    failure, steps[name] = error, functools.partial(_raise_level_error, error)
                elif name == last:
                    raise
        if top is None:
            assert failure is not None
            raise failure  # no level builds it: as the forward check says
        own = {f.name: getattr(top, f.name) for f in fields(Program)}
        ladder = _LevelLadder(**own, steps=steps)
        ladder.flags = flags.join_row_flags(top.flags, levels=",".join(steps))
        return ladder

    def stages(self, program: Program, form: Form) -> Iterator[Observation]:
        """Each level's outputs; ``flags`` of the program then names those that are not the first one's byte for byte.

        Where there are any, each level is run a second time, since a program that gives other bytes every time differs
        at every level: those that do are ``unsteady`` in flags, and their second outputs are a step of the same name.
        """
        assert isinstance(program, _LevelLadder)
        said: dict[str, list[bytes]] = {}
        for name, run in program.steps.items():
            stage = _observe_level(name, run)
            yield stage
            if stage.error is not None:
                return
            said[name] = _list_level_bytes(stage)
        first = next(iter(said.values()))
        changed = [name for name, made in said.items() if made != first]
        unsteady = []
        for name, run in program.steps.items() if changed else ():
            stage = _observe_level(name, run)
            if stage.error is None and _list_level_bytes(stage) == said[name]:
                continue
            unsteady.append(name)
            yield stage
            if stage.error is not None:
                return
        program.flags = flags.join_row_flags(program.flags, changed=",".join(changed) or "none")
        if unsteady:
            program.flags = flags.join_row_flags(program.flags, unsteady=",".join(unsteady))


def _observe_level(name: str, run: Callable[[], Sequence[Any]]) -> Observation:
    """What one run of a level gives."""
    try:
        return Observation(f"level {name}", [np.array(x) for x in run()])
    except Exception as error:
        return Observation(f"level {name}", error=error)


def _list_level_bytes(stage: Observation) -> list[bytes]:
    return [x.tobytes() for x in stage.outputs]


def _raise_level_error(error: Exception) -> Sequence[Any]:
    raise error
