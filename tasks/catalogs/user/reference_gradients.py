"""Checks of kernels' gradients: the derivative of the reference, its oracle and its noise floor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.user import kernel_samples, of_torch
from tasks.catalogs.user.ops import UserOp
from tasks.gradients import autograd as gradients
from tasks.gradients import differences, floors, oracle
from tasks.model import EPS, Group, Leaf, get_wide_dtype, is_inexact_dtype

#: Most elements of the inputs, where differences may be the one oracle.
MOST = oracle.MOST
AUTOGRAD = "autograd of the reference"

Arrays = Mapping[str, np.ndarray]


def count_elements(op: UserOp, dims: Mapping[str, int]) -> int:
    """How many elements are to be differentiated."""
    return kernel_samples.count_kernel_elements(op, dims, op.gradient)


@dataclass(frozen=True)
class KernelReference:
    """What is differentiated. values: on float64 arrays; own: the function itself; call: it as a function of tensors;
    rounds: the dtypes that the function casts to."""

    op: UserOp
    check: str
    dtype: str
    values: Callable[[Arrays], list[np.ndarray]]
    own: Callable[..., Any]
    call: Callable[..., Any]
    rounds: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        return [name for name in self.op.inputs if name in self.op.gradient]

    @property
    def wrt(self) -> tuple[int, ...]:
        return tuple(i for i, name in enumerate(self.op.inputs) if name in self.op.gradient)

    @property
    def by_torch(self) -> bool:
        return self.op.reference_framework == "torch"

    def derivative(self) -> oracle.Derivative:
        """What the check computes, at points whose inputs are float64 arrays by name."""
        trust = oracle.TORCH_REFERENCE if self.by_torch else oracle.NUMPY_REFERENCE
        raw = None if self.by_torch else lambda point: self._select_outputs(point, self._raw)
        return oracle.Derivative(
            self.check, self.dtype, trust, self._differentiate, self._pose, raw, AUTOGRAD, self.rounds
        )

    def _differentiate(self, check: str, point: oracle.Point, **hooks: Any) -> list[np.ndarray]:
        return of_torch.compute_reference_gradients(
            check, self.call, point.inputs, self.op.kwargs, self.wrt, point.cotangents, **hooks
        )

    def _pose(self, check: str, point: oracle.Point) -> gradients.GradientProblem:
        if check == "double_backward":
            return of_torch.make_reference_problem(
                check, self.call, point.inputs, self.op.kwargs, self.wrt, point.cotangents
            )
        start = [gradients.widen_gradient_array(point.inputs[name]) for name in self.names]
        given = [gradients.widen_gradient_array(c) for c in point.cotangents if c is not None]
        return gradients.GradientProblem(self._select_outputs(point, self.values), start, given)

    def _select_outputs(
        self, point: oracle.Point, call: Callable[[Arrays], Sequence[np.ndarray]]
    ) -> differences.Function:
        def function(values: Sequence[np.ndarray]) -> list[np.ndarray]:
            found = call({**point.inputs, **dict(zip(self.names, values))})
            return [y for y, c in zip(found, point.cotangents) if c is not None]

        return function

    def _raw(self, inputs: Arrays) -> Sequence[np.ndarray]:
        found = self.own(**inputs, **self.op.kwargs)
        return found if isinstance(found, (tuple, list)) else [found]


def fill_gradient_sample(
    made: Sample, reference: KernelReference, arrays: Arrays, outputs: list[Leaf], group: Group, draws: int
) -> None:
    """Make of a forward sample, whose reference gives ``outputs``, one of the gradients of ``op.gradient``, or of their
    gradients.

    The cotangents are fixed random arrays in the dtypes of the outputs and, for "double_backward", of the inputs; the
    noise floor is how far the derivatives move with inputs, cotangents, what the forward pass keeps and what the
    backward pass hands on, and what differences that stand for them may be off by.
    """
    floating = [i for i, leaf in enumerate(outputs) if is_inexact_dtype(leaf.dtype)]
    twice = group.check == "double_backward"
    starts = [(outputs[i].shape, outputs[i].dtype) for i in floating]
    ends = [(arrays[name].shape, arrays[name].dtype.name) for name in reference.names]
    given = gradients.draw_cotangents(starts + ends * twice, f"{group.label}/{group.dtype}/{made.index}")
    base = len(made.arrays)
    places = dict(zip(floating, itertools.count(base)))
    made.cotangents = tuple(places.get(i, -1) for i in range(len(outputs)))
    if twice:
        made.cotangents += tuple(range(base + len(floating), base + len(given)))
    made.wrt = reference.wrt
    made.arrays += given
    made.op_class, made.definition = gradients.class_gradient_of(made.op_class), ""

    def move(change: Callable[[np.ndarray], np.ndarray]) -> oracle.Point:
        inputs = {k: change(x) for k, x in arrays.items()}
        return oracle.Point(inputs, [None if i < 0 else change(made.arrays[i]) for i in made.cotangents])

    def move_by(draw: int) -> oracle.Point:
        places = itertools.count(1)

        def one(x: np.ndarray) -> np.ndarray:
            name = x.dtype.name
            return (
                noise.perturb_by_noise(_widen_reference_input(x), EPS[name], draw, next(places))
                if is_inexact_dtype(name)
                else _widen_reference_input(x)
            )

        return move(one)

    derivative, point = reference.derivative(), move(_widen_reference_input)
    try:
        lack = _explain_not_followed(reference, point.inputs, outputs)
        exact = oracle.choose_oracle(derivative, point, [np.asarray(leaf.reference) for leaf in outputs], lack)
    except oracle.NoDerivative as error:
        made.failure = Failure.vacuous(str(error), "reference")
        return
    floats = [x for x in arrays.values() if is_inexact_dtype(x.dtype.name)]

    def floor(kept: Collection[str], last: bool) -> floors.Floors:
        found = noise.compute_noise_floor(
            exact.values,
            lambda drawn: (exact.again(move_by(draw), draw, kept) for draw in drawn),
            made.op_class,
            draws,
            sum(x.size for x in arrays.values()),
        )
        found = noise.compute_kernel_floor(exact.values, found, floats, group.dtype, 0.0, derivative=True)
        return [e if delta is None else delta + e for delta, e in zip(found, exact.errors)]

    lost = None
    if group.check == "backward" and len(reference.names) == 1 and len(outputs) == 1:
        (name,), (leaf,) = reference.names, outputs
        lost = floors.measure_derivative_loss(
            derivative,
            exact,
            point,
            np.asarray(leaf.reference),
            lambda x: oracle.Point({**point.inputs, name: x}, point.cotangents),
        )
    kept_by_all = reference.op.kept
    found, strict = floors.measure_floors(derivative, floor, lost is not None and not kept_by_all)
    kept = strict or [None] * len(found)
    if lost is not None:
        widest = [np.asarray(found[0]) + lost]
        kept, found = (strict or found, widest) if kept_by_all else (widest, found)
    made.expected = [
        Leaf(dtype, y.shape, y, delta, kept=other)
        for (_, dtype), y, delta, other in zip(ends + starts * twice, exact.values, found, kept)
    ]
    made.others = [exact.other] if exact.other else []
    made.oracle = exact.name
    made.columns |= exact.columns


def _widen_reference_input(x: np.ndarray) -> np.ndarray:
    return x.astype(get_wide_dtype(x.dtype.name))


def _explain_not_followed(reference: KernelReference, inputs: Arrays, outputs: list[Leaf]) -> str:
    """Why autograd is no oracle of a reference; "" where it is one. Raises NoDerivative where there is no other."""
    if reference.op.alone:
        return "what autograd says of a kernel is no witness for it"
    if reference.by_torch:
        return ""
    why = _not_followed(reference, inputs, outputs)
    if why and reference.check == "double_backward":
        text = f"autograd cannot follow the NumPy reference, and so not differentiate it twice: {why}"
        raise oracle.NoDerivative(f"{text}; a function of torch tensors can be (reference_framework: torch)")
    return why


def _not_followed(reference: KernelReference, inputs: Arrays, outputs: list[Leaf]) -> str:
    """Why autograd cannot follow a NumPy reference; "" where it can."""
    try:
        found = of_torch.make_torch_evaluator(reference.call)({**inputs, **reference.op.kwargs}, None, None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for y, leaf in zip(found, outputs):
        right = np.asarray(leaf.reference)
        scale = float(np.abs(right).max(initial=0.0, where=np.isfinite(right)))
        if np.shape(y) != right.shape or not np.allclose(y, right, 1e-6, 1e-6 * scale, equal_nan=True):
            return "torch's NumPy gives other values"
    return ""
