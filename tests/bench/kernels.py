"""Planted faults of kernels, as their authors make them, through ``farm.fuzz``: found, made small, and their twins blamed or not.

The kernels are the zoo's; here is at which sizes they are fuzzed, and the smallest case that can show each fault.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import farm
from tasks import zoo
from tasks.catalogs.user.ops import UserOp
from tasks.model import FAILED, Status, names

Dims = Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Planted:
    """A fault of the zoo. what: in the words of who made it; dims: smallest and largest sizes; minimal: shapes of the inputs of the
    smallest case that shows it, all of them where several are equally small; inputs: other than the zoo's."""

    what: str
    fault: str
    dims: Dims
    minimal: tuple[tuple[tuple[int, ...], ...], ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def planted(self) -> zoo.Fault:
        return zoo.faults()[self.fault]

    @property
    def twin(self) -> UserOp:
        return zoo.twins()[self.planted.twin]


PLANTED = (
    Planted("the tail of n % block is not computed", "axpy--dropped_last_block", {"n": (1, 600)}, (((1,), (1,)),)),
    Planted("off by one where the last block is full", "axpy--last_of_whole_blocks", {"n": (1, 600)}, (((128,), (128,)),)),
    Planted("a scale is missing", "axpy--no_scale", {"n": (1, 600)}, (((1,), (1,)),)),
    Planted("the axes are swapped", "softmax--wrong_axis", {"rows": (1, 9), "n": (1, 300)}, (((1, 2),), ((2, 1),))),
    Planted("a softmax without its maximum", "softmax_of_large--no_shift", {"rows": (1, 9), "n": (1, 300)}, (((1, 1),),)),
    Planted("an accumulator in float16", "long_half_sum--narrow", {"n": (1, 10_000)}, ()),
    Planted("eps is dropped", "rms_norm--no_epsilon", {"n": (1, 600)}, (((1, 1), (1,)),)),
    Planted("NaN does not come through", "amax_with_nan--compared", {"n": (1, 300)}, (((1, 1),),), {"x": {"shape": [4, "n"], "data": [1, float("nan"), 3]}}),
    Planted("wrong where a size is 1", "pooled--squeezed", {"rows": (1, 9), "n": (1, 300)}, (((1, 1),),)),
    Planted("an index of 8 bits", "copy--uint8_offsets", {"n": (1, 1000)}, (((257,),),)),
    Planted("a view is read as if it were dense", "double_transposed--read_as_dense", {"n": (1, 40), "m": (1, 40)}, (((2, 2),),)),
    Planted("an input is changed", "relu_copy--in_place", {"n": (1, 300)}, (((1,),),)),
    Planted("the output is a buffer that the next call writes to", "column_sums--output_kept", {"n": (1, 300)}, (((1, 1),),)),
    Planted("a workspace is not cleared", "column_sums--stale_workspace", {"n": (1, 300)}, (((1, 1),),)),
    Planted("the gradient of a bias is summed along the wrong axis", "row_bias_gradient--summed_over_columns", {"n": (1, 60)}, (((2, 2), (2,)),)),
    Planted("a sign in the backward pass", "divide_gradient--positive", {"n": (1, 60)}, (((1, 1), (1, 1)),)),
    Planted("a factor of the Jacobian is forgotten", "tanh_gradient--no_chain", {"n": (1, 60)}, (((1, 1),),)),
    Planted("a saved tensor is changed", "square_gradient--saved_changed", {"n": (1, 60)}, (((1, 1),),)),
    Planted("the gradient cannot be differentiated again", "cube_gradient--detached", {"n": (1, 60)}, (((1, 1),),)),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What came of one. shapes: those of its smallest case, () where it was not found; rows, blamed: of its twin."""

    planted: Planted
    statuses: Mapping[str, int]
    shapes: tuple[tuple[int, ...], ...]
    rows: int
    blamed: Sequence[str]
    seconds: float

    @property
    def found(self) -> bool:
        sought = {*names(FAILED), *[Status.IMPRECISE.value] * (self.planted.planted.kind in zoo.PRECISION)}
        return bool(sought & set(self.statuses))

    @property
    def exact(self) -> bool:
        return self.shapes in self.planted.minimal or not self.planted.minimal


def fuzzed(planted: Planted, op: UserOp, cases: int, seed: int, results: Path) -> Any:
    """``op`` fuzzed as a reader of the docs would do it."""
    given = dict(op.inputs) | dict(planted.inputs)
    settings = {
        x: getattr(op, x) for x in ("kwargs", "op_class", "framework", "reference_framework", "outputs", "invariants")
    }
    return farm.fuzz(
        op.kernel,
        op.reference,
        given,
        planted.dims,
        list(op.dtypes),
        cases,
        seed,
        list(op.gradient),
        results=results,
        **settings,
    )


def found(planted: Planted, cases: int, twins: int, seed: int, folder: Path) -> Found:
    """A fault and its twin, fuzzed with ``cases`` and ``twins`` cases for each dtype."""
    begun = time.perf_counter()
    fault = fuzzed(planted, planted.planted.op, cases, seed, folder / "fault")
    shapes = min((_shapes(x) for x in fault.findings), key=_size, default=())
    twin = fuzzed(planted, planted.twin, twins, seed, folder / "twin")
    blamed = [str(x) for x in twin.findings] + twin._not_judged() * (twin.passed < len(twin.rows))
    blamed += [f"imprecise: {x}" for x in twin.rows.loc[twin.rows["status"] == Status.IMPRECISE.value, "case_id"]]
    return Found(planted, fault.counts, shapes, len(twin.rows), blamed, time.perf_counter() - begun)


def _shapes(finding: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(finding.minimal.shapes.values())


def _size(shapes: tuple[tuple[int, ...], ...]) -> int:
    import math

    return sum(math.prod(x) for x in shapes)
