"""Whether a sample tells anything: how far two oracles are apart, whether a constant would pass, what noise excuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.judge.error_metrics import (
    USUAL_UNITS,
    MetricSums,
    compare_outputs,
    find_error_unit_parts,
    measure_output_errors,
)
from tasks.judge.policy import GROSS, Policy, judge_by_policy
from tasks.model import (
    EPS,
    LARGEST,
    WITHOUT_NOISE,
    Leaf,
    OpClass,
    Status,
    get_numpy_dtype,
    is_complex_dtype,
    is_inexact_dtype,
    round_to_dtype,
)

#: A sample is weak if a constant within this many error units of every element exists: the default policy's.
WEAK_THRESHOLD = USUAL_UNITS


def find_weak_threshold(dtype: str) -> float:
    """WEAK_THRESHOLD, but of a dtype of 8 bits or fewer what a policy leaves to that (`Policy.limit`)."""
    return min(WEAK_THRESHOLD, GROSS / EPS[dtype]) if EPS.get(dtype, 0.0) > EPS["bfloat16"] else WEAK_THRESHOLD


def compare_two_oracles(
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
    sums = MetricSums()
    with np.errstate(all="ignore"):
        for i, (y, leaf) in enumerate(zip(references, expected)):
            if y.shape != tuple(leaf.shape):
                return apart | {"detail": f"output {i}: shape {y.shape} against {tuple(leaf.shape)}"}
            if leaf.reference is None or leaf.dtype == "str":
                continue
            if rounding and is_inexact_dtype(leaf.dtype):
                size = np.abs(leaf.reference)
                floor = rounding * float(size.max(initial=0.0, where=np.isfinite(size)))
                leaf = replace(leaf, noise=np.full(y.shape, floor) if leaf.noise is None else leaf.noise + floor)
            measure_output_errors(y, leaf, op_class, "", sums)
    if sums.nonfinite:
        return apart | {"detail": f"{sums.nonfinite} NaN or Inf of {sums.measured} elements stand elsewhere"}
    # An exact or elementary op is judged in ulps, and so are its oracles.
    units = sums.ulp if op_class in WITHOUT_NOISE and sums.units < np.inf else sums.units
    return {"units": float(units), "classic": sums.bad == 0, "detail": f"{sums.diff:.3g} apart"}


def constant_would_pass(leaf: Leaf, threshold: float, op_class: OpClass = OpClass.COMPOSITE) -> bool:
    """True if some constant output (zero among them) lies within ``threshold`` error units everywhere.

    The intervals y ± threshold·(ε|y| + δ + tiny) then have a common point. For complex results the squares
    within the discs are looked at: a True is certain, a False is up to a factor of √2.
    """
    y, (eps, smallest, noise) = leaf.reference, find_error_unit_parts(leaf, op_class)
    if y is None or y.size == 0:
        return True
    inexact = is_inexact_dtype(leaf.dtype)
    if leaf.dtype == "str" or (noise is None and not inexact):
        return bool((y == y.reshape(-1)[0]).all())
    with np.errstate(all="ignore"):
        if noise is not None and not noise.max() < np.inf:
            y, noise = y[np.isfinite(noise)], noise[np.isfinite(noise)]  # anything passes at the others
            if not y.size:
                return True
        y = y if inexact else y.astype(np.float64)
        tolerance = np.abs(y)
        if inexact and not tolerance.max() <= LARGEST[leaf.dtype]:
            cast = round_to_dtype(y, leaf.dtype)
            finite = np.isfinite(cast)
            if not finite.all():
                same = np.isnan(cast).all() or (cast == cast[~finite][0]).all() or is_complex_dtype(leaf.dtype)
                return not finite.any() and bool(same)
        tolerance *= eps
        if noise is not None:
            tolerance += noise
        tolerance += eps * smallest
        tolerance *= threshold
        if is_complex_dtype(leaf.dtype):
            tolerance /= 2**0.5
        return all(
            bool((p - tolerance).max() <= (p + tolerance).min())
            for p in ((y.real, y.imag) if is_complex_dtype(leaf.dtype) else (y,))
        )


def measure_excused_share(
    leaf: Leaf, threshold: float, op_class: OpClass = OpClass.COMPOSITE, precision: str = ""
) -> float:
    """Which share of the reference ``threshold`` error units do not ask for, 0 to 1: the sum of what each element may
    be off, no more than all of it, over the sum of their sizes.

    From GROSS on no right digit is asked for. Where the noise floor has no part in that it is 0: in dtypes of so few
    bits that the threshold alone is as wide, for integers, and for steps, whose floor is the height of a jump.
    precision: that the check asks for, if it is coarser.
    """
    y, (eps, _, noise) = leaf.reference, find_error_unit_parts(leaf, op_class, precision)
    if y is None or noise is None or op_class is OpClass.DISCONTINUOUS or not 0 < eps * threshold < GROSS:
        return 0.0
    size = np.abs(y)
    if not np.isfinite(total := float(size.sum())):
        known = np.isfinite(size)
        size, noise = size[known], noise[known]
        total = float(size.sum())
    allowed = size * eps
    allowed += noise
    allowed *= threshold
    return float(np.minimum(allowed, size).sum()) / total if total else 0.0


def zero_would_pass(leaf: Leaf, threshold: float, op_class: OpClass = OpClass.COMPOSITE) -> bool:
    """True if an output of nothing but zeros lies within ``threshold`` error units everywhere."""
    y = leaf.reference
    if y is None or y.size == 0:
        return True
    if leaf.dtype == "str":
        return bool((y == "").all())
    return has_common_constant([leaf, Leaf(leaf.dtype, (1,), np.zeros(1, y.dtype))], threshold, op_class)


def bfloat16_would_pass(leaves: Sequence[Leaf], policy: Policy, label: str, dtype: str) -> bool:
    """True if the exact outputs of a model in float32 or wider, rounded to bfloat16, would not be wrong under
    ``policy``.

    A floor so wide tells a runtime that lost half its digits from none.
    """
    known = [leaf for leaf in leaves if leaf.reference is not None and EPS.get(leaf.dtype, 1.0) <= EPS["float32"]]
    coarse = [round_to_dtype(leaf.reference, "bfloat16") for leaf in known if leaf.reference is not None]
    return bool(known) and not _are_outputs_wrong(coarse, known, policy, label, dtype)


def others_would_pass(leaves: Sequence[Leaf], others: Sequence[Leaf], policy: Policy, label: str, dtype: str) -> bool:
    """True if the exact outputs of another sample of a model would not be wrong for this one under ``policy``."""
    found = [leaf.reference for leaf in others if leaf.reference is not None]
    return len(found) == len(leaves) and not _are_outputs_wrong(found, leaves, policy, label, dtype)


def smaller_would_pass(leaves: Sequence[Leaf], policy: Policy, label: str, dtype: str, precision: str) -> bool:
    """True if the exact outputs of a training step, each smaller by GROSS, would not be wrong under ``policy``."""
    found = [leaf.reference * (1 - GROSS) for leaf in leaves if leaf.reference is not None]
    return not _are_outputs_wrong(found, leaves, policy, label, dtype, precision)


def _are_outputs_wrong(
    outputs: Sequence[np.ndarray], leaves: Sequence[Leaf], policy: Policy, label: str, dtype: str, precision: str = ""
) -> bool:
    with np.errstate(all="ignore"):
        given = [y.astype(get_numpy_dtype(leaf.dtype)) for y, leaf in zip(outputs, leaves)]
    metrics = compare_outputs(given, leaves, OpClass.MODEL, precision)
    return judge_by_policy(metrics, policy, label, OpClass.MODEL, dtype, "float64", precision)[0] is Status.WRONG


def has_common_constant(leaves: Sequence[Leaf], threshold: float, op_class: OpClass = OpClass.COMPOSITE) -> bool:
    """True if one constant lies within ``threshold`` error units of every element of all ``leaves`` (of one dtype).

    What is integer, or of a class without noise, is taken with the noise of its own leaf alone.
    """
    known = [leaf for leaf in leaves if leaf.reference is not None and leaf.reference.size]
    if op_class is OpClass.MODEL:  # whose rows are lost below
        known = [replace(leaf, noise=find_error_unit_parts(leaf, op_class)[2]) for leaf in known]
        op_class = OpClass.COMPOSITE
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
