"""Results held against the arithmetic of their own device: how far it may leave them, and whether it gives them to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.model.dtypes import SMALLEST_NORMAL, dtype_name
from tasks.passport.bounds import bound_sums
from tasks.passport.explain import ELEMENTS, Explanation, explain_elements
from tasks.passport.locate import LocatedSum, locate_sum
from tasks.passport.passport import Reading, name_terms

#: Elements that are held against their bounds: those that are furthest off, in themselves and beside their size, as many of each.
FURTHEST = 256
#: Stands for all bits of a factor.
ALL = 99
#: Share of the results at hand that an order and its adder must give to the bit to be why they are as they are.
PROVED = 0.99


@dataclass(frozen=True)
class OwnArithmetic:
    """What is known of how the device of some results adds. readings: of the op in the dtype, by its passport; ask: runs the arrays of a call of these shapes, None where
    the runtime takes none."""

    readings: tuple[Reading, ...]
    ask: Callable[[list[Any]], Sequence[Any]] | None = None

    def describe_narrower(self, reading: Reading) -> str:
        """In what a reading is narrower than all of the passport's, in words; "" where in nothing."""
        bits = min(x.bits or 0 for x in self.readings)
        if (reading.bits or 0) < bits:
            return f"it adds in {reading.bits} bits, and its passport says {bits}"
        taken = min(x.taken or ALL for x in self.readings)
        if (reading.taken or ALL) < taken:
            says = "all" if taken == ALL else taken
            return f"it takes {reading.taken} bits of a factor, and its passport says {says}"
        return ""


@dataclass(frozen=True)
class Held:
    """How far an output is off in units of what its own arithmetic may leave, and leaves in all likelihood; place: of the element that is furthest off, in the flat output."""

    certain: float
    likely: float
    place: int
    where: LocatedSum


def hold_to_bounds(own: OwnArithmetic, arrays: Sequence[Any], output: Any, exact: np.ndarray) -> Held | None:
    """An output against the bounds of its own arithmetic; None where it is no sum of these arrays that is known, or has no finite number.

    exact: what it ought to be, float64.
    """
    where = locate_sum(arrays, exact)
    kind = None if where is None else name_terms(where.right is not None, where.divided)
    readings = [x for x in own.readings if x.made_of in (None, kind)]
    if where is None or not readings:
        return None
    a, y = np.asarray(output).reshape(-1).astype(np.float64), exact.reshape(-1)
    with np.errstate(all="ignore"):
        far = np.where(np.isfinite(a) & np.isfinite(y), np.abs(a - y), -1.0)
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
        share = 1.0 / where.terms if where.divided else 1.0
        scanned = where.right is None and any((x < 0).any() for _, x in where.list_places(at))
        rows = (
            None if scanned else np.asarray(arrays[where.left]).shape[0]
        )  # of what is added before the last no order is known
        bounds = bound_sums(readings, terms, y[at], dtype_name(np.asarray(output).dtype), rows, share)
        units = far[at] / bounds.certain
    worst = int(units.argmax())
    return Held(float(units[worst]), float((far[at] / bounds.likely).max()), int(at[worst]), where)


def _may_be_flushed(own: OwnArithmetic, factors: Sequence[np.ndarray], like: Any) -> bool:
    """Whether a device that takes subnormal inputs for zero is given some: what that does to a sum no bound says."""
    tiny = SMALLEST_NORMAL[dtype_name(np.asarray(like).dtype)]
    return any(x.flushes_inputs for x in own.readings) and any(((x != 0) & (np.abs(x) < tiny)).any() for x in factors)


def prove(own: OwnArithmetic, held: Held, arrays: Sequence[Any], output: Any) -> Explanation | None:
    """How the device adds the element that is furthest off, asked of the device, and which of some elements that gives to the bit; None where it cannot be asked."""
    if own.ask is None:
        return None
    size = np.asarray(output).size
    at = np.arange(0, size, -(-size // ELEMENTS))
    return explain_elements(own.ask, arrays, output, held.where, held.place, at)
