"""How far a result may be from the exact one, element by element: what a policy says of a case, as arrays of a finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.backends.shared.recipe import NoProgram
from tasks.judge.error_metrics import bound_by_limit, bound_by_tolerance, compute_error_units
from tasks.judge.policy import Policy, has_stored_oracle_only
from tasks.model import EPS, Leaf, OpClass, flags, is_complex_dtype, is_inexact_dtype
from tasks.model.dtypes import LARGEST, SMALLEST_NORMAL, round_to_dtype
from tasks.model.kind import KIND_BIASED
from tasks.model.row import get_declared_precision, has_own_tolerance


def list_expected_arrays(
    leaves: Sequence[Leaf], row: Mapping[str, Any], policy: Policy, kind: str = ""
) -> dict[str, np.ndarray]:
    """Arrays of each output, by name and place: its ``dtype``, the ``exact`` result, the largest difference that is
    ``allowed``, or of a kind of bias its unit, and the ``largest`` number, which an overflow at the border stands for.
    Raises NoProgram."""
    found, precision = dict[str, np.ndarray](), get_declared_precision(row)
    for k, leaf in enumerate(leaves):
        if leaf.reference is None:
            raise NoProgram("no folder: an output is defined only by its shape")
        if kind == KIND_BIASED:
            most = compute_error_units(leaf, OpClass(row["op_class"]), precision)
        else:
            most = compute_allowed_difference(leaf, row, policy)
        found[f"dtype.{k}"] = np.array("complex64" if leaf.dtype == "complex32" else leaf.dtype)
        found[f"exact.{k}"], found[f"allowed.{k}"] = np.asarray(leaf.reference), np.asarray(most)
        if (beyond := _find_overflow_number(leaf, precision)) < np.inf:
            found[f"largest.{k}"] = np.array(beyond)
    return found


def compute_allowed_difference(leaf: Leaf, row: Mapping[str, Any], policy: Policy) -> np.ndarray:
    """The largest difference that the judge leaves to each element of an output: by the limit of a row, by the classic
    tolerance where a stored result is all there is, by the case's own tolerance, or by the rule of a policy without
    limits. Raises NoProgram."""
    op_class, oracle = OpClass(row["op_class"] or OpClass.COMPOSITE), str(row.get("oracle") or "")
    precision = get_declared_precision(row)
    if row["limit"] is None:
        return _compute_rule_bound(leaf, op_class, precision, policy)
    if leaf.dtype == "str":
        return np.zeros(leaf.shape)
    most = bound_by_limit(leaf, op_class, float(row["limit"]), precision)
    if leaf.reference is None:
        return most
    with np.errstate(all="ignore"):
        if is_inexact_dtype(leaf.dtype):  # the exact result, rounded, is right
            most = np.maximum(most, _find_rounding_step(leaf))
        size = np.where(np.isfinite(leaf.reference), np.abs(leaf.reference), 0.0)
        if has_stored_oracle_only(oracle, op_class) or has_own_tolerance(row):
            most = np.maximum(bound_by_tolerance(leaf, op_class, precision), _find_rounding_step(leaf))
        if leaf.dtype in flags.parse_flushed_flag(row.get("flags")):  # 0 is right for what is subnormal
            most = np.maximum(most, np.where(size < SMALLEST_NORMAL[leaf.dtype], size, 0.0))
    return most


def _find_rounding_step(leaf: Leaf) -> np.ndarray:
    """How far each element is from its neighbour in the output's dtype; 0 where it overflows there, or is no rounded
    number."""
    y = np.asarray(leaf.reference)
    if not is_inexact_dtype(leaf.dtype):
        return np.zeros(y.shape)
    off = np.abs(round_to_dtype(y, leaf.dtype).astype(y.dtype) - y)
    return np.where(np.isfinite(off), off, 0.0)


def _compute_rule_bound(leaf: Leaf, op_class: OpClass, precision: str, policy: Policy) -> np.ndarray:
    """What a policy without limits leaves to each element (`tasks.judge.policy.Policy`). Raises NoProgram."""
    y, rule, bound = np.asarray(leaf.reference), policy.rule, policy.bound
    if rule not in ("classic", "absolute") or leaf.reference is None:
        raise NoProgram("no folder: no limit judges it")
    if leaf.dtype == "str":
        return np.zeros(y.shape)
    if leaf.noise is not None and not np.isfinite(leaf.noise).all():
        raise NoProgram("no folder: rounding's effect on a result has no bound, and the policy no limit")
    if rule == "classic":
        return np.maximum(bound_by_tolerance(leaf, op_class, precision), _find_rounding_step(leaf))
    if not is_inexact_dtype(leaf.dtype) and bound <= 1:
        return np.zeros(y.shape)  # integers are equal, or one apart
    return np.where(np.isfinite(y), np.nextafter(bound, 0.0), 0.0)


def _find_overflow_number(leaf: Leaf, precision: str) -> float:
    """The number that an overflow at its border stands for, as in `tasks.judge.error_metrics.settle_overflow_border`; infinite where no
    element may overflow. Raises NoProgram where a coarser declared ``precision`` overflows sooner."""
    if (
        leaf.reference is None
        or not is_inexact_dtype(leaf.dtype)
        or is_complex_dtype(leaf.dtype)
        or not leaf.reference.size
    ):
        return float("inf")
    with np.errstate(all="ignore"):
        sizes = np.abs(leaf.reference) + (0.0 if leaf.noise is None else leaf.noise)
    reach = float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))
    largest, narrow = LARGEST.get(leaf.dtype, np.inf), LARGEST.get(precision, np.inf)
    if narrow < largest and reach >= narrow / 2:
        raise NoProgram("no folder: a result is at the edge of what the declared precision holds")
    return float(largest * (1 + EPS[leaf.dtype])) if reach >= largest / 2 else float("inf")
