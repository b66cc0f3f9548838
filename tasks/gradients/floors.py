"""What the noise floor of a gradient has beside the draws of its inputs: what cancels in it, what a rounded result has
lost, what is out of its dtype's range."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.gradients import derivatives
from tasks.gradients.oracle import Derivative, Exact, Point
from tasks.model import EPS, LARGEST, is_complex_dtype

#: An element of a gradient that is smaller than this share of the largest may be what rounding in float64 has left.
REMAINDER = 2.0**-45

Floors = list["np.ndarray | None"]


def measure_floors(
    derivative: Derivative, floor: Callable[[Collection[str], bool], Floors], elementwise: bool | None = None
) -> tuple[Floors, Floors | None]:
    """The noise floor of a derivative, and the strict one where nodes of its graph may lose what their rounded result
    has lost (None where there are none).

    floor: draws one, given the nodes whose derivative is torch's own of their rounded result, and whether it is the last
    that is asked for. elementwise: whether the function is of one number each (None: not asked): its own result then is
    no such node, but a softmax's, whose every kernel computes with it.
    """
    excused = derivatives.list_digit_losing_nodes(derivative.graph.rules)
    if elementwise:
        excused = [x for x in excused if x not in derivative.graph.results or derivatives.RULES[x].along]
    if not excused:
        return floor((), True), None
    strict, wide = floor((), False), floor(excused, True)
    if derivative.trust.own_steps:  # a kernel may compute the derivative either way
        wide = [a if b is None else b if a is None else np.asarray(np.maximum(a, b)) for a, b in zip(wide, strict)]
    return wide, strict


def measure_gradient_draws(
    values: Sequence[np.ndarray], move: Callable[[int], Sequence[np.ndarray]], draws: int, typical: bool = False
) -> list[np.ndarray]:
    """How far each of some outputs moves in so many draws, of which ``move`` makes one: the farthest, or typically (their
    root mean square), which asks for more but knows nothing of jumps that few draws meet."""
    total = [np.zeros(y.shape) for y in values]
    for draw in range(draws):
        for sofar, y, moved in zip(total, values, move(draw)):
            apart = noise.measure_noise_distance(moved, y)
            if typical:
                sofar += apart**2 / draws
            else:
                np.maximum(sofar, apart, out=sofar)
    return [np.sqrt(x) for x in total] if typical else total


def measure_derivative_roundoff(derivative: Derivative, point: Point, values: Sequence[np.ndarray]) -> Floors:
    """What rounding in float64 does to a derivative, where terms of several nodes cancel (x − tanh x near 0): a draw of
    it, in what every node hands on. None where it is nothing."""
    nothing: Floors = [None] * len(values)
    several = len({*derivative.graph.nodes} - {"AccumulateGrad"}) > 1
    if derivative.check != "backward" or is_complex_dtype(derivative.dtype) or not several:
        return nothing
    places = itertools.count()
    try:
        moved = derivative.run(point, handed=lambda g: noise.perturb_tensor(g, EPS["float64"], 1, next(places)))
    except Exception:  # a node that hands on what cannot be moved
        return nothing
    errors = [noise.measure_noise_distance(a, b) if a.shape == b.shape else None for a, b in zip(moved, values)]
    return [e if e is not None and e.any() and np.isfinite(e).all() else None for e in errors]


def measure_derivative_remainders(
    derivative: Derivative, values: Sequence[np.ndarray], move: Callable[[Callable[[Any], Any]], Point]
) -> Floors:
    """What rounding leaves of terms that cancel to nothing inside of a node, as the weights of a pixel that is all four
    neighbours do: in float64 it is seen, far below the largest element, and its size in the dtype under test is that
    times the ratio of both ε. None where nothing is left. move: the point with each of its tensors in float64 changed."""
    nothing: Floors = [None] * len(values)
    with np.errstate(all="ignore"):
        sizes = [np.abs(y) for y in values]
        tiny = [(y > 0) & (y < REMAINDER * y[np.isfinite(y)].max(initial=0.0)) for y in sizes]
    if is_complex_dtype(derivative.dtype) or not any(t.any() for t in tiny):
        return nothing
    places = itertools.count()
    try:
        start = move(lambda x: noise.perturb_tensor(x, EPS["float64"], 1, next(places)))
        moved = derivative.run(start, derivatives.list_digit_losing_nodes(derivative.graph.rules))
    except Exception:  # off the op's domain
        return nothing
    ratio = EPS.get(derivative.dtype, EPS["float32"]) / EPS["float64"]
    found = [noise.measure_noise_distance(a, b) * ratio if a.shape == b.shape else None for a, b in zip(moved, values)]
    return [None if d is None else np.where(t & np.isfinite(d), d, 0.0) for d, t in zip(found, tiny)]


def measure_derivative_loss(
    derivative: Derivative, exact: Exact, point: Point, result: np.ndarray, moved: Callable[[np.ndarray], Point]
) -> np.ndarray | None:
    """What a gradient loses that is computed from the rounded output of an elementwise function: of g·f′(x), taken as a
    function of y = f(x), a change of y by ε is one by |f″/f′|·ε·|y|·g. None of any other function.

    point: of one input and one cotangent; result: f(x); moved: the point of another x. No more than a few ε of g, of
    g·f′ and of the output: a function with an extremum is none of its output.
    """
    problem = derivative.problem(point)
    (x,), (g,), y = problem.inputs, point.cotangents, result
    slope, eps = exact.values[0], EPS.get(derivative.dtype, 0.0)
    if g is None or y.shape != x.shape or not x.size or np.iscomplexobj(x) or np.iscomplexobj(y):
        return None
    with np.errstate(all="ignore"):
        half = np.arange(x.size).reshape(x.shape) % 2 == 0
        (others,) = problem.function([np.where(half, x * 0.75, x)])
        if not np.array_equal(others[~half], y[~half], equal_nan=True):
            return None
        step = 2.0**-13 * np.maximum(np.abs(x), 2.0**-7)
        try:
            above, below = (exact.again(moved(z), None, ())[0] for z in (x + step, x - step))
        except Exception:
            return None
        lost = np.abs(((above - below) / (2 * step)) / slope * g * y) * eps
        most = 4 * eps * (np.abs(g) * (1 + np.abs(y)) + np.abs(slope))
    return np.where(np.isfinite(lost), np.minimum(lost, most), 0.0)


def add_gradient_floors(*floors: np.ndarray | None) -> np.ndarray | None:
    """The sum of what is there; None where nothing is."""
    there = [x for x in floors if x is not None]
    return np.asarray(np.sum(there, 0)) if there else None


def widen_gradient_floor(
    reference: np.ndarray, floor: np.ndarray | None, forward: Sequence[np.ndarray], dtype: str
) -> np.ndarray | None:
    """The noise floor of a gradient in a dtype, with what has no number there: the op's own result in that place, or
    all of it, of which nothing is then asked; or the derivative, which a cotangent of ½ to 1 has made smaller by no
    more than that: Inf is one of its values."""
    if dtype not in LARGEST or is_complex_dtype(dtype):
        return floor
    largest = LARGEST[dtype]
    with np.errstate(all="ignore"):
        size = np.abs(reference)
        high = (size > largest / 2) & np.isfinite(size)
        lost = np.zeros(reference.shape, np.bool_)
        for y in forward:
            beyond = np.abs(y) > largest if y.dtype == np.float64 else np.zeros(y.shape, np.bool_)
            lost |= _find_dependent_elements(beyond, reference.shape)
    if not (high.any() or lost.any()):
        return floor
    made = np.zeros(reference.shape) if floor is None else np.array(floor)
    made = made + np.where(high, np.maximum(largest * (1 + EPS[dtype]) - size, 0.0), 0.0)
    return np.where(lost, np.inf, made)


def _find_dependent_elements(places: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Which elements of an input of ``shape`` any of some places of an output is made of, where the input was spread
    over the output; of any other input all or none, as all places are or not."""
    padded = (1,) * (places.ndim - len(shape)) + shape
    if len(shape) > places.ndim or any(n not in (1, m) for n, m in zip(padded, places.shape)):
        return np.full(shape, bool(places.size and places.all()))
    over = tuple(k for k, (n, m) in enumerate(zip(padded, places.shape)) if n != m)
    return np.asarray(places.any(over, keepdims=True)).reshape(shape) if places.ndim else places.reshape(shape)
