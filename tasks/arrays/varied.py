"""Inputs that vary from call to call: by the turn, or by what the call before returned, so that nobody has them before it is over."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.model import is_inexact_dtype


@functools.cache
def _is_inexact_array(dtype: np.dtype) -> bool:
    return is_inexact_dtype(dtype.name)


def digest_outputs(outputs: Sequence[Any], before: str) -> str:
    """The digest (SHA-256, hexadecimal) of the outputs of a call and of the digest of the call before it: who says it
    has the outputs, and can choose none afterwards that have the same."""
    made = hashlib.sha256(before.encode())
    for x in outputs:
        if x is not None:
            text = x.dtype.kind in "OUS"
            raw: Any = repr(x.tolist()).encode() if text else np.ascontiguousarray(x).reshape(-1).view(np.uint8)
            made.update(raw)
    return made.hexdigest()


def vary_inputs_by_digest(arrays: Sequence[Any], digest: str, moved: bool) -> list[Any]:
    """The inputs of the call that follows one with some digest, as those of a turn (`vary_input_arrays`)."""
    return _turn_elements(arrays, int(digest[:13], 16) / 16**13, moved, int(digest[13:26], 16))


def vary_input_arrays(arrays: Sequence[Any], turn: int, moved: bool) -> list[Any]:
    """Inputs that no other turn has, of the same dtypes and shapes and as valid. If ``moved``, all elements are turned
    by some part of the whole, and each floating one is multiplied by a factor of its own from 1/2 to 1: what is only
    turned and scaled has the order, the sums and the spectrum of what was before, which a kernel could keep. Else they
    are multiplied by one factor, which keeps what relates them to one another."""
    part = (turn + 1) * 0.6180339887498949 % 1  # by the golden section: no two are near one another
    return _turn_elements(arrays, part, moved, turn * _STEP)


#: Places at which the factors of a call may begin, a prime: with the turns of the elements there are too many to
#: prepare for; and how far apart those of two turns are.
_PLACES, _STEP = 65_521, 7919
#: Factors of more elements are made anew each time: they would be as much memory as the inputs.
_KEPT = 1 << 20


@functools.lru_cache(maxsize=8)
def _draw_varied_factors(dtype: np.dtype, size: int) -> np.ndarray:
    """Factors from 1/2 to 1 of so many elements, from each of `_PLACES` on."""
    return (0.5 + 0.5 * np.random.default_rng(0).random(size + _PLACES, np.float32)).astype(dtype)


def _turn_elements(arrays: Sequence[Any], part: float, moved: bool, place: int) -> list[Any]:
    """part: by which part of the whole elements are turned, or the factor of all; place: where the factors of the
    elements begin. NaN stays where it is: it lies between the elements of a tensor with gaps (`tasks.arrays.layouts`),
    where nobody is to read it."""

    def one(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype.kind in "OUS":
            return array
        flat, floating = array.reshape(-1), _is_inexact_array(array.dtype)
        numbers = ~np.isnan(flat) if moved and floating else None
        if numbers is None or numbers.all():
            return turn(flat, floating).reshape(array.shape)
        made = flat.copy()
        made[numbers] = turn(flat[numbers], floating)
        return made.reshape(array.shape)

    def turn(flat: np.ndarray, floating: bool) -> np.ndarray:
        if not moved:
            return np.multiply(flat, flat.dtype.type(0.5 + 0.5 * part)) if floating else flat.copy()
        made, by = np.empty_like(flat), int(part * flat.size)
        first, rest = flat[: flat.size - by], flat[flat.size - by :]
        if floating:
            make = _draw_varied_factors if flat.size <= _KEPT else _draw_varied_factors.__wrapped__
            factors = make(flat.dtype, flat.size)[place % _PLACES :][: flat.size]
            np.multiply(first, factors[by:], out=made[by:])
            np.multiply(rest, factors[:by], out=made[:by])
        else:
            made[by:], made[:by] = first, rest
        return made

    return [one(x) for x in arrays]
