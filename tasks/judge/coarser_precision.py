"""Whether a model was computed in a coarser precision than anybody asked for, told by its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tasks.judge.error_metrics import compare_outputs, compute_error_units
from tasks.judge.policy import Policy, judge_by_policy
from tasks.model import Leaf, OpClass, Status, is_inexact_dtype

#: Precisions that runtimes take for float32 without being asked. float16 has as many digits as TF32, which stands for
#: both.
SUSPECTS = ("tfloat32", "bfloat16")
#: Least correlation of a result's errors with those of rounded weights; how often it is beyond what chance gives (one
#: standard deviation of n independent numbers is 1/√n), and beyond what the errors of two precisions, which share
#: nothing, have.
ALIKE, CHANCE, APART = 0.35, 6.0, 3.0
#: The errors of a result over those of rounded weights: what is computed is rounded too, which adds as much again or
#: twice.
TIMES = (0.75, 6.0)


@dataclass(frozen=True)
class PrecisionSuspicion:
    """precision; alike: correlation of the errors with those that weights rounded to it make."""

    precision: str
    alike: float


def suspect_coarser_precision(
    actual: Sequence[np.ndarray],
    expected: Sequence[Leaf],
    twins: Mapping[str, Sequence[np.ndarray]],
    policy: Policy,
    label: str,
    dtype: str,
) -> PrecisionSuspicion | None:
    """The precision that the errors of a model's outputs tell of; None where they tell of none.

    twins: per precision, the exact outputs with the weights of products rounded to it (`tasks.graphs.coarse_products`). A result
    is suspected of a precision if it would be right were it declared, and its errors, in units, are as large as the
    twin's and correlate with them. A fault of another kind does not: its errors have nothing to do with how weights
    round. A runtime that folds scales into its weights before it rounds them is not recognised, nor is one of a model
    whose error is carried by a few numbers, as that of a single distribution is: those are alike by chance.
    """
    best: PrecisionSuspicion | None = None
    ours, errors = (
        _compute_signed_errors(actual, expected),
        {name: _compute_signed_errors(found, expected) for name, found in twins.items()},
    )
    for precision, theirs in errors.items():
        metrics = compare_outputs(actual, expected, OpClass.MODEL, precision)
        if judge_by_policy(metrics, policy, label, OpClass.MODEL, dtype, "float64", precision)[0] is not Status.PASS:
            continue
        one, other = float(np.linalg.norm(ours)), float(np.linalg.norm(theirs))
        if not (one and other and TIMES[0] <= one / other <= TIMES[1]):
            continue
        chance = CHANCE / min(_count_error_carriers(ours), _count_error_carriers(theirs)) ** 0.5
        shared = max(
            (abs(_measure_errors_alike(theirs, x)) for name, x in errors.items() if name != precision), default=0.0
        )
        alike = _measure_errors_alike(ours, theirs)
        if alike >= max(ALIKE, chance, APART * shared) and (best is None or alike > best.alike):
            best = PrecisionSuspicion(precision, alike)
    return best


def _measure_errors_alike(a: np.ndarray, b: np.ndarray) -> float:
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / scale if scale else 0.0


def _count_error_carriers(errors: np.ndarray) -> float:
    """How many numbers carry the error: n if all alike, 1 if one has it all (the participation ratio (Σe²)²/Σe⁴)."""
    squares = np.square(errors)
    return float(squares.sum() ** 2 / max(float(np.square(squares).sum()), np.finfo(float).tiny))


def _compute_signed_errors(found: Sequence[np.ndarray], expected: Sequence[Leaf]) -> np.ndarray:
    """Signed errors of all floating outputs in units of their rows, one after another; finite ones alone."""
    parts = []
    with np.errstate(all="ignore"):
        for a, leaf in zip(found, expected):
            if leaf.reference is None or not is_inexact_dtype(leaf.dtype):
                continue
            errors = (np.asarray(a, np.float64) - leaf.reference) / compute_error_units(leaf, OpClass.MODEL)
            parts.append(np.where(np.isfinite(errors), errors, 0.0).reshape(-1))
    return np.concatenate(parts) if parts else np.zeros(0)
