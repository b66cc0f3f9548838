"""A session: a program that is called more than once and may keep something from call to call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tasks.model.errors import Unsupported

if TYPE_CHECKING:
    from tasks.model.case import Program


class Session(Protocol):
    """What a backend gives for a sample that is run step by step: an optimiser's steps, the tokens of a decoder, one
    call after another.

    Arrays go in and come out as NumPy's. Whatever a method raises is the step's error, as what `Program.run` raises is
    a case's.
    """

    def start(self) -> None:
        """Start from the beginning, as if no step had been taken."""

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        """Take one step and return its outputs, flat.

        inputs: arrays in the form's order, those of `Form.stepped` for this step alone; None for the sample's own, as
        they are. Raises Unsupported where the runtime takes no inputs but those it was built with.
        """

    def state(self) -> Mapping[str, Any]:
        """What it keeps from step to step, by name, in memory of its own; empty where it keeps nothing or shows
        nothing."""

    def close(self) -> None:
        """Give back what it holds. No other method is called after it."""


class TensorSession(Protocol):
    """A session of the user's over the tensors of a framework (`tasks.model.OwnKernel.session`)."""

    def start(self, device: str, given: Mapping[str, Any]) -> None:
        """Begin anew. given: what no step has of its own, by name."""

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What one step returns for its part of the inputs."""

    def state(self) -> Mapping[str, Any]:
        """As `Session.state`."""

    def close(self) -> None:
        """As `Session.close`."""


class Stateless:
    """The session that any program is: it keeps nothing, and each step is a call."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def start(self) -> None:
        pass

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        if inputs is None:
            return self.program.run()
        if self.program.again is None:
            raise Unsupported("the runtime takes a program's inputs only once")
        return self.program.again(list(inputs))

    def state(self) -> Mapping[str, Any]:
        return {}

    def close(self) -> None:
        pass


class Replayed(Stateless):
    """A captured run of a program; a step replays it, and so needs inputs. Raises Unsupported where nothing can be
    captured."""

    def start(self) -> None:
        if self.program.capture is None or self.program.again is None:
            raise Unsupported("this program cannot be captured")
        self._replay = self.program.capture()

    def step(self, inputs: Sequence[Any] | None = None) -> Sequence[Any]:
        assert inputs is not None, "a replay copies inputs to where the first ones lay"
        return self._replay(list(inputs))


@contextlib.contextmanager
def run_session(session: Session) -> Iterator[Session]:
    """Start the session; it is closed at the end, whatever happens in between."""
    try:
        session.start()
        yield session
    finally:
        session.close()
