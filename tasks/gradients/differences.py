"""Finite differences in float64: the gradient of any function of arrays, with an estimate of its own error.

A central difference is right where its step is short for the function and long for float64. Its default step fits the
scale of an element; where the function turns out to change faster than that (a softmax at a tie of 1e9), or is not
finite or has a kink within it, the step is shortened rung by rung, until two of them agree or a number cannot be moved
by less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

EPS64 = 2.0**-52
#: Step of a central difference relative to its input: truncation h² and roundoff ε/h are balanced near ε^⅓ (Numerical
#: Recipes, 5.7). A power of two, so that inputs of a narrower dtype are moved without rounding.
STEP = 2.0 ** round(math.log2(EPS64 ** (1 / 3)))
#: Longest step of `extrapolate`: its error term is h⁶, which moves the balance to ε^(1/7), here with a margin for
#: kinks.
LONG_STEP = 2.0**-8

#: An output that does not change may have changed by less than its last bit. It counts if it is larger than this times
#: what is moved, where that bit hides a slope of 1: most that do not change do not hang on what is moved.
HIDES = 2.0**36

#: By how much each rung shortens the step, and how often.
RUNG, RUNGS = 2.0**-6, 12
#: Shortest step, in spacings of the number that is moved: half of it must be exact as well.
SPACINGS = 4
#: Two central differences of which one step is half the other's differ by a quarter of h²f‴/2 where f is smooth. If
#: they differ by this share, the step is no short one.
RESOLVED = 2.0**-5
#: An error this small, relative to the slope, is good enough to stop at.
GOOD = 2.0**-18
#: Steps along which a function's own roundoff is measured, relative to the inputs' scale: what is smooth stands still
#: in them.
STILL = 2.0**-44
#: Spacings of its outputs by which a function may jump at steps along which it stands still.
SMOOTH = 64

NAME = "finite differences"
NOT_FINITE = "not finite near the input"
KINK = "not differentiable at the input"
UNRESOLVED = "changes faster near the input than the steps that float64 has there"
BLIND = "they are off by more than the gradient is large"

Arrays = Sequence[np.ndarray]
Function = Callable[[Arrays], Arrays]


@dataclass(frozen=True)
class Slope:
    """One derivative. error: estimate of |value − exact|, infinite where there is none; why: then the reason. roundoff:
    the part of it that rounding has; apart: how far two steps, or the two sides, disagree; size: Σ |cotangent|·|output|
    over the outputs that change, own: Σ |cotangent|·noise."""

    value: float
    error: float
    why: str = ""
    roundoff: float = 0.0
    apart: float = 0.0
    size: float = 0.0
    own: float = 0.0


@dataclass
class Differences:
    """Gradients by differences, one per input (float64 or complex128), with the error estimate of each element.

    why: reasons for which elements have none (their error is infinite), sorted; kinks: the elements at which the
    function is not differentiable; sizes: `Slope.size`, 0 where it is not known; how: in words.
    """

    gradients: list[np.ndarray]
    errors: list[np.ndarray]
    kinks: list[np.ndarray]
    sizes: list[np.ndarray]
    why: tuple[str, ...] = ()
    how: str = NAME


class DifferencesAlong:
    """φ(t) = Σ Re⟨cotangent, function(inputs + t·direction)⟩, its differences taken output by output before the sum.

    inputs, cotangents, direction: float64 or complex128 arrays; the sum of differences loses less than the difference
    of sums. noise: per output, what its elements may be off by through the function's own roundoff (`measure_function_roundoff`).
    """

    def __init__(
        self, function: Function, inputs: Arrays, cotangents: Arrays, direction: Arrays, noise: Arrays | None = None
    ) -> None:
        self.function, self.inputs, self.cotangents, self.direction = function, inputs, cotangents, direction
        self.noise = noise or ()
        moved = max((float(np.abs(d).max()) for d in direction if d.size), default=1.0)
        self._hides = HIDES * min(moved, 1.0)

    def at(self, t: float) -> Arrays:
        return self.function([np.asarray(x + t * d) for x, d in zip(self.inputs, self.direction)])

    def weight(self, upper: Arrays, lower: Arrays, nearer: Arrays) -> float:
        """Σ |cotangent|·|output| over what changes: what roundoff is relative to.

        nearer: the outputs halfway to ``upper``. They tell what changes where the two sides are equal: x² at an x that
        is lost beside the step.

        An output counts as at least the size of what it may have been computed from: the inputs, or 1 (1 + erf(x) for x
        far below 0).
        """
        least = max((float(np.abs(x).max()) for x in self.inputs if x.size), default=0.0)
        least = max(least, 1.0) if math.isfinite(least) else 1.0
        total = least * max((float(np.abs(c).max()) for c in self.cotangents if c.size), default=0.0)
        compared = [*zip(self.cotangents, upper, lower, nearer)]
        # Where none changes, a longer step shows whether they hang on what is moved: then each of them may hide its
        # slope.
        still = not any(((c != 0) & ((u != v) | (u != w))).any() for c, u, v, w in compared)
        hides = 0.0 if still and self._moves_far(nearer) else self._hides
        for c, u, v, w in compared:
            changed, size = (u != v) | (u != w), np.maximum(np.abs(u), np.abs(v))
            total += float(np.sum(np.abs(c) * np.maximum(size, least) * changed))
            # ε·|output| / 2h is what an unchanged one may hide; roundoff is taken as 8ε / h of this weight.
            total += float(np.sum(np.abs(c) * np.where(~changed & (size > hides) & (size < np.inf), size, 0.0))) / 16
        return total

    def _moves_far(self, near: Arrays) -> bool:
        """Whether an output that counts is another one when what is moved is moved by its whole scale."""
        return any(((c != 0) & (u != v)).any() for c, u, v in zip(self.cotangents, self.at(1.0), near))

    def _sum(self, sizes: Arrays, upper: Arrays, lower: Arrays, nearer: Arrays) -> float:
        """Σ |cotangent|·size over what changes."""
        given = zip(self.cotangents, upper, lower, nearer, sizes)
        return sum(float(np.sum(np.abs(c) * size * ((u != v) | (u != w)))) for c, u, v, w, size in given)

    def between(self, upper: Arrays, lower: Arrays) -> float:
        return float(sum(np.sum((np.conj(c) * (u - v)).real) for c, u, v in zip(self.cotangents, upper, lower)))

    def central(self, h: float) -> float:
        return self.between(self.at(h), self.at(-h)) / (2 * h)

    def slope(self, centre: Arrays, h: float) -> Slope:
        """Richardson's extrapolation of central differences at h and h/2; four times their distance is the error
        estimate (it is one draw of what the function's own roundoff does).

        A kink: one-sided differences disagree by h·φ″ where φ is smooth, so 2·s(h/2) − s(h) is nearly zero there, and
        falls with the step; at a kink it stays.
        """
        up, down = self.at(h), self.at(-h)
        near_up, near_down = self.at(h / 2), self.at(-h / 2)
        weight = self.weight(up, down, near_up)
        wide, close = self.between(up, down) / (2 * h), self.between(near_up, near_down) / h
        if not math.isfinite(wide + close + weight):
            return Slope(math.nan, math.inf, NOT_FINITE)
        # What is computed of a rounded number is off by the slope times its rounding.
        own = self._sum(self.noise, up, down, near_up)
        weight += own / EPS64
        roundoff = 8 * EPS64 * weight / h + 2 * self._coarseness(h) * (abs(wide) + abs(close))
        sides = (self.between(up, centre) - self.between(centre, down)) / h
        near_sides = (self.between(near_up, centre) - self.between(centre, near_down)) / (h / 2)
        apart, least = abs(2 * near_sides - sides), 10 * roundoff + 1e-5 * (abs(close) + abs(sides))
        if apart > least:
            nearest = self.between(self.at(h / 4), centre) - self.between(centre, self.at(-h / 4))
            if not abs(2 * nearest / (h / 4) - near_sides) < max(apart / 4, 2 * least):
                return Slope(close, math.inf, KINK, roundoff, apart)
        apart = abs(wide - close)
        size = self._sum(list(map(np.abs, centre)), up, down, near_up)
        return Slope((4 * close - wide) / 3, 4 * apart + roundoff, "", roundoff, apart, size, own)

    def _coarseness(self, h: float) -> float:
        """The largest share of a step of h that is lost in the rounding of a number that is moved."""
        return max(
            (
                float(np.max(EPS64 * np.abs(x[d != 0]) / np.abs(h * d[d != 0])))
                for x, d in zip(self.inputs, self.direction)
                if np.any(d)
            ),
            default=0.0,
        )

    def steepest(self, centre: Arrays) -> Slope:
        """The `slope` at the longest step that shows the function as it is at the input.

        Shorter steps than STEP are taken where that one meets a kink, what is not finite, or a function that it does
        not resolve. A kink at the input itself is there at every step.
        """
        if not all(np.isfinite(y[np.broadcast_to(c != 0, y.shape)]).all() for y, c in zip(centre, self.cotangents)):
            return Slope(math.nan, math.inf, NOT_FINITE)
        met: list[Slope] = []
        best: Slope | None = None
        for h in self._steps():
            found = self.slope(centre, h)
            if best is not None and not (found.error < best.error):
                break
            if not found.why and found.roundoff > 1e-2 * max((m.apart for m in met if m.why), default=math.inf):
                break  # a kink is no more to be told from roundoff
            met.append(found)
            if not found.why and self._is_resolved(found):
                best = found
                if found.error <= max(GOOD * abs(found.value), 4 * found.roundoff):
                    break
        if best is not None:
            return best
        first = next((m for m in met if m.why == KINK), met[0])
        return Slope(first.value, math.inf, first.why or UNRESOLVED)

    def compute_slope_at(self, centre: Arrays, h: float) -> Slope:
        """The `slope` at a step that somebody asks for."""
        found = self.slope(centre, h)
        return found if found.why or self._is_resolved(found) else Slope(found.value, math.inf, UNRESOLVED)

    def _is_resolved(self, found: Slope) -> bool:
        """Whether the step is short for the function, or what it shows is roundoff; not the measured one of a function
        that has long settled within the step, which jumps at every step that float64 has."""
        if found.apart <= RESOLVED * abs(found.value):
            return True
        return found.apart <= found.roundoff and found.own <= SMOOTH * EPS64 * found.size

    def _steps(self) -> list[float]:
        """The steps to try, longest first: rungs below STEP, no shorter than what is moved can be moved by."""
        least = SPACINGS * self._coarseness(1.0)
        return [h for h in (STEP * RUNG**k for k in range(RUNGS)) if h >= least] or [max(least, STEP)]

    def extrapolate(self, h: float) -> Slope:
        """Romberg's extrapolation of central differences at h, h/2 and h/4: the last correction is the error."""
        pairs = [(self.at(h / k), self.at(-h / k)) for k in (1, 2, 4)]
        slopes = [self.between(u, d) / (2 * h / k) for (u, d), k in zip(pairs, (1, 2, 4))]
        weight = self.weight(*pairs[0], pairs[1][0])
        if not math.isfinite(sum(slopes) + weight):
            return Slope(math.nan, math.inf, NOT_FINITE)
        first = [(4 * b - a) / 3 for a, b in zip(slopes, slopes[1:])]
        value = (16 * first[1] - first[0]) / 15
        if abs(slopes[1] - slopes[0]) > RESOLVED * abs(slopes[1]) + 4 * EPS64 * weight / h:
            return Slope(value, math.inf, UNRESOLVED)
        return Slope(value, abs(value - first[1]) + 4 * EPS64 * weight / h)


def measure_difference_steps(x: np.ndarray) -> np.ndarray:
    """How far an element is moved, relative to 1: its size, or a tenth of the input's root mean square, but no more
    than 1: beside 1e17 a tanh would be stepped over."""
    size = np.abs(x)
    typical = float(np.sqrt(np.mean(np.square(size)))) if x.size else 0.0
    floor = min(typical / 10, 1.0) if 0 < typical < np.inf else 1.0
    # Powers of two, as STEP is one.
    return np.asarray(np.exp2(np.round(np.log2(np.maximum(size, floor)))))


def measure_function_roundoff(function: Function, inputs: Arrays) -> list[np.ndarray]:
    """Per output, what its elements are off by through the function's own roundoff: the variance of 1e8 + x by squares
    has next to no right digit. Third differences along steps in which nothing smooth moves (Moré and Wild, ECNoise)."""
    along = draw_directions(inputs, 1)[0]
    at = [function([np.asarray(x + k * STILL * d) for x, d in zip(inputs, along)]) for k in range(-3, 4)]
    found = []
    for one in zip(*at):
        values = [np.asarray(y, np.complex128 if np.iscomplexobj(y) else np.float64) for y in one]
        third = [np.abs(d - 3 * c + 3 * b - a) for a, b, c, d in zip(values, values[1:], values[2:], values[3:])]
        noise = np.maximum.reduce(third) / math.sqrt(20)
        found.append(np.where(np.isfinite(noise), noise, 0.0))
    return found


def difference_gradient(
    function: Function,
    inputs: Arrays,
    cotangents: Arrays,
    accurate: bool = False,
    eps: float | None = None,
    only: Arrays | None = None,
) -> Differences:
    """The whole vector-Jacobian product, element by element of ``inputs`` (real and imaginary part of complex ones).

    As autograd has it: the gradient of Σ Re⟨cotangent, output⟩, for a complex input ∂/∂Re + i·∂/∂Im.
    accurate: three long steps beside the two short ones, and the better of both (about 1e-11 relative where smooth).
    eps: the step of every element, instead of one that fits it. only: which elements to look at, a mask per input; the
    others have no error estimate.
    """
    centre, noise = function(inputs), measure_function_roundoff(function, inputs)
    found = Differences(
        [np.zeros_like(x) for x in inputs],
        [np.zeros(x.shape) for x in inputs],
        [np.zeros(x.shape, np.bool_) for x in inputs],
        [np.zeros(x.shape) for x in inputs],
    )
    why: set[str] = set()
    for i, x in enumerate(inputs):
        steps = measure_difference_steps(x) if eps is None else np.ones(x.shape)
        for at in np.ndindex(x.shape):
            if only is not None and not only[i][at]:
                found.errors[i][at] = np.inf
                continue
            for unit in (1.0, 1j) if np.iscomplexobj(x) else (1.0,):
                direction = [np.zeros_like(y) for y in inputs]
                direction[i][at] = unit * steps[at]
                line = DifferencesAlong(function, inputs, cotangents, direction, noise)
                slope = line.steepest(centre) if eps is None else line.compute_slope_at(centre, eps)
                found.sizes[i][at] += slope.size
                if accurate and not slope.why:
                    long = line.extrapolate(LONG_STEP)
                    # Three long steps may agree by chance where the function has settled far from here.
                    if abs(long.value - slope.value) <= long.error + slope.error:
                        slope = min(slope, long, key=lambda s: s.error)
                if slope.why:
                    why.add(slope.why)
                found.kinks[i][at] |= slope.why == KINK
                found.gradients[i][at] += unit * (slope.value / steps[at])
                found.errors[i][at] += slope.error / steps[at]
    found.why = tuple(sorted(why))
    return found


def draw_directions(inputs: Arrays, count: int, alike: bool = False) -> list[list[np.ndarray]]:
    """``count`` fixed random directions: every element moves by ±[½, 1] of its scale, or of 1 if all are to move
    ``alike``."""
    made = []
    for k in range(count):
        generator = np.random.Generator(np.random.PCG64([5, k]))
        made.append(
            [_draw_direction_signs(generator, x) * (1.0 if alike else measure_difference_steps(x)) for x in inputs]
        )
    return made


def _draw_direction_signs(generator: np.random.Generator, x: np.ndarray) -> np.ndarray:
    real = generator.uniform(0.5, 1.0, x.shape) * (generator.integers(0, 2, x.shape) * 2 - 1)
    if not np.iscomplexobj(x):
        return np.asarray(real)
    return np.asarray(real * np.exp(2j * np.pi * generator.uniform(0, 1, x.shape)))


def project_gradient(gradients: Arrays, direction: Arrays) -> float:
    """The slope along a direction that ``gradients`` say: Σ Re⟨gradient, direction⟩."""
    return float(sum(np.sum((np.conj(g) * d).real) for g, d in zip(gradients, direction)))
