"""What a check is: what is asked of a program for one sample, of which samples, and what its rows say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks.model import Form, Program

#: The check of an op's outputs. Every check without samples of its own takes this one's.
FORWARD = "forward"


class Check:
    """Base of all checks. A subclass without arguments is named in `tasks.checks.BUILT_IN`, or found by its entry point
    in the group "farm.checks", whose name is the check's.

    prepared: whether catalogs make samples of its own for it; else it takes those of the forward check. runs: whether its
    programs are run; what is only built says nothing about numbers. gradient: whether what it computes is a gradient,
    which needs a dtype with a rounding error.
    """

    name: str = ""
    prepared: bool = False
    runs: bool = True
    gradient: bool = False

    @property
    def samples(self) -> str:
        """Name of the check whose samples these are."""
        return self.name if self.prepared else FORWARD

    @property
    def needs(self) -> str:
        """What a backend must name in its `checks`; if it does not, the row says that it does not run this check."""
        return self.samples

    def run(self, program: Program, form: Form) -> Sequence[Any]:
        """Run ``program`` as the check wants it and return outputs, which are judged as those of the forward check.

        Raises `tasks.model.Misbehaviour` (kind, text) for what is wrong beside the numbers.
        """
        return program.run()
