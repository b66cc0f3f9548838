"""Training steps of the architectures: their targets and losses, float64 references of every gradient, noise floors."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays import autograd, noise
from tasks.arrays.training import Optimiser, TrainingStep
from tasks.arrays.tree import TensorSpec
from tasks.arrays.widened import widened
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.models import architectures
from tasks.model import EPS, Group, Leaf, OpClass, Oracle

#: The checks whose samples are made here.
CHECKS = ("backward", "amp")
#: Weights and gradients are float32, also where autocast computes in less.
STORED = "float32"
#: Of a loss that float16 holds the gradients of: GradScaler begins with 2¹⁶ and halves it while anything overflows.
SCALES = {"float16": 1024.0}
#: Convolutional networks are trained by SGD, transformers by AdamW; the rates are usual ones.
OPTIMISERS = {
    "classes": Optimiser("sgd", 0.1, 1e-4),
    "pixels": Optimiser("sgd", 0.1, 1e-4),
    "tokens": Optimiser("adamw", 3e-4, 0.1),
    "features": Optimiser("adamw", 1e-4, 0.01),
}
#: Draws of a step's floor, as many times those asked for: one number, the loss, has no neighbours in its row.
TIMES = 4
#: How many times ε a draw moves in float32. A gradient jumps where a ReLU, a maximum or a router changes its mind, and one
#: that lies as near as rounding reaches must be met by some draw; in 16 bits so many do that every draw meets them.
REACH = 4.0
#: Step of the finite differences: 32 times shorter than that of one op, since 10⁵ rectified activations have as many kinks.
STEP = 2.0**-22

#: The size of a step: gradients of a hundred million parameters and their floors would be gigabytes.
SIZE = "small"
#: Dtypes that autocast computes in.
AUTOCAST = ("bfloat16", "float16")

Arrays = list[np.ndarray]


def has_steps(name: str, variant: str) -> bool:
    """Whether a network of the catalog is trained in steps: an architecture, in the size for it."""
    return name in architectures.ARCHITECTURES and variant == SIZE


def step(group: Group) -> TrainingStep:
    """The training step of a group: an architecture, in the size that its variant names.

    In the check "amp" the group's dtype is what autocast computes in.
    """
    one = architectures.ARCHITECTURES[group.op_name]
    module = architectures.build(group.op_name, group.variant)
    autocast = group.dtype if group.check == "amp" else ""
    return TrainingStep(
        module, _LOSSES[one.loss], len(one.inputs), OPTIMISERS[one.loss], autocast, SCALES.get(autocast, 1.0)
    )


def samples(group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
    """Samples of the checks of CHECKS: of other inputs and targets each. Raises ValueError for a network without steps."""
    if not has_steps(group.op_name, group.variant):
        raise ValueError(f"models: {group.label} has no training step; architectures have, as variant {SIZE!r}")
    return (Sample(i) if i in skip else _sample(group, i, draws) for i in range(group.samples))


def _sample(group: Group, index: int, draws: int) -> Sample:
    made = Sample(index, op_class=OpClass.MODEL, oracle="torch-float64")
    try:
        taken = step(group)
        given = architectures.example(group.op_name, group.variant, group.seed + index)
        made.arrays = [*given.values(), *_targets(group, taken, given, index)]
        made.args = tuple(TensorSpec(id=i) for i in range(len(made.arrays)))
        _fill(made, taken, EPS[group.dtype], TIMES * draws)
    except Exception as error:
        made.failure = Failure.of(error, "reference")
    return made


def _targets(group: Group, taken: TrainingStep, given: dict[str, np.ndarray], index: int) -> Arrays:
    """What the loss compares the outputs with: class numbers, or features of N(0, 1)."""
    import torch

    rng = np.random.default_rng([zlib.crc32(f"{group.label}/targets".encode()), group.seed, index])
    with torch.no_grad():
        outputs = taken.module(*map(torch.from_numpy, given.values()))
    loss = architectures.ARCHITECTURES[group.op_name].loss
    if loss == "features":
        return [rng.standard_normal(y.shape).astype(np.float32) for y in outputs]
    shape = list(outputs[0].shape)
    classes = shape.pop(-1 if loss == "tokens" else 1)
    return [rng.integers(0, classes, shape)]


def _classes(outputs: Sequence[Any], targets: Sequence[Any]) -> Any:
    import torch

    return torch.nn.functional.cross_entropy(outputs[0], targets[0])


def _tokens(outputs: Sequence[Any], targets: Sequence[Any]) -> Any:
    return _classes([outputs[0].flatten(0, 1)], [targets[0].flatten()])


def _features(outputs: Sequence[Any], targets: Sequence[Any]) -> Any:
    import torch

    return sum(torch.nn.functional.mse_loss(y, target) for y, target in zip(outputs, targets))


_LOSSES: dict[str, Callable[..., Any]] = {
    "classes": _classes,
    "pixels": _classes,
    "tokens": _tokens,
    "features": _features,
}


def _fill(made: Sample, taken: TrainingStep, eps: float, draws: int) -> None:
    """Give ``made`` the loss and the gradients that are right, how far rounding by ``eps`` moves them, and a second oracle:
    finite differences of the loss."""
    exact, weights = _exact(made, taken)
    references = _evaluate(taken, weights, exact)
    floors = [np.zeros(y.shape) for y in references]
    for draw in range(draws):
        for floor, y, moved in zip(floors, references, _moved(taken, weights, exact, eps, draw)):
            np.maximum(floor, noise.distance(moved, y), out=floor)
    # A floor is kept as of the dtype that results are stored in: the judge multiplies it by what is coarser than that.
    share = EPS[STORED] / eps
    made.names = tuple(taken.names)
    made.expected = [Leaf(STORED, y.shape, y, floor * share) for y, floor in zip(references, floors)]
    made.others = [second] if (second := _second(taken, weights, exact, references)) else []


def _exact(made: Sample, taken: TrainingStep) -> tuple[Arrays, Arrays]:
    """(arguments, parameters) of a step in float64; its module computes in float64 from here on."""
    weights = [taken.start(name).numpy().astype(np.float64) for name in taken.named]
    taken.module.double()
    return [x.astype(np.float64) if x.dtype == np.float32 else x for x in made.arrays], weights


def _moved(taken: TrainingStep, weights: Arrays, exact: Arrays, eps: float, draw: int) -> Arrays:
    """What `_evaluate` returns as a draw moves it. Autocast rounds what goes into products, images and matrices, and what
    comes out of them; the rest is float32."""
    coarse = eps > EPS[STORED]
    eps *= 1 if coarse else REACH
    places = iter(range(1, 1 << 30))

    def moved(x: np.ndarray) -> np.ndarray:
        own = EPS[STORED] if coarse and x.ndim < 2 else eps
        return noise.moved(x, own, draw, next(places)) if x.dtype == np.float64 else x

    elsewhere = EPS[STORED] if coarse else None
    return _evaluate(taken, [moved(w) for w in weights], [moved(x) for x in exact], (eps, draw, elsewhere))


def _evaluate(taken: TrainingStep, weights: Arrays, arrays: Arrays, rounding: tuple[Any, ...] = ()) -> Arrays:
    """[loss, a gradient per parameter] in float64; rounding: arguments of `widened`. Raises ValueError for a parameter that the loss does not depend on."""
    import torch

    parameters = list(taken.named.values())
    with torch.no_grad():
        for p, w in zip(parameters, weights):
            p.copy_(torch.from_numpy(w))
    with widened(*rounding), torch.enable_grad():
        loss = taken(*map(torch.from_numpy, arrays))
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
    if unused := [name for name, g in zip(taken.named, found) if g is None]:
        raise ValueError(f"the loss does not depend on {', '.join(unused)}")
    return [x.detach().numpy().copy() for x in (loss, *found)]


def _second(taken: TrainingStep, weights: Arrays, exact: Arrays, references: Arrays) -> Oracle | None:
    """Finite differences of the loss along random directions through all parameters, as an oracle of every output."""
    import torch

    def loss(values: Sequence[np.ndarray]) -> Arrays:
        with torch.no_grad(), widened():
            for p, w in zip(taken.named.values(), values):
                p.copy_(torch.from_numpy(np.ascontiguousarray(w)))
            return [taken(*map(torch.from_numpy, exact)).numpy().copy()]

    found, _ = autograd.second_oracle(autograd.Problem(loss, weights, [np.ones(())]), references[1:], STEP)
    return None if found is None else Oracle(found.name, [references[0], *found.references])
