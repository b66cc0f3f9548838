"""How far the outputs of a training step are from the right ones, in floors: the norm of the difference by that of what rounding does."""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from tasks.arrays import noise
from tasks.arrays.blocks import add_as_numpy, add_squares, map_blocks, split_as_numpy_adds, split_evenly
from tasks.judge.error_metrics import Metrics, check_output_metadata
from tasks.model import EPS, Leaf
from tasks.training.exact import HALF, STORED, STORINGS
from tasks.training.phases import CLIPPED, FIRST, SECOND, TAPS, WEIGHTS, OwnGradients
from tasks.training.recipe import TrainingRecipe
from tasks.training.state import cut_state_vector

#: Draws of the floor of what is judged alone.
DRAWS = 3
#: Elements whose squares are added up by themselves.
ROW = 1 << 13
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


@dataclass(frozen=True)
class RightOutput:
    """What an output of a phase is to be. leaf: of its dtype and shape; floor: the norm of what rounding does to it;
    evaluate(begin, end): some of its elements, flat, float64: of a large network no more is made of it."""

    leaf: Leaf
    floor: float
    evaluate: Callable[[int, int], np.ndarray]

    @classmethod
    def of(cls, leaf: Leaf) -> RightOutput:
        assert leaf.reference is not None and leaf.noise is not None
        flat = leaf.reference.reshape(-1)
        return cls(leaf, float(np.max(leaf.noise)), lambda begin, end: flat[begin:end])


def measure_phase_floors(
    outputs: Sequence[np.ndarray],
    expected: Sequence[Leaf | RightOutput],
    phase: str,
    names: Sequence[str],
    limit: float,
) -> Metrics:
    """Metrics of the outputs of one phase. Error units are floors, those of the worst output; ``mismatched``: outputs
    beyond the limit; ``detail``: the name of the worst, of taps, which are in the order of their computation, that of
    the first beyond the limit."""
    metrics = Metrics()
    check_output_metadata(list(outputs), [x.leaf if isinstance(x, RightOutput) else x for x in expected], metrics)
    if metrics.kind:
        return metrics
    right = [x if isinstance(x, RightOutput) else RightOutput.of(x) for x in expected]
    flat = [x.reshape(-1) for x in outputs]

    def measure(k: int, begin: int, end: int) -> tuple[int, float, float]:
        """(how many are no numbers, sum of squares of the difference, its largest element)."""
        off = flat[k][begin:end].astype(np.float64)
        off -= right[k].evaluate(begin, end)
        squares = float(np.square(off).sum())
        lost = 0 if math.isfinite(squares) else off.size - int(np.count_nonzero(np.isfinite(off)))
        return lost, squares, float(np.abs(off, out=off).max(initial=0.0))

    units, diff, floor = [], 0.0, 0.0
    for parts, x, y in zip(map_blocks(measure, [split_as_numpy_adds(x.size) for x in flat]), outputs, right):
        losses, squares, largest = zip(*parts)
        lost = sum(losses)
        metrics.nonfinite += lost
        metrics.numel += x.size
        units.append(math.inf if lost else math.sqrt(add_as_numpy(squares, x.size)) / (y.floor + _SMALLEST))
        diff = max(diff, float(np.max(largest)))
        floor = max(floor, y.floor)
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
    gradients: OwnGradients,
    names: Sequence[str],
    expected: Sequence[Leaf],
    excused: float = 1.0,
) -> list[RightOutput]:
    """What the optimiser, or the clipping, makes of the run's own gradients and the state that the step began with, in
    float64, and the floor of that: all that is stored is moved. vectors: of `tasks.training.state.TrainingState.vectors`;
    names: of the parameters; excused: of the clipping, `find_excused_factor`."""
    if phase == CLIPPED:
        # All gradients are clipped by the norm of them, a single number.
        factor = excused * recipe.clip_factor(math.sqrt(sum(map(add_squares, gradients.arrays))))
        return _expect_clipped(gradients.arrays, factor, expected)
    shapes = [leaf.shape for leaf in expected]
    state = [cut_state_vector(vectors[name], shapes) for name in ("weights", "first", "second")]
    given, place = [[x.reshape(-1) for x in some] for some in zip(*state, gradients.arrays)], OF_OPTIMIZER.index(phase)
    recipes = [recipe.of_parameter(name) for name in names]
    if gradients not in _FLOORS:
        _FLOORS[gradients] = _measure_optimizer_floors(recipes, number, given)

    def expect(leaf: Leaf, own: TrainingRecipe, parts: Sequence[np.ndarray], floors: Sequence[float]) -> RightOutput:
        def evaluate(begin: int, end: int) -> np.ndarray:
            block = [x[begin:end].astype(np.float64, copy=False) for x in parts]
            made = own.advance_block(number, *block) if phase == WEIGHTS else own.advance_moments(*block)
            return made[place]

        return RightOutput(leaf, floors[place], evaluate)

    return list(map(expect, expected, recipes, given, _FLOORS[gradients]))


def _expect_clipped(arrays: Sequence[np.ndarray], factor: float, expected: Sequence[Leaf]) -> list[RightOutput]:
    """Gradients times a factor."""

    def evaluate(flat: np.ndarray, begin: int, end: int) -> np.ndarray:
        return np.multiply(flat[begin:end].astype(np.float64, copy=False), factor)

    right = [functools.partial(evaluate, g.reshape(-1)) for g in arrays]

    def move(k: int, begin: int, end: int) -> list[list[list[float]]]:
        own = right[k](begin, end)
        draws = ([_move_phase_input(own, draw, k, begin)] for draw in range(DRAWS))
        return _add_squares_of_draws([own], draws)

    found = _join_floors(map_blocks(move, [split_evenly(g.size) for g in arrays]), 1, STORINGS)
    return [RightOutput(leaf, floor, own) for leaf, (floor,), own in zip(expected, found, right)]


def find_excused_factor(recipe: TrainingRecipe, gradients: OwnGradients, outputs: Sequence[np.ndarray]) -> float:
    """By what all clipped gradients are off together (least squares), where that may be the order in which float32 adds
    up their norm, which nobody promises; 1 where it is less than a floor, or more than an order.

    A running sum of m positive terms is off by up to (m - 1) / 2 spacings (Higham, Accuracy and Stability of Numerical
    Algorithms, section 4.2), and by how much depends on the terms: small ones are lost. So the sums are made of the
    run's own gradients, in LANES: what lies between the right factor and theirs is excused. outputs: the gradients after
    clipping."""
    _EXCUSED[gradients] = found = _find_factor_of_order(recipe, gradients, outputs)
    return found


def _find_factor_of_order(recipe: TrainingRecipe, gradients: OwnGradients, outputs: Sequence[np.ndarray]) -> float:
    if [x.shape for x in outputs] != [g.shape for g in gradients.arrays]:
        return 1.0
    with np.errstate(all="ignore"):
        fitted, square = _fit_outputs(gradients.arrays, outputs)
        right = recipe.clip_factor(math.sqrt(square))
        off = fitted / (square * right) if square * right else 1.0
        floor = (STORINGS + 1) * HALF * EPS[STORED]  # with the rounding of the product
        if not abs(off - 1.0) > floor:  # NaN, too
            return 1.0
        norms = [math.sqrt(sum(_add_squares_in_lanes(g, lanes) for g in gradients.arrays)) for lanes in LANES]
        # What overflows is off by more than an order.
        usual = [1.0, *(recipe.clip_factor(norm) / right for norm in norms if math.isfinite(norm))]
    return off if min(usual) - floor <= off <= max(usual) + floor else 1.0


def _fit_outputs(gradients: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> tuple[float, float]:
    """(inner product of gradients and outputs of their shapes, square of the gradients' norm)."""
    flat = [(g.reshape(-1), x.reshape(-1)) for g, x in zip(gradients, outputs)]

    def multiply(k: int, begin: int, end: int) -> list[tuple[float, float]]:
        g, x = (one[begin:end].astype(np.float64) for one in flat[k])
        rows = [slice(at, at + ROW) for at in range(0, end - begin, ROW)]
        return [(float(np.dot(g[row], x[row])), float(np.dot(g[row], g[row]))) for row in rows]

    found = map_blocks(multiply, [split_evenly(g.size) for g, _ in flat])
    sums = [[sum(rows) for rows in zip(*(row for block in some for row in block))] for some in found if some]
    fitted, square = (sum(some) for some in zip(*sums)) if sums else (0.0, 0.0)
    return fitted, square


def _add_squares_in_lanes(x: np.ndarray, lanes: int) -> float:
    """The sum of squares as float32 has it in so many running sums."""
    flat = np.asarray(x, np.float32).reshape(-1)
    rows = np.zeros(lanes + ROW, np.float32)  # the sums so far, and behind them the squares of a block
    for at in range(0, flat.size, ROW):
        block = flat[at : at + ROW]
        rows[lanes:] = 0.0
        np.square(block, out=rows[lanes : lanes + block.size])
        rows[:lanes] = rows.reshape(-1, lanes).sum(0)
    return float(rows[:lanes].sum(dtype=np.float64))


def _measure_optimizer_floors(
    recipes: Sequence[TrainingRecipe], number: int, given: Sequence[Sequence[np.ndarray]]
) -> list[list[float]]:
    """The floors of each parameter's moments and weight after a step, in the order of OF_OPTIMIZER. given: of each its
    weight, moments and gradient, flat."""

    def advance(k: int, begin: int, end: int) -> list[list[list[float]]]:
        own = [x[begin:end].astype(np.float64, copy=False) for x in given[k]]

        def draw_results(draw: int) -> list[np.ndarray]:
            moved = (_move_phase_input(x, draw, 8 * k + n, begin) for n, x in enumerate(own))
            made = recipes[k].advance_block(number, *moved)
            return [_move_phase_input(x, draw, 8 * k + 7, begin) for x in made]

        return _add_squares_of_draws(recipes[k].advance_block(number, *own), map(draw_results, range(DRAWS)))

    blocks = [split_evenly(parts[0].size) for parts in given]
    return _join_floors(map_blocks(advance, blocks), len(OF_OPTIMIZER))


def _add_squares_of_draws(
    right: Sequence[np.ndarray], draws: Iterable[Sequence[np.ndarray]]
) -> list[list[list[float]]]:
    """Of blocks of some results, and then of how far each draw has moved them, the sums of squares of each ROW. draws:
    are written to."""
    apart = ([np.subtract(x, y, out=x) for x, y in zip(some, right)] for some in draws)
    return [[_add_squares_of_rows(x) for x in some] for some in (right, *apart)]


def _add_squares_of_rows(block: np.ndarray) -> list[float]:
    squares, whole = np.square(block), block.size // ROW * ROW
    found: list[float] = squares[:whole].reshape(-1, ROW).sum(1).tolist()
    return [*found, float(squares[whole:].sum())] if whole < block.size else found


def _join_floors(found: Sequence[Sequence[Any]], count: int, times: float = 1.0) -> list[list[float]]:
    """Of each parameter how far rounding moves each of ``count`` results, with their own rounding, so many times that of
    storing them. found: of each parameter, of its blocks `_add_squares_of_draws`."""

    def join(blocks: Sequence[Any]) -> list[float]:
        sums = np.zeros((1 + DRAWS, count))
        for block in blocks:  # row after row, however they were cut into blocks
            for row in np.moveaxis(np.array(block), -1, 0):
                sums += row
        floors: list[float] = (np.sqrt(sums[1:]).max(0) + times * HALF * EPS[STORED] * np.sqrt(sums[0])).tolist()
        return floors

    with np.errstate(all="ignore"):
        return list(map(join, found))


def _move_phase_input(x: np.ndarray, draw: int, place: int, begin: int = 0) -> np.ndarray:
    return noise.perturb_by_noise(x, HALF * EPS[STORED], draw, place, begin)


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
