"""How a finding's own program calls a runtime, without the farm: a function of the backend's file that is copied as it stands."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tasks.model import Form, Refusal


class NoProgram(Refusal):
    """A case that no program of its own can show; the text says why."""


@dataclass(frozen=True)
class ProgramRecipe:
    """What calls a runtime.

    run: a function that needs the runtime and NumPy alone, whose source a finding contains. It takes the path of an
    ONNX model and its inputs by name, or a module (`farm.reproduction.finding_program`) and its inputs in order, and returns
    the outputs as arrays. settings: its other arguments, by name; ``threads`` among them where a caller may choose.
    uses: functions and classes that it calls, copied as well. variables: of the environment, set before anything is
    imported; setup: lines that follow these.
    """

    run: Callable[..., list]
    settings: Mapping[str, Any] = field(default_factory=dict)
    uses: tuple[Callable[..., Any], ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()

    @property
    def sources(self) -> list[str]:
        """The text of each function, the one that is called last."""
        return [textwrap.dedent(inspect.getsource(x)).strip() for x in (*self.uses, self.run)]


def check_form_has_model(form: Form) -> None:
    """Raises NoProgram for a form without an ONNX model."""
    if form.kind != "onnx" or form.model is None:
        raise NoProgram(f"no folder: {form.op} has no ONNX model")


def check_form_has_program(form: Form) -> None:
    """Raises NoProgram for a form that is no program of torch's."""
    if form.kind != "torch":
        raise NoProgram(f"no folder: none is known for the form {form.kind!r}")
