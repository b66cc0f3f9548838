"""Samples of the check audit: an op's own sample, and other inputs of the same op with what each is to give."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays.tree import list_tensor_specs
from tasks.arrays.varied import vary_input_arrays
from tasks.catalogs import get_catalog
from tasks.catalogs.base import Catalog, Sample
from tasks.checks.audit import (
    BETWEEN,
    BEYOND,
    CHANGED,
    EQUAL,
    FIRST_HALF,
    LAST_HALF,
    MIXED,
    NOT_PROMISED,
    OTHER,
    OWN,
    SORTED,
    ZERO,
)
from tasks.model import Group, OpClass, Vacuous, is_inexact_dtype

#: Added to the seed of a group, for inputs that no other check has.
_SEED = 7919
#: Elements of two inputs that must differ for them to be others.
_OTHERS = 0.5

Arrays = list[np.ndarray]


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The sample with its own inputs, as the forward check has them, and others: drawn anew, one of several inputs,
    partly the own ones, in order, equal, zero, and of sizes between and beyond those declared. What the reference does
    not take, or gives no numbers for, is left out.

    Raises Vacuous where nothing says what other inputs are to give.
    """
    unsaid = (OpClass.RANDOM, OpClass.UNINITIALISED, OpClass.CHOICE)
    if base.definition or base.op_class in unsaid or any(leaf.reference is None for leaf in base.expected):
        raise Vacuous("what other inputs are to give cannot be said")
    args, kwargs = base.encoded()
    specs = [*list_tensor_specs(args), *list_tensor_specs(kwargs)]
    if any(spec.layout != "strided" for spec in specs):
        raise Vacuous("an input is no strided tensor")
    catalog, given = get_catalog(group.catalog), replace(base, args=args, kwargs=kwargs)
    sets = {OWN: base}

    def add(name: str, arrays: Arrays) -> None:
        with contextlib.suppress(Exception):  # as it may raise what it likes for inputs that it does not take
            made = catalog.remade(group, replace(given, arrays=arrays), draws)
            if _fits_beside_first(made, base) and [x.shape for x in made.arrays] == [x.shape for x in base.arrays]:
                sets[name] = made

    def add_resized(name: str, seed: int) -> None:
        with contextlib.suppress(Exception):
            found = catalog.resized(group, given, name == BEYOND, seed, draws)
            if found is not None and _fits_beside_first(found[0], base):
                sets[name if found[1] else name + NOT_PROMISED] = found[0]

    drawn = _draw_ordinary_inputs(catalog, group, given)
    told = {k for k, x in drawn.items() if x.tobytes() == base.arrays[k].tobytes()}
    for arrays in _draw_other_inputs(given.arrays, drawn, told):
        if _do_inputs_differ(base.arrays, arrays):
            add(OTHER, arrays)
        if OTHER in sets and not _are_results_same(sets[OTHER], base):  # else only a buffer for the output is another
            break
    if OTHER not in sets:
        raise Vacuous("no other values of its inputs are known")
    other = sets[OTHER].arrays
    free = [k for k, x in enumerate(base.arrays) if x.size > 1 and is_inexact_dtype(x.dtype.name) and k not in told]
    if len(free) > 1:
        add(MIXED, [other[k] if k == free[0] else x for k, x in enumerate(base.arrays)])
    for name, change in _CHANGES.items():
        made = [change(x, other[k]) if k in free else x for k, x in enumerate(base.arrays)]
        if free and not _are_inputs_same(made, base.arrays):
            add(name, made)
    for k, name in enumerate((BETWEEN, BEYOND)):
        add_resized(name, group.seed + _SEED + k)
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


def _draw_ordinary_inputs(catalog: Catalog, group: Group, given: Sample) -> dict[int, np.ndarray]:
    """Values of the same sizes as the catalog draws them, by place; none where it cannot."""
    try:
        drawn = catalog.ordinary(group, given, "", _SEED)
    except (ValueError, KeyError, TypeError):
        return {}
    return drawn if all(x.shape == given.arrays[k].shape for k, x in drawn.items()) else {}


def _draw_other_inputs(own: Arrays, drawn: dict[int, np.ndarray], told: Collection[int]) -> Iterator[Arrays]:
    """Other values of the same sizes, the most different first. told: places of those that the declaration lists, which
    may be in an order or of a sum that nobody has declared; a positive factor keeps both."""
    if drawn:
        yield [drawn.get(k, x) for k, x in enumerate(own)]
    scaled = vary_input_arrays(own, 0, moved=False)
    yield [scaled[k] if k in told else x for k, x in enumerate(vary_input_arrays(own, 0, moved=True))]
    yield scaled


def _fits_beside_first(made: Sample, base: Sample) -> bool:
    """Whether a sample can stand beside the first one: as many arrays and outputs of the same dtypes, all of them
    numbers."""
    if made.failure is not None or len(made.expected) != len(base.expected) or len(made.arrays) != len(base.arrays):
        return False
    for leaf, own in zip(made.expected, base.expected):
        if leaf.reference is None or leaf.dtype != own.dtype:
            return False
        if is_inexact_dtype(leaf.dtype) and not np.isfinite(leaf.reference).all() and np.isfinite(own.reference).all():  # type: ignore[arg-type]
            return False
    return all(a.dtype == b.dtype for a, b in zip(made.arrays, base.arrays))


def _are_inputs_same(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(these, those))


def _are_results_same(these: Sample, those: Sample) -> bool:
    pairs = zip(these.expected, those.expected)
    return all(np.array_equal(a.reference, b.reference) for a, b in pairs)  # type: ignore[arg-type]


def _do_inputs_differ(these: Sequence[np.ndarray], those: Sequence[np.ndarray]) -> bool:
    """Whether inputs differ in most elements of one array."""
    return any(a.shape == b.shape and a.size and (a != b).mean() > _OTHERS for a, b in zip(these, those))


def _join_input_halves(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The first half of the elements of one array, the rest of another."""
    half = first.size // 2
    return np.concatenate([first.reshape(-1)[:half], last.reshape(-1)[half:]]).reshape(first.shape)


def _change_one_input(own: np.ndarray, other: np.ndarray) -> np.ndarray:
    """One value changed, at a place that hangs on all of them: it is in no key that is made of a few."""
    made = own.copy().reshape(-1)
    place = int.from_bytes(hashlib.sha256(own.tobytes()).digest()[:8], "little") % made.size
    made[place] = other.reshape(-1)[place]
    return made.reshape(own.shape)


#: What is made of the floating inputs: (the own one, the other one) → values.
_CHANGES: dict[str, Callable[[Any, Any], np.ndarray]] = {
    FIRST_HALF: _join_input_halves,
    LAST_HALF: lambda own, other: _join_input_halves(other, own),
    CHANGED: _change_one_input,
    SORTED: lambda own, other: np.sort(own.reshape(-1)).reshape(own.shape),
    EQUAL: lambda own, other: np.full_like(own, own.reshape(-1)[0]),
    ZERO: lambda own, other: np.zeros_like(own),
}
