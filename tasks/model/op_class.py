"""Classes of ops: how a result can be right."""

from __future__ import annotations

import enum


class OpClass(str, enum.Enum):
    """How the result of an op can be right; a table of the judge says which op is of which class, and why."""

    EXACT = "exact"  # equal to the reference rounded to the output dtype
    ELEMENTARY = "elementary"  # ulps of the result, whatever the conditioning
    CONTRACTION = "contraction"  # this and the next four: error units
    REDUCTION = "reduction"
    NORMALISATION = "normalisation"
    LINEAR_ALGEBRA = "linear algebra"
    COMPOSITE = "composite"
    CHOICE = "choice"  # by its definition
    RANDOM = "random"  # shape, dtype, range, moments
    UNINITIALISED = "uninitialised"  # shape and dtype
    DISCONTINUOUS = "discontinuous"  # equal, or within a jump that the noise floor shows
    MODEL = "model"  # error units of the row floor, and what the outputs mean

    def __str__(self) -> str:
        return self.value


#: Classes whose inputs are taken as exactly given: the noise floor is not consulted.
WITHOUT_NOISE = (OpClass.EXACT, OpClass.ELEMENTARY, OpClass.UNINITIALISED)
