"""Training runs left to themselves: how far rounding alone takes two right ones apart, and for how many steps that says anything."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from tasks.model import EPS
from tasks.training.exact import HALF, STORED, STORINGS, ExactTraining
from tasks.training.state import TrainingState

#: Runs beside the exact one. Draws come in fours, the last two of which move everything against the first two
#: (`tasks.arrays.noise`).
DRAWS = 3
_FOURS = 4
#: By what factor the distance of the weights may grow in a step. Networks without ReLU, maximum or router measured 2 at
#: most after the first steps, a convolution with ReLUs 14 to 71, at a step that nobody can tell beforehand.
JUMP = 10.0


@dataclass(frozen=True)
class LossSpread:
    """Of each step, float64: the loss of the exact run; apart: the largest difference of the losses of two runs;
    weights: the largest distance of a run's weights from the exact ones, over their norm."""

    losses: np.ndarray
    apart: np.ndarray
    weights: np.ndarray

    @property
    def horizon(self) -> int:
        """The first step at which a rounding makes the weights jump: from there on a difference says nothing. The
        number of steps where there is none."""
        grows = self.weights[1:] > JUMP * np.maximum.accumulate(self.weights)[:-1]
        return int(np.argmax(grows)) + 1 if grows.any() else len(self.weights)


def measure_loss_spread(exact: ExactTraining, seed: int, steps: int, draws: int = DRAWS) -> LossSpread:
    """Train some runs in float64 from the same beginning on the same data, one exactly and in the others everything
    that is rounded moved. Raises what `Exact.step` does."""
    rng = np.random.default_rng([7, seed])
    network, recipe = exact.network, exact.recipe
    states = [exact.start.rounded()] * (1 + draws)
    losses, weights = np.zeros((steps, 1 + draws)), np.zeros(steps)
    for number in range(steps):
        micros = [network.draw(rng) for _ in range(recipe.accumulate)]
        batch, probe = [np.stack(x) for x in zip(*micros)], network.draw(rng)
        for k, state in enumerate(states):
            seen = exact.step(state, number, batch, probe, None if k == 0 else _FOURS * number + k - 1)
            losses[number, k], states[k] = float(seen.phases["loss"][0]), seen.state
        weights[number] = max(_measure_state_distance(state, states[0]) for state in states[1:])
    pairs = itertools.combinations(range(1 + draws), 2)
    apart = np.max([np.abs(losses[:, a] - losses[:, b]) for a, b in pairs], axis=0)
    return LossSpread(losses[:, 0], apart + STORINGS * HALF * EPS[STORED] * np.abs(losses[:, 0]), weights)


def _measure_state_distance(state: TrainingState, right: TrainingState) -> float:
    off = sum(float(np.square(a - b).sum()) for a, b in zip(state.weights, right.weights))
    size = sum(float(np.square(b).sum()) for b in right.weights)
    return float(np.sqrt(off / size))
