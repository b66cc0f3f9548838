"""The steps of a training run that are looked at: what each begins with, what is right in it, and its floor."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tasks.model import EPS
from tasks.training.exact import HALF, STORED, STORINGS, ExactTraining, SeenModules, list_step_outputs
from tasks.training.phases import ALONE, ALONG, BUFFERS, LOSS, PROBE, SHARES, TAPS

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
    draws and steps)."""

    phase: str
    name: str
    shape: tuple[int, ...]
    reference: np.ndarray | None = None
    floor: np.ndarray | None = None
    slope: float | None = None


@dataclass(frozen=True)
class Trajectory:
    """inputs: by name an array with a row a step, as `TrainingLoop.step` takes a row; outputs: in their order."""

    inputs: dict[str, np.ndarray]
    outputs: list[ExpectedStep]


def follow_trajectory(
    exact: ExactTraining, seed: int, steps: tuple[int, ...] = STEPS, draws: int = DRAWS
) -> Trajectory:
    """Train in float64, each step that is looked at beginning with a state as float32 holds it. Raises what
    `Exact.step` does."""
    rng = np.random.default_rng([7, seed])
    network, recipe = exact.network, exact.recipe
    state, inputs, looked = exact.start, list[dict[str, np.ndarray]](), list[_LookedAt]()
    for number in range(max(steps) + 1):
        micros = [network.draw(rng) for _ in range(recipe.accumulate)]
        batch = [np.stack(x) for x in zip(*micros)]
        probe = network.draw(rng)
        if number in steps:
            state = state.rounded()
        found = exact.step(state, number, batch, probe)
        if number in steps:
            own = {"number": np.array([number])} | state.vectors()
            own |= {f"batch{k}": x for k, x in enumerate(batch)} | {f"probe{k}": x for k, x in enumerate(probe)}
            inputs.append(own)
            moved = (exact.step(state, number, batch, probe, draw, goes_on=False) for draw in range(draws))
            looked.append(_LookedAt.of(found, moved))
        state = found.state
    stacked = {name: np.stack([one.pop(name) for one in inputs]) for name in list(inputs[0])}
    return Trajectory(stacked, _expect_training_steps(exact, looked))


@dataclass(frozen=True)
class _LookedAt:
    """A step: its taps' names, and by phase, an entry an output, what is right, how far the farthest draw is from it
    (of micro-batches each by itself), and of the phases of ALONG the slope of each draw. Of a large network nothing
    else is held: a draw is as large as the step."""

    taps: list[str]
    right: dict[str, Arrays]
    apart: dict[str, Arrays]
    slopes: dict[str, list[list[float]]]

    @classmethod
    def of(cls, seen: SeenModules, draws: Iterable[SeenModules]) -> _LookedAt:
        right = {phase: some for phase, some in seen.phases.items() if phase not in ALONE}
        apart = {phase: [np.zeros(y.shape[: phase == SHARES]) for y in some] for phase, some in right.items()}
        slopes: dict[str, list[list[float]]] = {phase: [[] for _ in right[phase]] for phase in ALONG}
        for draw in draws:
            for phase, some in right.items():
                for k, (x, y) in enumerate(zip(draw.phases[phase], some)):
                    apart[phase][k] = np.maximum(apart[phase][k], _measure_row_norms(x - y, apart[phase][k].ndim))
                    if phase in ALONG:
                        slopes[phase][k].append(measure_update_slope(x, y))
        return cls(seen.taps, right, apart, slopes)


def _expect_training_steps(exact: ExactTraining, looked: list[_LookedAt]) -> list[ExpectedStep]:
    found, at = [], dict[str, int]()
    shapes = list(exact.places.parameters.values())
    for phase, name in list_step_outputs(exact.recipe, exact.places, looked[0].taps):
        k = at.get(phase, 0)
        at[phase] = k + 1
        if phase in ALONE:
            found.append(ExpectedStep(phase, name, shapes[k]))
            continue
        reference = np.stack([one.right[phase].pop(0) for one in looked])  # a large network is not held twice
        apart = np.stack([one.apart[phase][k] for one in looked])
        sizes = _measure_row_norms(reference, apart.ndim)
        times = STORINGS if phase in (LOSS, BUFFERS, PROBE) else 1.0
        # Three draws of one number may all be next to it by chance, so it has the largest floor of all steps. Where a
        # rounding changes a choice, what that does at one step it may do at any; taps, which convict nobody, stay
        # sharp.
        shape = reference.shape[1:]
        jumps = not exact.network.smooth and phase != TAPS
        usual = np.max(apart) if jumps or math.prod(shape) == 1 else np.median(apart)
        apart = np.maximum(apart, usual)
        floor = apart + times * HALF * EPS[STORED] * sizes
        slopes = [x for one in looked for x in one.slopes[phase][k]] if phase in ALONG else []
        scatter = float(np.sqrt(np.mean(np.square(slopes)))) if slopes else None
        found.append(ExpectedStep(phase, name, shape, reference, floor, scatter))
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
