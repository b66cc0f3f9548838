"""Derivatives of functions of arrays without a difference quotient's roundoff: the complex step, differences on a linear piece,
differences in many digits.

None works for every function, and no list says for which: a function is run, and what comes out is held against its own
values and against differences in float64.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.gradients.differences import (
    EPS64,
    KINK,
    LONG_STEP,
    Arrays,
    Differences,
    DifferencesAlong,
    Function,
    Slope,
    draw_directions,
    measure_difference_steps,
    project_gradient,
)
from tasks.gradients.differences import NAME as FINITE

#: Digits that are computed with, and the step as a power of ten.
DIGITS, STEP = 80, 25
COMPLEX, MANY = "complex step", f"differences in {DIGITS} digits"
LINEAR, EXTRAPOLATED = "differences on a linear piece", "extrapolated differences"
#: Most elements that are moved in many digits, each by Python's own arithmetic.
FEW = 24
#: The ways, in the order in which they are tried: how each works, and how good it is.
ABOUT = {
    COMPLEX: ("the imaginary part at x + i·2⁻¹⁰⁰·v, of what takes complex numbers", "2⁻⁴⁰"),
    LINEAR: ("a step on which the second difference is roundoff: max, sort, pooling, indexing", "2⁻³⁰ to 2⁻⁴⁰"),
    EXTRAPOLATED: ("Romberg's, of four central differences, whose last correction is the error", "2⁻³⁰"),
    FINITE: ("the whole Jacobian under 100 elements, two projections above; near kinks and poles", "their own error"),
    MANY: (
        f"of a kernel's reference that takes such numbers and repeats its own values, at most {FEW} elements",
        "2⁻⁵⁰",
    ),
}
#: Share of Σ |gradient·direction| that a slope must be known to, to stand alone; and by which a gradient may miss it:
#: float64's own rounding in a sum of many terms.
TIGHT, ROUNDING = 2.0**-30, 2.0**-40
#: Directions that are looked along. Whatever is wrong in a gradient shows in any of them, unless it is orthogonal to
#: it.
WAYS = 2
#: Pairs of directions whose slopes must add up before a gradient is contradicted.
PAIRS = 4
#: Steps on a linear piece, longest first; a long one has less roundoff, and meets more kinks.
PIECES = (2.0**-6, 2.0**-12, 2.0**-17)
#: How often the long step of an extrapolation is shortened, to an eighth: near a pole, or a kink.
RUNGS = 5
#: Elements that a contradiction is traced to at most, and slopes that are looked at for it. A part of a gradient whose
#: own gap is less than LEAST of the whole's is left.
TRACED, LOOKS, LEAST = 16, 192, 2.0**-8
#: The imaginary step, relative to the scale of an element: its square is lost beside 1 (Squire and Trapp, 1998).
IMAGINARY = 2.0**-100
#: How near the values must be that both ways compute: a function that is not what it was when it is given other numbers
#: is no oracle.
NEAR = 1e-6


def differentiate_by_complex_step(
    function: Function, inputs: Arrays, cotangents: Arrays, beside: Differences
) -> Differences | None:
    """The gradient of Σ⟨cotangent, output⟩ by the imaginary part of the function at inputs + i·step.

    None where the function does not take complex numbers, has other real parts there, or other slopes than the
    differences ``beside`` it, or than those at numbers near 1, where they are good (an absolute value is no analytic
    function). An element beyond its range has no error estimate.
    """
    if any(np.iscomplexobj(x) for x in (*inputs, *cotangents)):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an imaginary part that is dropped: the slope tells
        if not _is_function_analytic(function, inputs, cotangents):
            return None
        return _by_complex_step(function, inputs, cotangents, beside)


def _by_complex_step(function: Function, inputs: Arrays, cotangents: Arrays, beside: Differences) -> Differences | None:
    centre = [np.asarray(y) for y in function(inputs)]
    found = _make_alike_differences(inputs, COMPLEX)
    for i, x in enumerate(inputs):
        steps = measure_element_sizes(x) * IMAGINARY
        for at in np.ndindex(x.shape):
            moved = [np.asarray(y, np.complex128) for y in inputs]
            moved[i] = moved[i].copy()
            moved[i][at] += 1j * steps[at]
            try:
                outputs = [np.asarray(y) for y in function(moved)]
            except Exception:
                return None
            if not all(_is_near_exact(y.real, c) for y, c in zip(outputs, centre)):
                return None
            terms = [c * y.imag / steps[at] for c, y in zip(cotangents, outputs)]
            found.gradients[i][at] = sum(float(np.sum(t)) for t in terms)
            # A sum of what cancels, of numbers that each are right to some spacings.
            size = sum(float(np.sum(np.abs(t))) for t in terms)
            size += sum(
                float(np.sum(np.abs(c * y) * (t != 0))) / float(measure_difference_steps(x)[at])
                for c, y, t in zip(cotangents, centre, terms)
            )
            found.errors[i][at] = 16 * EPS64 * size if np.isfinite(found.gradients[i][at] + size) else np.inf
    for value, error, slope, own in zip(found.gradients, found.errors, beside.gradients, beside.errors):
        told = np.isfinite(error) & np.isfinite(own)
        if not (np.abs(value - slope)[told] <= (2 * own + error + 1e-9 * np.abs(value))[told]).all():
            return None
    return found


def _is_function_analytic(function: Function, inputs: Arrays, cotangents: Arrays) -> bool:
    """Whether both ways give the same slope at a place where differences are good."""
    told = 0
    generator = np.random.Generator(np.random.PCG64(6))
    for centre, width in ((0.0, 1.0), (1.0, 0.2)):
        values = [centre + width * generator.normal(size=x.shape) for x in inputs]
        direction = [generator.normal(size=x.shape) for x in inputs]
        try:
            slope = DifferencesAlong(function, values, cotangents, direction).steepest(function(values))
            moved = function([x + 1j * IMAGINARY * d for x, d in zip(values, direction)])
            found = sum(float(np.sum(c * np.imag(y))) for c, y in zip(cotangents, moved)) / IMAGINARY
        except Exception:
            return False
        if np.isfinite(found) and slope.error < 1e-3 * abs(slope.value):
            told += 1
            if abs(found - slope.value) > slope.error + 1e-9 * abs(found):
                return False
    return bool(told)


def compare_slopes_along(
    function: Function, inputs: Arrays, cotangents: Arrays, gradients: Arrays, numbers: str = "real"
) -> tuple[str, list[np.ndarray]] | None:
    """What the slopes along random directions say of ``gradients``: (COMPLEX, LINEAR or EXTRAPOLATED, the gradients),
    or None if nothing.

    Where a way tells the slopes to TIGHT and they are those of the gradients, these are returned as they are. A
    function that is not analytic, or not linear nearby, has other slopes by those ways, and none is right by chance: so
    the first way that agrees is believed. Where all disagree, a way is believed that central differences confirm, and
    up to TRACED elements, those that are furthest off, are as they are by it. numbers: "complex" where the function may
    be given such.
    """
    if not all(np.isfinite(g).all() for g in gradients):
        return None
    centre = [np.asarray(y) for y in function(inputs)]
    lines = [DifferencesAlong(function, inputs, cotangents, d) for d in _draw_coarse_directions(inputs)]
    others = []
    for name, way in _BY if numbers == "complex" else _BY[1:]:
        slopes = [way(lines[0], centre)]
        if _does_slope_agree(slopes[0], lines[0], gradients):
            slopes += [way(line, centre) for line in lines[1:]]
            if all(_does_slope_agree(slope, line, gradients) for slope, line in zip(slopes, lines)):
                return name, list(gradients)
        if _is_slope_apart(slopes[0], lines[0], gradients):
            others.append((name, way))
    for name, way in others:
        slopes = [way(line, centre) for line in lines]
        confirmed = all(_is_slope_confirmed(slope, line, centre, gradients) for slope, line in zip(slopes, lines))
        if confirmed and _has_function_gradient(way, lines[0], centre):
            return name, _trace_wrong_gradients(way, lines[0], centre, gradients)
    return None


def _has_function_gradient(
    way: Callable[[DifferencesAlong, Arrays], Slope], line: DifferencesAlong, centre: Arrays
) -> bool:
    """Whether there is a gradient: slopes along two directions add up to the one along their sum. At a tie a median is
    linear along every line, and has none."""

    def look(direction: Arrays) -> tuple[Slope, float]:
        slope = way(DifferencesAlong(line.function, line.inputs, line.cotangents, direction), centre)
        return slope, slope.error + 8 * TIGHT * abs(slope.value)

    ways = _draw_coarse_directions(line.inputs, 2 * PAIRS)
    for first, second in zip(ways[::2], ways[1::2]):
        (one, off), (other, gap), (both, error) = map(look, (first, second, [x + y for x, y in zip(first, second)]))
        if not abs(one.value + other.value - both.value) <= off + gap + error:
            return False
    return True


def _draw_coarse_directions(inputs: Arrays, count: int = WAYS) -> list[list[np.ndarray]]:
    """`draw_directions` of few bits: what is moved along them by a power of two, is moved exactly."""
    return [
        [np.round(d / s * 64) / 64 * s for d, s in zip(way, map(measure_difference_steps, inputs))]
        for way in draw_directions(inputs, count)
    ]


def _sum_slope_terms(gradients: Arrays, direction: Arrays) -> float:
    return float(sum(np.sum(np.abs(g) * np.abs(d)) for g, d in zip(gradients, direction)))


def _does_slope_agree(slope: Slope, line: DifferencesAlong, gradients: Arrays) -> bool:
    terms = _sum_slope_terms(gradients, line.direction)
    gap = abs(slope.value - project_gradient(gradients, line.direction))
    return bool(slope.error <= TIGHT * terms and gap <= 4 * slope.error + ROUNDING * terms)


def _is_slope_apart(slope: Slope, line: DifferencesAlong, gradients: Arrays) -> bool:
    gap = abs(slope.value - project_gradient(gradients, line.direction))
    return bool(gap > 16 * (slope.error + ROUNDING * _sum_slope_terms(gradients, line.direction)))


def _is_slope_confirmed(slope: Slope, line: DifferencesAlong, centre: Arrays, gradients: Arrays) -> bool:
    """Whether central differences of real numbers are nearer to a slope than to the gradients. Near a pole or in a tail
    complex arithmetic underflows where the function does not, and differences are 0 as well: such a slope is none. Nor
    is the mean of both sides of a kink."""
    if not slope.error <= abs(slope.value) / 16 or not _is_slope_apart(slope, line, gradients):
        return False  # of a function that has saturated a step on, a slope says what is there
    beside = line.steepest(centre)
    gap = abs(slope.value - project_gradient(gradients, line.direction))
    return bool(not beside.why and beside.value and abs(beside.value - slope.value) <= gap / 16)


def _trace_wrong_gradients(
    way: Callable[[DifferencesAlong, Arrays], Slope], line: DifferencesAlong, centre: Arrays, gradients: Arrays
) -> list[np.ndarray]:
    """``gradients`` with the elements that are furthest off as they are by a ``way``, by halving."""
    flat = np.concatenate([d.reshape(-1) for d in line.direction])
    ends = np.cumsum([d.size for d in line.direction])[:-1]
    traced = [g.copy() for g in gradients]

    def look(places: np.ndarray) -> tuple[float, float, np.ndarray]:
        """The gap along the part of the direction at some places, the slope by the way, and the places."""
        part = np.zeros_like(flat)
        part[places] = flat[places]
        pieces = zip(np.split(part, ends), line.direction)
        along = [(p if np.iscomplexobj(d) else p.real).reshape(d.shape) for p, d in pieces]
        piece = DifferencesAlong(line.function, line.inputs, line.cotangents, along)
        slope = way(piece, centre)
        gap = abs(slope.value - project_gradient(gradients, along)) if _is_slope_apart(slope, piece, gradients) else 0.0
        return gap, slope.value, places

    parts, found, looks = [look(np.flatnonzero(flat))], 0, 1
    least = LEAST * parts[0][0]
    while parts and found < TRACED and looks < LOOKS:
        parts.sort(key=lambda part: part[0])
        _, value, places = parts.pop()
        if len(places) > 1:
            parts += [part for part in map(look, np.array_split(places, 2)) if part[0] > least]
            looks += 2
            continue
        number = int(np.searchsorted(ends, places[0], side="right"))
        if not np.iscomplexobj(traced[number]):
            within = int(places[0] - (ends[number - 1] if number else 0))
            traced[number].reshape(-1)[within] = value / flat[places[0]].real
            found += 1
    return traced


def _compute_complex_slope(line: DifferencesAlong, centre: Arrays) -> Slope:
    """By the imaginary part at inputs + i·step·direction. Its error is what a change of the inputs by two spacings
    makes of it."""
    nothing = Slope(np.nan, np.inf)
    if any(np.iscomplexobj(x) for x in (*line.inputs, *line.cotangents, *centre)):
        return nothing
    found = []
    for spacings in (0, 2):
        moved = [
            x * (1 + spacings * EPS64 * np.sign(d)) + 1j * IMAGINARY * d for x, d in zip(line.inputs, line.direction)
        ]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = [np.asarray(y) for y in line.function(moved)]
        except Exception:  # not of complex numbers
            return nothing
        if len(outputs) != len(centre) or not all(_is_near_exact(np.real(y), c) for y, c in zip(outputs, centre)):
            return nothing
        terms = [c * np.imag(y) / IMAGINARY for c, y in zip(line.cotangents, outputs)]
        found.append((sum(float(np.sum(t)) for t in terms), sum(float(np.sum(np.abs(t))) for t in terms)))
    (value, size), (other, _) = found
    error = 4 * abs(value - other) + 64 * EPS64 * size
    return Slope(value, error) if np.isfinite(value + error) else nothing


def _compute_linear_slope(line: DifferencesAlong, centre: Arrays) -> Slope:
    """By the longest step on which the function is linear: what is left of its second difference, curvature or
    roundoff, is the error."""
    best = Slope(np.nan, np.inf)
    for h in PIECES:
        up, half, down = line.at(h), line.at(h / 2), line.at(-h)
        if not all(u.shape == m.shape == v.shape == w.shape for u, m, v, w in zip(up, centre, down, half)):
            return best
        given = [*zip(line.cotangents, up, centre, down)]
        bend = sum(float(np.sum(np.abs(c) * np.abs(u - 2 * m + v))) for c, u, m, v in given)
        # A step in the middle of both has no second difference.
        bend += sum(float(np.sum(np.abs(c) * np.abs(u - 2 * w + m))) for (c, u, m, _), w in zip(given, half))
        size = sum(float(np.sum(np.abs(c) * (np.abs(u) + np.abs(v)))) for c, u, m, v in given)
        found = Slope(line.between(up, down) / (2 * h), (2 * bend + EPS64 * size) / h)
        if found.error < best.error:
            best = found
        if bend <= 16 * EPS64 * size:
            break
    return best


def _compute_extrapolated_slope(line: DifferencesAlong, centre: Arrays) -> Slope:
    """By Romberg's extrapolation of four central differences. The last correction is the error, and what rounding does
    to outputs of their size; what it does to larger numbers inside, the corrections show."""
    best = Slope(np.nan, np.inf)
    for rung in range(RUNGS):
        longest = LONG_STEP / 8**rung
        row: list[float] = []
        for k in range(4):
            h = longest / 2**k
            up, down = line.at(h), line.at(-h)
            if not all(u.shape == m.shape == v.shape for u, m, v in zip(up, centre, down)):
                return best
            size = sum(float(np.sum(np.abs(c) * (np.abs(u) + np.abs(v)))) for c, u, v in zip(line.cotangents, up, down))
            new = [line.between(up, down) / (2 * h)]
            for power, before in enumerate(row, 1):
                new.append(new[-1] + (new[-1] - before) / (4.0**power - 1))
            last, row = row, new
        found = Slope(row[-1], 4 * abs(row[-1] - last[-1]) + 4 * EPS64 * size / h)
        if found.error > best.error:
            break
        if found.error < best.error:
            best = found
        if best.error <= TIGHT / 16 * abs(best.value):
            break
    return best


#: The ways to a slope along a direction, the most exact first.
_BY: tuple[tuple[str, Callable[[DifferencesAlong, Arrays], Slope]], ...] = (
    (COMPLEX, _compute_complex_slope),
    (LINEAR, _compute_linear_slope),
    (EXTRAPOLATED, _compute_extrapolated_slope),
)


def measure_element_sizes(x: np.ndarray) -> np.ndarray:
    """What a step is short beside: an element itself, the scale of the others where it is 0."""
    size = np.abs(x)
    return np.where((size > 0) & (size < np.inf), size, measure_difference_steps(x))


def _make_alike_differences(inputs: Arrays, how: str) -> Differences:
    def zeros() -> list[np.ndarray]:
        return [np.zeros(x.shape) for x in inputs]

    return Differences(zeros(), zeros(), [np.zeros(x.shape, np.bool_) for x in inputs], zeros(), how=how)


def _is_near_exact(value: np.ndarray, right: np.ndarray) -> bool:
    """Whether values are those of the function itself, where both are finite."""
    if value.shape != right.shape:
        return False
    told = np.isfinite(value) & np.isfinite(right)
    scale = np.abs(right[told]).max(initial=0.0)
    return bool((np.abs(value - right)[told] <= NEAR * (np.abs(right[told]) + 1e-3 * scale)).all())


class ComplexNumber:
    """A real number of `DIGITS` digits, of which NumPy makes arrays of objects: its functions call the method of their
    name."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattr__(self, name: str) -> Callable[..., ComplexNumber]:
        import mpmath

        if name.startswith("_"):
            raise AttributeError(name)
        function = getattr(mpmath, name.replace("arc", "a") if name.startswith("arc") else name)
        return lambda *others: ComplexNumber(_get_real_part(function(self.value, *map(_get_real_value, others))))

    def conjugate(self) -> ComplexNumber:
        return self

    def __neg__(self) -> ComplexNumber:
        return ComplexNumber(-self.value)

    def __abs__(self) -> ComplexNumber:
        return ComplexNumber(abs(self.value))

    def __hash__(self) -> int:
        return hash(self.value)


def _get_real_value(x: Any) -> Any:
    import mpmath

    if isinstance(x, ComplexNumber):
        return x.value
    # A float64 is what it is; of anything else nothing is known.
    return mpmath.mpf(int(x)) if isinstance(x, (bool, int, np.integer, np.bool_)) else mpmath.mpf(float(x))


def _get_real_part(x: Any) -> Any:
    import mpmath

    return x if isinstance(x, mpmath.mpf) else mpmath.nan


def _make_complex_operator(name: str) -> Callable[[ComplexNumber, Any], Any]:
    def call(self: ComplexNumber, other: Any) -> Any:
        if not isinstance(other, (ComplexNumber, bool, int, float, np.number, np.bool_)):
            return NotImplemented
        found = getattr(self.value, name)(_get_real_value(other))
        return found if isinstance(found, bool) else ComplexNumber(_get_real_part(found))

    return call


for _name in ("add", "sub", "mul", "truediv", "pow", "mod"):
    setattr(ComplexNumber, f"__{_name}__", _make_complex_operator(f"__{_name}__"))
    setattr(ComplexNumber, f"__r{_name}__", _make_complex_operator(f"__r{_name}__"))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ComplexNumber, f"__{_name}__", _make_complex_operator(f"__{_name}__"))


def differentiate_in_many_digits(
    function: Callable[[Sequence[np.ndarray]], Sequence[Any]],
    inputs: Arrays,
    outputs: Arrays,
    cotangents: Arrays,
    only: Sequence[np.ndarray],
) -> Differences | None:
    """The gradient by differences in `DIGITS` digits, of the elements in ``only``: neither roundoff nor a step too long
    is left.

    function: takes arrays of `ComplexNumber`; outputs: its values in float64. None where it does not take them, or they are
    other values (it overflows or cancels in float64, and is then another function); no more than `FEW` elements are
    moved.
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

    wide = np.frompyfunc(lambda x: ComplexNumber(mpmath.mpf(float(x))), 1, 1)
    start = [np.asarray(wide(x), object).reshape(x.shape) for x in inputs]

    def call_on_copies(values: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(y, object) for y in function([x.copy() for x in values])]

    centre = call_on_copies(start)
    floats = [np.array([float(_get_real_value(v)) for v in y.reshape(-1)]).reshape(y.shape) for y in centre]
    if len(floats) != len(outputs) or not all(_is_near_exact(a, b) for a, b in zip(floats, outputs)):
        return None

    def between(upper: Sequence[np.ndarray], lower: Sequence[np.ndarray]) -> Any:
        return mpmath.fsum(
            mpmath.mpf(float(c)) * (_get_real_value(u) - _get_real_value(v))
            for cs, us, vs in zip(cotangents, upper, lower)
            for c, u, v in zip(cs.reshape(-1), us.reshape(-1), vs.reshape(-1))
        )

    found = _make_alike_differences(inputs, MANY)
    for i, (x, mask) in enumerate(zip(inputs, only)):
        found.errors[i][~mask] = np.inf
        for at in map(tuple, np.argwhere(mask)):
            h = mpmath.mpf(float(measure_element_sizes(x)[at])) / mpmath.mpf(10) ** STEP
            sides = []
            for step in (h, -h):
                moved = [y.copy() for y in start]
                moved[i][at] = moved[i][at] + ComplexNumber(step)
                sides.append(between(call_on_copies(moved), centre) / step)
            slope = (sides[0] + sides[1]) / 2
            kink = abs(sides[0] - sides[1]) > abs(slope) / 10**10 + mpmath.mpf(10) ** (5 - STEP)
            found.kinks[i][at], found.gradients[i][at] = bool(kink), float(slope)
            found.errors[i][at] = 4 * EPS64 * abs(float(slope)) if mpmath.isfinite(slope) and not kink else np.inf
    found.why = (KINK,) if any(k.any() for k in found.kinks) else ()
    return found


def choose_best_differences(first: Differences, *others: Differences | None) -> Differences:
    """Per element the derivative whose error estimate is least. A kink remains one, unless differences in many digits
    look nearer: the complex step takes one side of it."""
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
