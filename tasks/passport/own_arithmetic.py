"""Results held against the arithmetic of their own device: how far it may leave them, and whether it gives them to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.model.dtypes import EPS, SMALLEST_NORMAL, name_numpy_dtype
from tasks.passport.bounded_arrays import BoundedArray, BoundedSteps
from tasks.passport.bounds import add_bound_ends, bound_device_sums
from tasks.passport.composites import Composite, find_composite_formula
from tasks.passport.explain_sum import ELEMENTS, SumExplanation, explain_sum_elements, read_sum_order
from tasks.passport.locate_sum import NEAR_EXACT, LocatedSum, locate_order_terms, locate_sum_terms
from tasks.passport.read_sum import name_sum_terms
from tasks.passport.sum_reading import SumReading

#: Elements that are held against their bounds: those that are furthest off, in themselves and beside their size, as
#: many of each.
FURTHEST = 256
#: Stands for all bits of a factor.
ALL = 99
#: Share of the results at hand that an order and its adder must give to the bit to be why they are as they are.
PROVED = 0.99


@dataclass(frozen=True)
class OwnArithmetic:
    """What is known of how the device of some results adds. readings: of the op in the dtype, each of which gives
    results to the bit; ask: runs the arrays of a call of these shapes, None where the runtime takes none; parts:
    readings of sums that the op makes on the way, whose results are not predicted; device: all of the device's in the
    dtype."""

    readings: tuple[SumReading, ...]
    ask: Callable[[list[Any]], Sequence[Any]] | None = None
    parts: tuple[SumReading, ...] = ()
    device: tuple[SumReading, ...] = ()

    def describe_narrower(self, reading: SumReading) -> str:
        """In what a reading is narrower, in most of its steps or in some, than all of the passport's that are of its
        kind, in words; "" where in nothing."""
        alike = self.readings or [x for x in self.parts if x.made_of == reading.made_of and x.bits] or [reading]
        bits = min(x.least_bits for x in alike)
        if reading.least_bits < bits:
            some = "" if (reading.bits or 0) < bits else "some steps "
            return f"it adds {some}in {reading.least_bits} bits, and its passport says {bits}"
        taken = min(x.taken or ALL for x in alike)
        if (reading.taken or ALL) < taken:
            says = "all" if taken == ALL else taken
            return f"it takes {reading.taken} bits of a factor, and its passport says {says}"
        return ""


@dataclass(frozen=True)
class HeldSum:
    """How far an output is off in units of what its own arithmetic may leave, and leaves in all likelihood; place: of
    the element that is furthest off, in the flat output; where: its sum, or the formula that sums are a part of; known:
    the sum as it was read, where that formula's was; is_bounded: whether what it may leave is finite, else both are
    0."""

    certain: float
    likely: float
    place: int
    where: LocatedSum | Composite
    known: SumReading | None = None
    is_bounded: bool = True


def hold_to_bounds(own: OwnArithmetic, arrays: Sequence[Any], output: Any, exact: np.ndarray) -> HeldSum | None:
    """An output against the bounds of its own arithmetic; None where it is no sum of these arrays that is known, nor a
    formula with sums in it, or has no finite number.

    exact: what it ought to be, float64.
    """
    where = locate_sum_terms(arrays, exact, NEAR_EXACT)
    if where is None:
        return _hold_to_composite(own, arrays, output, exact)
    kind = name_sum_terms(where.right is not None, where.divided)
    readings = [x for x in own.readings if x.made_of in (None, kind)]
    if not readings:
        return None
    y = exact.reshape(-1)
    with np.errstate(all="ignore"):
        far = _measure_distances_to_sum(output, exact)
        at = np.unique(np.concatenate([np.argsort(x)[-FURTHEST:] for x in (far, far / np.abs(y))]))
        at = at[far[at] >= 0]
        if not at.size:
            return None
        left, right = where.factors(arrays, at)
        terms = left if right is None else left * right
        if not np.isfinite(terms).all() or _may_be_flushed(
            own, [left] if right is None else [left, right], arrays[where.left]
        ):
            return None
        share = 1.0 / where.terms if where.divided else where.scale
        scanned = where.right is None and any((x < 0).any() for _, x in where.list_places(at))
        rows = (
            None if scanned else np.asarray(arrays[where.left]).shape[0]
        )  # of what is added before the last no order is known
        bounds = bound_device_sums(readings, terms, y[at], name_numpy_dtype(np.asarray(output).dtype), rows, share)
        units = far[at] / bounds.certain
    worst = int(units.argmax())
    return HeldSum(float(units[worst]), float((far[at] / bounds.likely).max()), int(at[worst]), where)


def _measure_distances_to_sum(output: Any, exact: np.ndarray) -> np.ndarray:
    """How far each element of the flat output is off; −1 where it or what it ought to be is not finite."""
    a, y = np.asarray(output).reshape(-1).astype(np.float64), exact.reshape(-1)
    return np.where(np.isfinite(a) & np.isfinite(y), np.abs(a - y), -1.0)


def _hold_to_composite(
    own: OwnArithmetic, arrays: Sequence[Any], output: Any, exact: np.ndarray, read: Sequence[SumReading] = ()
) -> HeldSum | None:
    """An output of which sums are a part; None where nothing is known of the device's, or the formula of the output is
    not known. read: of the sums at these very shapes."""
    where = find_composite_formula(arrays, exact) if own.device else None
    if where is None:
        return None
    inputs = [np.asarray(x) for x in arrays]
    given = inputs[where.number]
    dtype = name_numpy_dtype(given.dtype)
    if dtype not in EPS or _may_be_flushed(own, [given.astype(np.float64)], given):
        return None
    steps = BoundedSteps(dtype, tuple(read) or own.parts, own.device, given.shape[0] if given.ndim else None)
    with np.errstate(all="ignore"):
        made = where.compute([BoundedArray.make(x, steps) if name_numpy_dtype(x.dtype) == dtype else x for x in inputs])
        off = made.off.reshape(2, -1)
        far = _measure_distances_to_sum(output, exact)
        if (far < 0).all():
            return None
        name = name_numpy_dtype(np.asarray(output).dtype)
        reference = off[1] * EPS["float64"] / EPS[dtype]  # which is computed by the same formula
        bounds = add_bound_ends(off[0], off[1], exact.reshape(-1), name, reference + SMALLEST_NORMAL[name])
        units = np.where(far > 0, far / bounds.certain, 0.0)
        likely = np.where(far > 0, far / bounds.likely, 0.0)
    worst = int(far.argmax() if not units.any() else units.argmax())
    known = next((x for x in steps.own if x.bits), None)
    is_bounded = bool(np.isfinite(bounds.certain).any())
    return HeldSum(float(units.max()), float(likely.max()), worst, where, known, is_bounded)


def read_own_sum_again(
    own: OwnArithmetic, held: HeldSum, arrays: Sequence[Any], exact: np.ndarray
) -> SumReading | None:
    """The sum in a formula as the device adds it at these very shapes; None where it cannot be asked, or where in the
    formula that sum lies is not known."""
    terms = locate_order_terms(arrays, exact, held.place) if own.ask is not None else None
    return None if terms is None or own.ask is None else read_sum_order(own.ask, arrays, terms, "")


def hold_to_sum_reading(
    own: OwnArithmetic, arrays: Sequence[Any], output: Any, exact: np.ndarray, reading: SumReading
) -> HeldSum | None:
    """A sum, or a formula with one in it, held against a reading of that at these very shapes."""
    if locate_sum_terms(arrays, exact, NEAR_EXACT) is not None:
        return hold_to_bounds(replace(own, readings=(reading,)), arrays, output, exact)
    return _hold_to_composite(own, arrays, output, exact, [reading])


def _may_be_flushed(own: OwnArithmetic, factors: Sequence[np.ndarray], like: Any) -> bool:
    """Whether a device that takes subnormal inputs for zero is given some: what that does to a sum no bound says."""
    tiny = SMALLEST_NORMAL[name_numpy_dtype(np.asarray(like).dtype)]
    return any(x.flushes_inputs for x in (*own.readings, *own.device)) and any(
        ((x != 0) & (np.abs(x) < tiny)).any() for x in factors
    )


def prove_own_sum(own: OwnArithmetic, held: HeldSum, arrays: Sequence[Any], output: Any) -> SumExplanation | None:
    """How the device adds the element that is furthest off, asked of the device, and which of some elements that gives
    to the bit; None where it cannot be asked."""
    if own.ask is None or not isinstance(held.where, LocatedSum):
        return None
    size = np.asarray(output).size
    at = np.arange(0, size, -(-size // ELEMENTS))
    return explain_sum_elements(own.ask, arrays, output, held.where, held.place, at)
