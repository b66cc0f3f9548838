"""How an op is judged and why: what the tables of ops are made of."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.model.op_class import OpClass


@dataclass(frozen=True)
class Placement:
    """How an op is judged. definition: of a CHOICE, or of what draws random numbers, the name in
    `tasks.judge.definitions`; why: the reason. Whether an op of torch's draws is not said here: the catalog finds it by
    drawing.

    unless: arguments ("alpha", or with a value "mode=nearest", a positional one "3=True", counted from 0) in whose
    presence the op is something else: ``instead``. of_complex: its class for complex numbers, where that is another
    one. own_dtype: the reference is computed in the dtype under test, not a wider one. constants: what is rounded is
    not an input but numbers inside, so the noise floor is ε of the largest output. fixed: which of its floating
    tensors, counted from 1, the noise floor leaves alone.
    """

    op_class: OpClass
    why: str
    definition: str = ""
    unless: tuple[str, ...] = ()
    instead: OpClass = OpClass.COMPOSITE
    of_complex: OpClass | None = None
    own_dtype: bool = False
    constants: bool = False
    fixed: tuple[int, ...] = ()


#: What an op is that is not in the table.
UNPLACED = Placement(OpClass.COMPOSITE, "not placed: judged by the conditioning of the whole op")

_EXACT, _ELEMENTARY, _COMPOSITE = OpClass.EXACT, OpClass.ELEMENTARY, OpClass.COMPOSITE

MOVES = Placement(_EXACT, "moves data: every output element is an input element or a constant")
SELECTS = Placement(_EXACT, "selects or compares: the inputs are given exactly, and nothing is rounded")
FIRST = Placement(_EXACT, "an index that the documentation fixes: among equals the first")
ROUNDS = Placement(_EXACT, "rounds to an integer or another dtype: the rounding itself is the result")
BITS = Placement(_EXACT, "integer, boolean or bit arithmetic, or an exact change of sign or exponent")
EXACT_OF_REALS = Placement(
    _EXACT, "an exact function of a real number; of a complex one it takes a modulus or an angle", of_complex=_COMPOSITE
)
OF_THE_DTYPE = Placement(
    _EXACT, "its result is made of the dtype's own bits: wider numbers have another", own_dtype=True
)
REMAINDER = Placement(_EXACT, "the remainder of a truncated division is a number of the dtype (C's fmod is exact)")
TABULATED = Placement(
    _ELEMENTARY,
    "a function of one or two real numbers with a published bound in ulps; for complex numbers there is none",
    of_complex=_COMPOSITE,
)
DERIVED = Placement(
    _ELEMENTARY,
    "a product or quotient of tabulated functions that nowhere cancels: its bound is the sum of theirs",
    of_complex=_COMPOSITE,
)
ROUNDED = Placement(
    _ELEMENTARY, "one correctly rounded operation (more than one with alpha)", unless=("alpha",), of_complex=_COMPOSITE
)
CONTRACTS = Placement(OpClass.CONTRACTION, "sums of products")
REDUCES = Placement(OpClass.REDUCTION, "accumulates many elements")
NORMALISES = Placement(OpClass.NORMALISATION, "divides by a statistic of the input")
SOLVES = Placement(OpClass.LINEAR_ALGEBRA, "factors or solves: its error follows the condition number")
COMPOSES = Placement(_COMPOSITE, "several rounded steps, which may cancel or feed a steep function")
NO_BOUND = Placement(
    _COMPOSITE, "a function of one or two numbers without a published bound: zeros, poles or cancellation inside"
)
ACTIVATES = Placement(
    _COMPOSITE, "an activation without a published bound: common formulas cancel in a tail or around a zero"
)
LOSES = Placement(_COMPOSITE, "a loss: elementwise functions, then a sum or mean")
STEPS = Placement(OpClass.DISCONTINUOUS, "an inexact step decides which side of a jump an element falls on")
DRAWS = Placement(OpClass.RANDOM, "draws random numbers")
FILLS = Placement(OpClass.UNINITIALISED, "the values are whatever the memory held")
