"""Planted faults of kernels, as their authors make them, through ``farm.fuzz``: found, made small, and their twins not blamed.

The kernels are the zoo's; here is at which sizes they are fuzzed, and the smallest case that can show each fault.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farm.client.judging import fuzz
from farm.client.results import Finding
from tasks import zoo
from tasks.catalogs.user.ops import UserOp
from tasks.model import FAILED, Status, name_statuses
from tests.bench.record import Result
from tests.bench.running import Size

Shapes = tuple[tuple[int, ...], ...]
#: Of what `farm.fuzz` is told as the zoo declares it.
_SETTINGS = ("kwargs", "op_class", "framework", "reference_framework", "outputs", "invariants")

ROWS = {"rows": (1, 9), "n": (1, 300)}
#: Gradients of NumPy references are differences: two evaluations and more for each element.
FEW = {"rows": (1, 4), "n": (1, 24)}
X = {"x": ["rows", "n"]}


@dataclass(frozen=True)
class Planted:
    """A fault of the zoo. what: as its author would say it; dims: smallest and largest sizes; minimal: shapes of the
    inputs of the smallest case that shows it, each of them where several are equally small, () where that hangs on the
    values; inputs: of more open sizes than the zoo's."""

    what: str
    fault: str
    dims: Mapping[str, tuple[int, int]]
    minimal: tuple[Shapes, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def known(self) -> zoo.Fault:
        return zoo.faults()[self.fault]


PLANTED = (
    Planted("the tail of n % block is not computed", "axpy--dropped_last_block", {"n": (1, 600)}, (((1,), (1,)),)),
    Planted("off by one at a full block", "axpy--last_of_whole_blocks", {"n": (1, 600)}, (((128,), (128,)),)),
    Planted("a scale is missing", "axpy--no_scale", {"n": (1, 600)}, (((1,), (1,)),)),
    Planted("axes swapped", "softmax--wrong_axis", ROWS, (((1, 2),), ((2, 1),))),
    Planted("a softmax without its maximum", "softmax_of_large--no_shift", ROWS, (((1, 1),),)),
    Planted("an accumulator in float16", "long_half_sum--narrow", {"n": (1, 10_000)}, ()),
    Planted(
        "eps is dropped",
        "rms_norm--no_epsilon",
        ROWS,
        (((1, 1), (1,)),),
        {"x": {"shape": ["rows", "n"], "low": -0.003, "high": 0.003}},
    ),
    Planted(
        "NaN does not come through",
        "amax_with_nan--compared",
        ROWS,
        (((1, 1),),),
        {"x": {"shape": ["rows", "n"], "data": [1, math.nan, 3]}},
    ),
    Planted("wrong where a size is 1", "pooled--squeezed", ROWS, (((1, 1),),)),
    Planted("an index of 8 bits", "copy--uint8_offsets", {"n": (1, 1000)}, (((257,),),)),
    Planted("a view read as if it were dense", "double_transposed--read_as_dense", {"n": (1, 40), "m": (1, 40)}, (((2, 2),),)),
    Planted("an input is changed", "relu_copy--in_place", {"n": (1, 300)}, (((1,),),)),
    Planted("the output is a buffer of the next call's", "column_sums--output_kept", ROWS, (((1, 1),),), X),
    Planted("a workspace is not cleared", "column_sums--stale_workspace", ROWS, (((1, 1),),), X),
    Planted("a bias' gradient along the wrong axis", "row_bias_gradient--summed_over_columns", {"n": (1, 12)}, (((2, 2), (2,)),)),
    Planted(
        "a sign in the backward pass",
        "divide_gradient--positive",
        FEW,
        (((1, 1), (1, 1)),),
        X | {"y": {"shape": ["rows", "n"], "low": 0.5, "high": 2}},
    ),
    Planted("a factor of the Jacobian forgotten", "square_gradient--half", FEW, (((1, 1),),), X),
    Planted("a softmax's gradient without its sum", "softmax_gradient--no_sum", FEW, (((1, 1),),), X),
    Planted("a layer norm's gradient without the mean", "layer_norm_gradient--no_term_of_mean", FEW, (((1, 1),),), X),
    Planted("a saved tensor is changed", "square_gradient--saved_changed", FEW, (((1, 1),),), X),
    Planted("a gradient that is detached", "cube_gradient--detached", FEW, (((1, 1),),), X),
)  # fmt: skip


def fuzzed(planted: Planted, op: UserOp, cases: int, seed: int, results: Path | None) -> Any:
    """What ``farm.fuzz`` says of a kernel, asked as its author would ask."""
    settings = {x: getattr(op, x) for x in _SETTINGS}
    inputs = {**op.inputs, **planted.inputs}
    return fuzz(
        op.kernel,
        op.reference,
        inputs,
        planted.dims,
        list(op.dtypes),
        cases,
        seed,
        list(op.gradient),
        bool(op.gradient),
        results=results,
        **settings,
    )


def smallest(findings: Sequence[Finding]) -> Shapes:
    """Shapes of the smallest case that is left of findings; () where there are none."""
    made = [tuple(x.minimal.shapes.values()) for x in findings]
    return min(made, key=lambda shapes: sum(math.prod(x) for x in shapes), default=())


def is_found(planted: Planted, counts: Mapping[str, int]) -> bool:
    """Whether the rows show it; of a fault that only loses digits, `imprecise` ones do."""
    lost = planted.known.kind in zoo.PRECISION and Status.IMPRECISE.value in counts
    return lost or bool(set(name_statuses(FAILED)) & set(counts))


def kernels(folder: Path, size: Size) -> Result:
    """Every fault and every twin, for some seeds."""
    found, exact, unjudged, rows, blamed = [], [], 0, 0, Counter[str]()
    chosen = [x for x in PLANTED if x.fault in size["faults"]] if size["faults"] else PLANTED
    for seed in size["seeds"]:
        hit = small = 0
        twins: dict[str, Planted] = {}
        for planted in chosen:
            told = fuzzed(planted, planted.known.op, size["cases"], seed, folder / f"{planted.fault}-{seed}")
            shapes = smallest(told.findings)
            here, right = is_found(planted, told.counts), shapes in planted.minimal or not planted.minimal
            hit, small = hit + here, small + right
            twins.setdefault(planted.known.twin, planted)
            counts = ", ".join(f"{n} {x}" for x, n in told.counts.items())
            print(f"seed {seed}  {planted.what}: {'found' if here else 'NOT FOUND'} ({counts}), smallest {shapes or '-'}"
                  f"{'' if right else f', not {planted.minimal}'}", flush=True)  # fmt: skip
        for name, planted in twins.items():
            op = zoo.twins()[name]
            told = fuzzed(planted, op, size["twins"] // (3 if op.gradient else 1), seed, None)
            rows += len(told.rows)
            bad = {x: n for x, n in told.counts.items() if x != Status.PASS.value}
            unjudged += sum(n for x, n in bad.items() if not Status(x).judged)
            blamed.update({x: n for x, n in bad.items() if Status(x).judged})
            if bad:
                print(
                    f"seed {seed}  twin {name}: {bad} of {len(told.rows)} rows: {'; '.join(map(str, told.findings))}",
                    flush=True,
                )
        found.append(hit)
        exact.append(small)
    wrong = sum(n for x, n in blamed.items() if x != Status.IMPRECISE.value)
    figures = {
        "faults": len(chosen),
        "found_least": min(found),
        "minimal_least": min(exact),
        "twin_rows": rows,
        "twin_failures": wrong,
        "twin_imprecise": blamed[Status.IMPRECISE.value],
        "twin_unjudged": unjudged,
    }
    text = (
        f"{min(found)} or more of {len(chosen)} faults found with each of {len(found)} seeds, {min(exact)} or more in the smallest "
        f"case there is; of {rows:,} rows of their twins {wrong} failed, {figures['twin_imprecise']} were imprecise, {unjudged} "
        "not judged"
    )
    return Result(figures, text)
