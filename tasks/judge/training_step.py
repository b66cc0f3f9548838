"""What only the outputs of a training step tell: gradients that vanished, which is furthest off, how far all diverge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.judge.error_metrics import compare_outputs
from tasks.model import Leaf, OpClass, Status, compute_row_floor

#: So many times its floor in float32 a gradient must be to be no zero: those of a key's bias, say, are zeros that no
#: runtime computes exactly.
ABOVE = 4.0


@dataclass(frozen=True)
class ExaminedStep:
    """verdict: status and kind, with what only a step tells; columns: of the row."""

    verdict: tuple[Status, str]
    columns: dict[str, Any] = field(default_factory=dict)


def examine_training_step(
    actual: Sequence[np.ndarray],
    expected: Sequence[Leaf],
    names: Sequence[str],
    precision: str,
    verdict: tuple[Status, str],
) -> ExaminedStep:
    """The loss and the gradients of a step against what is expected, all named; nothing new where their shapes differ.
    A gradient that is zero everywhere where it is not is wrong, whatever the ``verdict``."""
    if [a.shape for a in actual] != [tuple(leaf.shape) for leaf in expected] or len(names) != len(expected):
        return ExaminedStep(verdict)
    columns: dict[str, Any] = {
        "loss_divergence": _compute_step_divergence(actual[:1], expected[:1]),
        "gradient_divergence": _compute_step_divergence(actual[1:], expected[1:]),
    }
    gone = [name for name, a, leaf in zip(names, actual, expected) if _has_gradient_vanished(a, leaf)]
    if gone:
        more = f", and so {'is' if len(gone) == 2 else 'are'} {len(gone) - 1} more" if len(gone) > 1 else ""
        columns["error"] = f"{gone[0]} is zero everywhere where it is not{more}"
        verdict = Status.WRONG, "zero gradient"
    elif verdict[0] is not Status.PASS:
        units = {
            name: compare_outputs([a], [leaf], OpClass.MODEL, precision).error_units or 0.0
            for name, a, leaf in zip(names, actual, expected)
        }
        worst = max(units, key=units.__getitem__)
        columns["error"] = f"{worst} is {units[worst]:.3g} units off"
    return ExaminedStep(verdict, columns)


def _has_gradient_vanished(a: np.ndarray, leaf: Leaf) -> bool:
    y = leaf.reference
    if y is None or not a.size or a.any():
        return False
    return bool((np.abs(y) > (0.0 if leaf.noise is None else ABOVE * compute_row_floor(leaf.noise))).any())


def _compute_step_divergence(actual: Sequence[np.ndarray], expected: Sequence[Leaf]) -> float | None:
    """‖actual − reference‖ / ‖reference‖ of several arrays as one; None for a reference of zeros."""
    off = size = 0.0
    with np.errstate(all="ignore"):
        for a, leaf in zip(actual, expected):
            if leaf.reference is not None:
                off += float(np.square(a - leaf.reference).sum())
                size += float(np.square(leaf.reference).sum())
    return float(np.sqrt(off / size)) if size else None
