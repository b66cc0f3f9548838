"""How a network is trained, and in float64 what an optimiser makes of its gradients: the formulas of torch's documentation."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

#: The dtype of a run whose linear layers multiply in FP8 (`tasks.training.float8`); autocast computes in the others.
FLOAT8 = "float8_e4m3fn"
#: What a group of parameters may have of its own.
OF_GROUP = ("rate", "decay", "momentum", "betas", "eps", "nesterov")
#: Elements that are computed together.
BLOCK = 1 << 13
#: What `torch.nn.utils.clip_grad_norm_` adds to a norm that it divides by.
CLIP_EPS = 1e-6


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters, by name, that an optimiser treats otherwise than the rest: by what `OF_GROUP` names of a recipe."""

    names: tuple[str, ...]
    recipe: TrainingRecipe


@dataclass(frozen=True)
class TrainingRecipe:
    """How a step changes the weights. Plain data: a pack keeps it as JSON.

    optimiser: "adamw", "adam" or "sgd"; rate: the highest, reached after ``warm_up`` steps and falling as a cosine to a
    tenth at ``steps``; clip: the largest norm of all gradients together, 0 for any; accumulate: micro-batches of a
    step; checkpoint: whether blocks compute their activations again in the backward pass; scale: what float16
    multiplies a loss by before the backward pass; compress: the dtype that ranks exchange gradients in, "" for their
    own; way: of torch's optimiser, "foreach", "fused" or "" for one tensor at a time; groups: parameters that have rates,
    decays … of their own; nesterov: whether SGD steps by the momentum that the next step would have.
    """

    optimiser: str = "adamw"
    rate: float = 3e-3
    decay: float = 0.1
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float = 0.0
    accumulate: int = 1
    warm_up: int = 0
    steps: int = 0
    checkpoint: bool = False
    scale: float = 1024.0
    compress: str = ""
    way: str = ""
    groups: tuple[ParameterGroup, ...] = ()
    nesterov: bool = False

    @property
    def has_second(self) -> bool:
        """Whether the optimiser keeps second moments."""
        return self.optimiser != "sgd"

    @property
    def has_first(self) -> bool:
        """Whether it keeps first ones: torch's SGD without momentum keeps nothing."""
        return self.has_second or bool(self.momentum)

    def values(self) -> dict[str, Any]:
        """As `read` takes it: plain data."""
        groups = [{"names": x.names} | {key: getattr(x.recipe, key) for key in OF_GROUP} for x in self.groups]
        values = asdict(replace(self, groups=())) | {"betas": list(self.betas), "groups": groups}
        return {name: value for name, value in values.items() if value or name not in ("groups", "nesterov")}

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> TrainingRecipe:
        groups = (
            ParameterGroup(tuple(one["names"]), cls.read({key: one[key] for key in OF_GROUP}))
            for one in values.get("groups", ())
        )
        return cls(**{**values, "betas": tuple(values["betas"]), "groups": tuple(groups)})

    def of_parameter(self, name: str) -> TrainingRecipe:
        """The recipe by which one parameter is stepped, without groups."""
        return self._of_names.get(name, self._of_names[""])

    @functools.cached_property
    def _of_names(self) -> dict[str, TrainingRecipe]:
        """The recipe of each parameter of a group, by its name; "": of all others."""
        found = {"": replace(self, groups=())}
        for group in reversed(self.groups):  # the first that names a parameter has it
            own = replace(found[""], **{key: getattr(group.recipe, key) for key in OF_GROUP})
            found |= dict.fromkeys(group.names, own)
        return found

    def rate_at(self, number: int) -> float:
        """The learning rate of a step, from 0."""
        if number < self.warm_up:
            return self.rate * (number + 1) / self.warm_up
        if not self.steps:
            return self.rate
        share = min(1.0, (number - self.warm_up) / max(1, self.steps - self.warm_up))
        return self.rate * (0.55 + 0.45 * math.cos(math.pi * share))

    def clip_factor(self, norm: float) -> float:
        """By what gradients of this norm are multiplied."""
        return min(1.0, self.clip / (norm + CLIP_EPS)) if self.clip else 1.0

    def advance(
        self,
        number: int,
        weight: np.ndarray,
        first: np.ndarray,
        second: np.ndarray,
        gradient: np.ndarray,
        factor: float = 1.0,
        with_moments: bool = True,
    ) -> list[np.ndarray]:
        """First moment, second moment and weight after a step, or the weight alone; float64, each shaped as the weight.
        SGD has no second moment and returns zeros. number: of the step, from 0; factor: of the gradient, by its
        clipping."""

        def advance_clipped(
            weight: np.ndarray, first: np.ndarray, second: np.ndarray, gradient: np.ndarray
        ) -> Sequence[np.ndarray]:
            clipped = gradient * factor if factor != 1.0 else gradient
            made = self.advance_block(number, weight, first, second, clipped)
            return made if with_moments else made[2:]

        return _map_blocks(advance_clipped, 3 if with_moments else 1, weight, first, second, gradient)

    def advance_moments(
        self, weight: np.ndarray, first: np.ndarray, second: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(first moment, second moment) after a step, of float64; all at once."""
        if self.optimiser != "adamw":
            gradient = gradient + self.decay * weight
        if self.optimiser == "sgd":
            first = self.momentum * first + gradient
            return first, np.zeros_like(first)
        one, two = self.betas
        first, second, square = one * first, two * second, (1 - two) * gradient
        first += (1 - one) * gradient
        square *= gradient
        second += square
        return first, second

    def advance_block(
        self, number: int, weight: np.ndarray, first: np.ndarray, second: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """As `advance`, of float64; all at once."""
        rate = self.rate_at(number)
        first, second = self.advance_moments(weight, first, second, gradient)
        if self.optimiser == "sgd":
            step = gradient + self.decay * weight + self.momentum * first if self.nesterov else first
            return first, second, weight - rate * step
        if self.optimiser == "adamw":
            weight = weight * (1 - rate * self.decay)
        one, two = self.betas
        # In few arrays, which the processor's cache holds.
        root, step = second / (1 - two ** (number + 1)), rate / (1 - one ** (number + 1)) * first
        np.sqrt(root, out=root)
        root += self.eps
        step /= root
        return first, second, np.subtract(weight, step, out=step)


def _map_blocks(function: Callable[..., Sequence[np.ndarray]], count: int, *given: np.ndarray) -> list[np.ndarray]:
    """``count`` results, each shaped as what is given, of a function of each element: a block at a time, which the
    processor's cache holds with all that the function makes on its way."""
    if given[0].ndim == 1 and given[0].size <= BLOCK:
        return list(function(*(x.astype(np.float64, copy=False) for x in given)))
    made = [np.empty(given[0].shape) for _ in range(count)]
    flat, into = [x.reshape(-1) for x in given], [x.reshape(-1) for x in made]
    for at in range(0, given[0].size, BLOCK):
        block = (x[at : at + BLOCK].astype(np.float64, copy=False) for x in flat)
        for out, part in zip(into, function(*block)):
            out[at : at + BLOCK] = part
    return made
