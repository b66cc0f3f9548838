"""From outputs to metrics. Needs numpy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tasks.model.dtypes import (
    CLASSIC,
    EPS,
    LARGEST,
    PART,
    SMALLEST_NORMAL,
    get_wide_dtype,
    is_complex_dtype,
    is_inexact_dtype,
    name_numpy_dtype,
    round_to_dtype,
)
from tasks.model.leaf import Leaf, compute_model_floor
from tasks.model.op_class import WITHOUT_NOISE, OpClass

#: Elements handled at a time: the working set of one block stays inside a core's cache.
BLOCK = 1 << 15
#: Error units up to which a result is right where nothing closer is said: the default policy's first limit
#: (error_units.json).
USUAL_UNITS = 32.0
#: Noise floors beyond which rounded inputs excuse nothing: a few draws of a sum that cancels may miss as much; it is
#: what the strictest limit in error units allows.
_MISSED = 4


@dataclass
class Metrics:
    """What a policy needs to know of one outcome; None where it was not measured.

    kind: "" or why no number can be right: "structure" (count of outputs), "shape", "dtype", or what a kernel did
    ("mutation", "aliasing", "nondeterministic", …); detail: its text.
    max_diff, max_rel, rmse: over elements finite on both sides; max_ulp: in spacings of the output dtype (of a
    coarser declared precision, if there is one) at the reference; error_units: max |a−y| / (ε|y| + δ + tiny), inf for
    a misplaced NaN or Inf; mismatched: elements outside the classic tolerance; nonfinite: misplaced NaN/Inf among
    them; classic: mismatched == 0; bias, bias_sigmas: see `measure_error_bias`; zero_signs: zeros of the wrong sign, where an
    op's definition fixes it. The last six are of outputs of stated meaning (`interpret`): decisions that were compared;
    flips: of them, other ones beyond the limit, and ties: within it; flip_units: the largest margin of these, in error
    units; divergence, in nats; overlap of the decisive parts of masks.
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
    bias: float | None = None
    bias_sigmas: float | None = None
    zero_signs: int | None = None
    decisions: int | None = None
    flips: int | None = None
    ties: int | None = None
    flip_units: float | None = None
    divergence: float | None = None
    overlap: float | None = None


@dataclass
class MetricSums:
    """Running maxima and sums over the blocks of all outputs of a case; measured: elements that a reference was for."""

    diff: float = 0.0
    rel: float = 0.0
    ulp: float = 0.0
    units: float = 0.0
    square: float = 0.0
    noise: float = 0.0
    numel: int = 0
    measured: int = 0
    bad: int = 0
    nonfinite: int = 0
    seen: int = 0

    def add(self, a: np.ndarray, leaf: Leaf, op_class: OpClass, precision: str) -> None:
        """Take in one output, of the right shape."""
        self.numel += a.size
        ref = leaf.reference
        if op_class in (OpClass.RANDOM, OpClass.UNINITIALISED) or ref is None:
            if op_class is OpClass.RANDOM and is_inexact_dtype(leaf.dtype):
                lost = int(a.size - np.isfinite(a.astype(get_wide_dtype(leaf.dtype))).sum())
                if lost and (ref is None or np.isfinite(ref).all()):
                    self.nonfinite += lost
                    self.bad += lost
            return
        if leaf.dtype == "str":
            bad = int((a != ref).sum())
            self.measured += a.size
            self.bad += bad
            self.units = self.ulp = np.inf if bad else self.units
        else:
            measure_output_errors(a, leaf, op_class, precision, self)


def compare_outputs(
    actual: Sequence[Any],
    expected: Sequence[Leaf],
    op_class: OpClass = OpClass.COMPOSITE,
    precision: str = "",
    dtypes: Sequence[str] | None = None,
) -> Metrics:
    """Measure ``actual`` (flat outputs, numpy arrays or scalars) against ``expected``.

    Complex numbers are measured by the modulus of the difference, which bounds that of both parts; those of an EXACT op
    part by part. RANDOM compares shape, dtype and finiteness, UNINITIALISED shape and dtype alone; EXACT and ELEMENTARY
    do not consult the noise floor; DISCONTINUOUS takes it as the size of the jump that excuses an element which is not
    the reference rounded; all others measure error units, MODEL of the row floor. precision: dtype name of a declared
    coarser compute precision ("" for none); ε and the spacing are the coarser of the two, its range counts, and the
    noise floor grows in proportion. The inputs are then not given exactly, and ulps of an exact or elementary op count
    from four times the noise floor on. dtypes: of the outputs, where they have been widened since.
    """
    metrics = Metrics()
    arrays = [np.asarray(a) for a in actual]
    check_output_metadata(arrays, expected, metrics, dtypes)
    if metrics.kind:
        return metrics
    sums = MetricSums()
    with np.errstate(all="ignore"):
        for a, leaf in zip(arrays, expected):
            sums.add(a, leaf, op_class, precision)
    metrics.numel = sums.numel
    metrics.mismatched, metrics.nonfinite, metrics.classic = sums.bad, sums.nonfinite, sums.bad == 0
    if sums.nonfinite:
        sums.units = np.inf
    if sums.measured:
        metrics.error_units, metrics.noise_floor = float(sums.units), float(sums.noise)
    elif sums.nonfinite:
        metrics.error_units = float("inf")
    if sums.seen:
        metrics.max_diff, metrics.max_rel, metrics.max_ulp = float(sums.diff), float(sums.rel), float(sums.ulp)
        metrics.rmse = float(np.sqrt(sums.square / sums.seen))
    if sums.diff and op_class in ACCUMULATES and sums.numel >= _ENOUGH:
        metrics.bias, metrics.bias_sigmas = measure_error_bias(arrays, expected, op_class, precision)
    return metrics


#: Classes whose results are sums of many rounded terms, of which the errors of one sign do not cancel.
ACCUMULATES = (OpClass.CONTRACTION, OpClass.REDUCTION, OpClass.NORMALISATION)
#: Mean signed error in error units, in standard errors, and elements, from all of which on results are biased. Of 720
#: sound cases of `critical` and `gemm` (four runtimes, random numbers) contractions are within 0.008, none is beyond 11
#: standard errors (docs/verdict.md).
BIAS, SIGMAS, ELEMENTS = 0.02, 16.0, 1 << 12
#: Fewest elements of which a mean says something, and in how many groups its scatter is taken.
_ENOUGH, _GROUPS = 256, 16


def measure_error_bias(
    actual: Sequence[np.ndarray], expected: Sequence[Leaf], op_class: OpClass, precision: str = ""
) -> tuple[float | None, float | None]:
    """(mean signed error in error units, by how many standard errors it is not 0); (None, None) of too few elements, no
    standard errors where they are many and the results may have one error in common: where a norm's rounded factor,
    say, is that of fewer than 16 groups (`Leaf.shared`), and where results repeat.

    Signed by the number line or, where that is larger, by the result's own sign: a truncation makes every result
    smaller. The errors of neighbours may be alike, as they share terms, so the scatter is that of the means of 16
    groups: the larger of those of neighbours and of every sixteenth element, and of single elements (a batch-means
    estimate: Law, Simulation Modeling and Analysis, 9.5.3).
    """
    errors, outward, leaves = [], [], []
    with np.errstate(all="ignore"):
        for a, leaf in zip(actual, expected):
            y = leaf.reference
            if y is None or y.dtype != np.float64 or leaf.dtype not in EPS or is_complex_dtype(leaf.dtype):
                continue
            units = ((a.astype(np.float64) - y) / compute_error_units(leaf, op_class, precision)).reshape(-1)
            fine = np.isfinite(units) & (np.abs(y.reshape(-1)) >= SMALLEST_NORMAL[leaf.dtype])
            errors.append(units[fine])
            outward.append((units * np.sign(y).reshape(-1))[fine])
            leaves.append(leaf)
    if sum(map(len, errors)) < _ENOUGH:
        return None, None
    found = [_compute_mean_error(np.concatenate(signed)) for signed in (errors, outward)]
    mean, sigmas = max(found, key=lambda one: abs(one[1]))
    far = abs(sigmas) >= SIGMAS and abs(mean) >= BIAS
    return mean, None if far and min(_count_independent_groups(leaf, op_class) for leaf in leaves) < _GROUPS else sigmas


def _count_independent_groups(leaf: Leaf, op_class: OpClass) -> float:
    """Groups of an output's elements that have no error in common; sums of products, each by itself, are many."""
    assert leaf.reference is not None
    size = leaf.reference.size
    if not size or (leaf.shared is None and op_class is not OpClass.CONTRACTION):
        return 0.0
    distinct = np.unique(leaf.reference.astype(np.float32)).size  # but for what float64 rounds
    if size >= ELEMENTS > distinct:
        return 0.0
    return distinct / max(1.0, size * (leaf.shared or 0.0))


def does_error_lean(metrics: Metrics) -> bool:
    """Whether results within the limit are off to the same side by more than chance."""
    if metrics.bias is None or metrics.bias_sigmas is None:
        return False
    return metrics.numel >= ELEMENTS and abs(metrics.bias) >= BIAS and abs(metrics.bias_sigmas) >= SIGMAS


def _compute_mean_error(errors: np.ndarray) -> tuple[float, float]:
    """(mean, the mean in standard errors)."""
    mean, whole = float(errors.mean()), errors[: len(errors) // _GROUPS * _GROUPS]
    groups = [whole.reshape(_GROUPS, -1).mean(1), whole.reshape(-1, _GROUPS).mean(0)]
    scatter = [
        float(errors.std()) / math.sqrt(len(errors)),
        *(float(g.std(ddof=1)) / math.sqrt(_GROUPS) for g in groups),
    ]
    return mean, mean / max(*scatter, 1e-12)


def check_output_metadata(
    actual: Sequence[np.ndarray], expected: Sequence[Leaf], metrics: Metrics, dtypes: Sequence[str] | None = None
) -> None:
    """Set ``metrics.kind`` and ``detail`` where the count of outputs, a shape or a dtype is not the expected one."""
    if len(actual) != len(expected):
        metrics.kind, metrics.detail = "structure", f"{len(actual)} outputs, expected {len(expected)}"
    for i, (a, leaf) in enumerate(zip(actual, expected)):
        if metrics.kind:
            break
        dtype = dtypes[i] if dtypes else name_numpy_dtype(a.dtype)
        if a.shape != tuple(leaf.shape):
            metrics.kind, metrics.detail = "shape", f"shape {a.shape}, expected {tuple(leaf.shape)}"
        elif dtype != leaf.dtype and (dtype, leaf.dtype) != ("complex64", "complex32"):
            metrics.kind, metrics.detail = "dtype", f"dtype {dtype}, expected {leaf.dtype}"
        if metrics.kind and len(expected) > 1:
            metrics.detail = f"output {i}: {metrics.detail}"
    metrics.classic = not metrics.kind


def get_classic_tolerance(dtype: str) -> tuple[float, float]:
    """(rtol, atol) of a dtype where the case brings none.

    Low-bit floats are compared like integers but with their spacing, integers exactly.
    """
    return CLASSIC.get(dtype, (EPS.get(dtype, 0.0), 0.0))


def find_leaf_tolerance(leaf: Leaf, op_class: OpClass, precision: str = "") -> tuple[float, float]:
    """(rtol, atol) of a leaf: its own or its dtype's classic tolerance, no narrower than a coarser ``precision``
    allows."""
    rtol, atol = get_classic_tolerance(leaf.dtype)
    rtol, atol = rtol if leaf.rtol is None else leaf.rtol, atol if leaf.atol is None else leaf.atol
    if is_precision_coarser(precision, leaf.dtype) and leaf.noise is None and op_class not in WITHOUT_NOISE:
        # No float64 evaluation, so no noise floor: what rounding does to sums is known by the largest result alone.
        assert leaf.reference is not None
        eps, sizes = EPS[precision], np.abs(leaf.reference)
        scale = float(sizes.max(initial=0.0, where=np.isfinite(sizes)))
        rtol, atol = max(rtol, eps), max(atol, eps * min(scale, LARGEST.get(precision, np.inf)))
    return rtol, atol


def bound_by_tolerance(leaf: Leaf, op_class: OpClass, precision: str = "") -> np.ndarray:
    """The largest difference that a leaf's tolerance leaves to each element, where it alone decides; any where the
    noise floor is infinite, none to one that is not finite. One of its own leaves what arithmetic in float32 does, at
    least (`_bound_unavoidable_error`)."""
    assert leaf.reference is not None
    rtol, atol = find_leaf_tolerance(leaf, op_class, precision)
    eps, smallest, noise = find_error_unit_parts(leaf, op_class, precision)
    with np.errstate(all="ignore"):
        size = np.abs(np.where(np.isfinite(leaf.reference), leaf.reference, 0))
        most = atol + rtol * size
        if leaf.rtol is not None and is_inexact_dtype(leaf.dtype):
            spacing, share = compute_class_ulps(size, eps, smallest, op_class), _share_of_float32(leaf.dtype, precision)
            most = np.maximum(most, _bound_unavoidable_error(spacing, noise, share))
        most = np.where(np.isfinite(leaf.reference), most, 0.0)
    return most if noise is None else np.where(noise == np.inf, np.inf, most)


def _bound_unavoidable_error(spacing: np.ndarray, noise: np.ndarray | None, share: float) -> np.ndarray:
    """How far off a result may be that is computed in float32 from exactly given inputs and rounded once: no tolerance
    asks for more. Of a long sum it may be more yet, since a leaf does not tell how many terms it has. share: of the
    noise floor, that float32's is (`_share_of_float32`)."""
    return np.asarray(0.5 * spacing if noise is None else 0.5 * spacing + _MISSED * share * noise)


def _share_of_float32(dtype: str, precision: str = "") -> float:
    """How much less float32 rounds than a dtype of fewer bits; 1 of one that is declared to be computed coarsely."""
    return 1.0 if is_precision_coarser(precision, dtype) else min(1.0, EPS["float32"] / EPS.get(dtype, EPS["float32"]))


def is_precision_coarser(precision: str, dtype: str) -> bool:
    """Whether a declared compute precision ("" for none) rounds more than a floating dtype does."""
    return bool(precision) and EPS[precision] > EPS.get(dtype, np.inf)


def compare_precision_eps(precision: str, dtype: str) -> float:
    """How many times as much a declared compute precision rounds as a dtype does; 1 where it is not coarser.

    To first order a result, and so its noise floor, moves in proportion to what its inputs are rounded by.
    """
    return EPS[precision] / EPS[dtype] if is_precision_coarser(precision, dtype) else 1.0


def find_error_unit_parts(leaf: Leaf, op_class: OpClass, precision: str = "") -> tuple[float, float, np.ndarray | None]:
    """(ε, smallest normal number, noise floor) of which a leaf's error unit is made: ε|y| + δ + ε·smallest.

    The range of a coarser ``precision`` is declared as well, and it rounds the inputs of every op, however given. The
    floor of a MODEL is `compute_model_floor`.
    """
    eps, smallest = EPS.get(leaf.dtype, 0.0), SMALLEST_NORMAL.get(leaf.dtype, 0.0)
    noise = compute_model_floor(leaf) if op_class is OpClass.MODEL else leaf.noise
    if not is_precision_coarser(precision, leaf.dtype):
        return eps, smallest, None if op_class in WITHOUT_NOISE else noise
    if leaf.of_products is not None:
        # What is moved is each factor of a chain, by ε of TF32; all else is computed in the dtype.
        noise = leaf.of_products * (EPS[precision] / EPS["tfloat32"]) + (0.0 if noise is None else noise)
    else:
        noise = None if noise is None else noise * compare_precision_eps(precision, leaf.dtype)
    # Below its range numbers have fewer digits, beyond it they saturate or are infinite.
    return EPS[precision], max(smallest, SMALLEST_NORMAL.get(precision, 0.0)), noise


def compute_error_units(leaf: Leaf, op_class: OpClass, precision: str = "") -> np.ndarray:
    """One error unit of each element of a leaf's reference: ε|y| + δ + ε·smallest (`find_error_unit_parts`)."""
    assert leaf.reference is not None
    eps, smallest, noise = find_error_unit_parts(leaf, op_class, precision)
    return np.asarray(eps * np.abs(leaf.reference) + eps * smallest + (0.0 if noise is None else noise))


#: The bits of a float64 that are its exponent.
_EXPONENT = np.int64(0x7FF) << np.int64(52)


def compute_ulp_spacing(size: np.ndarray, eps: float, smallest: float) -> np.ndarray:
    """One ulp at numbers of these sizes: the distance of their neighbours, no less than at the smallest normal
    number."""
    made = np.asarray(np.maximum(size, smallest))
    if made.dtype != np.float64 or not (made.size and smallest >= 2.0**-1022):
        return np.asarray(np.ldexp(eps, np.frexp(made)[1] - 1))
    # The power of two below a number is its exponent's bits alone; of what is not finite frexp has the exponent 0.
    bits = made.view(np.int64)
    bits &= _EXPONENT
    made[made == np.inf] = 0.5
    made *= eps
    return made


def compute_narrower_spacing(
    size: np.ndarray, eps: float, smallest: float, below: np.ndarray | bool = True
) -> np.ndarray:
    """As `compute_ulp_spacing`; of a power of two that of the numbers below it, where a result is ``below``: the next one is a
    whole ulp off."""
    part, exponent = np.frexp(np.maximum(size, smallest))
    return np.asarray(np.ldexp(eps, exponent - 1 - ((part == 0.5) & (size > smallest) & below)))


def compute_class_ulps(
    size: np.ndarray, eps: float, smallest: float, op_class: OpClass, below: np.ndarray | bool = True
) -> np.ndarray:
    """One ulp at numbers of these sizes as an op of this class is held to it: of one that rounds nothing, the distance
    to the next number on the side where a result is (``below``: whether it is the smaller)."""
    if op_class is OpClass.EXACT:
        return compute_narrower_spacing(size, eps, smallest, below)
    return compute_ulp_spacing(size, eps, smallest)


def bound_by_limit(leaf: Leaf, op_class: OpClass, limit: float, precision: str = "") -> np.ndarray:
    """The largest difference that a limit leaves to each element of a leaf, in ulps for a class WITHOUT_NOISE, else in
    error units: `measure_output_errors` turned round. None to one that is not finite, and any where the noise floor is infinite."""
    assert leaf.reference is not None
    y = leaf.reference
    eps, smallest, noise = find_error_unit_parts(leaf, op_class, precision)
    delta = np.zeros(y.shape) if noise is None else noise
    if y.dtype.kind not in "fc":
        return limit * delta
    with np.errstate(all="ignore"):
        spacing = compute_class_ulps(np.abs(y), eps, smallest, op_class)
        stepwise = op_class is OpClass.DISCONTINUOUS
        most = (
            np.maximum(0.5 * spacing, limit * delta)
            if stepwise
            else limit * compute_error_units(leaf, op_class, precision)
        )
        if op_class in WITHOUT_NOISE:
            most = limit * (spacing + delta) + _MISSED * delta
        return np.where(np.isfinite(y), most, np.where(delta == np.inf, np.inf, 0.0))


class _MeasureHow(NamedTuple):
    """How one output is measured: its ε, smallest normal number and classic tolerance. op_class: DISCONTINUOUS is equal
    or a jump as high as the noise floor, of EXACT what is not equal is a whole spacing off, at least; rounded: the
    device rounds the inputs of an op whose inputs else count as given exactly; share: of `_bound_unavoidable_error`,
    where the tolerance is the case's own, else None."""

    dtype: str
    eps: float
    smallest: float
    rtol: float
    atol: float
    op_class: OpClass
    rounded: bool
    share: float | None = None


def measure_output_errors(a: np.ndarray, leaf: Leaf, op_class: OpClass, precision: str, sums: MetricSums) -> None:
    """Add one output of numbers to ``sums``, measured element by element against its reference."""
    assert leaf.reference is not None
    dtype = leaf.dtype
    rtol, atol = find_leaf_tolerance(leaf, op_class, precision)
    eps, smallest, noise = find_error_unit_parts(leaf, op_class, precision)
    sums.measured += a.size
    if op_class is OpClass.MODEL and noise is not None and not np.isfinite(noise).all():
        sums.noise = np.inf  # whatever comes out lies within it, or nothing does: judging refuses it
    a, y = a.reshape(-1), leaf.reference.reshape(-1)
    noise = None if noise is None else noise.reshape(-1)
    if op_class is OpClass.EXACT and is_complex_dtype(dtype):
        # What is moved is moved part by part: beside a large part a small one counts in full, and so does its NaN.
        a, y, dtype = np.stack([a.real, a.imag]).ravel(), np.stack([y.real, y.imag]).ravel(), PART[dtype]
        noise = None if noise is None else np.concatenate([noise, noise])
    a = fit_precision_range(a, y, noise, dtype, precision) if precision else a
    rounds = is_precision_coarser(precision, leaf.dtype) and op_class in WITHOUT_NOISE
    share = None if leaf.rtol is None else _share_of_float32(dtype, precision)
    how = _MeasureHow(dtype, eps, smallest, rtol, atol, op_class, rounds, share)
    block = _measure_error_block if is_inexact_dtype(dtype) else _compare_integer_outputs
    for at in range(0, a.size, BLOCK):
        part = slice(at, at + BLOCK)
        block(a[part], y[part], None if noise is None else noise[part], how, sums)


#: The largest of some numbers, without what `ndarray.max` looks at before it: half of its time for a small array.
_most = np.maximum.reduce


def _measure_error_block(
    a: np.ndarray, y: np.ndarray, noise: np.ndarray | None, how: _MeasureHow, sums: MetricSums
) -> None:
    dtype, eps, smallest, rtol, atol, op_class, rounds, share = how
    stepwise = op_class is OpClass.DISCONTINUOUS
    wide_a = a.astype(get_wide_dtype(dtype), copy=False)
    diff, size = np.abs(wide_a - y), np.abs(y)
    top = _most(diff)
    if not (top < np.inf and _most(size) <= LARGEST[dtype]):
        noise = _compare_nonfinite_errors(wide_a, y, noise, dtype, diff, size, sums)
        top = _most(diff)
    sums.seen += diff.size
    if noise is not None:
        sums.noise = max(sums.noise, float(_most(noise)))
    if top == 0:
        return
    spacing = compute_class_ulps(
        size, eps, smallest, op_class, np.abs(wide_a) < size if op_class is OpClass.EXACT else True
    )
    # Of rounded inputs, what is beyond _MISSED times the noise floor, in spacings of a result that moves as much.
    ulps = (
        diff / spacing if noise is None or not rounds else np.maximum(diff - _MISSED * noise, 0.0) / (spacing + noise)
    )
    tolerance = size * eps if not stepwise else np.zeros_like(size)
    if noise is not None:
        tolerance += noise
    if not stepwise:
        tolerance += smallest * eps
    units = diff / tolerance
    if stepwise:
        units[ulps <= 0.5] = 0.0
    largest = float(_most(units))
    if math.isnan(largest):  # ∞/∞: excused where the noise floor is infinite
        largest = float(np.where(tolerance == np.inf, 0.0, np.where(np.isnan(units), np.inf, units)).max())
    relative = float(_most(diff / size))
    if not math.isfinite(relative):  # by a zero
        relative = float(np.divide(diff, size, out=np.zeros_like(diff), where=size > 0).max())
    sums.units = max(sums.units, largest)
    sums.diff = max(sums.diff, float(top))
    sums.rel = max(sums.rel, relative)
    sums.ulp = max(sums.ulp, float(_most(ulps)))
    if top > atol:
        size *= rtol
        size += atol
        outside = diff > size
        if share is not None:
            outside &= diff > _bound_unavoidable_error(spacing, noise, share)
        sums.bad += int(np.count_nonzero(outside))
    # Not np.dot: its order of summation, and so its last bits, depend on the number of threads.
    sums.square += float(np.square(diff, out=diff).sum())


def _compare_integer_outputs(
    a: np.ndarray, y: np.ndarray, noise: np.ndarray | None, how: _MeasureHow, sums: MetricSums
) -> None:
    """Exact comparison; a difference counts in units of the noise that can flip the value, if any."""
    sums.seen += a.size
    if noise is not None:
        sums.noise = max(sums.noise, float(noise.max()))
    different = a != y
    if not different.any():
        return
    diff = measure_integer_distance(a[different], y[different])
    size = np.abs(y[different].astype(np.float64))
    units = diff / noise[different] if noise is not None else np.full_like(diff, np.inf)
    sums.units = max(sums.units, float(units.max()))
    sums.diff = max(sums.diff, float(diff.max()))
    sums.ulp = max(sums.ulp, float(diff.max()))  # an integer's spacing is 1
    sums.rel = max(sums.rel, float(np.divide(diff, size, out=np.zeros_like(diff), where=size > 0).max()))
    sums.bad += int(np.count_nonzero(diff > how.atol + how.rtol * size))
    sums.square += float(np.square(diff, out=diff).sum())


def measure_integer_distance(a: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|a − y| of integers or bools, rounded once: large 64-bit integers can differ and be equal as float64."""
    if a.dtype != np.uint64:
        a, y = a.astype(np.int64), y.astype(np.int64)
    # In two's complement the difference of the larger and the smaller is right modulo 2**64, whatever the signs.
    return (np.maximum(a, y).astype(np.uint64) - np.minimum(a, y).astype(np.uint64)).astype(np.float64)


def _compare_nonfinite_errors(
    a: np.ndarray,
    y: np.ndarray,
    noise: np.ndarray | None,
    dtype: str,
    diff: np.ndarray,
    size: np.ndarray,
    sums: MetricSums,
) -> np.ndarray | None:
    """Settle the elements with NaN or Inf on either side, which then count as equal and as not seen: changes ``diff``
    and ``size`` in place, returns the noise floor.

    Inf where the reference is finite stands for the first value beyond the largest finite one if the reference
    is so large that it may overflow: a result at the border is judged by its distance like any other.
    """
    at = np.flatnonzero(~((diff < np.inf) & (size <= LARGEST[dtype])))  # nearly none of many
    some, exact, floor = a[at], y[at], None if noise is None else noise[at]
    cast = round_to_dtype(exact, dtype)
    finite_a, finite_y = np.isfinite(some), np.isfinite(cast)
    settled = ~finite_a & ~finite_y
    if is_complex_dtype(dtype):
        wrong = np.zeros_like(settled)  # which part overflowed is a matter of the formula used
    else:
        wrong = settled & ~((np.isnan(some) & np.isnan(cast)) | (some == cast))
        some, border = settle_overflow_border(some, exact, floor, dtype)
        border &= ~settled
        finite_a, finite_y = finite_a | border, finite_y | border
    wrong |= ~settled & (finite_a != finite_y)
    if floor is not None:
        wrong &= np.isfinite(floor)
    count, compared = int(np.count_nonzero(wrong)), finite_a & finite_y
    sums.nonfinite += count
    sums.bad += count
    sums.seen -= int(np.count_nonzero(~compared))
    diff[at] = np.where(compared, np.abs(some - exact), 0.0)
    size[at] = np.where(compared, np.abs(exact), 1.0)
    if floor is not None:
        noise = np.array(noise)
        noise[at] = np.where(compared, floor, 0.0)
    return noise


def settle_overflow_border(
    a: np.ndarray, y: np.ndarray, noise: np.ndarray | float | None, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """(a with its Inf made finite where the reference is at the border of overflow, those places)."""
    beyond = LARGEST[dtype] * (1 + EPS[dtype])
    reach = np.abs(y) + (0.0 if noise is None else noise)
    border = ~np.isnan(a) & np.isfinite(y) & (reach >= LARGEST[dtype] / 2) & np.isfinite(beyond)
    return np.where(border & np.isinf(a), np.copysign(beyond, a), a), border


def fit_precision_range(
    a: np.ndarray, y: np.ndarray, noise: np.ndarray | None, dtype: str, precision: str
) -> np.ndarray:
    """``a`` with what a coarser ``precision`` makes of results near and beyond its largest number put right, as wide as
    ``y``.

    Beyond it there is nothing but that number (saturation) and Inf: both, and all between, stand for the reference. An
    Inf at the border stands for the next number, and is judged by its distance as in `settle_overflow_border`.
    """
    eps, largest = EPS.get(precision, 0.0), LARGEST.get(precision, np.inf)
    if not is_precision_coarser(precision, dtype) or largest >= LARGEST[dtype] or is_complex_dtype(dtype):
        return a
    reach = np.abs(y) + (0.0 if noise is None else noise)
    sided = np.isfinite(y) & (np.signbit(a) == np.signbit(y))
    over = sided & (reach >= largest) & (np.abs(a) >= largest * (1 - eps))
    border = sided & np.isinf(a) & (reach >= largest / 2) & ~over
    if not (over.any() or border.any()):
        return a
    return np.where(over, y, np.where(border, np.copysign(largest * (1 + eps), y), a.astype(y.dtype)))
