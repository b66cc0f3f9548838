"""Training steps of the architectures: their targets and losses, float64 references of every gradient, noise floors."""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.arrays.training import Optimiser, TrainingStep, reshape_gradient_rows
from tasks.arrays.tree import TensorSpec
from tasks.arrays.widened import compute_in_float64
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.models import architectures
from tasks.gradients import autograd
from tasks.gradients.floors import measure_gradient_draws
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
#: A gradient jumps where a ReLU, a maximum or a router changes its mind. Inputs are tried, ATTEMPTS at most, until NEAR
#: draws of REACH times ε meet no jump: then none is as near as a runtime's rounding reaches. In 16 bits every draw
#: meets many.
ATTEMPTS, NEAR, REACH = 8, 8, 8.0
#: What no gradient changes by, in units of what moves it, where there is no jump; and gradients so much smaller than
#: the largest that they are zeros but for rounding.
SMOOTH, NOTHING = 1000.0, 1e-5
#: How many times ε a draw moves what autocast rounds, where nothing jumps: rounding to nearest is off by half a spacing
#: at most.
HALF = 0.5
#: Step of the finite differences: 32 times shorter than that of one op, since 10⁵ rectified activations have as many
#: kinks.
STEP = 2.0**-22
#: How many times their estimated error they may be off: with so short a step that is roundoff, a millionth of the
#: slope.
SLACK = 16.0

#: The size of a step: gradients of a hundred million parameters and their floors would be gigabytes.
SIZE = "small"
#: Dtypes that autocast computes in.
AUTOCAST = ("bfloat16", "float16")

Arrays = list[np.ndarray]


def has_training_steps(name: str, variant: str) -> bool:
    """Whether a network of the catalog is trained in steps: an architecture, in the size for it."""
    return name in architectures.ARCHITECTURES and variant == SIZE


def make_training_step(group: Group) -> TrainingStep:
    """The training step of a group: an architecture, in the size that its variant names.

    In the check "amp" the group's dtype is what autocast computes in.
    """
    one = architectures.ARCHITECTURES[group.op_name]
    module = architectures.build_architecture(group.op_name, group.variant)
    autocast = group.dtype if group.check == "amp" else ""
    return TrainingStep(
        module,
        _make_training_loss(one.loss),
        len(one.inputs),
        OPTIMISERS[one.loss],
        autocast,
        SCALES.get(autocast, 1.0),
    )


def make_training_samples(group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
    """Samples of the checks of CHECKS: of other inputs and targets each. Raises ValueError for a network without
    steps."""
    if not has_training_steps(group.op_name, group.variant):
        raise ValueError(f"models: {group.label} has no training step; architectures have, as variant {SIZE!r}")
    return (Sample(i) if i in skip else _make_training_sample(group, i, draws) for i in range(group.samples))


def _make_training_sample(group: Group, index: int, draws: int) -> Sample:
    made = Sample(index, op_class=OpClass.MODEL, oracle="torch-float64")
    try:
        taken, kinks = make_training_step(group), architectures.ARCHITECTURES[group.op_name].kinks
        for attempt in range(ATTEMPTS if kinks and not taken.autocast else 1):
            made.arrays = _make_inputs_and_targets(group, taken, index + attempt * 1000)
            exact = _ExactModelStep(taken, made.arrays)
            if smooth := not kinks or (not taken.autocast and not exact.jumps()):
                break
        if taken.autocast:
            floors = exact.floors(TIMES * draws, 1.0 if kinks else HALF, typical=not kinks)
        else:
            floors = exact.floors(TIMES * draws, 1.0 if smooth else REACH)
        made.args = tuple(TensorSpec(id=i) for i in range(len(made.arrays)))
        made.names = tuple(taken.names)
        made.expected = [
            Leaf(STORED, reshape_gradient_rows(y).shape, reshape_gradient_rows(y), reshape_gradient_rows(f))
            for y, f in zip(exact.outputs, floors)
        ]
        made.others = exact.differences()
    except Exception as error:
        made.failure = Failure.of(error, "reference")
    return made


def _make_inputs_and_targets(group: Group, taken: TrainingStep, index: int) -> Arrays:
    """The inputs, and what the loss compares the outputs with: class numbers, or features of N(0, 1)."""
    import torch

    given = list(architectures.draw_architecture_example(group.op_name, group.variant, group.seed + index).values())
    rng = np.random.default_rng([zlib.crc32(f"{group.label}/targets".encode()), group.seed, index])
    with torch.no_grad():
        outputs = taken.module.float()(*map(torch.from_numpy, given))
    loss = architectures.ARCHITECTURES[group.op_name].loss
    if loss == "features":
        return [*given, *(rng.standard_normal(y.shape).astype(np.float32) for y in outputs)]
    shape = list(outputs[0].shape)
    classes = shape.pop(-1 if loss == "tokens" else 1)
    return [*given, rng.integers(0, classes, shape)]


#: What a step minimises, of the network's outputs and its targets, by `architectures.Architecture.loss`: a finding has
#: the same words.
LOSSES = {
    "classes": "torch.nn.functional.cross_entropy(outputs[0], targets[0])",
    "pixels": "torch.nn.functional.cross_entropy(outputs[0], targets[0])",
    "tokens": "torch.nn.functional.cross_entropy(outputs[0].flatten(0, 1), targets[0].flatten())",
    "features": "sum(torch.nn.functional.mse_loss(y, target) for y, target in zip(outputs, targets))",
}


@functools.cache
def _make_training_loss(kind: str) -> Callable[..., Any]:
    import torch

    made: Callable[..., Any] = eval(f"lambda outputs, targets: {LOSSES[kind]}", {"torch": torch})
    return made


class _ExactModelStep:
    """A training step in float64: what is right, how rounding moves it, and what finite differences say."""

    def __init__(self, taken: TrainingStep, arrays: Arrays) -> None:
        """arrays: its inputs and targets. Its module computes in float64 from here on."""
        self.taken, self.eps = taken, EPS[taken.autocast or STORED]
        self.weights = [taken.before(name).numpy().astype(np.float64) for name in taken.named]
        self.arrays = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays]
        taken.module.double()
        self.outputs = self._evaluate(self.weights, self.arrays)

    def _evaluate(self, weights: Arrays, arrays: Arrays, rounding: tuple[Any, ...] = ()) -> Arrays:
        """[loss, a gradient per parameter]; rounding: arguments of `compute_in_float64`. Raises ValueError for a
        parameter that the loss does not depend on."""
        import torch

        parameters = self._set(weights)
        with compute_in_float64(*rounding), torch.enable_grad():
            loss = self.taken(*map(torch.from_numpy, arrays))
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
        if unused := [name for name, g in zip(self.taken.named, found) if g is None]:
            raise ValueError(f"the loss does not depend on {', '.join(unused)}")
        return [x.detach().numpy().copy() for x in (loss, *found)]

    def _set(self, weights: Sequence[np.ndarray]) -> list[Any]:
        import torch

        parameters = list(self.taken.named.values())
        with torch.no_grad():
            for p, w in zip(parameters, weights):
                p.copy_(torch.from_numpy(np.ascontiguousarray(w)))
        return parameters

    def _perturb_outputs(self, draw: int, times: float) -> Arrays:
        """The outputs as a draw moves them by so many ε. Autocast rounds what goes into products, images and matrices,
        and what comes out of them; the rest is float32."""
        places = itertools.count(1)
        elsewhere = EPS[STORED] if self.taken.autocast else None

        def perturb(x: np.ndarray) -> np.ndarray:
            eps = elsewhere if elsewhere and x.ndim < 2 else times * self.eps
            return noise.perturb_by_noise(x, eps, draw, next(places)) if x.dtype == np.float64 else x

        rounding = (times * self.eps, draw, elsewhere, places)
        return self._evaluate([perturb(w) for w in self.weights], [perturb(x) for x in self.arrays], rounding)

    def jumps(self) -> bool:
        """Whether a draw changes a gradient by more than rounding does to a function without kinks."""
        sizes = [float(np.linalg.norm(y)) for y in self.outputs]
        for draw in range(NEAR):
            for y, size, moved in zip(self.outputs, sizes, self._perturb_outputs(draw, REACH)):
                if size > NOTHING * max(sizes) and np.linalg.norm(moved - y) > SMOOTH * REACH * self.eps * size:
                    return True
        return False

    def floors(self, draws: int, times: float, typical: bool = False) -> Arrays:
        """`measure_gradient_draws` in draws of so many ε, as of the dtype that results are stored in: the judge multiplies it
        by what is coarser than that."""
        share = EPS[STORED] / self.eps
        moved = functools.partial(self._perturb_outputs, times=times)
        return [x * share for x in measure_gradient_draws(self.outputs, moved, draws, typical)]

    def differences(self) -> list[Oracle]:
        """Finite differences of the loss along random directions through all parameters, as an oracle of every
        output."""
        import torch

        def loss(values: Sequence[np.ndarray]) -> Arrays:
            self._set(values)
            with torch.no_grad(), compute_in_float64():
                return [self.taken(*map(torch.from_numpy, self.arrays)).numpy().copy()]

        problem = autograd.GradientProblem(loss, self.weights, [np.ones(())])
        found, _ = autograd.compute_second_gradient_oracle(problem, self.outputs[1:], STEP, SLACK)
        return (
            [Oracle(found.name, [reshape_gradient_rows(y) for y in (self.outputs[0], *found.references)])]
            if found
            else []
        )
