"""Every input of a user's kernel of one tensor, element by element (`tasks.arrays.every_value`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.arrays import every_value
from tasks.catalogs.user.ops import UserOp
from tasks.model import WITHOUT_NOISE, OpClass


def takes_kernel_every_input(op: UserOp) -> bool:
    """Whether each result is of the element in its place, as far as the class says, and the sizes are free."""
    shape = _find_open_shape(op)
    return len(op.inputs) == 1 and bool(shape) and OpClass(op.op_class) in WITHOUT_NOISE and not op.definition


def make_every_input_of_kernel(op: UserOp, dtype: str, seed: int) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """(sizes, inputs) of the sample of all values: of one dimension, or of rows as long as there are many in the last
    two.

    Raises ValueError for a dtype of which not every value can be tried.
    """
    values, names = every_value.list_every_value(dtype, seed), _find_open_shape(op)
    rows = 1 << ((len(values).bit_length() - 1) // 2) if len(names) > 1 else 1
    dims = {name: 1 for name in op.dims} | {names[-1]: len(values) // rows}
    if len(names) > 1:
        dims[names[-2]] = rows
    [name] = op.inputs
    return dims, {name: values.reshape([dims[n] for n in names])}


def _find_open_shape(op: UserOp) -> list[str]:
    """The dimensions of its first input, each of any size; [] where one is fixed or made of others, or the values are
    given."""
    given: Any = next(iter(op.inputs.values()), {})
    spec = given if isinstance(given, Mapping) else {"shape": given}
    names = [str(x) for x in spec.get("shape", ())]
    free = len(set(names)) == len(names) and set(names) <= set(op.dims)
    return names if free and not {"data", "low", "below", "is", "dtype"} & set(spec) else []
