"""Derivatives of functions of arrays without a difference quotient's roundoff: the complex step, and differences in many digits.

Neither works for every function, and no list says for which: a function is run, and what comes out is held against its own values and
against differences in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.arrays.differences import EPS64, KINK, Along, Arrays, Differences, Function, scales

#: Digits that are computed with, and the step as a power of ten.
DIGITS, STEP = 80, 25
COMPLEX, MANY = "complex step", f"differences in {DIGITS} digits"
#: The imaginary step, relative to the scale of an element: its square is lost beside 1 (Squire and Trapp, 1998).
IMAGINARY = 2.0**-100
#: Most elements that are moved in many digits, each by Python's own arithmetic.
FEW = 24
#: How near the values must be that both ways compute: a function that is not what it was when it is given other numbers is no oracle.
NEAR = 1e-6


def complex_step(function: Function, inputs: Arrays, cotangents: Arrays, beside: Differences) -> Differences | None:
    """The gradient of Σ⟨cotangent, output⟩ by the imaginary part of the function at inputs + i·step.

    None where the function does not take complex numbers, has other real parts there, or other slopes than the differences
    ``beside`` it, or than those at numbers near 1, where they are good (an absolute value is no analytic function). An
    element beyond its range has no error estimate.
    """
    if any(np.iscomplexobj(x) for x in (*inputs, *cotangents)):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an imaginary part that is dropped: the slope tells
        if not _is_analytic(function, inputs, cotangents):
            return None
        return _by_complex_step(function, inputs, cotangents, beside)


def _by_complex_step(function: Function, inputs: Arrays, cotangents: Arrays, beside: Differences) -> Differences | None:
    centre = [np.asarray(y) for y in function(inputs)]
    found = _alike(inputs, COMPLEX)
    for i, x in enumerate(inputs):
        steps = _sizes(x) * IMAGINARY
        for at in np.ndindex(x.shape):
            moved = [np.asarray(y, np.complex128) for y in inputs]
            moved[i] = moved[i].copy()
            moved[i][at] += 1j * steps[at]
            try:
                outputs = [np.asarray(y) for y in function(moved)]
            except Exception:
                return None
            if not all(_near(y.real, c) for y, c in zip(outputs, centre)):
                return None
            terms = [c * y.imag / steps[at] for c, y in zip(cotangents, outputs)]
            found.gradients[i][at] = sum(float(np.sum(t)) for t in terms)
            # A sum of what cancels, of numbers that each are right to some spacings.
            sizes = sum(float(np.sum(np.abs(t))) for t in terms)
            sizes += sum(
                float(np.sum(np.abs(c * y) * (t != 0))) / float(scales(x)[at])
                for c, y, t in zip(cotangents, centre, terms)
            )
            found.errors[i][at] = 16 * EPS64 * sizes if np.isfinite(found.gradients[i][at] + sizes) else np.inf
    for value, error, slope, own in zip(found.gradients, found.errors, beside.gradients, beside.errors):
        told = np.isfinite(error) & np.isfinite(own)
        if not (np.abs(value - slope)[told] <= (2 * own + error + 1e-9 * np.abs(value))[told]).all():
            return None
    return found


def _is_analytic(function: Function, inputs: Arrays, cotangents: Arrays) -> bool:
    """Whether both ways give the same slope at a place where differences are good."""
    told = 0
    generator = np.random.Generator(np.random.PCG64(6))
    for centre, width in ((0.0, 1.0), (1.0, 0.2)):
        values = [centre + width * generator.normal(size=x.shape) for x in inputs]
        direction = [generator.normal(size=x.shape) for x in inputs]
        try:
            slope = Along(function, values, cotangents, direction).steepest(function(values))
            moved = function([x + 1j * IMAGINARY * d for x, d in zip(values, direction)])
            found = sum(float(np.sum(c * np.imag(y))) for c, y in zip(cotangents, moved)) / IMAGINARY
        except Exception:
            return False
        if np.isfinite(found) and slope.error < 1e-3 * abs(slope.value):
            told += 1
            if abs(found - slope.value) > slope.error + 1e-9 * abs(found):
                return False
    return bool(told)


def _sizes(x: np.ndarray) -> np.ndarray:
    """What a step is short beside: an element itself, the scale of the others where it is 0."""
    size = np.abs(x)
    return np.where((size > 0) & (size < np.inf), size, scales(x))


def _alike(inputs: Arrays, how: str) -> Differences:
    def zeros() -> list[np.ndarray]:
        return [np.zeros(x.shape) for x in inputs]

    return Differences(zeros(), zeros(), [np.zeros(x.shape, np.bool_) for x in inputs], zeros(), how=how)


def _near(value: np.ndarray, right: np.ndarray) -> bool:
    """Whether values are those of the function itself, where both are finite."""
    if value.shape != right.shape:
        return False
    told = np.isfinite(value) & np.isfinite(right)
    scale = np.abs(right[told]).max(initial=0.0)
    return bool((np.abs(value - right)[told] <= NEAR * (np.abs(right[told]) + 1e-3 * scale)).all())


class Number:
    """A real number of `DIGITS` digits, of which NumPy makes arrays of objects: its functions call the method of their name."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Callable[..., Number]:
        import mpmath

        if name.startswith("_"):
            raise AttributeError(name)
        function = getattr(mpmath, name.replace("arc", "a") if name.startswith("arc") else name)
        return lambda *others: Number(_real(function(self.value, *map(_value, others))))

    def conjugate(self) -> Number:
        return self

    def __neg__(self) -> Number:
        return Number(-self.value)

    def __abs__(self) -> Number:
        return Number(abs(self.value))

    def __hash__(self) -> int:
        return hash(self.value)


def _value(x: Any) -> Any:
    import mpmath

    if isinstance(x, Number):
        return x.value
    # A float64 is what it is; of anything else nothing is known.
    return mpmath.mpf(int(x)) if isinstance(x, (bool, int, np.integer, np.bool_)) else mpmath.mpf(float(x))


def _real(x: Any) -> Any:
    import mpmath

    return x if isinstance(x, mpmath.mpf) else mpmath.nan


def _operator(name: str) -> Callable[[Number, Any], Any]:
    def call(self: Number, other: Any) -> Any:
        if not isinstance(other, (Number, bool, int, float, np.number, np.bool_)):
            return NotImplemented
        found = getattr(self.value, name)(_value(other))
        return found if isinstance(found, bool) else Number(_real(found))

    return call


for _name in ("add", "sub", "mul", "truediv", "pow", "mod"):
    setattr(Number, f"__{_name}__", _operator(f"__{_name}__"))
    setattr(Number, f"__r{_name}__", _operator(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Number, f"__{_name}__", _operator(f"__{_name}__"))


def many_digits(
    function: Callable[[Sequence[np.ndarray]], Sequence[Any]],
    inputs: Arrays,
    outputs: Arrays,
    cotangents: Arrays,
    only: Sequence[np.ndarray],
) -> Differences | None:
    """The gradient by differences in `DIGITS` digits, of the elements in ``only``: neither roundoff nor a step too long is left.

    function: takes arrays of `Number`; outputs: its values in float64. None where it does not take them, or they are other
    values (it overflows or cancels in float64, and is then another function); no more than `FEW` elements are moved.
    """
    if sum(int(mask.sum()) for mask in only) > FEW or any(np.iscomplexobj(x) for x in (*inputs, *cotangents)):
        return None
    try:
        import mpmath

        with mpmath.workdps(DIGITS):
            return _in_many_digits(function, inputs, outputs, cotangents, only)
    except Exception:  # a function that does not take such numbers raises whatever it likes
        return None


def _in_many_digits(
    function: Callable[[Sequence[np.ndarray]], Sequence[Any]],
    inputs: Arrays,
    outputs: Arrays,
    cotangents: Arrays,
    only: Sequence[np.ndarray],
) -> Differences | None:
    import mpmath

    wide = np.frompyfunc(lambda x: Number(mpmath.mpf(float(x))), 1, 1)
    start = [np.asarray(wide(x), object).reshape(x.shape) for x in inputs]

    def told(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(y, object) for y in function([x.copy() for x in values])]

    centre = told(start)
    floats = [np.array([float(_value(v)) for v in y.reshape(-1)]).reshape(y.shape) for y in centre]
    if len(floats) != len(outputs) or not all(_near(a, b) for a, b in zip(floats, outputs)):
        return None

    def between(upper: Sequence[np.ndarray], lower: Sequence[np.ndarray]) -> Any:
        return mpmath.fsum(
            mpmath.mpf(float(c)) * (_value(u) - _value(v))
            for cs, us, vs in zip(cotangents, upper, lower)
            for c, u, v in zip(cs.reshape(-1), us.reshape(-1), vs.reshape(-1))
        )

    found = _alike(inputs, MANY)
    for i, (x, mask) in enumerate(zip(inputs, only)):
        found.errors[i][~mask] = np.inf
        for at in map(tuple, np.argwhere(mask)):
            h = mpmath.mpf(float(_sizes(x)[at])) / mpmath.mpf(10) ** STEP
            sides = []
            for step in (h, -h):
                moved = [y.copy() for y in start]
                moved[i][at] = moved[i][at] + Number(step)
                sides.append(between(told(moved), centre) / step)
            slope = (sides[0] + sides[1]) / 2
            kink = abs(sides[0] - sides[1]) > abs(slope) / 10**10 + mpmath.mpf(10) ** (5 - STEP)
            found.kinks[i][at], found.gradients[i][at] = bool(kink), float(slope)
            found.errors[i][at] = 4 * EPS64 * abs(float(slope)) if mpmath.isfinite(slope) and not kink else np.inf
    found.why = (KINK,) if any(k.any() for k in found.kinks) else ()
    return found


def best(first: Differences, *others: Differences | None) -> Differences:
    """Per element the derivative whose error estimate is least. A kink remains one, unless differences in many digits look nearer: the
    complex step takes one side of it."""
    chosen = [np.zeros(e.shape, np.int64) for e in first.errors]
    known = [first, *filter(None, others)]
    for number, other in enumerate(known[1:], 1):
        for i, own in enumerate(other.errors):
            better = own < first.errors[i]
            better &= ~first.kinks[i] | (other.how == MANY)
            chosen[i][better] = number
            first.gradients[i] = np.where(better, other.gradients[i], first.gradients[i])
            first.errors[i] = np.where(better, own, first.errors[i])
            first.kinks[i] = first.kinks[i] & ~better
    first.how = ", ".join(one.how for k, one in enumerate(known) if any((c == k).any() for c in chosen)) or first.how
    if all(np.isfinite(e).all() for e in first.errors):
        first.why = ()
    return first
