"""Whether the order and the adder of a sum, read where it is computed, give the results at hand to the bit: the proof of a cause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.passport.adder import list_fused_terms
from tasks.passport.device_sum import DeviceSum, NotReadable, SumTerms
from tasks.passport.locate_sum import GatedProduct, LocatedSum
from tasks.passport.read_sum import make_sum_model, read_device_sum, read_sums_alike
from tasks.passport.sum_reading import SumReading
from tasks.passport.sum_trees import decode_tree

#: Elements of an output that are computed again.
ELEMENTS = 128
#: Calls of the device that a reading may take, and terms that it is made for: an order without any rule takes as many
#: calls as there are pairs.
CALLS, TERMS = 30_000, 8192
#: Results on unseen inputs that a reading is tried on where the results at hand are tried as well.
UNSEEN = 24
#: Codes of readings of what is no sound sum of its terms; all others say that it cannot be told.
UNSOUND = ("not a sum", "changes")


@dataclass(frozen=True)
class SumExplanation:
    """How a device adds the terms of one element, and which of some elements that gives to the bit. at: their places in
    the flat output; same: of each, whether it does."""

    reading: SumReading
    at: np.ndarray
    same: np.ndarray

    @property
    def count(self) -> int:
        return int(self.same.sum())


def read_located_sum(
    run: Callable[[list[Any]], Sequence[Any]],
    arrays: Sequence[Any],
    where: LocatedSum,
    place: int,
    name: str = "",
    size: int = 0,
) -> SumReading:
    """How the sum at a place of the flat output is added, read on the device at these very shapes. Of what cannot be
    read the reading says why.

    run: the outputs of a call of arrays, flat. size: of the output, of which neighbours may answer questions of their
    own in a call as long as they add alike; 0 where the place alone has to be asked.
    """
    if where.terms > TERMS:
        raise NotReadable("too many terms", f"{where.terms} terms: no tree is made of more than {TERMS}")
    try:
        terms, *beside = where.list_elements_beside(place, size, len(arrays), name)
    except ValueError as error:
        raise NotReadable("beyond the edge", str(error)) from None
    left = np.asarray(arrays[where.left])

    def make(those: Sequence[int], together: bool) -> DeviceSum:
        return DeviceSum(run, arrays, terms, left.dtype.name, CALLS, [beside[k] for k in those], together)

    return read_sums_alike(make, [range(len(beside)), ()], left.shape[0], (), UNSEEN)[0]


def read_sum_order(
    run: Callable[[list[Any]], Sequence[Any]], arrays: Sequence[Any], terms: SumTerms, name: str
) -> SumReading:
    """The order of a sum that an op makes of its input (`locate_order`); of what cannot be read the reading says
    why."""
    device = DeviceSum(run, arrays, replace(terms, where=name), np.asarray(arrays[terms.left[0]]).dtype.name, CALLS)
    return read_device_sum(device, np.asarray(arrays[terms.left[0]]).shape[0])


def explain_sum_elements(
    run: Callable[[list[Any]], Sequence[Any]],
    arrays: Sequence[Any],
    output: Any,
    where: LocatedSum,
    place: int,
    at: np.ndarray,
    name: str = "",
    alone: bool = False,
) -> SumExplanation:
    """How the sum at a place of the flat output of a call is added, and whether elements ``at`` some places are what
    that gives. Of what cannot be read the reading says why. alone: no other element may be asked beside it."""
    at = np.unique(np.append(at[: ELEMENTS - 1], place))
    none = np.zeros(len(at), bool)
    try:
        reading = read_located_sum(run, arrays, where, place, name, 0 if alone else np.asarray(output).size)
    except NotReadable as error:
        return SumExplanation(SumReading(name, code=error.code, words=str(error), terms=where.terms), at, none)
    if reading.bits is None:
        return SumExplanation(reading, at, none)
    products = reading.terms - (where.alone is not None)
    model = make_sum_model(reading, np.asarray(output).dtype.name, products)
    with np.errstate(all="ignore"):
        made = model.compute(*where.factors(arrays, at)) * where.scale
    found = np.asarray(output).reshape(-1)[at].astype(np.float64)
    return SumExplanation(reading, at, (made == found) | (np.isnan(made) & np.isnan(found)))


#: The gate at which silu gives the number itself, in every dtype: a power of two.
OPEN = 32.0


def explain_gated_sum(
    run: Callable[[list[Any]], Sequence[Any]],
    arrays: Sequence[Any],
    output: Any,
    where: GatedProduct,
    place: int,
    at: np.ndarray,
    name: str = "",
) -> SumExplanation:
    """As `explain_sum_elements`, of silu(x·w)·(x·v). The order is that of x·v, read where x is ones and the gate is OPEN;
    x·w is taken to be added likewise, and the gate of what both are is asked of the device."""
    at = np.unique(np.append(at[: ELEMENTS - 1], place))
    x, w, v = (np.asarray(arrays[k]) for k in (where.x, where.w, where.v))
    count, width = v.shape
    row, columns = place // width, at % width
    asked = [np.array(one, order="C") for one in arrays]
    asked[where.x][...] = 1
    asked[where.w][...] = 0

    def run_open(given: list[Any]) -> list[Any]:
        """Where one of the row's x is 1, that opens the gate."""
        given = list(given)
        at = np.flatnonzero(given[where.x].reshape(-1, count)[row] == 1)
        given[where.w] = np.zeros_like(given[where.w])
        given[where.w][at[:1]] = OPEN
        return [np.asarray(run(given)[0]) / np.asarray(OPEN, v.dtype)]

    left = (where.v, tuple((np.arange(count) * width + place % width).tolist()))
    terms = SumTerms(place, left, where=name)
    device = DeviceSum(run_open, asked, terms, v.dtype.name, CALLS)
    reading = read_device_sum(device, x.shape[0], unseen=UNSEEN)
    none = np.zeros(len(at), bool)
    if reading.bits is None:
        return SumExplanation(reading, at, none)
    found, best = np.asarray(output).reshape(-1)[at], none
    right = (where.x, tuple(range(row * count, (row + 1) * count)))
    products = DeviceSum(run_open, asked, replace(terms, right=right), v.dtype.name, 2 * count)
    fused_terms = tuple(list_fused_terms(products, decode_tree(reading.tree or ())))
    factors_of_row = np.broadcast_to(x.reshape(-1, count)[row].astype(np.float64), (len(at), count))
    asked[where.x][...] = 0
    asked[where.x].reshape(-1, count)[:, 0] = 1
    asked[where.v][...] = 0
    for fused in dict.fromkeys((fused_terms, tuple(range(count)), ())):
        model = make_sum_model(replace(reading, fused=fused), v.dtype.name, count)
        for number, factors in ((where.w, w), (where.v, v)):
            with np.errstate(all="ignore"):
                made = model.compute(factors_of_row, np.ascontiguousarray(factors[:, columns].T.astype(np.float64)))
            asked[number][0, columns] = made.astype(v.dtype)
        same = np.asarray(run([one.copy() for one in asked])[0]).reshape(-1, width)[row, columns] == found
        if same.sum() > best.sum():
            best, reading = same, replace(reading, fused=fused)
    return SumExplanation(reading, at, best)
