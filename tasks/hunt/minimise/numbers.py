"""Plainer values: zeros, ones, whole numbers, fewer digits; of all tensors at once, then of each, at last of each element."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tasks.hunt.dialogue import Search
from tasks.hunt.minimise.question import MinimiseQuestion

#: Elements of a tensor up to which each is tried by itself.
EACH = 8

Plainer = Callable[[np.ndarray], np.ndarray]


def minimise_values(question: MinimiseQuestion) -> Search[None]:
    """Make the values of the best case plain."""
    for plainer in _WAYS:
        yield from _try_plainer_values(question, list(question.best.arrays), plainer)
    for name in sorted(question.best.arrays, key=lambda name: -question.best.arrays[name].size):
        for plainer in _WAYS:
            if (yield from _try_plainer_values(question, [name], plainer)):
                break
    for name, x in question.best.arrays.items():
        for place in range(x.size if x.size <= EACH else 0):
            for plainer in _WAYS:
                if (yield from _try_plainer_values(question, [name], _make_plainer_at(place, plainer))):
                    break
    for name, x in question.best.arrays.items():
        if x.dtype.kind in "iu" and x.size:
            yield from _make_nearer_to_zero(question, name)


def _make_nearer_to_zero(question: MinimiseQuestion, name: str) -> Search[None]:
    """Make whole numbers that no plain ones can stand for the least that fail, if all larger ones do too: a threshold
    is one."""
    first = question.best.arrays[name]
    places: list[int | None] = [*range(first.size)] if first.size <= EACH else [None]
    for place in places:
        largest = max(abs(int(x)) for x in (first.min(), first.max()))
        for step in (1 << k for k in reversed(range(largest.bit_length()))):
            less = _make_plainer_step(step) if place is None else _make_plainer_at(place, _make_plainer_step(step))
            x = question.best.arrays[name]
            if not np.array_equal(made := less(x), x):
                yield from question.take(question.best.with_arrays({name: made}))


def _make_plainer_step(step: int) -> Plainer:
    def plainer(x: np.ndarray) -> np.ndarray:
        wide = x.astype(object)  # no dtype's ends are in the way
        return np.asarray(np.where(abs(wide) >= step, wide - np.sign(wide) * step, wide)).astype(x.dtype)

    return plainer


def _try_plainer_values(question: MinimiseQuestion, names: list[str], plainer: Plainer) -> Search[bool]:
    arrays = question.best.arrays
    made = {
        name: x
        for name in names
        for x in [plainer(arrays[name])]
        if _measure_plainness(x) < _measure_plainness(arrays[name])
    }
    return bool(made) and (yield from question.take(question.best.with_arrays(made)))


def _make_plainer_at(place: int, plainer: Plainer) -> Plainer:
    def one(x: np.ndarray) -> np.ndarray:
        made = x.copy()
        made.reshape(-1)[place : place + 1] = plainer(x.reshape(-1)[place : place + 1])
        return made

    return one


def _measure_plainness(x: np.ndarray) -> float:
    """How far values are from plain: 0 of zeros, 1 of ones, 2 of small whole numbers … (sum over elements)."""
    if x.dtype.kind == "b":
        return float(x.sum())
    wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
    parts = np.stack([wide.real, wide.imag]) if x.dtype.kind == "c" else wide
    with np.errstate(all="ignore"):
        size = np.abs(parts)
        score = np.full(size.shape, 8.0)
        for digits in (2, 1):
            score[parts == np.round(parts, digits)] = 3.0 + digits
        whole = parts == np.round(parts)
        score[whole & (size < 1000)] = 3.0
        score[whole & (size < 10)] = 2.0
        score[size == 1] = 1.0
        score[parts == 0] = 0.0
    return float(score.sum() + 0.1 * (parts < 0).sum())


def _round_plainer_to_dtype(function: Callable[[np.ndarray], np.ndarray]) -> Plainer:
    def plainer(x: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "b":
            return np.asarray(function(x.astype(np.float64)) > 0.5)
        wide = x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
        with np.errstate(all="ignore"):
            made = function(wide)
            return np.asarray(np.where(np.isfinite(wide), made, wide)).astype(x.dtype)

    return plainer


def _round_to_digits(count: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.round(x, count)


#: The plainest first.
_WAYS: tuple[Plainer, ...] = tuple(
    _round_plainer_to_dtype(f)
    for f in (
        np.zeros_like,
        np.ones_like,
        lambda x: np.sign(np.real(x)),
        lambda x: np.sign(np.real(x)) * np.minimum(np.ceil(np.abs(x)), 9),
        _round_to_digits(0),
        _round_to_digits(1),
        _round_to_digits(2),
    )
)
