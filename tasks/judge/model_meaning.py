"""What a model's outputs mean: decisions that flip, divergence of distributions, overlap of masks. On numpy and nothing else.

What an output stands for is stated by its model (`Leaf.meaning`), never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.judge.error_metrics import USUAL_UNITS, Metrics, compute_error_units
from tasks.model.dtypes import SMALLEST_NORMAL, is_complex_dtype, is_inexact_dtype
from tasks.model.leaf import Leaf
from tasks.model.op_class import OpClass
from tasks.operators.formulas import compute_softmax

#: What an output may stand for. logits, probabilities: the largest along an axis is the decision; mask: what lies above
#: a threshold, number by number; embedding: nothing is decided by it alone.
WORDS = ("logits", "probabilities", "mask", "embedding")
_FORM = re.compile(rf"({'|'.join(WORDS)})(?: (axis|above) (-?\d+(?:\.\d+)?))?")
#: Error units up to which a flipped decision is a tie, where the policy counts no units.
TIE = USUAL_UNITS


@dataclass(frozen=True)
class ModelMeaning:
    """One of WORDS. axis: along which the largest is chosen; above: the threshold of a mask."""

    word: str
    axis: int = -1
    above: float = 0.5


def parse_output_meaning(text: str) -> ModelMeaning | None:
    """That of "logits", "logits axis 1", "mask above 0.3" …; None of "". Raises ValueError for any other text."""
    if not text:
        return None
    found = _FORM.fullmatch(text)
    named = {"axis": ("logits", "probabilities"), "above": ("mask",)}
    if found is None or (found[2] and found[1] not in named[found[2]]) or (found[2] == "axis" and "." in found[3]):
        raise ValueError(
            f'no meaning of an output: {text!r}; one of {", ".join(WORDS)}, "logits axis 1", "mask above 0.3"'
        )
    if not found[2]:
        return ModelMeaning(found[1])
    return (
        ModelMeaning(found[1], int(found[3])) if found[2] == "axis" else ModelMeaning(found[1], above=float(found[3]))
    )


def interpret_meaning(
    metrics: Metrics,
    actual: Sequence[Any],
    expected: Sequence[Leaf],
    op_class: OpClass,
    precision: str,
    limit: float | None,
) -> None:
    """Fill in what outputs of stated meaning, right in shape and dtype, decide otherwise than the reference.

    The *margin* of a decision is how far the reference's choice stands above the one that was made instead (or a mask's
    number from its threshold), over the tolerances of one error unit of both. A result within u error units flips no
    decision of a margin above u. So what flips within ``limit`` is a tie, and beyond it the result is off by more than
    the limit as well.
    """
    if metrics.kind:
        return
    limit = TIE if limit is None else limit
    for a, leaf in zip(map(np.asarray, actual), expected):
        meaning = parse_output_meaning(leaf.meaning)
        if meaning is None or meaning.word == "embedding" or leaf.reference is None or not a.size:
            continue
        if not is_inexact_dtype(leaf.dtype) or is_complex_dtype(leaf.dtype):
            continue
        with np.errstate(all="ignore"):
            a, y, tolerance = a.astype(np.float64), leaf.reference, compute_error_units(leaf, op_class, precision)
            if meaning.word == "mask":
                _compare_threshold_masks(metrics, a, y, tolerance, meaning.above, limit)
            else:
                rows = (np.moveaxis(x, meaning.axis, -1) for x in np.broadcast_arrays(a, y, tolerance))
                a, y, tolerance = (x.reshape(-1, x.shape[-1]) for x in rows)
                _compare_largest_choices(metrics, a, y, tolerance, limit)
                p, q = (y, a) if meaning.word == "probabilities" else (compute_softmax(y), compute_softmax(a))
                metrics.divergence = max(
                    metrics.divergence or 0.0, _compute_divergence(p, q, SMALLEST_NORMAL[leaf.dtype])
                )


def _compare_largest_choices(
    metrics: Metrics, a: np.ndarray, y: np.ndarray, tolerance: np.ndarray, limit: float
) -> None:
    """Decisions by the largest of each row."""
    every, chosen, made = np.arange(len(y)), y.argmax(-1), a.argmax(-1)
    margin = (y[every, chosen] - y[every, made]) / (tolerance[every, chosen] + tolerance[every, made])
    _count_flipped_decisions(metrics, made != chosen, margin, limit)


def _compare_threshold_masks(
    metrics: Metrics, a: np.ndarray, y: np.ndarray, tolerance: np.ndarray, above: float, limit: float
) -> None:
    """Decisions by a threshold, number by number."""
    is_set, should, margin = a > above, y > above, np.abs(y - above) / tolerance
    _count_flipped_decisions(metrics, is_set != should, margin, limit)
    decisive = margin > limit
    union = int(np.count_nonzero(decisive & (is_set | should)))
    overlap = int(np.count_nonzero(decisive & is_set & should)) / union if union else 1.0
    metrics.overlap = min(overlap, 1.0 if metrics.overlap is None else metrics.overlap)


def _count_flipped_decisions(metrics: Metrics, flipped: np.ndarray, margin: np.ndarray, limit: float) -> None:
    margin = np.where(np.isnan(margin), np.inf, margin)[flipped]  # NaN: infinite numbers on either side
    flips = int(np.count_nonzero(margin > limit))
    metrics.decisions = (metrics.decisions or 0) + flipped.size
    metrics.flips = (metrics.flips or 0) + flips
    metrics.ties = (metrics.ties or 0) + margin.size - flips
    metrics.flip_units = max(metrics.flip_units or 0.0, float(margin.max(initial=0.0)))


def _compute_divergence(p: np.ndarray, q: np.ndarray, smallest: float) -> float:
    """The largest Kullback-Leibler divergence of a row, Σ p·ln(p/q) − p + q, in nats; what is below ``smallest`` counts
    as that much: a softmax in the dtype has lost it. Infinite where a number is NaN."""
    p, q = np.maximum(p, smallest), np.maximum(q, smallest)
    largest = float((p * np.log(p / q) - p + q).sum(-1).max())
    return np.inf if np.isnan(largest) else max(largest, 0.0)
