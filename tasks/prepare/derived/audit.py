"""Samples of the check audit: an op's own sample, and other inputs of the same op with what each is to give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.tree import tensor_specs
from tasks.catalogs import get
from tasks.catalogs.base import Catalog, Sample
from tasks.checks.audit import CHANGED, EQUAL, FIRST_HALF, LAST_HALF, OTHER, OUTSIDE, OWN, SORTED, ZERO
from tasks.checks.speedup import vary_inputs
from tasks.model import Group, OpClass, Vacuous, is_inexact

#: Added to the seed of a group, for inputs that no other check has.
_SEED = 7919
#: Elements of two inputs that must differ for them to be others.
_OTHERS = 0.5

Arrays = list[np.ndarray]


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The sample with its own inputs, as the forward check has them, and others: drawn anew, partly the own ones, in order, equal, zero, and
    of sizes outside those declared. What the reference does not take, or gives no numbers for, is left out.

    Raises Vacuous where nothing says what other inputs are to give.
    """
    unsaid = (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE)
    if base.definition or base.op_class in unsaid or any(leaf.reference is None for leaf in base.expected):
        raise Vacuous("what other inputs are to give cannot be said")
    args, kwargs = base.encoded()
    specs = [*tensor_specs(args), *tensor_specs(kwargs)]
    if any(spec.layout != "strided" for spec in specs):
        raise Vacuous("an input is no strided tensor")
    catalog, given = get(group.catalog), replace(base, args=args, kwargs=kwargs)
    sets = {OWN: base}

    def add(name: str, arrays: Arrays | None, seed: int = 0) -> None:
        try:
            made = (
                catalog.beyond(group, given, group.seed + _SEED + seed, draws)
                if arrays is None
                else catalog.remade(group, replace(given, arrays=arrays), draws)
            )
        except Exception:  # as it may raise what it likes for inputs that it does not take
            return
        if made is not None and _fits(made, base, same_shapes=arrays is not None):
            sets[name] = made

    other = next((x for x in _draw_others(catalog, group, given) if _are_others(base.arrays, x)), None)
    if other is not None:
        add(OTHER, other)
    if OTHER not in sets:
        raise Vacuous("no other values of its inputs are known")
    other = sets[OTHER].arrays
    free = [k for k, x in enumerate(base.arrays) if x.size > 1 and is_inexact(x.dtype.name)]
    for name, change in _CHANGES.items():
        made = [change(x, other[k]) if k in free else x for k, x in enumerate(base.arrays)]
        if free and not _are_same(made, base.arrays):
            add(name, made)
    for k, name in enumerate(OUTSIDE):
        add(name, None, k)
    arrays = [x for one in sets.values() for x in one.arrays]
    expected = [leaf for one in sets.values() for leaf in one.expected]
    return replace(
        base,
        index=number,
        arrays=arrays,
        expected=expected,
        sets=tuple(sets),
        derived=[],
        others=[],
        repeats=1,
        twins=0,
    )


def _draw_others(catalog: Catalog, group: Group, given: Sample) -> Iterator[Arrays]:
    """Other values of the same sizes, the most different first."""
    try:
        drawn = catalog.ordinary(group, given, "", _SEED)
    except (ValueError, KeyError, TypeError):
        drawn = {}
    if drawn and all(drawn[k].shape == given.arrays[k].shape for k in drawn):
        yield [drawn.get(k, x) for k, x in enumerate(given.arrays)]
    for moved in (True, False):
        yield vary_inputs(given.arrays, 0, moved)


def _fits(made: Sample, base: Sample, same_shapes: bool) -> bool:
    """Whether a sample can stand beside the first one: as many arrays and outputs of the same dtypes, all of them numbers."""
    if made.failure is not None or len(made.expected) != len(base.expected) or len(made.arrays) != len(base.arrays):
        return False
    if same_shapes and [x.shape for x in made.arrays] != [x.shape for x in base.arrays]:
        return False
    for leaf, own in zip(made.expected, base.expected):
        if leaf.reference is None or leaf.dtype != own.dtype:
            return False
        if is_inexact(leaf.dtype) and not np.isfinite(leaf.reference).all() and np.isfinite(own.reference).all():  # type: ignore[arg-type]
            return False
    return all(a.dtype == b.dtype for a, b in zip(made.arrays, base.arrays))


def _are_same(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(these, those))


def _are_others(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """Whether inputs differ in most elements of one array."""
    return any(a.shape == b.shape and a.size and (a != b).mean() > _OTHERS for a, b in zip(these, those))


def _join(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The first half of the elements of one array, the rest of another."""
    half = first.size // 2
    return np.concatenate([first.reshape(-1)[:half], last.reshape(-1)[half:]]).reshape(first.shape)


def _change_one(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    made = own.copy().reshape(-1)
    made[made.size // 3] = other.reshape(-1)[made.size // 3]
    return made.reshape(own.shape)


#: What is made of the floating inputs: (the own one, the other one) → values.
_CHANGES: dict[str, Callable[[Any, Any], np.ndarray]] = {
    FIRST_HALF: _join,
    LAST_HALF: lambda own, other: _join(other, own),
    CHANGED: _change_one,
    SORTED: lambda own, other: np.sort(own.reshape(-1)).reshape(own.shape),
    EQUAL: lambda own, other: np.full_like(own, own.reshape(-1)[0]),
    ZERO: lambda own, other: np.zeros_like(own),
}
