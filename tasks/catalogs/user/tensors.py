"""What a declaration says of an input that is more than its sizes, and of an output that is more than its dtype."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.catalogs.user.declaration_keys import NAME, KeyKind, KeyNames, declare_key, is_key_list
from tasks.draw.structure import KINDS
from tasks.model import DTYPES


def is_finite_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_input_data(value: Any) -> bool:
    numbers = is_key_list(value) and all(isinstance(x, (bool, int, float, complex)) for x in value)
    return isinstance(value, str) or (numbers and bool(value))


SHAPE = KeyKind(
    is_key_list, "a shape is a list of dimension names and sizes, e.g. [N, 64] or [N, 3*d] ([] for a 0-d tensor)"
)
SIZE = KeyKind(lambda x: is_finite_number(x) or isinstance(x, str), "{0!r} is no number")
DATA = KeyKind(_is_input_data, "the values as a flat list of numbers, e.g. [0.5, -1.0]")
STRIDES = KeyKind(is_key_list, "a list of distances in elements, one for each axis, e.g. [2*width, 1]")
DTYPE = KeyNames("unknown dtype", lambda op: (name for name in DTYPES if name != "str"))


@dataclass(frozen=True)
class InputKeys:
    """An input that is given as a mapping."""

    shape: Sequence[Any] = field(metadata=declare_key(SHAPE, "its sizes"))
    dtype: str = field(default="", metadata=declare_key(NAME, "its own", shown="the dtype under test", names=DTYPE))
    kind: str = field(
        default="",
        metadata=declare_key(
            NAME,
            "[what it is](kernel_inputs.md#what-an-input-is)",
            shown="follows from dtype, bounds and name",
            names=KeyNames("unknown kind of input", lambda op: KINDS),
            yaml="is",
        ),
    )
    low: Any = field(
        default=None,
        metadata=declare_key(SIZE, "with `high`: bounds of its values, whatever the distribution; sizes too"),
    )
    high: Any = field(default=None, metadata=declare_key(SIZE, "integers stay below it"))
    below: Any = field(default=None, metadata=declare_key(SIZE, "`below: m` is `low: 0, high: m`, of integers"))
    data: Any = field(
        default=None,
        metadata=declare_key(
            DATA, "its values, or an `.npy` file of them, repeated until the shape is full", shown="drawn"
        ),
    )
    strides: Sequence[Any] | None = field(
        default=None,
        metadata=declare_key(
            STRIDES, "its one layout, in elements", shown="[in turn](kernel_inputs.md#how-inputs-lie-in-memory)"
        ),
    )
    offset: Any = field(default=None, metadata=declare_key(SIZE, "with `strides`: where it begins", shown="0"))


@dataclass(frozen=True)
class OutputKeys:
    """An output that is given as a mapping."""

    dtype: str = field(default="", metadata=declare_key(NAME, "its dtype", names=DTYPE))
    shape: Sequence[Any] | None = field(default=None, metadata=declare_key(SHAPE, "its sizes"))
