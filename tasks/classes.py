"""Which op is judged how, and why: one table. An op that nobody has placed is judged as composite."""
from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass

from tasks.model import OpClass


@dataclass(frozen=True)
class Placement:
    """How an op is judged. definition: of a CHOICE, the name in `tasks.definitions`; why: the reason.

    unless: keyword arguments in whose presence the op is something else: ``instead``.
    """

    op_class: OpClass
    why: str
    definition: str = ""
    unless: tuple[str, ...] = ()
    instead: OpClass = OpClass.COMPOSITE


#: What an op is that is not in the table.
UNPLACED = Placement(OpClass.COMPOSITE, "not placed: judged by the conditioning of the whole op")


def of(op: str, variant: str = "", kwargs: Collection[str] = ()) -> Placement:
    """The placement of an op ("torch:nn.functional.gelu") or of one variant of it.

    ``kwargs``: names of the keyword arguments of a sample that differ from their defaults.
    """
    found = _table().get(f"{op}.{variant}") or _table().get(op) or UNPLACED
    if found.unless and any(name in kwargs for name in found.unless):
        return Placement(found.instead, f"{found.why}; with {', '.join(found.unless)} it is not")
    return found


def placed(op: str, variant: str = "") -> bool:
    """Whether the table names the op."""
    return f"{op}.{variant}" in _table() or op in _table()


@functools.cache
def _table() -> dict[str, Placement]:
    table: dict[str, Placement] = {}
    for catalog, lines in TABLE.items():
        for placement, names in lines:
            for name in names.split():
                if f"{catalog}:{name}" in table:
                    raise ValueError(f"tasks.classes: {catalog}:{name} is placed twice")
                table[f"{catalog}:{name}"] = placement
    return table


_MOVES = Placement(OpClass.EXACT, "moves data: every output element is an input element or a constant")
_SELECTS = Placement(OpClass.EXACT, "selects or compares: the inputs are given exactly, and nothing is rounded")
_ROUNDS = Placement(OpClass.EXACT, "rounds to an integer or another dtype: the rounding itself is the result")
_BITS = Placement(OpClass.EXACT, "integer, boolean or bit arithmetic, or an exact change of sign or exponent")
_TABULATED = Placement(OpClass.ELEMENTARY, "a function of one or two numbers with a published bound in ulps")
_ROUNDED = Placement(OpClass.ELEMENTARY, "one correctly rounded operation", unless=("alpha",))
_CONTRACTS = Placement(OpClass.CONTRACTION, "sums of products")
_REDUCES = Placement(OpClass.REDUCTION, "accumulates many elements")
_NORMALISES = Placement(OpClass.NORMALISATION, "divides by a statistic of the input")
_SOLVES = Placement(OpClass.LINEAR_ALGEBRA, "factors or solves: its error follows the condition number")
_COMPOSES = Placement(OpClass.COMPOSITE, "several rounded steps")
_STEPS = Placement(OpClass.DISCONTINUOUS, "an inexact step decides which side of a jump an element falls on")
_FILLS = Placement(OpClass.UNINITIALISED, "the values are whatever the memory held")


def _by(definition: str, why: str) -> Placement:
    return Placement(OpClass.CHOICE, why, definition)


#: Per catalog: (placement, names separated by blanks). A name with a variant ("std_mean.unbiased") goes before the op's.
TABLE: dict[str, list[tuple[Placement, str]]] = {
    "torch": [
        (_FILLS, "empty empty_like empty_permuted empty_strided new_empty new_empty_strided"),
        (_TABULATED, "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh"
                     " pow float_power sqrt rsqrt hypot erf erfc"),
        (_ROUNDED, "add sub mul"),
        (_SELECTS, "nn.functional.relu"),
        (_CONTRACTS, "matmul mm bmm mv dot"),
    ],
    "onnx": [],
    "critical": [
        (_CONTRACTS, "matmul"),
    ],
}  # fmt: skip
