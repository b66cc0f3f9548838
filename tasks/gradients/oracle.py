"""What a gradient is held against, in every catalog: its float64 oracle, with differences beside it or in its place."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tasks.arrays.noise import perturb_tensor
from tasks.gradients import analytic, autograd, derivatives, differences
from tasks.model import EPS, Oracle, is_complex_dtype

#: Most elements of the inputs that differences are taken of one by one: each costs five to eleven evaluations.
MOST = 1000
#: Differences that are worse than this, relative to the derivative, are taken in more digits where that can be done.
POOR = 1e-9
#: Derivatives further apart than this are two.
APART = 1e-6
#: Why there are no differences of a function that casts.
STEPS = "the reference rounds where it casts, and is constant between its steps"
#: Nodes that the name of an oracle gives at most.
_NAMED = 4

Arrays = list[np.ndarray]


class NoDerivative(Exception):
    """Nothing can be said of a derivative; the text says why."""


@dataclass(frozen=True)
class Trust:
    """How far autograd is believed of a function, and what the kernels of it may round on the way.

    each_below: of fewer real numbers in the inputs than this, differences are taken of every one; of more, slopes along
    a few directions say whether autograd is right. recovers: differences stand in where autograd is not finite and the
    function is. outvoted: they do so too where two ways of differencing agree on another derivative. own_steps: a
    kernel takes steps of its own, and rounds whatever these hand on; the derivatives of torch's own ops are one step.
    """

    each_below: int = 0
    recovers: bool = False
    outvoted: bool = False
    own_steps: bool = False


#: Of an op of torch, autograd's derivative is what the op promises.
TORCH_OP = Trust()
#: So it is of somebody's function of tensors, at a kink as well.
TORCH_REFERENCE = Trust(each_below=autograd.FULL_JACOBIAN, recovers=True, own_steps=True)
#: Its values are all that a function of NumPy arrays says: not what a derivative at a kink is, nor at a tie inside.
NUMPY_REFERENCE = Trust(each_below=MOST + 1, recovers=True, outvoted=True, own_steps=True)


@dataclass(frozen=True)
class Point:
    """Where a derivative is taken: the inputs, in whatever holds them, and a cotangent per output (and per gradient),
    None for what has none. disposable: nobody else has its numbers, which are in float64, and a function may write to
    them."""

    inputs: Any
    cotangents: Sequence[Any]
    disposable: bool = False


@dataclass
class Graph:
    """Of a function's graph, by names of its nodes.

    nodes: all, and whether one has numbers saved: what has none is linear; results: those of the outputs; rules: those
    that have a derivative of `derivatives.RULES`; choice: which elements it chooses by their size; compares: whether it
    looks for equal elements, as a maximum's gradient does: what is equal has then to stay so; shifts: whether its
    maxima are shifts that change nothing, as a softmax's is.
    """

    nodes: dict[str, bool] = field(default_factory=dict)
    results: set[str] = field(default_factory=set)
    rules: list[str] = field(default_factory=list)
    choice: autograd.ChoiceNode | None = None
    compares: bool = False
    shifts: bool = False

    def look(self, outputs: Sequence[Any], closely: bool) -> None:
        """Be told of the outputs before the backward pass. closely: to ask also what the nodes have saved, which torch
        refuses where a function has written to it since."""
        self.results = {type(y.grad_fn).__name__ for y in outputs if getattr(y, "grad_fn", None) is not None}
        self.choice = autograd.find_autograd_choice(outputs) if closely else None
        for node in autograd.iterate_autograd_nodes(outputs):
            name = type(node).__name__
            self.nodes[name] = self.nodes.get(name, False) or (closely and autograd.does_node_save_tensor(node))

    def describe_oracle(self) -> str:
        """Whose derivatives the graph has. What saves no number is linear, and has none."""
        rest = sorted({x.partition("Backward")[0] for x, saves in self.nodes.items() if saves and x not in self.rules})
        shown = ", ".join(rest[:_NAMED]) + ", …" * (len(rest) > _NAMED)
        if not self.rules:
            return f"float64, torch's derivatives of {shown}" if rest else "float64"
        return f"float64, {derivatives.NAME}" + f", torch's of {shown}" * bool(rest)


@dataclass(frozen=True)
class Derivative:
    """The derivative that a check computes of a function of tensors, in float64.

    dtype: under test; compute: `autograd.differentiate_backward` of a check at a point, as arrays, with its hooks by
    name; pose: the function of arrays whose gradient that is; raw: the same for "backward", if numbers of many digits
    may be tried on it (`analytic.differentiate_in_many_digits`); named: the oracle's name, "" to name it by its graph;
    rounds: the dtypes that the function casts to; graph: filled in by `follow`.
    """

    check: str
    dtype: str
    trust: Trust
    compute: Callable[..., Arrays]
    pose: Callable[[str, Point], autograd.GradientProblem]
    raw: Callable[[Point], differences.Function] | None = None
    named: str = ""
    rounds: Sequence[str] = ()
    graph: Graph = field(default_factory=Graph)

    def problem(self, point: Point) -> autograd.GradientProblem:
        """What differences need of it."""
        return self.pose(self.check, point)

    def follow(self, point: Point) -> Arrays:
        """The derivative as torch itself has it, by the first of all passes: the graph is looked at."""
        with autograd.watch_equalities() as met:
            found = self.compute(self.check, point, made=lambda outputs: self.graph.look(outputs, not self.named))
        self.graph.compares = bool(met)
        return found

    def apply_rules(self, point: Point, followed: Arrays) -> Arrays:
        """The derivative with that of `derivatives.RULES` for the nodes that have one; what is not finite by one of
        both, or at a kink, is torch's own convention, and stays as it was ``followed``."""
        # Of torch's own ops of complex numbers four have a real step with a rule: no reason to run them all again.
        own = self.trust.own_steps or not is_complex_dtype(self.dtype)
        self.graph.rules[:] = derivatives.select_known_derivatives(self.graph.nodes) if own else []
        if not self.graph.rules:
            return followed
        try:
            ruled = self.run(point)
        except derivatives.NoRule:
            self.graph.rules.clear()
            return followed
        return [np.where(np.isfinite(a) & np.isfinite(b), a, b) for a, b in zip(ruled, followed)]

    def run(self, point: Point, kept: Collection[str] = (), **hooks: Any) -> Arrays:
        """The derivative, by the graph's rules. kept: nodes whose derivative is torch's own, of their rounded
        result; hooks: of `autograd.differentiate_backward`."""
        rules = [name for name in self.graph.rules if name not in kept]
        with derivatives.use_own_derivatives(rules) if rules else contextlib.nullcontext():
            return self.compute(self.check, point, **hooks)

    def move(self, point: Point, draw: int | None, kept: Collection[str] = ()) -> Arrays:
        """The derivative at a point moved by a draw (None: not moved), with what the forward pass keeps for the
        backward one moved as well: it is rounded to the dtype under test, however exactly the inputs are given. So is
        what the backward pass hands on, if the steps are a kernel's own; every other draw of these has shifts as
        constants: what rounding does to a row's sum, the gradient of its maximum takes back, and a kernel has no such
        gradient."""
        if draw is None:
            return self.run(point, kept)
        eps, places, alike = EPS.get(self.dtype, EPS["float32"]), itertools.count(), _Alike()

        def saved(x: Any) -> Any:
            place = next(places)
            if not self.trust.own_steps:
                return perturb_tensor(x, eps, draw, 0 if self.graph.compares else place)
            if not x.requires_grad:  # a constant, such as an exponent, or an input that the draw has moved
                return x
            return perturb_tensor(x, eps, draw, alike.place(x, place) if self.graph.compares else place)

        def handed(x: Any) -> Any:
            return perturb_tensor(x, eps, draw, next(places))

        if not self.trust.own_steps:
            return self.run(point, kept, saved=saved)
        return self.run(point, kept, saved=saved, handed=handed, fixed=self.graph.shifts and bool(draw % 2))

    def is_shift(self, point: Point, values: Arrays) -> bool:
        """Whether the derivative is ``values`` where the maxima in the function are constants."""
        largest = max((float(np.abs(c).max(initial=0.0)) for c in point.cotangents if c is not None), default=0.0)
        fixed = self.run(point, fixed=True)
        return all(np.allclose(a, b, 1e-6, 1e-12 * largest) for a, b in zip(fixed, values))

    def by_differences(
        self, point: Point, only: Sequence[np.ndarray] | None = None, alone: bool = False, quick: bool = False
    ) -> differences.Differences:
        """The derivative by the function's values, each element by the best of the ways that work. only: of which
        elements; alone: there is no other oracle; quick: by differences alone."""
        problem = self.problem(point)
        with np.errstate(all="ignore"):
            given = (problem.function, problem.inputs, problem.cotangents)
            found = differences.difference_gradient(*given, accurate=alone, only=only)
            if quick or all((e <= POOR * np.abs(g)).all() for g, e in zip(found.gradients, found.errors)):
                return found
            looked = [np.ones(x.shape, np.bool_) for x in problem.inputs] if only is None else list(only)
            found = analytic.choose_best_differences(found, analytic.differentiate_by_complex_step(*given, found))
            poor = [m & (e > POOR * np.abs(g)) for m, g, e in zip(looked, found.gradients, found.errors)]
            return analytic.choose_best_differences(found, self.in_many_digits(point, poor))

    def in_many_digits(self, point: Point, only: Sequence[np.ndarray]) -> differences.Differences | None:
        """The derivative of a function that takes numbers of many digits; None of any other."""
        if self.raw is None:
            return None
        problem = self.problem(point)
        with np.errstate(all="ignore"):
            outputs = problem.function(problem.inputs)
            return analytic.differentiate_in_many_digits(
                self.raw(point), problem.inputs, outputs, problem.cotangents, only
            )


class _Alike:
    """Places of tensors that a pass keeps: one whose numbers are all in another, as a maximum is, has that one's."""

    def __init__(self) -> None:
        self._seen: list[tuple[int, np.ndarray]] = []

    def place(self, x: Any, number: int) -> int:
        values = np.unique(x.detach().reshape(-1).cpu().numpy())
        for place, other in self._seen:
            fewer, more = sorted((values, other), key=len)
            if np.isin(fewer, more).all():
                number = place
                break
        self._seen.append((number, values))
        return number


@dataclass(frozen=True)
class Exact:
    """The oracle of a derivative. errors: what each element may be off by, infinite where nothing can be said of it;
    name: of the oracle; columns: what else a row says of it; other: the second one; again: the derivative at a point
    that a draw has moved, with what is kept (`Derivative.move`); plain: whether it is autograd's everywhere."""

    values: Arrays
    errors: Arrays
    name: str
    columns: Mapping[str, Any]
    other: Oracle | None
    again: Callable[[Point, int | None, Collection[str]], Arrays]
    plain: bool = True


def choose_oracle(derivative: Derivative, point: Point, outputs: Sequence[np.ndarray], not_followed: str = "") -> Exact:
    """The oracle of a function that gives ``outputs``: autograd's derivative, with differences as the second one, or
    differences alone where autograd cannot follow the function. not_followed: why it cannot. Raises NoDerivative where
    neither says anything, and what the function itself raises."""
    trust, twice = derivative.trust, derivative.check == "double_backward"
    if derivative.rounds and not_followed:
        raise NoDerivative(f"{STEPS}: differences say nothing of its derivative")
    if twice and trust.outvoted and not not_followed:
        # The values of a function say of its first derivative where autograd's is not it; they are too coarse for the
        # second.
        first = replace(derivative, check="backward", graph=Graph())
        start = replace(point, cotangents=point.cotangents[: len(outputs)])
        if not by_autograd(first, start, first.follow(start), outputs).plain:
            raise NoDerivative(
                "autograd's first derivative of the NumPy reference is not the reference's own at these inputs"
            )
    found = _choose_way(derivative, point, outputs, bool(not_followed))
    if all(np.isinf(e).all() for e in found.errors) and any(e.size for e in found.errors):
        raise NoDerivative("the reference is not differentiable at these inputs")
    return found


def _choose_way(derivative: Derivative, point: Point, outputs: Sequence[np.ndarray], alone: bool) -> Exact:
    if not alone:
        try:
            return by_autograd(derivative, point, derivative.follow(point), outputs)
        except Exception:  # forward it was followed; backward torch may lack a thing, or nothing depends on an input
            if not derivative.trust.outvoted or derivative.check == "double_backward":
                raise
    return _by_differences_alone(derivative, point)


def _by_differences_alone(derivative: Derivative, point: Point) -> Exact:
    found = derivative.by_differences(point, alone=True)
    # What cancels in a derivative, and is rounded before it does, its values do not show. The terms of a product or a
    # quotient are as large as the output over the input.
    eps = EPS.get(derivative.dtype, 0.0)
    terms = [
        size / differences.measure_difference_steps(x) for x, size in zip(derivative.problem(point).inputs, found.sizes)
    ]
    return Exact(
        found.gradients,
        [e + eps * t for e, t in zip(found.errors, terms)],
        found.how,
        {"by_differences": True},
        None,
        lambda moved, draw, kept: derivative.by_differences(moved, quick=True).gradients,
    )


def by_autograd(
    derivative: Derivative, point: Point, followed: Arrays, outputs: Sequence[np.ndarray], silent: str = ""
) -> Exact:
    """Autograd's derivative, of which ``followed`` is the first pass, and differences beside it.

    Autograd may be NaN or infinite where the derivative is neither (x / (1 + exp(−x)) at −1000): there it is what
    differences say, if those are believed, and nothing is asked where they say nothing either. silent: why there is
    nothing that differences could say.
    """
    trust, graph = derivative.trust, derivative.graph
    values = derivative.apply_rules(point, followed)
    graph.shifts = trust.own_steps and graph.compares and derivative.is_shift(point, values)
    name = derivative.named or graph.describe_oracle()
    finite = trust.recovers and all(np.isfinite(y).all() for y in outputs)
    lost = [finite & ~np.isfinite(g) for g in values]
    silent = silent or (STEPS if derivative.rounds else "")
    found = None if silent else _compute_differences_beside(derivative, point, values, lost)
    if found is None:
        errors = [np.where(m & np.isnan(g), np.inf, 0.0) for m, g in zip(lost, values)]
        other, why = None, silent
        if not silent:
            other, why = autograd.compute_second_gradient_oracle(derivative.problem(point), values, numbers="complex")
        return Exact(values, errors, name, _explain_lack(why), other, derivative.move)
    known = [np.isfinite(e) for e in found.errors]
    taken = [m & k for m, k in zip(lost, known)]
    errors = [np.where(m & np.isnan(g) & ~k, np.inf, 0.0) for m, g, k in zip(lost, values, known)]
    if trust.outvoted:
        taken = [t | o for t, o in zip(taken, _find_outvoted(derivative, point, values, found))]
        errors = [np.where(k, np.inf, e) for k, e in zip(found.kinks, errors)]
    values = [np.where(t, f, g) for t, f, g in zip(taken, found.gradients, values)]
    errors = [np.where(t, f, e) for t, f, e in zip(taken, found.errors, errors)]
    other, why = autograd.make_gradient_oracle(found, values)
    if not any(t.any() for t in taken):
        plain = not any(np.isinf(e).any() for e in errors)
        return Exact(values, errors, name, _explain_lack(why), other, derivative.move, plain)

    def replace_unreliable(moved: Point, draw: int | None, kept: Collection[str]) -> Arrays:
        beside = derivative.by_differences(moved, taken, quick=True).gradients
        return [np.where(t, f, g) for t, f, g in zip(taken, beside, derivative.move(moved, draw, kept))]

    name = f"{name}, {found.how} where that is no derivative"
    return Exact(values, errors, name, _explain_lack(why), other, replace_unreliable, False)


def _compute_differences_beside(
    derivative: Derivative, point: Point, values: Arrays, lost: Sequence[np.ndarray]
) -> differences.Differences | None:
    """Differences of every element, or of those that autograd has lost; None where directions are to be looked
    along."""
    if derivative.check == "double_backward":
        return None
    if sum(g.size * (1 + np.iscomplexobj(g)) for g in values) < derivative.trust.each_below:
        return derivative.by_differences(point)
    return derivative.by_differences(point, lost) if 0 < sum(int(m.sum()) for m in lost) <= MOST else None


def _find_outvoted(
    derivative: Derivative, point: Point, values: Arrays, found: differences.Differences
) -> list[np.ndarray]:
    """Where two ways of differencing agree on another derivative than autograd's."""
    problem = derivative.problem(point)
    # Autograd's own roundoff is no other derivative: it is relative to terms that may cancel, as large as an output
    # over an input.
    total = sum(float(np.abs(c * y).sum()) for c, y in zip(problem.cotangents, problem.function(problem.inputs)))
    apart = [
        np.abs(g - f) > e + APART * (np.abs(f) + total / analytic.measure_element_sizes(x))
        for x, g, f, e in zip(problem.inputs, values, found.gradients, found.errors)
    ]
    if not any(a.any() for a in apart):
        return apart
    quick = derivative.by_differences(point, apart, quick=True)
    many = derivative.in_many_digits(point, apart)
    agreed = []
    for place, (mask, f) in enumerate(zip(apart, found.gradients)):
        seconds = [many.gradients[place]] if many is not None else []
        if found.how != quick.how:
            seconds.append(quick.gradients[place])
        near = [np.abs(f - y) <= APART * np.abs(f) + found.errors[place] + quick.errors[place] for y in seconds]
        agreed.append(mask & np.any(near, axis=0) if near else np.zeros(mask.shape, np.bool_))
    return agreed


def _explain_lack(why: str) -> dict[str, str]:
    """The column that says why there is no second oracle."""
    return {"no_second_oracle": why} if why else {}
