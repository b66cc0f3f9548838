"""Why two results of the same numbers differ: the two orders in which they are added, each read where it is computed and held against its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from tasks.model.kind import CAUSE_ORDER
from tasks.passport import NotReadable
from tasks.passport.explain_sum import SumExplanation, explain_gated_sum, explain_sum_elements, read_sum_order
from tasks.passport.locate_sum import locate_gated_product, locate_order_terms, locate_sum_terms

#: Runs the arrays of a call.
Run = Callable[[list[Any]], Sequence[Any]]
#: (runs arrays, arrays, outputs, number of the row, None of all rows, what it is called) of one of the two.
Side = tuple[Run, Sequence[Any], Sequence[Any], Optional[int], str]
#: Elements that differ of which both results are computed again.
LOOKED_AT = 120
#: Times that a question is put until the device adds as it did once.
TIMES = 64


def explain_two_orders(sides: Sequence[Side], alone: bool = False) -> dict[str, str]:
    """Columns of a row that name two orders: cause, cause_code; none where the output is no sum that is known, an order
    cannot be read, both are the same, or they do not give both results to the bit where these are furthest apart.
    alone: no other element may be asked beside one."""
    (_, _, first, one, _), (_, _, second, other, _) = sides
    a, b = (np.asarray(x[0]) for x in (first, second))
    a, b = (x if row is None else x[row] for x, row in ((a, one), (b, other)))
    apart = np.abs(a.astype(np.float64) - b.astype(np.float64)).reshape(-1)
    if not apart.size or not apart.max() > 0:
        return {}
    width, worst = apart.size, int(apart.argmax())
    differ = np.flatnonzero(apart)
    differ = np.unique(np.append(differ[:: -(-differ.size // LOOKED_AT)], worst))
    found = [
        _explain_order_of_element(
            run, arrays, outputs[0], (row or 0) * width + worst, (row or 0) * width + differ, name, alone
        )
        for run, arrays, outputs, row, name in sides
    ]
    one_side, other_side = found
    if one_side is None or other_side is None or not (one_side.reading.kind and other_side.reading.kind):
        return {}
    if one_side.reading.tree == other_side.reading.tree and one_side.reading.adder == other_side.reading.adder:
        return {}
    words = "; ".join(f"{x.reading.where}: {x.reading.describe()}" for x in (one_side, other_side))
    proof = "what else is done with them has no model"
    if one_side.at.size:
        both = one_side.same & other_side.same
        if not both[differ == worst].all() or both.size != differ.size:
            return {}
        proof = f"both results of {int(both.sum())} of {both.size} elements that differ, to the bit"
    return {
        "cause": f"{one_side.reading.terms} terms are added in two orders: {words}; {proof}",
        "cause_code": CAUSE_ORDER,
    }


def explain_two_runs(run: Run, arrays: Sequence[Any], runs: Sequence[tuple[Sequence[Any], str]]) -> dict[str, str]:
    """As `explain_two_orders`, of two runs of one program on the same arrays, (outputs, name) each. The element that is
    furthest apart is asked; the others keep their terms, and those that differ tell which of the two orders a call has
    used. None where a call may use one order here and another one there."""
    first, second = (np.asarray(outputs[0]).reshape(-1) for outputs, _ in runs)
    where = locate_sum_terms(arrays, np.asarray(runs[0][0][0]))
    apart = np.abs(first.astype(np.float64) - second.astype(np.float64))
    if where is None or not apart.max(initial=0.0) > 0:
        return {}
    own = where.list_places(np.array([apart.argmax()]))
    differ = np.flatnonzero(apart)
    meets = [np.isin(its, mine).any(0) for (_, mine), (_, its) in zip(own, where.list_places(differ))]
    marks = differ[~np.logical_or.reduce(meets)]
    if not marks.size:
        return {}

    def run_as(told: np.ndarray) -> Run:
        def run_until(asked: list[Any]) -> Sequence[Any]:
            given = [np.array(x, order="C") for x in arrays]
            for number, places in own:
                at = places.reshape(-1)
                given[number].reshape(-1)[at] = np.asarray(asked[number]).reshape(-1)[at]
            for _ in range(TIMES):
                found = [np.array(x) for x in run(given)]
                if np.array_equal(found[0].reshape(-1)[marks], told[marks]):
                    return found
            raise NotReadable("changes", f"no call of {TIMES} adds as the run did")

        return run_until

    pairs = zip((first, second), runs)
    sides = [(run_as(told), arrays, outputs, None, name) for told, (outputs, name) in pairs]
    return explain_two_orders(sides, alone=True)


def _explain_order_of_element(
    run: Run, arrays: Sequence[Any], output: Any, place: int, at: np.ndarray, name: str, alone: bool
) -> SumExplanation | None:
    """How an element of an output is added; of sums that only show in it the order alone. None where it is no sum that
    is known."""
    if (where := locate_sum_terms(arrays, output)) is not None:
        return explain_sum_elements(run, arrays, output, where, place, at, name, alone)
    if (gated := locate_gated_product(arrays, output)) is not None:
        return explain_gated_sum(run, arrays, output, gated, place, at, name)
    if (terms := locate_order_terms(arrays, output, place)) is not None:
        return SumExplanation(read_sum_order(run, arrays, terms, name), np.zeros(0, np.int64), np.zeros(0, bool))
    return None
