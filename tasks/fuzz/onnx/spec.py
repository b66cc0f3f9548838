"""What a generated case of an ONNX operator is made with: shapes, axes, tensors and parameters out of choices."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.draw.choices import DrawnChoices
from tasks.draw.seeds import draw_seed_words
from tasks.fuzz import values
from tasks.fuzz.values import ValueDomain

#: Operator sets, the simplest first.
OPSETS = (21, *range(13, 21), 22, 23)
#: Most elements of a generated tensor.
ELEMENTS = 2048
#: Lengths around powers of two, where vector code has its edges.
NEAR = (8, 7, 9, 16, 15, 17, 32, 31, 33, 64, 63, 65, 128, 127, 129)

FLOATS = ("float32", "float16", "bfloat16", "float64")
SIGNED = ("int32", "int64", "int8", "int16")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
NUMBERS = (*FLOATS, *SIGNED, *UNSIGNED)
INTEGERS = (*SIGNED, *UNSIGNED)
EVERY = (*NUMBERS, "bool")


@dataclass(frozen=True)
class GivenInput:
    """An input of a node. role: "data" is always an input of the graph; "weight" and "parameter" (what says what is
    computed: axes, sizes, indices) are initializers or inputs of the graph, as the case has it; "constant" is always an
    initializer."""

    array: np.ndarray
    role: str = "data"

    @classmethod
    def of_ints(cls, values: Sequence[int], role: str = "parameter") -> GivenInput:
        """Axes, sizes or places, as int64."""
        return cls(np.asarray(values, np.int64), role)


@dataclass(frozen=True)
class DrawnSpec:
    """A node: its inputs by place (None: left out), its attributes, how many outputs it has, and their dtypes where the
    operator's own text (`onnx.defs`) does not say them by those of the inputs."""

    inputs: tuple[GivenInput | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1
    dtypes: tuple[str, ...] = ()


class SpecDraw:
    """The choices of one case with what specs ask for; ``notes`` gathers the classes of its values."""

    def __init__(self, choose: DrawnChoices, dtype: str, opset: int) -> None:
        self.choose, self.dtype, self.opset = choose, dtype, opset
        self.notes: list[str] = []

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    def size(self, most: int = ELEMENTS) -> int:
        """A length: mostly small, sometimes 1 or near a power of two."""
        kind = self.choose.weighted([("small", 6), ("one", 1), ("near", 3)])
        made = 1 if kind == "one" else self.choose.of(NEAR) if kind == "near" else 2 + self.choose.int(0, 4)
        return max(1, min(made, most))

    def shape(self, least: int = 0, most: int = 4, elements: int = ELEMENTS) -> tuple[int, ...]:
        """A shape of ``least`` to ``most`` axes."""
        rank, dims = self.choose.weighted([(n, 1 if n < 1 else 3) for n in _list_drawn_ranks(least, most)]), []
        for _ in range(rank):
            with self.choose.span("dim"):
                dims.append(self.size(elements))
            elements //= dims[-1]
        return tuple(dims)

    def broadcast(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that is broadcast to another: some axes 1, some of the first left out."""
        kind = self.choose.weighted([("same", 3), ("some", 4), ("scalar", 1)])
        if kind == "same":
            return tuple(shape)
        if kind == "scalar":
            return ()
        made = [1 if self.choose.chance(1, 2) else n for n in shape]
        return tuple(made[self.choose.int(0, len(made)) :])

    def axis(self, rank: int, below: int = 0) -> int:
        """An axis from ``below``, counted from the end in a third of the cases."""
        made = below + self.choose.int(0, rank - 1 - below)
        return made - rank if self.choose.chance(1, 3) else made

    def axes(self, rank: int, least: int = 1) -> list[int]:
        """Different axes, each perhaps counted from the end."""
        found = self.choose.some(range(rank), min(least, rank), rank)
        return [k - rank if self.choose.chance(1, 3) else k for k in found]

    def tensor(
        self, shape: Sequence[int], domain: ValueDomain = values.REAL, role: str = "data", dtype: str = ""
    ) -> GivenInput:
        """A tensor of the case's dtype, or of another."""
        array, name = values.draw_array(self.choose, dtype or self.dtype, shape, domain)
        if name != "counting" and name not in self.notes:
            self.notes.append(name)
        return GivenInput(array, role)

    def indices(self, shape: Sequence[int], count: int, negative: bool = True, role: str = "parameter") -> GivenInput:
        """Indices into an axis of ``count``, int64 or int32, perhaps counted from the end."""
        seed = self.choose.int(0, 2**16)
        made = (draw_seed_words(seed, int(np.prod(shape, dtype=np.int64))) % np.uint64(count)).astype(np.int64)
        made = made * (seed > 0)
        if negative and self.choose.chance(1, 2):
            made = np.where(made % 2 == 1, made - count, made)
        kind = self.choose.of([np.int64, np.int32])
        return GivenInput(made.astype(kind).reshape(tuple(shape)), role)

    def maybe(self, name: str, options: Sequence[Any]) -> dict[str, Any]:
        """An attribute, left out in half of the cases."""
        return {name: self.choose.of(options)} if self.choose.chance(1, 2) else {}


def _list_drawn_ranks(least: int, most: int) -> list[int]:
    """Ranks, the simplest first: 1 or 2 if they are among them."""
    ranks = list(range(least, most + 1))
    return sorted(ranks, key=lambda n: (n < 1, n))


@functools.cache
def does_operator_take(op: str, opset: int, dtype: str, place: int) -> bool:
    """Whether an operator takes an input of a dtype at a place in an operator set (`onnx.defs`)."""
    import onnx

    if not onnx.defs.has(op, opset):
        return False
    schema = onnx.defs.get_schema(op, opset)
    name = "tensor(" + {"float32": "float", "float64": "double"}.get(dtype, dtype) + ")"
    return not schema.deprecated and name in schema.inputs[min(place, len(schema.inputs) - 1)].types
