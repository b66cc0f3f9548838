"""The steps of a training run that are looked at: what each begins with, what is right in it, and its floor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks.arrays.pack import make_spooled_array, release_spooled_arrays
from tasks.model import EPS
from tasks.training.exact import HALF, STORED, STORINGS, ExactTraining, SeenModules, list_step_outputs
from tasks.training.phases import ALONE, ALONG, BUFFERS, LOSS, PROBE, SHARES, TAPS
from tasks.training.state import join_state_vector

#: Steps that are looked at, of LAST + 1: the first ones, where bias correction and warm-up are, then fewer.
STEPS = (0, 1, 2, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21)
#: Standard errors that the mean slope of a gradient, of a buffer or of the loss may be off by.
SLOPE_LIMIT = 8.0
#: Draws of a floor.
DRAWS = 3

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class ExpectedStep:
    """One output of all steps that are looked at. reference: float64, a row a step, None of what is judged alone;
    floor: of each step the norm of what rounding makes of it, of the gradients of micro-batches of each by itself;
    slope: of a phase of ALONG, how far a draw changes ⟨x, reference⟩ / ⟨reference, reference⟩ (root mean square of all
    draws and steps); of_norm: of the probe, `tasks.model.Leaf`."""

    phase: str
    name: str
    shape: tuple[int, ...]
    reference: np.ndarray | None = None
    floor: np.ndarray | None = None
    slope: float | None = None
    of_norm: np.ndarray | None = None


@dataclass(frozen=True)
class Trajectory:
    """inputs: by name an array with a row a step, as `TrainingLoop.step` takes a row; outputs: in their order."""

    inputs: dict[str, np.ndarray]
    outputs: list[ExpectedStep]


def follow_trajectory(
    exact: ExactTraining, seed: int, steps: tuple[int, ...] = STEPS, draws: int = DRAWS
) -> Trajectory:
    """Train in float64, each step that is looked at beginning with a state as float32 holds it. Raises what
    `Exact.step` does.

    Of a large network each step is put where its pack is written (`tasks.arrays.pack.make_spooled_array`) when it has
    been taken. Its draws follow one after the other: a network may hold state that all its copies share."""
    rng = np.random.default_rng([7, seed])
    rows = {number: row for row, number in enumerate(sorted(set(steps)))}
    given = [_draw_batch(exact, rng) for _ in range(max(steps) + 1)]
    inputs = _lay_out_inputs(exact, [(number, *given[number]) for number in rows])
    state, looked = exact.start, _LookedAt(len(rows))
    for number, (batch, probe) in enumerate(given):
        if (row := rows.get(number)) is None:
            state = exact.step(state, number, batch, probe, looked_at=False).state
            continue
        with np.errstate(over="ignore"):  # a run that diverges: the loss says so
            for name, part in vars(state).items():
                inputs[name][row] = join_state_vector(part)
        state = begun = exact.places.read({name: inputs[name][row] for name in vars(state)})
        found = exact.step(state, number, batch, probe, goes_on=number < max(steps))
        looked.put(row, found)
        state = found.state
        del found
        release_spooled_arrays()
        for draw in range(draws):
            looked.widen(row, exact.step(begun, number, batch, probe, draw, goes_on=False))
            release_spooled_arrays()
    return Trajectory(inputs, _expect_training_steps(exact, looked))


def _draw_batch(exact: ExactTraining, rng: np.random.Generator) -> tuple[Arrays, Arrays]:
    """The micro-batches of a step, and its probe."""
    micros = [exact.network.draw(rng) for _ in range(exact.recipe.accumulate)]
    return [np.stack(x) for x in zip(*micros)], exact.network.draw(rng)


def _lay_out_inputs(exact: ExactTraining, steps: Sequence[tuple[int, Arrays, Arrays]]) -> dict[str, np.ndarray]:
    """The inputs of (number, batch, probe) of some steps, with room for the states."""
    sizes = {name: sum(np.size(x) for x in part) for name, part in vars(exact.start).items()}
    found = {"number": np.array([[number] for number, _, _ in steps])}
    found |= {name: make_spooled_array((len(steps), size), STORED) for name, size in sizes.items()}
    for place, kind in enumerate(("batch", "probe"), 1):
        found |= {f"{kind}{k}": np.stack(x) for k, x in enumerate(zip(*(one[place] for one in steps)))}
    return found


class _LookedAt:
    """The steps that are looked at. By phase and output: right: what is right, a row a step; sizes: its norms; apart: how
    far the farthest draw is from it (of micro-batches each by itself); of the phases of ALONG the slopes of all draws;
    of the probe of each step what a norm does to it, 0 where it has none.
    Nothing else is held: a draw of a large network is as large as the step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.taps: list[str] = []
        self.right: dict[str, Arrays] = {}
        self.sizes: dict[str, list[Arrays]] = {}
        self.apart: dict[str, list[Arrays]] = {}
        self.slopes: dict[str, list[list[float]]] = {}
        self.of_norm: list[float] = []

    def put(self, row: int, seen: SeenModules) -> None:
        """Keep what is right at a step."""
        if not row:
            self.taps = seen.taps
            for phase, some in seen.phases.items():
                self.right[phase] = [make_spooled_array((self.steps, *y.shape), y.dtype.name) for y in some]
                self.sizes[phase], self.apart[phase] = [[] for _ in some], [[] for _ in some]
                self.slopes[phase] = [[] for _ in some]
        self.of_norm.append(seen.probe_of_norm or 0.0)
        for phase, some in seen.phases.items():
            for k, y in enumerate(some):
                self.right[phase][k][row] = y
                self.sizes[phase][k].append(_measure_row_norms(y, phase == SHARES))
                self.apart[phase][k].append(np.zeros(np.shape(self.sizes[phase][k][row])))

    def widen(self, row: int, draw: SeenModules) -> None:
        """Keep how far a draw of a step is from what is right. Its arrays are dropped one by one."""
        for phase, some in draw.phases.items():
            some.reverse()
            for k, right in enumerate(self.right[phase]):
                x, y = some.pop(), right[row]
                apart = self.apart[phase][k]
                apart[row] = np.maximum(apart[row], _measure_row_norms(x - y, phase == SHARES))
                if phase in ALONG:
                    self.slopes[phase][k].append(measure_update_slope(x, y))


def _expect_training_steps(exact: ExactTraining, looked: _LookedAt) -> list[ExpectedStep]:
    found, at = [], dict[str, int]()
    shapes = list(exact.places.parameters.values())
    for phase, name in list_step_outputs(exact.recipe, exact.places, looked.taps):
        k = at.get(phase, 0)
        at[phase] = k + 1
        if phase in ALONE:
            found.append(ExpectedStep(phase, name, shapes[k]))
            continue
        reference, apart, sizes = looked.right[phase][k], np.stack(looked.apart[phase][k]), looked.sizes[phase][k]
        times = STORINGS if phase in (LOSS, BUFFERS, PROBE) else 1.0
        # Three draws of one number may all be next to it by chance, so it has the largest floor of all steps. Where a
        # rounding changes a choice, what that does at one step it may do at any; taps, which convict nobody, stay
        # sharp.
        shape = reference.shape[1:]
        jumps = not exact.network.smooth and phase != TAPS
        usual = np.max(apart) if jumps or math.prod(shape) == 1 else np.median(apart)
        apart = np.maximum(apart, usual)
        floor = apart + times * HALF * EPS[STORED] * np.stack(sizes)
        slopes = looked.slopes[phase][k]
        scatter = float(np.sqrt(np.mean(np.square(slopes)))) if slopes else None
        moved = phase == PROBE and any(looked.of_norm)
        of_norm = np.reshape(looked.of_norm, reference.shape) if moved else None
        found.append(ExpectedStep(phase, name, shape, reference, floor, scatter, of_norm))
    return found


def _measure_row_norms(x: np.ndarray, axes: int) -> np.ndarray:
    """Norms over all but the first axes."""
    with np.errstate(over="ignore"):  # a run that diverges: the loss says so
        return np.asarray(np.sqrt(np.square(x.reshape(*x.shape[:axes], -1)).sum(-1)))


def measure_update_slope(x: np.ndarray, reference: np.ndarray) -> float:
    """⟨x, reference⟩ / ⟨reference, reference⟩ − 1: by what share it is too long along the right one; 0 for a reference
    of zeros."""
    size = float(np.square(reference).sum())
    return float((x * reference).sum()) / size - 1 if size else 0.0
