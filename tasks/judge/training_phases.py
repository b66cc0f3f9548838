"""How far the outputs of a training step are from the right ones, in floors: the norm of the difference by that of what rounding does."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np

from tasks.arrays import noise
from tasks.judge.error_metrics import Metrics, check_output_metadata
from tasks.model import EPS, Leaf
from tasks.training.exact import HALF, STORED, STORINGS, measure_clip_factor
from tasks.training.phases import CLIPPED, FIRST, SECOND, TAPS, WEIGHTS, OwnGradients
from tasks.training.recipe import BLOCK, TrainingRecipe
from tasks.training.state import cut_state_vector

#: Draws of the floor of what is judged alone.
DRAWS = 3
#: What `TrainingRecipe.advance` returns, in its order.
OF_OPTIMIZER = (FIRST, SECOND, WEIGHTS)
#: In so many sums a processor's vectors add up the squares of a norm in float32: of 128 bits where no wider ones are
#: common (NEON), else of 256 (torch's builds for x86, on AVX-512 too) and 512.
LANES = (8, 16) if platform.machine() in ("x86_64", "AMD64") else (4, 8, 16)
#: A floor of nothing is that of a number that float32 flushes.
_SMALLEST = float(np.finfo(np.float32).tiny)
#: Of the gradients of a step that is being judged, the floors of what the optimiser makes of each, by OF_OPTIMIZER: its
#: three phases ask for them one after another.
_FLOORS: WeakKeyDictionary[OwnGradients, list[list[float]]] = WeakKeyDictionary()
#: Of the gradients of such a step before clipping, the factor that is excused after it: the probe is moved by it.
_EXCUSED: WeakKeyDictionary[OwnGradients, float] = WeakKeyDictionary()


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


@np.errstate(all="ignore")  # gradients that are not finite: their own phase says so
def expect_phase_alone(
    phase: str,
    recipe: TrainingRecipe,
    number: int,
    vectors: Mapping[str, np.ndarray],
    gradients: OwnGradients,
    names: Sequence[str],
    expected: Sequence[Leaf],
    excused: float = 1.0,
) -> list[Leaf]:
    """What the optimiser, or the clipping, makes of the run's own gradients and the state that the step began with, in
    float64, and the floor of that: all that is stored is moved. vectors: of `tasks.training.state.TrainingState.vectors`;
    names: of the parameters; excused: of the clipping, `find_excused_factor`."""
    if phase == CLIPPED:
        # All gradients are clipped by the norm of them, a single number.
        factor = excused * measure_clip_factor(recipe, (np.asarray(g, np.float64) for g in gradients.arrays))
        right = (np.asarray(g, np.float64) * factor for g in gradients.arrays)
        return [
            _expect_phase_leaf(leaf, y, _measure_clipped_floor(y, k))
            for k, (leaf, y) in enumerate(zip(expected, right))
        ]
    shapes = [leaf.shape for leaf in expected]
    state = [cut_state_vector(vectors[name], shapes) for name in ("weights", "first", "second")]
    given, place = list(zip(*state, gradients.arrays)), OF_OPTIMIZER.index(phase)
    recipes = [recipe.of_parameter(name) for name in names]
    if gradients not in _FLOORS:
        _FLOORS[gradients] = [
            _measure_optimizer_floors(own, number, parts, 8 * k) for k, (own, parts) in enumerate(zip(recipes, given))
        ]
    # Of a large network the floors are kept, and what is right is computed once a phase.
    return [
        _expect_phase_leaf(leaf, own.advance(number, *parts)[place], floors[place])
        for leaf, own, parts, floors in zip(expected, recipes, given, _FLOORS[gradients])
    ]


def find_excused_factor(recipe: TrainingRecipe, gradients: OwnGradients, outputs: Sequence[np.ndarray]) -> float:
    """By what all clipped gradients are off together (least squares), where that may be the order in which float32 adds
    up their norm, which nobody promises; 1 where it is less than a floor, or more than an order.

    A running sum of m positive terms is off by up to (m - 1) / 2 spacings (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2), and by how much depends on the terms: small ones are lost. So the sums are made of the
    run's own gradients, in LANES: what lies between the right factor and theirs is excused. outputs: the gradients after
    clipping."""
    _EXCUSED[gradients] = found = _find_factor_of_order(recipe, gradients, outputs)
    return found


@np.errstate(all="ignore")
def _find_factor_of_order(recipe: TrainingRecipe, gradients: OwnGradients, outputs: Sequence[np.ndarray]) -> float:
    if [x.shape for x in outputs] != [g.shape for g in gradients.arrays]:
        return 1.0
    fitted = sum(_multiply_by_block(g, x) for g, x in zip(gradients.arrays, outputs))
    square = sum(_multiply_by_block(g, g) for g in gradients.arrays)
    right = recipe.clip_factor(math.sqrt(square))
    off = fitted / (square * right) if square * right else 1.0
    floor = (STORINGS + 1) * HALF * EPS[STORED]  # with the rounding of the product
    if not abs(off - 1.0) > floor:  # NaN, too
        return 1.0
    norms = (math.sqrt(sum(_add_squares_in_lanes(g, lanes) for g in gradients.arrays)) for lanes in LANES)
    # What overflows is off by more than an order.
    usual = [1.0, *(recipe.clip_factor(norm) / right for norm in norms if math.isfinite(norm))]
    return off if min(usual) - floor <= off <= max(usual) + floor else 1.0


def _multiply_by_block(a: np.ndarray, b: np.ndarray) -> float:
    """The inner product of two arrays of one shape."""
    flat = [np.asarray(x).reshape(-1) for x in (a, b)]
    blocks = ([x[at : at + BLOCK].astype(np.float64) for x in flat] for at in range(0, flat[0].size, BLOCK))
    return sum(float(np.dot(*block)) for block in blocks)


def _add_squares_in_lanes(x: np.ndarray, lanes: int) -> float:
    """The sum of squares as float32 has it in so many running sums."""
    flat = np.asarray(x, np.float32).reshape(-1)
    rows = np.zeros(lanes + BLOCK, np.float32)  # the sums so far, and behind them the squares of a block
    for at in range(0, flat.size, BLOCK):
        block = flat[at : at + BLOCK]
        rows[lanes:] = 0.0
        np.square(block, out=rows[lanes : lanes + block.size])
        rows[:lanes] = rows.reshape(-1, lanes).sum(0)
    return float(rows[:lanes].sum(dtype=np.float64))


def _measure_optimizer_floors(
    recipe: TrainingRecipe, number: int, parts: Sequence[np.ndarray], place: int
) -> list[float]:
    """The floors of one parameter's moments and weight after a step, in the order of OF_OPTIMIZER."""

    def advance(own: Sequence[np.ndarray], begin: int, draw: int | None) -> Sequence[np.ndarray]:
        if draw is None:
            return recipe.advance(number, *own)
        given = (_move_phase_input(x, draw, place + n, begin) for n, x in enumerate(own))
        return [_move_phase_input(x, draw, place + 7, begin) for x in recipe.advance(number, *given)]

    return _measure_floors_by_block(advance, parts, len(OF_OPTIMIZER))


def _measure_clipped_floor(right: np.ndarray, place: int) -> float:
    """The floor of one parameter's gradient after clipping."""

    def clip(own: Sequence[np.ndarray], begin: int, draw: int | None) -> Sequence[np.ndarray]:
        return own if draw is None else [_move_phase_input(x, draw, place, begin) for x in own]

    return _measure_floors_by_block(clip, [right], 1, STORINGS)[0]


def _measure_floors_by_block(
    evaluate: Callable[[Sequence[np.ndarray], int, int | None], Sequence[np.ndarray]],
    parts: Sequence[np.ndarray],
    count: int,
    times: float = 1.0,
) -> list[float]:
    """How far rounding moves each of ``count`` results of some arrays of one size, with their own rounding, so many
    times that of storing them. evaluate(block of each, its first element, draw or None for what is right): a block at a
    time, so that the processor's cache holds all that is made of it."""
    flat = [np.asarray(x).reshape(-1) for x in parts]
    sizes, apart = np.zeros(count), np.zeros((DRAWS, count))
    for at in range(0, flat[0].size, BLOCK):
        own = [x[at : at + BLOCK].astype(np.float64, copy=False) for x in flat]
        right = evaluate(own, at, None)
        sizes += [float(np.square(y).sum()) for y in right]
        for draw in range(DRAWS):
            apart[draw] += [float(np.square(x - y).sum()) for x, y in zip(evaluate(own, at, draw), right)]
    return list(np.sqrt(apart).max(0) + times * HALF * EPS[STORED] * np.sqrt(sizes))


def _move_phase_input(x: np.ndarray, draw: int, place: int, begin: int = 0) -> np.ndarray:
    return noise.perturb_by_noise(x, HALF * EPS[STORED], draw, place, begin)


def _expect_phase_leaf(leaf: Leaf, right: np.ndarray, floor: float) -> Leaf:
    return replace(leaf, reference=right, noise=np.full((1,) * right.ndim, floor))


def expect_probe(leaf: Leaf, gradients: OwnGradients) -> Leaf:
    """The probe of a step after what `find_excused_factor` has found of its gradients, to first order."""
    excused = _EXCUSED.get(gradients, 1.0)
    if leaf.of_norm is None or leaf.reference is None or excused == 1.0:
        return leaf
    return leaf.with_reference(leaf.reference + leaf.of_norm * (excused - 1.0))


def expect_rank_share(leaf: Leaf, rank: int, ranks: int) -> Leaf:
    """The gradient of the micro-batches that a rank has, every ``ranks``th from its own; the floor is the largest of
    theirs. leaf: a row a micro-batch."""
    assert leaf.reference is not None and leaf.noise is not None
    own, floors = leaf.reference[rank::ranks], leaf.noise[rank::ranks]
    return replace(leaf, shape=leaf.shape[1:], reference=own.mean(0), noise=floors.max(0))


def _compute_phase_norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.square(x).sum()))
