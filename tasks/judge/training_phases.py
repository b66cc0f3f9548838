"""How far the outputs of a training step are from the right ones, in floors: the norm of the difference by that of what rounding does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tasks.arrays import noise
from tasks.judge.error_metrics import Metrics, check_output_metadata
from tasks.model import EPS, Leaf
from tasks.training.exact import HALF, STORED, STORINGS, clip_training_gradients
from tasks.training.phases import CLIPPED, SECOND, TAPS, WEIGHTS
from tasks.training.recipe import TrainingRecipe
from tasks.training.state import cut_state_vector

#: Draws of the floor of what is judged alone.
DRAWS = 3
#: A floor of nothing is that of a number that float32 flushes.
_SMALLEST = float(np.finfo(np.float32).tiny)


def measure_phase_floors(
    outputs: Sequence[np.ndarray], expected: Sequence[Leaf], phase: str, names: Sequence[str], limit: float
) -> Metrics:
    """Metrics of the outputs of one phase. Error units are floors, those of the worst output; ``mismatched``: outputs
    beyond the limit; ``detail``: the name of the worst, of taps, which are in the order of their computation, that of
    the first beyond the limit."""
    metrics = Metrics()
    check_output_metadata(list(outputs), expected, metrics)
    if metrics.kind:
        return metrics
    units, diff, floor = [], 0.0, 0.0
    with np.errstate(all="ignore"):
        for x, leaf in zip(outputs, expected):
            assert leaf.reference is not None and leaf.noise is not None
            off = x.astype(np.float64) - leaf.reference
            lost = int((~np.isfinite(off)).sum())
            metrics.nonfinite += lost
            metrics.numel += x.size
            units.append(math.inf if lost else _compute_phase_norm(off) / (float(np.max(leaf.noise)) + _SMALLEST))
            diff = max(diff, float(np.abs(off).max(initial=0.0)))
            floor = max(floor, float(np.max(leaf.noise)))
    metrics.error_units, metrics.max_diff, metrics.noise_floor = max(units), diff, floor
    metrics.mismatched = sum(x > limit for x in units)
    metrics.classic = not metrics.mismatched
    beyond = [k for k, x in enumerate(units) if x > limit]
    metrics.detail = names[beyond[0] if beyond and phase == TAPS else int(np.argmax(units))]
    return metrics


def expect_phase_alone(
    phase: str,
    recipe: TrainingRecipe,
    number: int,
    vectors: Mapping[str, np.ndarray],
    gradients: Sequence[np.ndarray],
    expected: Sequence[Leaf],
) -> list[Leaf]:
    """What the optimiser, or the clipping, makes of the run's own gradients and the state that the step began with, in
    float64, and the floor of that: all that is stored is moved. vectors: of `tasks.training.state.TrainingState.vectors`."""
    if phase == CLIPPED:
        right = clip_training_gradients(recipe, [np.asarray(g, np.float64) for g in gradients])
        # All gradients are clipped by the norm of them, a single number.
        return [
            _expect_phase_leaf(leaf, y, (_move_phase_input(y, draw, k) for draw in range(DRAWS)), STORINGS)
            for k, (leaf, y) in enumerate(zip(expected, right))
        ]
    state = [
        cut_state_vector(vectors[name], [leaf.shape for leaf in expected]) for name in ("weights", "first", "second")
    ]
    found = []
    for k, (leaf, *parts) in enumerate(
        zip(expected, *state, gradients)
    ):  # one at a time: of a large network each is copied often
        own = [np.asarray(x, np.float64) for x in parts]
        draws = ([_move_phase_input(x, draw, 8 * k + n) for n, x in enumerate(own)] for draw in range(DRAWS))
        moved = (
            _move_phase_input(_expect_advanced_state(phase, recipe, number, some), draw, 8 * k + 7)
            for draw, some in enumerate(draws)
        )
        found.append(_expect_phase_leaf(leaf, _expect_advanced_state(phase, recipe, number, own), moved))
    return found


def _expect_advanced_state(phase: str, recipe: TrainingRecipe, number: int, parts: Sequence[np.ndarray]) -> np.ndarray:
    """One of the moments, or the weight, after a step from weight, first and second moment, and gradient."""
    if phase == WEIGHTS:
        return recipe.advance(number, *parts)[2]
    return recipe.advance_moments(*parts)[phase == SECOND]


def _move_phase_input(x: np.ndarray, draw: int, place: int) -> np.ndarray:
    return noise.perturb_by_noise(x, HALF * EPS[STORED], draw, place)


def _expect_phase_leaf(leaf: Leaf, right: np.ndarray, draws: Iterable[np.ndarray], times: float = 1.0) -> Leaf:
    """The leaf with its reference and the floor of that."""
    with np.errstate(all="ignore"):  # gradients that are not finite: their own phase says so
        floor = max(_compute_phase_norm(x - right) for x in draws) + times * HALF * EPS[STORED] * _compute_phase_norm(
            right
        )
    return replace(leaf, reference=right, noise=np.full((1,) * right.ndim, floor))


def expect_rank_share(leaf: Leaf, rank: int, ranks: int) -> Leaf:
    """The gradient of the micro-batches that a rank has, every ``ranks``th from its own; the floor is the largest of
    theirs. leaf: a row a micro-batch."""
    assert leaf.reference is not None and leaf.noise is not None
    own, floors = leaf.reference[rank::ranks], leaf.noise[rank::ranks]
    return replace(leaf, shape=leaf.shape[1:], reference=own.mean(0), noise=floors.max(0))


def _compute_phase_norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x).sum()))
