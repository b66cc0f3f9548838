"""Whether a smaller case fails in the same way: status, kind, stage, class of the error, and as far off."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from tasks.model import WITHOUT_NOISE, Leaf, OpClass, Status
from tasks.model.failing import describe_failure_manner
from tasks.model.kind import KIND_CAST, OF_NUMBERS
from tasks.model.row import Row

#: Statuses of a row that can be made smaller.
SOUGHT = tuple(s for s in Status if s.failed or s is Status.IMPRECISE)
#: How many times its limit a result must be off, unless it was less from the beginning: far from the noise.
FAR = 10.0
#: Of a result that has hardly more than the original's distance, what rounding may take from it.
_SLACK = 0.999


@dataclass(frozen=True)
class StoredFailure:
    """How a case fails. words: its error, with what is its own masked; times: how many times its limit it is off, None
    where that is not what is wrong; finite: whether the reference is; also: another status that is the same failure."""

    status: str
    kind: str = ""
    stage: str = ""
    error_type: str = ""
    words: str = ""
    times: float | None = None
    finite: bool = True
    also: str = ""

    @classmethod
    def of(cls, row: Row, expected: Collection[Leaf] = (), names: Collection[str] = ()) -> StoredFailure:
        """That of a row. expected: what its outputs were to be; names: of the case's own tensors and nodes."""
        how = describe_failure_manner(row.values(), names)
        if how.kind == KIND_CAST:  # what explains the numbers of the whole, its parts need not show
            how = how._replace(kind="numbers")
        numbers = how.status in (Status.WRONG, Status.IMPRECISE) and not how.stage
        times = _count_failure_limits(row) if numbers and row.kind in OF_NUMBERS else None
        return cls(*how, times=times, finite=not numbers or all(_is_finite_leaf(leaf) for leaf in expected))

    def again(self, other: StoredFailure) -> bool:
        """Whether ``other``, of a smaller case, is the same failure. It must not slide into what may be noise, nor to
        Inf and NaN where the reference had none; that it has none any more is as well."""
        status = self.status if other.status == self.also else other.status
        if self != replace(other, times=self.times, finite=self.finite, also=self.also, status=status):
            return False
        if self.finite and not other.finite:
            return False
        return self.times is None or (other.times or 0.0) >= _SLACK * min(FAR, self.times)


def _count_failure_limits(row: Row) -> float | None:
    """How many times its limit a row's result is off; None where there is no limit."""
    in_ulps = OpClass(row.op_class or OpClass.COMPOSITE) in WITHOUT_NOISE and row.error_units != math.inf
    own = row.max_ulp if in_ulps else row.error_units
    return None if own is None or not row.limit else own / row.limit


def _is_finite_leaf(leaf: Leaf) -> bool:
    y = leaf.reference
    return y is None or y.dtype.kind not in "fc" or bool(np.isfinite(y).all())
