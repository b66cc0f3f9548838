"""What is asked of a program: the farm's own checks by name, and those of other packages ("farm.checks")."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tasks.model import CHECKS, Form, Program, Unsupported
from tasks.plugins import Part, PluginError, parts


class Check:
    """A check of somebody else's package: what must hold beside the numbers for the samples of the forward check.

    A subclass without arguments is found by its entry point in the group "farm.checks", whose name is the check's.
    """

    def run(self, program: Program, form: Form) -> Sequence[Any]:
        """Run ``program`` as the check wants it and return outputs, which are judged as those of the forward check.

        Raises `tasks.model.Misbehaviour` (kind, text) for what is wrong beside the numbers.
        """
        raise NotImplementedError


def known() -> dict[str, Part]:
    """Checks of other packages, by name."""
    return {name: part for name, part in parts("check", {}).items() if name not in CHECKS}


def names() -> list[str]:
    """Names of all checks, the farm's own first."""
    return [*CHECKS, *sorted(known())]


@functools.cache
def get(name: str) -> Check:
    """The check of another package. Raises Unsupported where it cannot be had in this process."""
    try:
        check: Check = known()[name].load()()
    except KeyError:
        raise Unsupported(f"the check {name} is not installed in the environment of this backend") from None
    except PluginError as error:
        raise Unsupported(str(error)) from None
    return check
