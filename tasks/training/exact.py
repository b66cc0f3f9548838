"""Training steps in float64: what is right at each, how rounding moves it, and the state that the next begins with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.arrays.widened import compute_in_float64
from tasks.model import EPS
from tasks.training.networks.base import Network
from tasks.training.phases import (
    BUFFERS,
    CLIPPED,
    FIRST,
    LOSS,
    OF_PARAMETERS,
    PROBE,
    RAW,
    SECOND,
    SHARES,
    TAPS,
    WEIGHTS,
)
from tasks.training.recipe import FLOAT8, TrainingRecipe
from tasks.training.state import StatePlaces, TrainingState
from tasks.training.watching import watch_modules

#: Weights, gradients and moments are float32, also where autocast computes in less.
STORED = "float32"
#: A rounding to nearest is off by half a spacing of its dtype at most.
HALF = 0.5
#: Roundings of a stored value that no draw has: of a scalar (a loss), or of a buffer that is written in one go.
STORINGS = 4.0
#: By what a rounding to float32 counts more in a run in FP8, whose limit is so many times below that of float32: a sum
#: is off by more than the rounding of its result.
IN_FLOAT8 = 4.0

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class SeenModules:
    """What a step gives, by phase: of OF_PARAMETERS an array per parameter, of the others as they come. taps: the names
    of those."""

    phases: dict[str, Arrays]
    taps: list[str]
    state: TrainingState


class ExactTraining:
    """A network and its recipe in float64. precision: what autocast computes in, FLOAT8, or "" for float32."""

    def __init__(self, network: Network, recipe: TrainingRecipe, precision: str = "") -> None:
        self.network, self.recipe = network, recipe
        self.module = network.build().train()
        self.places = StatePlaces.of(self.module)
        self._check_settable()
        narrow = precision not in ("", FLOAT8)
        self._half = HALF * EPS[precision if narrow else STORED]
        self._elsewhere = HALF * EPS[STORED] if narrow else None
        if precision == FLOAT8:
            self._half *= IN_FLOAT8
        weights = [p.detach().numpy().astype(np.float64) for p in self._parameters()]
        buffers = [b.numpy().astype(np.float64) for b in self._buffers()]
        nothing = [np.zeros(w.shape) for w in weights]
        self.start = TrainingState(weights, nothing, nothing, buffers)
        self.module.double()
        self._float8: Any = None
        if precision == FLOAT8:
            from tasks.training.float8 import MovedFloat8, convert_layers_to_float8

            self._float8 = MovedFloat8()
            convert_layers_to_float8(self.module, self._float8)

    def _parameters(self) -> list[Any]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def _buffers(self) -> list[Any]:
        return [b for b in self.module.buffers() if b.is_floating_point()]

    def step(
        self,
        state: TrainingState,
        number: int,
        batch: Arrays,
        probe: Arrays,
        draw: int | None = None,
        goes_on: bool = True,
    ) -> SeenModules:
        """A step from a state. batch: of each tensor of the loss an array, micro-batch by micro-batch; draw: how
        everything that is rounded moves, None for not at all: weights at use, results forward and backward, stored
        gradients, moments and weights; goes_on: whether another step begins with the state after this one, else the
        moments in it do not move."""
        places = itertools.count(1)
        weights = state.weights if draw is None else [self._move(w, draw, places) for w in state.weights]
        taps: dict[str, Any] = {}
        loss, buffers, shares = self._gradients(weights, state.buffers, batch, draw, places, taps)
        raw = [self._reduce(share, draw, places) for share in shares]
        after, phases = self._advance(state, number, raw, draw, places, goes_on)
        phases |= {TAPS: list(taps.values()), LOSS: [loss], BUFFERS: buffers, RAW: raw}
        if self.recipe.accumulate > 1:
            phases[SHARES] = shares
        moved = after.weights if draw is None else [self._move(w, draw, places) for w in after.weights]
        phases[PROBE] = [self._evaluate(moved, buffers, [x[None] for x in probe], draw, places)]
        return SeenModules(phases, list(taps), TrainingState(after.weights, after.first, after.second, buffers))

    def _advance(
        self, state: TrainingState, number: int, raw: Arrays, draw: int | None, places: Any, goes_on: bool
    ) -> tuple[TrainingState, dict[str, Arrays]]:
        clipped = clip_training_gradients(self.recipe, raw)
        parts = zip(self.places.parameters, state.weights, state.first, state.second, clipped)
        rows = [self.recipe.of_parameter(name).advance(number, *part) for name, *part in parts]
        first, second, weights = ([row[k] for row in rows] for k in range(3))
        if draw is not None:
            if goes_on:
                first, second = ([self._store(x, draw, places) for x in some] for some in (first, second))
            else:
                next(itertools.islice(places, 2 * len(first) - 1, None))  # what comes behind keeps its places
            weights = [self._store(x, draw, places) for x in weights]
        return TrainingState(weights, first, second, state.buffers), {
            CLIPPED: clipped,
            FIRST: first,
            SECOND: second,
            WEIGHTS: weights,
        }

    def _gradients(
        self, weights: Arrays, buffers: Arrays, batch: Arrays, draw: int | None, places: Any, taps: dict[str, Any]
    ) -> tuple[np.ndarray, Arrays, Arrays]:
        """(loss, buffers after it, gradients with a row a micro-batch). Raises ValueError for a parameter that the loss
        does not depend on, FloatingPointError for a loss that is not finite."""
        import torch

        parameters = self._set(weights, buffers)
        total, found = np.zeros(()), list[Arrays]()
        count = len(batch[0])
        for micro in zip(*batch):
            given = [self._tensor(x, draw, places) for x in micro]
            with self._rounding(draw, places), torch.enable_grad():
                with watch_modules(self.module, taps):
                    loss = self.network.loss(self.module, *given)
                gradients = [*torch.autograd.grad(loss, parameters, allow_unused=True)]
            if unused := [name for name, g in zip(self.places.parameters, gradients) if g is None]:
                raise ValueError(f"the loss does not depend on {', '.join(unused)}")
            total = total + loss.detach().numpy() / count
            # Copies, one at a time: a gradient may be a parameter, a buffer or what its function computes in, which the
            # next forward or backward writes to.
            found.append([gradients.pop(0).numpy().copy() for _ in parameters])
        if not math.isfinite(float(total)):
            raise FloatingPointError(
                f"the loss of the reference is {float(total)}: lower the rate or begin with other weights"
            )
        for name, x in taps.items():
            taps[name] = x if isinstance(x, np.ndarray) else x.numpy().copy()
        return (
            np.asarray(total),
            [b.numpy().copy() for b in self._buffers()],
            [np.stack(rows) if count > 1 else rows[0][None] for rows in zip(*found)],
        )

    def _evaluate(self, weights: Arrays, buffers: Arrays, batch: Arrays, draw: int | None, places: Any) -> np.ndarray:
        import torch

        self._set(weights, buffers)
        given = [self._tensor(x[0], draw, places) for x in batch]
        with self._rounding(draw, places), torch.no_grad():
            return np.asarray(self.network.loss(self.module, *given).numpy()).copy()

    def _rounding(self, draw: int | None, places: Any) -> Any:
        if self._float8 is not None:
            self._float8.draw, self._float8.places = draw, places
        if draw is None:
            return compute_in_float64()
        return compute_in_float64(self._half, draw, self._elsewhere, places)

    def _set(self, weights: Sequence[np.ndarray], buffers: Sequence[np.ndarray]) -> list[Any]:
        import torch

        parameters = self._parameters()
        held = [*zip(parameters, weights), *zip(self._buffers(), buffers)]
        with torch.no_grad():
            for x, value in held:
                x.copy_(torch.from_numpy(np.ascontiguousarray(value)))
        return parameters

    def _check_settable(self) -> None:
        """Raises ValueError where a step cannot begin with a state that it is given: of the module as it is built,
        since a wider copy of a tensor is an ordinary one whatever that is."""
        import torch

        named = zip((*self.places.parameters, *self.places.buffers), (*self._parameters(), *self._buffers()))
        with torch.no_grad():
            for name, x in named:
                try:
                    x.copy_(x.clone())
                except RuntimeError as error:
                    said = str(error).partition("\n")[0]
                    raise ValueError(
                        f"make {name} an ordinary parameter or buffer: its state cannot be set ({said})"
                    ) from None

    def _tensor(self, x: np.ndarray, draw: int | None, places: Any) -> Any:
        """An array of a batch, which is given exactly; what autocast rounds of it is moved where it is used."""
        import torch

        return torch.from_numpy(x.astype(np.float64) if x.dtype.kind == "f" else np.ascontiguousarray(x))

    def _move(self, x: np.ndarray, draw: int, places: Any) -> np.ndarray:
        """A weight where it is used: autocast rounds those of products."""
        eps = self._elsewhere if self._elsewhere is not None and x.ndim < 2 else self._half
        return noise.perturb_by_noise(x, eps, draw, next(places))

    def _reduce(self, share: np.ndarray, draw: int | None, places: Any) -> np.ndarray:
        """The mean over the micro-batches. What ranks exchange in a narrower dtype is rounded before it is added up,
        where it may be larger than the sum."""
        if len(share) == 1 and not self.recipe.compress:
            return share[0] if draw is None else self._store(share[0], draw, places)
        if draw is None:
            return np.asarray(share.mean(0))
        if narrow := self.recipe.compress:
            share = noise.perturb_by_noise(share, HALF * EPS[narrow], draw, next(places))
        return self._store(share.mean(0), draw, places)

    @staticmethod
    def _store(x: np.ndarray, draw: int, places: Any) -> np.ndarray:
        return noise.perturb_by_noise(x, HALF * EPS[STORED], draw, next(places))


def clip_training_gradients(recipe: TrainingRecipe, gradients: Arrays) -> Arrays:
    """The gradients after clipping."""
    factor = recipe.clip_factor(math.sqrt(sum(float((g * g).sum()) for g in gradients)))
    return [g * factor for g in gradients] if factor != 1.0 else list(gradients)


def list_step_outputs(recipe: TrainingRecipe, places: StatePlaces, taps: Sequence[str]) -> list[tuple[str, str]]:
    """(phase, name) of every output of a step, in order."""
    names = {TAPS: list(taps), LOSS: ["the loss"], BUFFERS: list(places.buffers), PROBE: ["the loss of the probe"]}
    has = {
        SHARES: recipe.accumulate > 1,
        CLIPPED: bool(recipe.clip),
        FIRST: recipe.has_first,
        SECOND: recipe.has_second,
    }
    of = [phase for phase in OF_PARAMETERS if has.get(phase, True)]
    order = (TAPS, LOSS, BUFFERS, *of, PROBE)
    return [(phase, name) for phase in order for name in names.get(phase, places.parameters)]
