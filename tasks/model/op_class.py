"""Classes of ops: how a result can be right."""

from __future__ import annotations

import enum


class OpClass(str, enum.Enum):
    """How the result of an op can be right; a table of the judge says which op is of which class, and why."""

    EXACT = "exact"
    ELEMENTARY = "elementary"
    CONTRACTION = "contraction"
    REDUCTION = "reduction"
    NORMALISATION = "normalisation"
    LINEAR_ALGEBRA = "linear algebra"
    COMPOSITE = "composite"
    CHOICE = "choice"
    RANDOM = "random"
    UNINITIALISED = "uninitialised"
    DISCONTINUOUS = "discontinuous"
    MODEL = "model"

    def __str__(self) -> str:
        return self.value


#: Of classes: an example, and when a result is right.
RIGHT: dict[tuple[OpClass, ...], tuple[str, str]] = {
    (OpClass.EXACT,): ("relu, max, indexing, casts", "it is the reference, rounded"),
    (OpClass.ELEMENTARY,): ("exp, sin, div, sqrt", "within published bounds, in **ulps**"),
    (OpClass.CONTRACTION, OpClass.REDUCTION, OpClass.NORMALISATION, OpClass.LINEAR_ALGEBRA, OpClass.COMPOSITE): (
        "matmul, sum, softmax, gelu",
        "its **error units** stay below a limit",
    ),
    (OpClass.CHOICE,): ("svd, sort, topk", "its definition holds"),
    (OpClass.DISCONTINUOUS,): ("floor division, histc", "rounded right, or off by a jump within the noise floor"),
    (OpClass.MODEL,): (
        "a whole network",
        "its error in units of its own floor stays below a limit, and no decision flips",
    ),
    (OpClass.RANDOM,): ("dropout, normal", "shape, dtype, range and moments fit"),
    (OpClass.UNINITIALISED,): ("empty_like", "shape and dtype fit"),
}

#: Classes whose inputs are taken as exactly given: the noise floor is not consulted.
WITHOUT_NOISE = (OpClass.EXACT, OpClass.ELEMENTARY, OpClass.UNINITIALISED)
