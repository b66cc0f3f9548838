"""Arrays to metrics: how far the outputs of a backend are from the reference, independent of any policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.model import (
    EPS,
    LARGEST,
    PART,
    SMALLEST_NORMAL,
    WITHOUT_NOISE,
    Leaf,
    OpClass,
    is_complex,
    is_inexact,
    rounded,
    wide,
)
from tasks.model.dtypes import CLASSIC, dtype_name

#: Elements handled at a time: the working set of one block stays inside a core's cache.
BLOCK = 1 << 15


@dataclass
class Metrics:
    """What a policy needs to know of one outcome; None where it was not measured.

    kind: "" or why no number can be right: "structure" (count of outputs), "shape", "dtype", or what a kernel did
    ("mutation", "aliasing", "nondeterministic", …); detail: its text.
    max_diff, max_rel, rmse: over elements finite on both sides; max_ulp: in spacings of the output dtype (of a
    coarser declared precision, if there is one) at the reference; error_units: max |a−y| / (ε|y| + δ + tiny), inf for
    a misplaced NaN or Inf; mismatched: elements outside the classic tolerance; nonfinite: misplaced NaN/Inf among
    them; classic: mismatched == 0.
    """

    kind: str = ""
    detail: str = ""
    max_diff: float | None = None
    max_rel: float | None = None
    max_ulp: float | None = None
    rmse: float | None = None
    error_units: float | None = None
    noise_floor: float | None = None
    mismatched: int = 0
    nonfinite: int = 0
    numel: int = 0
    classic: bool = True


class _Sums:
    """Running maxima and sums over the blocks of all leaves of a case."""

    __slots__ = ("bad", "diff", "noise", "nonfinite", "numel", "rel", "seen", "square", "ulp", "units")

    def __init__(self) -> None:
        self.diff = self.rel = self.ulp = self.units = self.square = self.noise = 0.0
        self.numel = self.bad = self.nonfinite = self.seen = 0


def compare(
    actual: Sequence[Any], expected: Sequence[Leaf], op_class: OpClass = OpClass.COMPOSITE, precision: str = ""
) -> Metrics:
    """Measure ``actual`` (flat outputs, numpy arrays or scalars) against ``expected``.

    Complex numbers are measured by the modulus of the difference, which bounds that of both parts; those of an EXACT op
    part by part. RANDOM compares shape, dtype and finiteness, UNINITIALISED shape and dtype alone; EXACT and ELEMENTARY
    do not consult the noise floor; DISCONTINUOUS takes it as the size of the jump that excuses an element which is not
    the reference rounded; all others measure error units. precision: dtype name of a declared coarser compute
    precision ("" for none); ε and the spacing are the coarser of the two, its range counts, and the noise floor grows in
    proportion. The inputs are then not given exactly, and ulps of an exact or elementary op count from four
    times the noise floor on.
    """
    metrics = Metrics()
    arrays = [np.asarray(a) for a in actual]
    check_metadata(arrays, expected, metrics)
    if metrics.kind:
        return metrics
    sums = _Sums()
    with np.errstate(all="ignore"):
        for a, leaf in zip(arrays, expected):
            if op_class in (OpClass.RANDOM, OpClass.UNINITIALISED) or leaf.reference is None:
                metrics.numel += a.size
                if op_class is OpClass.RANDOM and is_inexact(leaf.dtype):
                    lost = int(a.size - np.isfinite(a.astype(wide(leaf.dtype))).sum())
                    ref = leaf.reference
                    if lost and (ref is None or np.isfinite(ref).all()):
                        sums.nonfinite += lost
                        sums.bad += lost
            elif leaf.dtype == "str":
                bad = int((a != leaf.reference).sum())
                sums.numel += a.size
                sums.bad += bad
                sums.units = sums.ulp = np.inf if bad else sums.units
            else:
                _leaf(a, leaf, op_class, precision, sums)
    metrics.numel += sums.numel
    metrics.mismatched, metrics.nonfinite, metrics.classic = sums.bad, sums.nonfinite, sums.bad == 0
    if sums.nonfinite:
        sums.units = np.inf
    if sums.numel:
        metrics.error_units, metrics.noise_floor = float(sums.units), float(sums.noise)
    elif sums.nonfinite:
        metrics.error_units = float("inf")
    if sums.seen:
        metrics.max_diff, metrics.max_rel, metrics.max_ulp = float(sums.diff), float(sums.rel), float(sums.ulp)
        metrics.rmse = float(np.sqrt(sums.square / sums.seen))
    return metrics


def check_metadata(actual: Sequence[np.ndarray], expected: Sequence[Leaf], metrics: Metrics) -> None:
    """Set ``metrics.kind`` and ``detail`` where the count of outputs, a shape or a dtype is not the expected one."""
    if len(actual) != len(expected):
        metrics.kind, metrics.detail = "structure", f"{len(actual)} outputs, expected {len(expected)}"
    for i, (a, leaf) in enumerate(zip(actual, expected)):
        if metrics.kind:
            break
        where = f"output {i}: " if len(expected) > 1 else ""
        if a.shape != tuple(leaf.shape):
            metrics.kind, metrics.detail = "shape", f"{where}shape {a.shape}, expected {tuple(leaf.shape)}"
        elif dtype_name(a.dtype) != leaf.dtype and not (leaf.dtype == "complex32" and a.dtype == np.complex64):
            metrics.kind, metrics.detail = "dtype", f"{where}dtype {dtype_name(a.dtype)}, expected {leaf.dtype}"
    metrics.classic = not metrics.kind


def compare_oracles(
    references: Sequence[np.ndarray], expected: Sequence[Leaf], op_class: OpClass, rounding: float = 0.0
) -> dict[str, Any]:
    """How far a further oracle's ``references`` are from those of ``expected``: {"units", "classic", "detail"}.

    Both are exact as far as the dtype under test can tell, so their distance is judged as a backend's would be;
    units is infinite where shapes differ or only one of them is NaN or infinite. classic: whether they are within the
    classic tolerance. rounding: see `tasks.model.Oracle`.
    """
    apart = {"units": float("inf"), "classic": False}
    if len(references) != len(expected):
        return apart | {"detail": f"{len(references)} outputs against {len(expected)}"}
    sums = _Sums()
    with np.errstate(all="ignore"):
        for i, (y, leaf) in enumerate(zip(references, expected)):
            if y.shape != tuple(leaf.shape):
                return apart | {"detail": f"output {i}: shape {y.shape} against {tuple(leaf.shape)}"}
            if leaf.reference is None or leaf.dtype == "str":
                continue
            if rounding and is_inexact(leaf.dtype):
                size = np.abs(leaf.reference)
                floor = rounding * float(size.max(initial=0.0, where=np.isfinite(size)))
                leaf = replace(leaf, noise=np.full(y.shape, floor) if leaf.noise is None else leaf.noise + floor)
            _leaf(y, leaf, op_class, "", sums)
    if sums.nonfinite:
        return apart | {"detail": f"{sums.nonfinite} NaN or Inf of {sums.numel} elements stand elsewhere"}
    # An exact or elementary op is judged in ulps, and so are its oracles.
    units = sums.ulp if op_class in WITHOUT_NOISE and sums.units < np.inf else sums.units
    return {"units": float(units), "classic": sums.bad == 0, "detail": f"{sums.diff:.3g} apart"}


def classic_tolerance(dtype: str) -> tuple[float, float]:
    """(rtol, atol) of a dtype where the case brings none.

    Low-bit floats are compared like integers but with their spacing, integers exactly.
    """
    return CLASSIC.get(dtype, (EPS.get(dtype, 0.0), 0.0))


def tolerance_of(leaf: Leaf, op_class: OpClass, precision: str = "") -> tuple[float, float]:
    """(rtol, atol) of a leaf: its own or its dtype's classic tolerance, no narrower than a coarser ``precision`` allows."""
    rtol, atol = classic_tolerance(leaf.dtype)
    rtol, atol = rtol if leaf.rtol is None else leaf.rtol, atol if leaf.atol is None else leaf.atol
    if is_coarser(precision, leaf.dtype) and leaf.noise is None and op_class not in WITHOUT_NOISE:
        # No float64 evaluation, so no noise floor: what rounding does to sums is known by the largest result alone.
        assert leaf.reference is not None
        eps, sizes = EPS[precision], np.abs(leaf.reference)
        scale = float(sizes.max(initial=0.0, where=np.isfinite(sizes)))
        rtol, atol = max(rtol, eps), max(atol, eps * min(scale, LARGEST.get(precision, np.inf)))
    return rtol, atol


def is_coarser(precision: str, dtype: str) -> bool:
    """Whether a declared compute precision ("" for none) rounds more than a floating dtype does."""
    return bool(precision) and EPS[precision] > EPS.get(dtype, np.inf)


def _leaf(a: np.ndarray, leaf: Leaf, op_class: OpClass, precision: str, sums: _Sums) -> None:
    reference = leaf.reference
    assert reference is not None
    dtype = leaf.dtype
    rtol, atol = tolerance_of(leaf, op_class, precision)
    eps, smallest, largest = EPS.get(dtype, 0.0), SMALLEST_NORMAL.get(dtype, 0.0), LARGEST.get(dtype, np.inf)
    sums.numel += a.size
    a, y = a.reshape(-1), reference.reshape(-1)
    coarser = is_coarser(precision, dtype)
    rounded = coarser and op_class in WITHOUT_NOISE  # a coarser device rounds the inputs of every op, however given
    noise = None if leaf.noise is None or (op_class in WITHOUT_NOISE and not rounded) else leaf.noise.reshape(-1)
    if op_class is OpClass.EXACT and is_complex(dtype):
        # What is moved is moved part by part: beside a large part a small one counts in full, and so does its NaN.
        a, y, dtype = np.stack([a.real, a.imag]).ravel(), np.stack([y.real, y.imag]).ravel(), PART[dtype]
        noise = None if noise is None else np.concatenate([noise, noise])
    if coarser:
        # To first order the result moves in proportion to what its inputs are rounded by.
        noise = None if noise is None else noise * (EPS[precision] / eps)
        eps = EPS[precision]
        # Its range is declared as well: below it numbers have fewer digits, beyond it they saturate or are infinite.
        smallest = max(smallest, SMALLEST_NORMAL.get(precision, 0.0))
        if LARGEST.get(precision, np.inf) < largest and not is_complex(dtype):
            a = _within_range(a, y, noise, LARGEST[precision], eps)
    stepwise = op_class is OpClass.DISCONTINUOUS
    for at in range(0, a.size, BLOCK):
        part = slice(at, at + BLOCK)
        near = None if noise is None else noise[part]
        if is_inexact(dtype):
            _block(a[part], y[part], near, dtype, eps, smallest, rtol, atol, stepwise, rounded, sums)
        else:
            _integers(a[part], y[part], near, rtol, atol, sums)


def _block(
    a: np.ndarray,
    y: np.ndarray,
    noise: np.ndarray | None,
    dtype: str,
    eps: float,
    smallest: float,
    rtol: float,
    atol: float,
    stepwise: bool,
    rounded: bool,
    sums: _Sums,
) -> None:
    tiny = smallest * eps
    wide_a = a.astype(wide(dtype))
    diff, size = np.abs(wide_a - y), np.abs(y)
    top = diff.max()
    if not (top < np.inf and size.max() <= LARGEST[dtype]):
        wide_a, y, noise, diff, size = _nonfinite(wide_a, y, noise, dtype, eps, tiny, rtol, atol, sums)
        if not diff.size:
            return
        top = diff.max()
    sums.seen += diff.size
    if noise is not None:
        sums.noise = max(sums.noise, float(noise.max()))
    if top == 0:
        return
    spacing = np.ldexp(eps, np.frexp(np.maximum(size, smallest))[1] - 1)
    # Of rounded inputs, what is beyond four times the noise floor (a few draws of a sum that cancels may miss as much; it is
    # what the strictest limit in error units allows), in spacings of a result that moves as much.
    ulps = diff / spacing if noise is None or not rounded else np.maximum(diff - 4 * noise, 0.0) / (spacing + noise)
    tolerance = size * eps if not stepwise else np.zeros_like(size)
    if noise is not None:
        tolerance += noise
    if not stepwise:
        tolerance += tiny
    units = diff / tolerance
    if stepwise:
        units[ulps <= 0.5] = 0.0
    largest = float(units.max())
    if np.isnan(largest):  # ∞/∞: excused where the noise floor is infinite
        largest = float(np.where(tolerance == np.inf, 0.0, np.where(np.isnan(units), np.inf, units)).max())
    sums.units = max(sums.units, largest)
    sums.diff = max(sums.diff, float(top))
    sums.rel = max(sums.rel, float(np.divide(diff, size, out=np.zeros_like(diff), where=size > 0).max()))
    sums.ulp = max(sums.ulp, float(ulps.max()))
    sums.bad += int(np.count_nonzero(diff > atol + rtol * size))
    # Not np.dot: its order of summation, and so its last bits, depend on the number of threads.
    sums.square += float(np.square(diff, out=diff).sum())


def _integers(a: np.ndarray, y: np.ndarray, noise: np.ndarray | None, rtol: float, atol: float, sums: _Sums) -> None:
    """Exact comparison; a difference counts in units of the noise that can flip the value, if any."""
    sums.seen += a.size
    if noise is not None:
        sums.noise = max(sums.noise, float(noise.max()))
    different = a != y
    if not different.any():
        return
    diff = _distance(a[different], y[different])
    size = np.abs(y[different].astype(np.float64))
    units = diff / noise[different] if noise is not None else np.full_like(diff, np.inf)
    sums.units = max(sums.units, float(units.max()))
    sums.diff = max(sums.diff, float(diff.max()))
    sums.ulp = max(sums.ulp, float(diff.max()))  # an integer's spacing is 1
    sums.rel = max(sums.rel, float(np.divide(diff, size, out=np.zeros_like(diff), where=size > 0).max()))
    sums.bad += int(np.count_nonzero(diff > atol + rtol * size))
    sums.square += float(np.square(diff, out=diff).sum())


def _distance(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|a − y| of integers or bools, rounded once: large 64-bit integers can differ and be equal as float64."""
    if a.dtype != np.uint64:
        a, y = a.astype(np.int64), y.astype(np.int64)
    # In two's complement the difference of the larger and the smaller is right modulo 2**64, whatever the signs.
    return (np.maximum(a, y).astype(np.uint64) - np.minimum(a, y).astype(np.uint64)).astype(np.float64)


def _nonfinite(
    a: np.ndarray,
    y: np.ndarray,
    noise: np.ndarray | None,
    dtype: str,
    eps: float,
    tiny: float,
    rtol: float,
    atol: float,
    sums: _Sums,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Settle the elements with NaN or Inf on either side; return the arrays of the others.

    Inf where the reference is finite stands for the first value beyond the largest finite one if the reference
    is so large that it may overflow: a result at the border is judged by its distance like any other.
    """
    cast = rounded(y, dtype)
    finite_a, finite_y = np.isfinite(a), np.isfinite(cast)
    settled = ~finite_a & ~finite_y
    if is_complex(dtype):
        wrong = np.zeros_like(settled)  # which part overflowed is a matter of the formula used
    else:
        wrong = settled & ~((np.isnan(a) & np.isnan(cast)) | (a == cast))
        a, border = _at_border(a, y, noise, dtype)
        border &= ~settled
        finite_a, finite_y = finite_a | border, finite_y | border
    wrong |= ~settled & (finite_a != finite_y)
    if noise is not None:
        wrong &= np.isfinite(noise)
    count = int(np.count_nonzero(wrong))
    sums.nonfinite += count
    sums.bad += count
    both = finite_a & finite_y
    a, y = a[both], y[both]
    return a, y, None if noise is None else noise[both], np.abs(a - y), np.abs(y)


def _at_border(
    a: np.ndarray, y: np.ndarray, noise: np.ndarray | float | None, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """(a with its Inf made finite where the reference is at the border of overflow, those places)."""
    beyond = LARGEST[dtype] * (1 + EPS[dtype])
    reach = np.abs(y) + (0.0 if noise is None else noise)
    border = ~np.isnan(a) & np.isfinite(y) & (reach >= LARGEST[dtype] / 2) & np.isfinite(beyond)
    return np.where(border & np.isinf(a), np.copysign(beyond, a), a), border


def _within_range(a: np.ndarray, y: np.ndarray, noise: np.ndarray | None, largest: float, eps: float) -> np.ndarray:
    """``a``, as wide as ``y``, with what a coarser precision makes of results near and beyond its ``largest`` number put right.

    Beyond it there is nothing but that number (saturation) and Inf: both, and all between, stand for the reference. An Inf
    at the border stands for the next number, and is judged by its distance as in `_at_border`.
    """
    reach = np.abs(y) + (0.0 if noise is None else noise)
    sided = np.isfinite(y) & (np.signbit(a) == np.signbit(y))
    over = sided & (reach >= largest) & (np.abs(a) >= largest * (1 - eps))
    border = sided & np.isinf(a) & (reach >= largest / 2) & ~over
    if not (over.any() or border.any()):
        return a
    return np.where(over, y, np.where(border, np.copysign(largest * (1 + eps), y), a.astype(y.dtype)))


def worst(actual: Sequence[Any], expected: Sequence[Leaf]) -> tuple[int, tuple[int, ...]] | None:
    """(output, index) of the element with the largest error units, NaN misplacement first; None if nothing."""
    best: tuple[float, int, tuple[int, ...]] | None = None
    with np.errstate(all="ignore"):
        for i, (a, leaf) in enumerate(zip(map(np.asarray, actual), expected)):
            if leaf.reference is None or leaf.dtype == "str" or not a.size or a.shape != tuple(leaf.shape):
                continue
            noise = 0.0 if leaf.noise is None else leaf.noise
            if is_inexact(leaf.dtype):
                x, y = a.astype(wide(leaf.dtype)), leaf.reference
                cast = rounded(y, leaf.dtype)
                same = (np.isnan(x) & np.isnan(cast)) | (x == cast)
                if is_complex(leaf.dtype):
                    same |= ~np.isfinite(x) & ~np.isfinite(cast)
                else:
                    x, _ = _at_border(x, y, noise, leaf.dtype)
                eps = EPS[leaf.dtype]
                units = np.abs(x - y) / (eps * np.abs(y) + noise + SMALLEST_NORMAL[leaf.dtype] * eps)
                units = np.where(same | (noise == np.inf), 0.0, np.where(np.isnan(units), np.inf, units))
            else:
                # The last term keeps an order among differences that no noise excuses.
                units = _distance(a, leaf.reference) / (noise + 2.0**-64)
            at = int(np.argmax(units))
            value = float(units.reshape(-1)[at])
            if best is None or value > best[0]:
                best = (value, i, tuple(int(k) for k in np.unravel_index(at, a.shape)))
    return None if best is None else best[1:]


def constant_would_pass(leaf: Leaf, threshold: float, op_class: OpClass = OpClass.COMPOSITE) -> bool:
    """True if some constant output (zero among them) lies within ``threshold`` error units everywhere.

    The intervals y ± threshold·(ε|y| + δ + tiny) then have a common point. For complex results the squares
    within the discs are looked at: a True is certain, a False is up to a factor of √2.
    """
    y, noise = leaf.reference, None if op_class in WITHOUT_NOISE else leaf.noise
    if y is None or y.size == 0:
        return True
    inexact = is_inexact(leaf.dtype)
    if leaf.dtype == "str" or (noise is None and not inexact):
        return bool((y == y.reshape(-1)[0]).all())
    with np.errstate(all="ignore"):
        if noise is not None and not np.isfinite(noise).all():
            y, noise = y[np.isfinite(noise)], noise[np.isfinite(noise)]  # anything passes at the others
            if not y.size:
                return True
        if inexact:
            cast = rounded(y, leaf.dtype)
            finite = np.isfinite(cast)
            if not finite.all():
                same = np.isnan(cast).all() or (cast == cast[~finite][0]).all() or is_complex(leaf.dtype)
                return not finite.any() and bool(same)
        else:
            y = y.astype(np.float64)
        eps = EPS.get(leaf.dtype, 0.0)
        tolerance = threshold * (
            np.abs(y) * eps + (0.0 if noise is None else noise) + eps * SMALLEST_NORMAL.get(leaf.dtype, 0.0)
        )
        if is_complex(leaf.dtype):
            tolerance /= 2**0.5
        return all(
            bool((p - tolerance).max() <= (p + tolerance).min())
            for p in ((y.real, y.imag) if is_complex(leaf.dtype) else (y,))
        )


def zero_would_pass(leaf: Leaf, threshold: float, op_class: OpClass = OpClass.COMPOSITE) -> bool:
    """True if an output of nothing but zeros lies within ``threshold`` error units everywhere."""
    y = leaf.reference
    if y is None or y.size == 0:
        return True
    if leaf.dtype == "str":
        return bool((y == "").all())
    return common_constant([leaf, Leaf(leaf.dtype, (1,), np.zeros(1, y.dtype))], threshold, op_class)


def common_constant(leaves: Sequence[Leaf], threshold: float, op_class: OpClass = OpClass.COMPOSITE) -> bool:
    """True if one constant lies within ``threshold`` error units of every element of all ``leaves`` (of one dtype).

    What is integer, or of a class without noise, is taken with the noise of its own leaf alone.
    """
    known = [leaf for leaf in leaves if leaf.reference is not None and leaf.reference.size]
    if len({leaf.dtype for leaf in known}) != 1:
        return not known
    noisy = any(leaf.noise is not None for leaf in known)
    y = np.concatenate([leaf.reference.reshape(-1) for leaf in known if leaf.reference is not None])
    noise = None
    if noisy:
        noise = np.concatenate(
            [
                np.zeros(leaf.reference.size) if leaf.noise is None else leaf.noise.reshape(-1)
                for leaf in known
                if leaf.reference is not None
            ]
        )
    return constant_would_pass(Leaf(known[0].dtype, y.shape, y, noise), threshold, op_class)
