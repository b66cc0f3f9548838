"""Why two results of the same numbers differ: the two orders in which they are added, each read where it is computed and held against its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.model.kind import CAUSE_ORDER
from tasks.passport.explain import Explanation, explain_elements
from tasks.passport.locate import locate_sum

#: (runs arrays, arrays, outputs, number of the row, what it is called) of one of the two.
Side = tuple[Callable[[list[Any]], Sequence[Any]], Sequence[Any], Sequence[Any], int, str]


def explain_two_orders(sides: Sequence[Side]) -> dict[str, str]:
    """Columns of a row that name two orders: cause, cause_code; none where the output is no sum that is known, an order cannot be read, both are the same, or
    they do not give both results to the bit where these are furthest apart."""
    (_, _, first, one, _), (_, _, second, other, _) = sides
    a, b = (np.asarray(x[0]) for x in (first, second))
    apart = np.abs(a[one].astype(np.float64) - b[other].astype(np.float64)).reshape(-1)
    if not apart.size or not apart.max() > 0:
        return {}
    width, worst = apart.size, int(apart.argmax())
    differ = np.flatnonzero(apart)
    differ = differ[:: -(-differ.size // LOOKED_AT)]
    found: list[Explanation] = []
    for run, arrays, outputs, row, name in sides:
        where = locate_sum(arrays, outputs[0])
        if where is None:
            return {}
        told = explain_elements(run, arrays, outputs[0], where, row * width + worst, row * width + differ, name)
        if not told.reading.kind or not told.same[told.at == row * width + worst].all():
            return {}
        found.append(told)
    if found[0].reading.tree == found[1].reading.tree and found[0].reading.adder == found[1].reading.adder:
        return {}
    both = found[0].same & found[1].same
    words = "; ".join(f"{x.reading.where}: {x.reading.describe()}" for x in found)
    proof = f"{int(both.sum())} of {both.size} elements that differ are both results to the bit"
    return {
        "cause": f"{found[0].reading.terms} terms are added in two orders: {words}; {proof}",
        "cause_code": CAUSE_ORDER,
    }


#: Elements that differ of which both results are computed again.
LOOKED_AT = 120
