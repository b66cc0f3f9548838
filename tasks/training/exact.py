"""Training steps in float64: what is right at each, how rounding moves it, and the state that the next begins with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks import heap
from tasks.arrays import noise
from tasks.arrays.blocks import add_squares
from tasks.arrays.widened import compute_in_float64
from tasks.model import EPS
from tasks.training.networks.base import Network
from tasks.training.phases import BUFFERS, CLIPPED, FIRST, LOSS, OF_PARAMETERS, PROBE, RAW, SECOND, SHARES, TAPS
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

#: Elements of one parameter from which float32 may be off by more than a floor as it adds up their squares.
MANY = 1 << 16
#: By what share clipped gradients are made longer, to see what that does to the probe.
LONGER = 2.0**-12

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class SeenModules:
    """What a step gives, by phase: of OF_PARAMETERS an array per parameter, of the others as they come; nothing of what
    is judged alone. taps: the names of those. state: after the step, where it goes on, else the one that it began
    with. probe_of_norm: how far the probe moves for each share by which clipped gradients are too long, of an exact step
    of a large network."""

    phases: dict[str, Arrays]
    taps: list[str]
    state: TrainingState
    probe_of_norm: float | None = None


class ExactTraining:
    """A network and its recipe in float64. precision: what autocast computes in, FLOAT8, or "" for float32."""

    def __init__(self, network: Network, recipe: TrainingRecipe, precision: str = "") -> None:
        self.network, self.recipe, self.precision = network, recipe, precision
        self.module = network.build().train()
        self.places = StatePlaces.of(self.module)
        self._check_settable()
        narrow = precision not in ("", FLOAT8)
        self._half = HALF * EPS[precision if narrow else STORED]
        self._elsewhere = HALF * EPS[STORED] if narrow else None
        if precision == FLOAT8:
            self._half *= IN_FLOAT8
        weights, buffers = ([x.detach().numpy().copy() for x in some()] for some in (self._parameters, self._buffers))
        nothing = [np.zeros(w.shape) for w in weights]
        self.start = TrainingState(weights, nothing, nothing, buffers)
        self.module.double()
        self._float8: Any = None
        if self.precision == FLOAT8:
            from tasks.training.float8 import MovedFloat8, convert_layers_to_float8

            self._float8 = MovedFloat8()
            convert_layers_to_float8(self.module, self._float8)

    def _parameters(self) -> list[Any]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def _buffers(self) -> list[Any]:
        return [b for b in self.module.buffers() if b.is_floating_point()]

    def use_huge_pages(self) -> None:
        """Have the weights lie in huge pages."""
        for x in self._list_contiguous_weights():
            heap.use_huge_pages(x)

    def drop_weights(self) -> None:
        """Let go of the weights' values, where they are: each step begins with its own."""
        for x in self._list_contiguous_weights():
            heap.drop_values(x)

    def _list_contiguous_weights(self) -> list[np.ndarray]:
        found = (p.detach().numpy() for p in self._parameters())
        return [x for x in found if x.flags.c_contiguous]

    def step(
        self,
        state: TrainingState,
        number: int,
        batch: Arrays,
        probe: Arrays,
        draw: int | None = None,
        goes_on: bool = True,
        looked_at: bool = True,
    ) -> SeenModules:
        """A step from a state. batch: of each tensor of the loss an array, micro-batch by micro-batch; draw: how
        everything that is rounded moves, None for not at all: weights at use, results forward and backward, stored
        gradients, moments and weights; goes_on: whether another step begins with the state after this one, else nobody
        moves the moments in it, or keeps it; looked_at: whether the probe is evaluated.

        Of a large network no more is held than is returned: the weights that are used lie in the module alone."""
        places = itertools.count(1)
        self._load(state.weights, draw, places)
        taps: dict[str, Any] = {}
        loss, buffers, shares = self._gradients(state.buffers, batch, draw, places, taps)
        several = self.recipe.accumulate > 1
        phases: dict[str, Arrays] = {TAPS: list(taps.values()), LOSS: [loss], BUFFERS: buffers}
        if several:
            phases[SHARES] = list(shares)
        shares.reverse()
        phases[RAW] = [self._reduce(shares.pop(), draw, places) for _ in range(len(shares))]
        factor = measure_clip_factor(self.recipe, phases[RAW])
        first, second, weights = self._advance(state, number, phases[RAW], factor, draw, places, goes_on)
        after = TrainingState(weights, first, second, buffers) if goes_on else state
        of_norm: float | None = None
        if looked_at:
            self._move_weights(draw, places)
            given = [x[None] for x in probe]
            phases[PROBE] = [self._evaluate(buffers, given, draw, places)]
            if draw is None and factor < 1.0 and max(x.size for x in phases[RAW]) >= MANY:
                self._advance(state, number, phases[RAW], factor * (1.0 + LONGER), None, places, False)
                longer = self._evaluate(buffers, given, None, places)
                of_norm = float(longer - phases[PROBE][0]) / LONGER
        return SeenModules(phases, list(taps), after, of_norm)

    def _advance(
        self,
        state: TrainingState,
        number: int,
        raw: Arrays,
        factor: float,
        draw: int | None,
        places: Any,
        goes_on: bool,
    ) -> tuple[Arrays, Arrays, Arrays]:
        """(first moments, second moments, weights) after the step, nothing where it does not go on; the module has the
        weights. factor: by what clipping multiplies gradients."""
        parts = zip(self._parameters(), self.places.parameters, state.weights, state.first, state.second, raw)
        after: tuple[Arrays, Arrays, Arrays] = ([], [], [])
        begin, count = next(places) if draw is not None else 0, len(raw)
        for k, (p, name, weight, one, two, gradient) in enumerate(parts):
            own = self.recipe.of_parameter(name)
            made = own.advance(number, weight, one, two, gradient, factor, with_moments=goes_on)
            if draw is not None:
                for place, x in enumerate(reversed(made)):
                    self._store(x, draw, begin + (2 - place) * count + k)
            _put_values(p, made[-1])
            for kept, x in zip(after, made if goes_on else ()):
                kept.append(x)
        if draw is not None:
            next(itertools.islice(places, 3 * count - 2, None))  # what comes behind keeps its places
        return after

    def _gradients(
        self, buffers: Arrays, batch: Arrays, draw: int | None, places: Any, taps: dict[str, Any]
    ) -> tuple[np.ndarray, Arrays, Arrays]:
        """(loss, buffers after it, gradients with a row a micro-batch). Raises ValueError for a parameter that the loss
        does not depend on, FloatingPointError for a loss that is not finite."""
        import torch

        parameters = self._parameters()
        self._set_buffers(buffers)
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
            # Of several, copies, one at a time: a gradient may be a parameter, a buffer or what its function computes in,
            # which the next forward or backward writes to. A single one is copied as it is reduced.
            rows = (gradients.pop(0).numpy() for _ in parameters)
            found.append([x.copy() for x in rows] if count > 1 else list(rows))
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

    def _evaluate(self, buffers: Arrays, batch: Arrays, draw: int | None, places: Any) -> np.ndarray:
        import torch

        self._set_buffers(buffers)
        given = [self._tensor(x[0], draw, places) for x in batch]
        with self._rounding(draw, places), torch.no_grad():
            return np.asarray(self.network.loss(self.module, *given).numpy()).copy()

    def _rounding(self, draw: int | None, places: Any) -> Any:
        if self._float8 is not None:
            self._float8.draw, self._float8.places = draw, places
        if draw is None:
            return compute_in_float64()
        return compute_in_float64(self._half, draw, self._elsewhere, places)

    def _load(self, weights: Sequence[np.ndarray], draw: int | None, places: Any) -> None:
        """Put weights into the module, as they are where they are used."""
        for p, value in zip(self._parameters(), weights):
            if draw is None:
                _put_values(p, value)
            else:
                self._move_weight(p, draw, next(places), value)

    def _move_weights(self, draw: int | None, places: Any) -> None:
        """Move the module's weights as they are where they are used."""
        if draw is not None:
            for p in self._parameters():
                self._move_weight(p, draw, next(places))

    def _move_weight(self, p: Any, draw: int, place: int, value: np.ndarray | None = None) -> None:
        """Move a weight, or put a value there that is moved: autocast rounds those of products."""
        eps = self._elsewhere if self._elsewhere is not None and p.ndim < 2 else self._half
        noise.perturb_in_place(p.detach().numpy(), eps, draw, place, value)

    def _set_buffers(self, buffers: Sequence[np.ndarray]) -> None:
        for b, value in zip(self._buffers(), buffers):
            _put_values(b, value)

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

    def _reduce(self, share: np.ndarray, draw: int | None, places: Any) -> np.ndarray:
        """The mean over the micro-batches, in memory of its own. What ranks exchange in a narrower dtype is rounded
        before it is added up, where it may be larger than the sum."""
        if len(share) == 1 and not self.recipe.compress:
            only = share.reshape(share.shape[1:])
            return only.copy() if draw is None else noise.perturb_by_noise(only, HALF * EPS[STORED], draw, next(places))
        if draw is None:
            return np.asarray(share.mean(0))
        if narrow := self.recipe.compress:
            share = noise.perturb_by_noise(share, HALF * EPS[narrow], draw, next(places))
        return self._store(np.asarray(share.mean(0)), draw, next(places))

    @staticmethod
    def _store(x: np.ndarray, draw: int, place: int) -> np.ndarray:
        """Move what is stored in float32, in place."""
        noise.perturb_in_place(x, HALF * EPS[STORED], draw, place)
        return x


def _put_values(x: Any, value: np.ndarray) -> None:
    import torch

    with torch.no_grad():
        x.copy_(torch.from_numpy(np.asarray(value, order="C")))


def measure_clip_factor(recipe: TrainingRecipe, gradients: Iterable[np.ndarray]) -> float:
    """By what clipping multiplies gradients."""
    return recipe.clip_factor(math.sqrt(sum(map(add_squares, gradients))))


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
