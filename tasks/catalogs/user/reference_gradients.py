"""Checks of kernels' gradients: the derivative of the reference by two oracles, autograd and differences, with its noise floor."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.catalogs.base import Failure, Sample
from tasks.catalogs.torch.arguments import perturb_tensor
from tasks.catalogs.torch.gradient_samples import equalities
from tasks.catalogs.user import of_torch, samples
from tasks.catalogs.user.ops import UserOp
from tasks.gradients import analytic, derivatives, differences
from tasks.gradients import autograd as gradients
from tasks.model import EPS, Group, Leaf, Oracle, is_inexact, wide

#: Most elements of the inputs that differences are taken of one by one: each costs five to eleven evaluations of the
#: reference.
MOST = 1000
#: Differences that are worse than this, relative to the derivative, are taken in more digits where that can be done.
POOR = 1e-9
#: Derivatives further apart than this are two.
APART = 1e-6
#: Why there are no differences of a reference that casts.
STEPS = "the reference rounds where it casts, and is constant between its steps"
AUTOGRAD = "autograd of the reference"

Arrays = Mapping[str, np.ndarray]
#: A cotangent per output (and per gradient), None for what has none.
Cotangents = list["np.ndarray | None"]


def elements(op: UserOp, dims: Mapping[str, int]) -> int:
    """How many elements are to be differentiated."""
    return samples.elements(op, dims, op.gradient)


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


@dataclass
class _Graph:
    """Of a reference's graph, by names of nodes: rules: those that have a derivative of `derivatives.RULES`; results:
    those of its outputs."""

    rules: list[str] = field(default_factory=list)
    results: set[str] = field(default_factory=set)

    def look(self, outputs: Sequence[Any]) -> None:
        self.results = {type(y.grad_fn).__name__ for y in outputs if getattr(y, "grad_fn", None) is not None}
        self.rules = derivatives.select_known({type(node).__name__ for node in gradients.nodes(outputs)})


@dataclass(frozen=True)
class Reference:
    """What is differentiated. values: on float64 arrays; own: the function itself; call: it as a function of tensors;
    graph: filled in by `by_autograd`; rounds: the dtypes that the function casts to."""

    op: UserOp
    check: str
    dtype: str
    values: Callable[[Arrays], list[np.ndarray]]
    own: Callable[..., Any]
    call: Callable[..., Any]
    graph: _Graph = field(default_factory=_Graph)
    rounds: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        return [name for name in self.op.inputs if name in self.op.gradient]

    @property
    def wrt(self) -> tuple[int, ...]:
        return tuple(i for i, name in enumerate(self.op.inputs) if name in self.op.gradient)

    @property
    def by_torch(self) -> bool:
        """Whether autograd's derivative at a kink is what the reference means."""
        return self.op.reference_framework == "torch"

    def first_by_autograd(self, inputs: Arrays, cotangents: Cotangents) -> list[np.ndarray]:
        """The check's derivative by autograd, and by `derivatives.RULES` where the graph has nodes of them: what is not
        finite by one of both is torch's own convention."""
        values = of_torch.gradients(
            self.check, self.call, inputs, self.op.kwargs, self.wrt, cotangents, made=self.graph.look
        )
        if not self.graph.rules:
            return values
        try:
            ruled = self.by_autograd(inputs, cotangents)
        except derivatives.NoRule:
            self.graph.rules = []
            return values
        return [np.where(np.isfinite(a) & np.isfinite(b), a, b) for a, b in zip(ruled, values)]

    def find_excused(self, elementwise: bool) -> list[str]:
        """The nodes that may lose what their rounded result has lost: inside of a function everything is rounded. Of an
        elementwise function, its own result is where that is declared, and a softmax's, whose every kernel does,
        always."""
        kept = derivatives.keeping(self.graph.rules)
        if self.op.kept or not elementwise:
            return kept
        return [x for x in kept if x not in self.graph.results or derivatives.RULES[x].along]

    def by_autograd(
        self,
        inputs: Arrays,
        cotangents: Cotangents,
        draw: int | None = None,
        compares: bool = False,
        kept: Sequence[str] = (),
        fixed: bool = False,
    ) -> list[np.ndarray]:
        """The check's derivative by autograd. draw: moves what the forward pass keeps for the backward one, and what
        that hands on, which are rounded to the dtype under test, however exactly the inputs are given; compares: what
        is equal in it has to stay so; kept: nodes whose derivative is torch's own, of their rounded result; fixed:
        maxima are constants."""
        eps, alike = EPS.get(self.dtype, 0.0), _Alike()

        def perturb_kept(x: Any, place: int) -> Any:
            assert draw is not None
            if not x.requires_grad:  # a constant, such as an exponent, or an input that the draw has moved
                return x
            return perturb_tensor(x, eps, draw, alike.place(x, place) if compares else place)

        def perturb_handed(x: Any, place: int) -> Any:
            assert draw is not None
            return perturb_tensor(x, eps, draw, place)

        rules = [name for name in self.graph.rules if name not in kept]
        with derivatives.own(rules) if rules else contextlib.nullcontext():
            change = (None, None) if draw is None else (perturb_kept, perturb_handed)
            return of_torch.gradients(
                self.check,
                self.call,
                inputs,
                self.op.kwargs,
                self.wrt,
                cotangents,
                change[0],
                handed=change[1],
                fixed=fixed,
            )

    def shifts(self, inputs: Arrays, cotangents: Cotangents, values: Sequence[np.ndarray]) -> bool:
        """Whether the maxima in the function are shifts that change nothing, as a softmax's is: its derivatives
        ``values`` are the same where they are constants."""
        fixed = self.by_autograd(inputs, cotangents, fixed=True)
        largest = max((float(np.abs(c).max(initial=0.0)) for c in cotangents if c is not None), default=0.0)
        return all(np.allclose(a, b, 1e-6, 1e-12 * largest) for a, b in zip(fixed, values))

    def by_differences(
        self,
        inputs: Arrays,
        cotangents: Cotangents,
        only: Sequence[np.ndarray] | None = None,
        alone: bool = False,
        quick: bool = False,
    ) -> differences.Differences:
        """The gradient by the reference's values, each element by the best of the ways that work. only: of which
        elements; alone: there is no other oracle; quick: by differences alone."""
        problem = self.problem(inputs, cotangents)
        with np.errstate(all="ignore"):
            given = (problem.function, problem.inputs, problem.cotangents)
            found = differences.gradient(*given, accurate=alone, only=only)
            if quick or all((e <= POOR * np.abs(g)).all() for g, e in zip(found.gradients, found.errors)):
                return found
            looked = [np.ones(x.shape, np.bool_) for x in problem.inputs] if only is None else list(only)
            found = analytic.best(found, analytic.complex_step(*given, found))
            if self.by_torch:
                return found
            poor = [m & (e > POOR * np.abs(g)) for m, g, e in zip(looked, found.gradients, found.errors)]
            return analytic.best(found, self.in_many_digits(inputs, cotangents, poor))

    def in_many_digits(
        self, inputs: Arrays, cotangents: Cotangents, only: Sequence[np.ndarray]
    ) -> differences.Differences | None:
        """The gradient of a function of NumPy arrays that takes numbers of many digits (`tasks.gradients.analytic`)."""
        problem = self.problem(inputs, cotangents)
        with np.errstate(all="ignore"):
            outputs = problem.function(problem.inputs)
            raw = self._select_outputs(inputs, cotangents, self._raw)
            return analytic.many_digits(raw, problem.inputs, outputs, problem.cotangents, only)

    def problem(self, inputs: Arrays, cotangents: Cotangents) -> gradients.Problem:
        """The function whose gradient the check computes, of the inputs (and cotangents) that it is differentiated
        by."""
        if self.check == "double_backward":
            return of_torch.problem(self.check, self.call, inputs, self.op.kwargs, self.wrt, cotangents)
        start = [gradients.widen_array(inputs[name]) for name in self.names]
        given = [gradients.widen_array(c) for c in cotangents if c is not None]
        return gradients.Problem(self._select_outputs(inputs, cotangents, self.values), start, given)

    def _select_outputs(
        self, inputs: Arrays, cotangents: Cotangents, call: Callable[[Arrays], Sequence[Any]]
    ) -> differences.Function:
        def function(values: Sequence[np.ndarray]) -> list[np.ndarray]:
            found = call({**inputs, **dict(zip(self.names, values))})
            return [y for y, c in zip(found, cotangents) if c is not None]

        return function

    def _raw(self, inputs: Arrays) -> Sequence[Any]:
        found = self.own(**inputs, **self.op.kwargs)
        return found if isinstance(found, (tuple, list)) else [found]


def fill(made: Sample, reference: Reference, arrays: Arrays, outputs: list[Leaf], group: Group, draws: int) -> None:
    """Make of a forward sample, whose reference gives ``outputs``, one of the gradients of ``op.gradient``, or of their
    gradients.

    The cotangents are fixed random arrays in the dtypes of the outputs and, for "double_backward", of the inputs; the
    noise floor is how far the derivatives move with inputs, cotangents, what the forward pass keeps and what the
    backward pass hands on, and what differences that stand for them may be off by.
    """
    floating = [i for i, leaf in enumerate(outputs) if is_inexact(leaf.dtype)]
    twice = group.check == "double_backward"
    starts = [(outputs[i].shape, outputs[i].dtype) for i in floating]
    ends = [(arrays[name].shape, arrays[name].dtype.name) for name in reference.names]
    given = gradients.cotangents(starts + ends * twice, f"{group.label}/{group.dtype}/{made.index}")
    base = len(made.arrays)
    places = dict(zip(floating, itertools.count(base)))
    made.cotangents = tuple(places.get(i, -1) for i in range(len(outputs)))
    if twice:
        made.cotangents += tuple(range(base + len(floating), base + len(given)))
    made.wrt = reference.wrt
    made.arrays += given
    made.op_class, made.definition = gradients.class_of(made.op_class), ""

    def select_cotangents(change: Callable[[np.ndarray], np.ndarray]) -> Cotangents:
        return [None if i < 0 else change(made.arrays[i]) for i in made.cotangents]

    def perturb_all(draw: int) -> tuple[Arrays, Cotangents]:
        places = itertools.count(1)

        def one(x: np.ndarray) -> np.ndarray:
            name = x.dtype.name
            return noise.perturb_values(_wide(x), EPS[name], draw, next(places)) if is_inexact(name) else _wide(x)

        return {k: one(x) for k, x in arrays.items()}, select_cotangents(one)

    exact = _compute_exact_gradients(
        reference, {k: _wide(x) for k, x in arrays.items()}, select_cotangents(_wide), outputs
    )
    if isinstance(exact, Failure):
        made.failure = exact
        return
    floats = [x for x in arrays.values() if is_inexact(x.dtype.name)]

    def floor(kept: Sequence[str]) -> list[np.ndarray]:
        found = noise.compute_noise_floor(
            exact.values,
            lambda drawn: (exact.again(*perturb_all(draw), draw, kept) for draw in drawn),
            made.op_class,
            draws,
            sum(x.size for x in arrays.values()),
        )
        found = noise.of_kernel(exact.values, found, floats, group.dtype, 0.0, derivative=True)
        return [e if delta is None else delta + e for delta, e in zip(found, exact.errors)]

    strict = floor([])
    kept: Sequence[np.ndarray | None] = [None] * len(strict)
    floors = strict
    lost = _of_the_result(reference, exact, arrays, select_cotangents(_wide), outputs)
    if excused := reference.find_excused(lost is not None):
        floors = [np.maximum(a, b) for a, b in zip(floor(excused), strict)]
    if lost is not None and reference.op.kept:
        floors = [floors[0] + lost]
    elif lost is not None:
        kept = [floors[0] + lost]
    if floors is not strict:
        kept = strict if kept[0] is None else kept
    made.expected = [
        Leaf(dtype, y.shape, y, delta, kept=other)
        for (_, dtype), y, delta, other in zip(ends + starts * twice, exact.values, floors, kept)
    ]
    made.others = [exact.other] if exact.other else []
    made.oracle = exact.name
    made.columns |= exact.columns


def _of_the_result(
    reference: Reference, exact: _Exact, arrays: Arrays, cotangents: Cotangents, outputs: list[Leaf]
) -> np.ndarray | None:
    """What a gradient loses that is computed from the rounded output of an elementwise function: of g·f′(x), taken as a
    function of y = f(x), a change of y by ε is one by |f″/f′|·ε·|y|·g. None of any other function.

    No more than a few ε of g, of g·f′ and of the output: a function with an extremum is none of its output.
    """
    if reference.check != "backward" or len(reference.names) != 1 or len(outputs) != 1:
        return None
    inputs = {k: _wide(x) for k, x in arrays.items()}
    (name,), (g,), y = reference.names, cotangents, np.asarray(outputs[0].reference)
    x, slope, eps = inputs[name], exact.values[0], EPS.get(reference.dtype, 0.0)
    if g is None or y.shape != x.shape or not x.size or np.iscomplexobj(x) or np.iscomplexobj(y):
        return None
    with np.errstate(all="ignore"):
        half = np.arange(x.size).reshape(x.shape) % 2 == 0
        others = reference.values({**inputs, name: np.where(half, x * 0.75, x)})[0]
        if not np.array_equal(others[~half], y[~half], equal_nan=True):
            return None
        step = 2.0**-13 * np.maximum(np.abs(x), 2.0**-7)
        try:
            above, below = (exact.again({**inputs, name: z}, cotangents, None, ())[0] for z in (x + step, x - step))
        except Exception:
            return None
        lost = np.abs(((above - below) / (2 * step)) / slope * g * y) * eps
        most = 4 * eps * (np.abs(g) * (1 + np.abs(y)) + np.abs(slope))
    return np.where(np.isfinite(lost), np.minimum(lost, most), 0.0)


def _wide(x: np.ndarray) -> np.ndarray:
    return x.astype(wide(x.dtype.name))


@dataclass(frozen=True)
class _Exact:
    """The derivatives of a reference. errors: what each element may be off by, infinite where nothing can be said of
    it; name: of the oracle; columns: what else a row says of it; other: the second one; again: the derivatives at moved
    inputs and cotangents, in a draw, with what is kept; plain: whether they are autograd's everywhere."""

    values: list[np.ndarray]
    errors: list[np.ndarray]
    name: str
    columns: Mapping[str, Any]
    other: Oracle | None
    again: Callable[[Arrays, Cotangents, int | None, Sequence[str]], list[np.ndarray]]
    plain: bool = True


def _compute_exact_gradients(
    reference: Reference, inputs: Arrays, cotangents: Cotangents, outputs: list[Leaf]
) -> _Exact | Failure:
    """The derivatives by autograd, with differences as the second oracle, or by differences alone where autograd cannot
    follow the reference; a failure where there are none."""
    why = "" if reference.by_torch or reference.op.alone else _not_followed(reference, inputs, outputs)
    if why and reference.check == "double_backward":
        text = f"autograd cannot follow the NumPy reference, and so not differentiate it twice: {why}"
        return Failure.vacuous(f"{text}; a function of torch tensors can be (reference_framework: torch)", "reference")
    if reference.rounds and (why or reference.op.alone):
        return Failure.vacuous(f"{STEPS}: differences say nothing of its derivative", "reference")
    alone = reference.op.alone  # what autograd says of a kernel is no witness for it
    if reference.check == "double_backward" and not reference.by_torch and not alone:
        # The values of a function say of its first derivative where autograd's is not it; they are too coarse for the
        # second.
        once = replace(reference, check="backward")
        if not _by_autograd(once, inputs, cotangents[: len(outputs)], outputs).plain:
            text = "autograd's first derivative of the NumPy reference is not the reference's own at these inputs"
            return Failure.vacuous(text, "reference")
    found = _compute_gradients(reference, inputs, cotangents, outputs, not (why or alone))
    if all(np.isinf(e).all() for e in found.errors) and any(e.size for e in found.errors):
        return Failure.vacuous("the reference is not differentiable at these inputs", "reference")
    return found


def _compute_gradients(
    reference: Reference, inputs: Arrays, cotangents: Cotangents, outputs: list[Leaf], followed: bool
) -> _Exact:
    if followed:
        try:
            return _by_autograd(reference, inputs, cotangents, outputs)
        except Exception:  # forward it was followed; backward torch may lack a thing, or nothing depends on an input
            if reference.by_torch or reference.check == "double_backward":
                raise
    return _by_differences(reference, inputs, cotangents)


def _by_differences(reference: Reference, inputs: Arrays, cotangents: Cotangents) -> _Exact:
    found = reference.by_differences(inputs, cotangents, alone=True)
    # What cancels in a derivative, and is rounded before it does, its values do not show. The terms of a product or a
    # quotient are as large as the output over the input.
    eps = EPS.get(reference.dtype, 0.0)
    starts = reference.problem(inputs, cotangents).inputs
    terms = [size / differences.scales(x) for x, size in zip(starts, found.sizes)]
    return _Exact(
        found.gradients,
        [e + eps * t for e, t in zip(found.errors, terms)],
        found.how,
        {"by_differences": True},
        None,
        lambda moved, given, draw, kept: reference.by_differences(moved, given, quick=True).gradients,
    )


def _by_autograd(reference: Reference, inputs: Arrays, cotangents: Cotangents, outputs: list[Leaf]) -> _Exact:
    """Autograd's derivatives and those by differences beside them.

    Autograd may be NaN or infinite where the derivative is neither (x / (1 + exp(−x)) at −1000): there it is what
    differences say, and nothing is asked where they say nothing either.
    """
    with equalities() as met:
        values = reference.first_by_autograd(inputs, cotangents)
    finite = all(np.isfinite(np.asarray(leaf.reference)).all() for leaf in outputs)
    lost = [finite & ~np.isfinite(g) for g in values]

    # What rounding does to a row's sum, the gradient of its maximum takes back; a kernel has no such gradient, nor has
    # every other draw.
    shifts = bool(met) and reference.shifts(inputs, cotangents, values)

    def again(moved: Arrays, given: Cotangents, draw: int | None, kept: Sequence[str]) -> list[np.ndarray]:
        return reference.by_autograd(moved, given, draw, bool(met), kept, shifts and bool((draw or 0) % 2))

    found = None if reference.rounds else _compute_differences_beside(reference, inputs, cotangents, values, lost)
    if found is None:
        errors = [np.where(m & np.isnan(g), np.inf, 0.0) for m, g in zip(lost, values)]
        other, why = None, STEPS
        if not reference.rounds:
            other, why = gradients.second_oracle(reference.problem(inputs, cotangents), values, numbers="complex")
        return _Exact(values, errors, AUTOGRAD, _explain_lack(why), other, again)
    known = [np.isfinite(e) for e in found.errors]
    taken = [m & k for m, k in zip(lost, known)]
    errors = [np.where(m & np.isnan(g) & ~k, np.inf, 0.0) for m, g, k in zip(lost, values, known)]
    if not reference.by_torch:
        # Its values are all that a function of NumPy arrays says: not what a derivative at a kink is, nor at a tie
        # inside of it.
        taken = [t | o for t, o in zip(taken, _find_outvoted(reference, inputs, cotangents, values, found))]
        errors = [np.where(k, np.inf, e) for k, e in zip(found.kinks, errors)]
    values = [np.where(t, f, g) for t, f, g in zip(taken, found.gradients, values)]
    errors = [np.where(t, f, e) for t, f, e in zip(taken, found.errors, errors)]
    other, why = gradients.oracle_of(found, values)
    if not any(t.any() for t in taken):
        plain = not any(np.isinf(e).any() for e in errors)
        return _Exact(values, errors, AUTOGRAD, _explain_lack(why), other, again, plain)

    def replace_unreliable(moved: Arrays, given: Cotangents, draw: int | None, kept: Sequence[str]) -> list[np.ndarray]:
        beside = reference.by_differences(moved, given, taken, quick=True).gradients
        return [np.where(t, f, g) for t, f, g in zip(taken, beside, again(moved, given, draw, kept))]

    return _Exact(
        values,
        errors,
        f"{AUTOGRAD}, {found.how} where that is no derivative",
        _explain_lack(why),
        other,
        replace_unreliable,
        False,
    )


def _compute_differences_beside(
    reference: Reference, inputs: Arrays, cotangents: Cotangents, values: list[np.ndarray], lost: list[np.ndarray]
) -> differences.Differences | None:
    """Differences of every element, or of those that autograd has lost; None where projections are to do."""
    if reference.check == "double_backward":
        return None
    count = sum(g.size * (1 + np.iscomplexobj(g)) for g in values)
    if count < gradients.FULL_JACOBIAN or (count <= MOST and not reference.by_torch):
        return reference.by_differences(inputs, cotangents)
    return reference.by_differences(inputs, cotangents, lost) if 0 < sum(int(m.sum()) for m in lost) <= MOST else None


def _find_outvoted(
    reference: Reference,
    inputs: Arrays,
    cotangents: Cotangents,
    values: list[np.ndarray],
    found: differences.Differences,
) -> list[np.ndarray]:
    """Where two ways of differencing agree on another derivative than autograd's."""
    problem = reference.problem(inputs, cotangents)
    # Autograd's own roundoff is no other derivative: it is relative to terms that may cancel, as large as an output
    # over an input.
    total = sum(float(np.abs(c * y).sum()) for c, y in zip(problem.cotangents, problem.function(problem.inputs)))
    apart = [
        np.abs(g - f) > e + APART * (np.abs(f) + total / analytic.sizes(x))
        for x, g, f, e in zip(problem.inputs, values, found.gradients, found.errors)
    ]
    if not any(a.any() for a in apart):
        return apart
    quick = reference.by_differences(inputs, cotangents, apart, quick=True)
    many = reference.in_many_digits(inputs, cotangents, apart)
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


def _not_followed(reference: Reference, inputs: Arrays, outputs: list[Leaf]) -> str:
    """Why autograd cannot follow a NumPy reference; "" where it can."""
    try:
        found = of_torch.make_evaluator(reference.call)({**inputs, **reference.op.kwargs}, None, None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for y, leaf in zip(found, outputs):
        right = np.asarray(leaf.reference)
        scale = float(np.abs(right).max(initial=0.0, where=np.isfinite(right)))
        if np.shape(y) != right.shape or not np.allclose(y, right, 1e-6, 1e-6 * scale, equal_nan=True):
            return "torch's NumPy gives other values"
    return ""
