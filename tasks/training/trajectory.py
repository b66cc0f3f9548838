"""The steps of a training run that are looked at: what each begins with, what is right in it, and its floor."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import heap
from tasks.arrays.blocks import add_products, add_squares
from tasks.arrays.pack import digest_arrays, make_spooled_array, release_spooled_arrays
from tasks.forks import Forget, Take, Work, fork_beside
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
#: Parameters from which on a network is large: the draws of its steps are done beside. Not decided by the processors of a
#: machine: what a network keeps from call to call, and nobody sees, is the same everywhere then.
LARGE = 1 << 22
#: Bytes for each parameter that a step takes, of its state, gradients and what it makes of them, in float64.
STEP_BYTES = 64
#: Of a row some of whose draws were not made in a process of their own.
NOTE = (
    "draws of the reference were made in the process of its exact steps ({}); if the module keeps state outside its "
    "parameters and buffers, the reference is another one"
)

Arrays = list[np.ndarray]
#: Of an output at a step: its norm, the distance of the farthest draw (both a number, or one of each micro-batch), the
#: slopes of the draws.
Measured = tuple[Any, Any, list[float]]


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
    """inputs: by name an array with a row a step, as `TrainingLoop.step` takes a row; outputs: in their order; note: for
    the row, how its draws came about."""

    inputs: dict[str, np.ndarray]
    outputs: list[ExpectedStep]
    note: str = ""


def follow_trajectory(
    exact: ExactTraining, seed: int, steps: tuple[int, ...] = STEPS, draws: int = DRAWS
) -> Trajectory:
    """Train in float64, each step that is looked at beginning with a state as float32 holds it. Raises what
    `Exact.step` does.

    Of a large network each step is put where its pack is written (`tasks.arrays.pack.make_spooled_array`) when it has
    been taken, and its draws follow in a process of their own, where a network's hidden state is its own too."""
    import torch

    looked, note = _LookedAt(len(set(steps))), ""
    with contextlib.ExitStack() as stack:
        # A module may have asked for more threads: sums would be others, and a fork would wait for threads that it has not.
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        if (size := sum(w.size for w in exact.start.weights)) >= LARGE:
            stack.enter_context(heap.keep_freed_arrays(STEP_BYTES * size))
            exact.use_huge_pages()
            with fork_beside() as forks:
                inputs = _look_at_steps(exact, seed, steps, draws, looked, forks.do)
                digest_arrays(list(inputs.values()))  # while the last draws are made
            note = forks.failure and NOTE.format(forks.failure)
        else:
            inputs = _look_at_steps(exact, seed, steps, draws, looked, _do_here)
    return Trajectory(inputs, _expect_training_steps(exact, looked), note)


def _look_at_steps(
    exact: ExactTraining,
    seed: int,
    steps: tuple[int, ...],
    draws: int,
    looked: _LookedAt,
    do: Callable[[Work, Take, Forget], None],
) -> dict[str, np.ndarray]:
    """The inputs of the steps that are looked at. do: has the draws of a step done, and taken into ``looked``."""
    rng = np.random.default_rng([7, seed])
    rows = {number: row for row, number in enumerate(sorted(set(steps)))}
    given = [_draw_batch(exact, rng) for _ in range(max(steps) + 1)]
    inputs = _lay_out_inputs(exact, [(number, *given[number]) for number in rows])
    state = [exact.start]

    def forget() -> None:
        """Let go, in a process that draws of a step, of what it does not ask for."""
        state.clear()
        exact.drop_weights()

    for number, (batch, probe) in enumerate(given):
        if (row := rows.get(number)) is None:
            state.append(exact.step(state.pop(), number, batch, probe, looked_at=False).state)
            continue
        begun = exact.places.read({name: inputs[name][row] for name in vars(exact.start)})
        with np.errstate(over="ignore"):  # a run that diverges: the loss says so
            for name, part in vars(state.pop()).items():
                join_state_vector(part, inputs[name][row])
        found = exact.step(begun, number, batch, probe, goes_on=number < max(steps))
        looked.put(row, found)
        state.append(found.state)
        del found
        release_spooled_arrays()
        draw = functools.partial(exact.step, begun, number, batch, probe, goes_on=False)
        do(functools.partial(looked.measure, row, draw, draws), functools.partial(looked.take, row), forget)
    return inputs


def _do_here(work: Work, take: Take, _: Forget) -> None:
    take(work())


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
    far the farthest draw is from it (of micro-batches each by itself); slopes: of the phases of ALONG, of all draws; the
    three by row, as they come; of the probe of each step what a norm does to it, 0 where it has none.
    Nothing else is held: a draw of a large network is as large as the step."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.taps: list[str] = []
        self.right: dict[str, Arrays] = {}
        self.sizes: dict[str, list[dict[int, np.ndarray]]] = {}
        self.apart: dict[str, list[dict[int, np.ndarray]]] = {}
        self.slopes: dict[str, list[dict[int, list[float]]]] = {}
        self.of_norm: list[float] = []

    def put(self, row: int, seen: SeenModules) -> None:
        """Keep what is right at a step."""
        if not row:
            self.taps = seen.taps
            for phase, some in seen.phases.items():
                self.right[phase] = [make_spooled_array((self.steps, *y.shape), y.dtype.name) for y in some]
                for kept in (self.sizes, self.apart, self.slopes):
                    kept[phase] = [{} for _ in some]
        self.of_norm.append(seen.probe_of_norm or 0.0)
        for phase, some in seen.phases.items():
            for right, y in zip(self.right[phase], some):
                right[row] = y

    def measure(self, row: int, draw: Callable[..., SeenModules], draws: int) -> dict[str, list[Measured]]:
        """What is kept of a step, by phase and output: the norms of what is right, how far the farthest draw is from it,
        and the slope of each draw; plain data."""
        found, squares = dict[str, list[Measured]](), dict[str, Arrays]()
        for phase, some in self.right.items():
            squares[phase] = [_add_row_squares(right[row], None, phase == SHARES) for right in some]
            found[phase] = [(np.sqrt(x).tolist(), np.zeros(x.shape).tolist(), []) for x in squares[phase]]
        for number in range(draws):
            for phase, moved in draw(draw=number).phases.items():
                moved.reverse()  # dropped one by one
                for k, (size, apart, slopes) in enumerate(found[phase]):
                    x, y = moved.pop(), self.right[phase][k][row]
                    wider = np.maximum(apart, np.sqrt(_add_row_squares(x, y, phase == SHARES)))
                    if phase in ALONG:
                        slopes.append(measure_update_slope(x, y, float(squares[phase][k])))
                    found[phase][k] = size, wider.tolist(), slopes
        release_spooled_arrays()
        return found

    def take(self, row: int, measured: dict[str, list[Measured]]) -> None:
        """Keep what `measure` returns."""
        for phase, some in measured.items():
            for k, (size, apart, slopes) in enumerate(some):
                self.sizes[phase][k][row], self.apart[phase][k][row] = np.asarray(size), np.asarray(apart)
                self.slopes[phase][k][row] = slopes


def _expect_training_steps(exact: ExactTraining, looked: _LookedAt) -> list[ExpectedStep]:
    found, at = [], dict[str, int]()
    shapes = list(exact.places.parameters.values())
    for phase, name in list_step_outputs(exact.recipe, exact.places, looked.taps):
        k = at.get(phase, 0)
        at[phase] = k + 1
        if phase in ALONE:
            found.append(ExpectedStep(phase, name, shapes[k]))
            continue
        reference, rows = looked.right[phase][k], range(looked.steps)
        apart, sizes = (np.stack([kept[phase][k][row] for row in rows]) for kept in (looked.apart, looked.sizes))
        times = STORINGS if phase in (LOSS, BUFFERS, PROBE) else 1.0
        # Three draws of one number may all be next to it by chance, so it has the largest floor of all steps. Where a
        # rounding changes a choice, what that does at one step it may do at any; taps, which convict nobody, stay
        # sharp.
        shape = reference.shape[1:]
        jumps = not exact.network.smooth and phase != TAPS
        usual = np.max(apart) if jumps or math.prod(shape) == 1 else np.median(apart)
        apart = np.maximum(apart, usual)
        floor = apart + times * HALF * EPS[STORED] * sizes
        slopes = [x for row in rows for x in looked.slopes[phase][k][row]]
        scatter = float(np.sqrt(np.mean(np.square(slopes)))) if slopes else None
        moved = phase == PROBE and any(looked.of_norm)
        of_norm = np.reshape(looked.of_norm, reference.shape) if moved else None
        found.append(ExpectedStep(phase, name, shape, reference, floor, scatter, of_norm))
    return found


def _add_row_squares(x: np.ndarray, y: np.ndarray | None, axes: int) -> np.ndarray:
    """Sums of squares over all but the first axes (none or one), of ``x`` or of x − y."""
    if not axes:
        return np.asarray(add_squares(x, y))
    return np.array([add_squares(row, None if y is None else y[k]) for k, row in enumerate(x)])


def measure_update_slope(x: np.ndarray, reference: np.ndarray, square: float) -> float:
    """⟨x, reference⟩ / ⟨reference, reference⟩ − 1: by what share it is too long along the right one; 0 for a reference
    of zeros. square: ⟨reference, reference⟩."""
    return add_products(x, reference) / square - 1 if square else 0.0
