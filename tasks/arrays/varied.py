"""Inputs that vary from call to call: by the turn, or by what the call before returned, so that nobody has them before it is over."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.model import is_inexact


@functools.cache
def _is_inexact(dtype: np.dtype) -> bool:
    return is_inexact(dtype.name)


def digest_outputs(outputs: Sequence[Any], before: str) -> str:
    """The digest (SHA-256, hexadecimal) of the outputs of a call and of the digest of the call before it: who says it has the outputs, and can
    choose none afterwards that have the same."""
    made = hashlib.sha256(before.encode())
    for x in outputs:
        if x is not None:
            text = x.dtype.kind in "OUS"
            raw: Any = repr(x.tolist()).encode() if text else np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            made.update(raw)
    return made.hexdigest()


def next_inputs(arrays: Sequence[Any], digest: str, moved: bool) -> list[Any]:
    """The inputs of the call that follows one with some digest."""
    return _turn(arrays, int(digest[:13], 16) / 16**13, moved)


def vary_inputs(arrays: Sequence[Any], turn: int, moved: bool) -> list[Any]:
    """Inputs that no other turn has, of the same dtypes and shapes and as valid: floating elements times a factor from 1/2
    to 1 and, if ``moved``, all numbers turned by some part of the whole."""
    return _turn(
        arrays, (turn + 1) * 0.6180339887498949 % 1, moved
    )  # by the golden section: no two are near one another


def _turn(arrays: Sequence[Any], part: float, moved: bool) -> list[Any]:
    """NaN stays where it is: it lies between the elements of a tensor with gaps (`tasks.arrays.layouts`), where nobody is to read it."""

    def one(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
            return array
        flat, floating = array.reshape(-1), _is_inexact(array.dtype)
        numbers = ~np.isnan(flat) if moved and floating else None
        if numbers is None or numbers.all():
            return turn(flat, floating).reshape(array.shape)
        made = flat.copy()
        made[numbers] = turn(flat[numbers], floating)
        return made.reshape(array.shape)

    def turn(flat: np.ndarray, floating: bool) -> np.ndarray:
        made, by = np.empty_like(flat), int(part * flat.size) if moved else 0
        first, rest = flat[: flat.size - by], flat[flat.size - by :]
        if floating:
            factor = flat.dtype.type(0.5 + 0.5 * part)
            np.multiply(first, factor, out=made[by:])
            np.multiply(rest, factor, out=made[:by])
        else:
            made[by:], made[:by] = first, rest
        return made

    return [one(x) for x in arrays]
