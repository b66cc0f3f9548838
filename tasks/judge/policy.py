"""Metrics and a policy to a status, on numpy and nothing else."""

from __future__ import annotations

import fnmatch
import functools
import math
from dataclasses import dataclass, replace

from tasks.judge.error_metrics import Metrics, is_precision_coarser
from tasks.model.dtypes import EPS
from tasks.model.kind import KIND_ORACLE, KIND_TOLERANCE, KIND_ZERO
from tasks.model.op_class import OpClass
from tasks.model.status import Status

#: Relative error, in units of the op's own scale, that leaves no right digit: nothing so far off is "imprecise".
GROSS = 0.25
#: What lies within so many times its limit is the right function that has lost precision, if a decimal digit is right
#: as well: off by DIGIT at most, in the op's own scale. Twice as wide, faults of logic pass for it (docs/verdict.md).
BAND, DIGIT = 8.0, 1 / 16
#: Precisions that only factors of products are rounded to. Their sums and all else are of the dtype, so beyond the
#: limit there is nothing but another, coarser precision (bfloat16 has three bits less, which the band would excuse).
OF_FACTORS = ("tfloat32",)
#: What a limit may say of results beyond it, see `Limit`.
IMPRECISE = ("band", "digits", "classic", "never")


@dataclass(frozen=True)
class Limit:
    """One line of a policy: up to where a result is right, for the ops, classes and dtypes that it names.

    Exactly one of ``units`` (error units) and ``ulps`` (spacings of the output dtype at the reference) is set.
    imprecise: what tells imprecise from wrong. "digits": BAND times the limit, and DIGIT; "band": that or, of error
    units, the classic tolerance; "classic": that tolerance alone; a number in the limit's own measure; "never". gross:
    error in units of the op's own scale, relative to 1, beyond which nothing within the tolerance is imprecise. ops:
    globs over the op's label, with its catalog; classes, dtypes: names; empty means all.
    """

    evidence: str
    date: str
    units: float | None = None
    ulps: float | None = None
    imprecise: str | float = "band"
    gross: float = GROSS
    ops: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()

    def covers(self, label: str, op_class: str, dtype: str) -> bool:
        return (
            (not self.classes or op_class in self.classes)
            and (not self.dtypes or dtype in self.dtypes)
            and (not self.ops or any(fnmatch.fnmatchcase(label, glob) for glob in self.ops))
        )

    def measure(self, metrics: Metrics) -> float | None:
        """The metric that this limit bounds. Without noise an integer is equal or infinitely far, not some ulps off."""
        equal_or_wrong = metrics.error_units == math.inf
        return metrics.error_units if self.ulps is None or equal_or_wrong else metrics.max_ulp

    @property
    def value(self) -> float:
        return self.units if self.ulps is None else self.ulps  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"{self.units:g} error units" if self.ulps is None else f"{self.ulps:g} ulps"


@dataclass(frozen=True)
class Policy:
    """Which numbers are right. rule: "error_units" (within the last of ``limits`` that covers the case), "classic"
    (the classic tolerance alone), "absolute" (max_diff < ``bound``). signed_zeros: whether zeros of the wrong sign are
    imprecise, of ops whose definition fixes it."""

    name: str
    version: int
    rule: str
    reason: str
    limits: tuple[Limit, ...] = ()
    bound: float = 1e-2
    signed_zeros: bool = False

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}"

    def limit(self, label: str, op_class: str, dtype: str, precision: str = "") -> Limit:
        """The limit that holds for an op (its label with catalog and variant), its class and a dtype.

        In a declared coarser ``precision`` an error unit is larger, and what rounds to it still sums in float32: error
        units are bounded as those of a 16-bit dtype are, and beyond a precision of OF_FACTORS nothing is imprecise.
        There, and in a dtype of 8 bits or fewer, in which a few spacings are all that a number has, nothing that is
        grossly off is right.
        """
        key = (label, op_class, dtype, precision)
        if key not in self._limits_found:
            found = next(x for x in reversed(self.limits) if x.covers(label, op_class, dtype))
            if found.units is not None:
                most = [found.units, found.gross / EPS[dtype] if EPS.get(dtype, 0.0) > EPS["bfloat16"] else found.units]
                if is_precision_coarser(precision, dtype):
                    narrow = self.limit(label, op_class, "bfloat16" if precision == "bfloat16" else "float16")
                    most += [narrow.units or found.units, found.gross / EPS[precision]]
                    if precision in OF_FACTORS and op_class != OpClass.MODEL:
                        found = replace(found, imprecise="never")
                found = replace(found, units=min(most))
            self._limits_found[key] = found
        return self._limits_found[key]

    def limit_value(self, label: str, op_class: str, dtype: str, precision: str = "") -> float | None:
        """Value of the limit that holds; None where none does: by another rule, or of results that have no numbers."""
        if self.rule != "error_units" or op_class == OpClass.UNINITIALISED:
            return None
        return self.limit(label, op_class, dtype, precision).value

    @functools.cached_property
    def _limits_found(self) -> dict[tuple[str, str, str, str], Limit]:
        return {}


def has_stored_oracle_only(oracle: str, op_class: str) -> bool:
    """Whether there is a stored output and no float64 evaluation, so no noise floor; that of an exact op is exact."""
    return oracle == "stored" and op_class != OpClass.EXACT


def judge_by_policy(
    metrics: Metrics,
    policy: Policy,
    label: str,
    op_class: str,
    dtype: str,
    oracle: str,
    precision: str = "",
    own_tolerance: bool = False,
) -> tuple[Status, str]:
    """(status, kind) of a result with these metrics; ``precision``: the declared compute precision, if coarser.

    Where the expected output is a stored one (oracle "stored") there is no noise floor: the classic tolerance
    decides, except for exact ops, whose stored output is exact. Where the case brings a tolerance of its own
    (``own_tolerance``), that decides, be it wider than the limit or narrower: what is outside is wrong, of kind
    "tolerance" where the limit would have passed it. A noise floor of a model that is not finite makes the case
    invalid, and what is merely imprecise is wrong (kind "flip") where it decides otherwise.
    """
    found = _judge_metrics_by_policy(metrics, policy, label, op_class, dtype, oracle, precision, own_tolerance)
    missed = policy.rule == "error_units" and own_tolerance and not metrics.classic
    if missed and found[0] in (Status.PASS, Status.IMPRECISE):
        return Status.WRONG, KIND_TOLERANCE if found[0] is Status.PASS else found[1]
    if found[0] is Status.PASS and policy.signed_zeros and metrics.zero_signs:
        return Status.IMPRECISE, KIND_ZERO
    return found


def _judge_metrics_by_policy(
    metrics: Metrics,
    policy: Policy,
    label: str,
    op_class: str,
    dtype: str,
    oracle: str,
    precision: str,
    own_tolerance: bool,
) -> tuple[Status, str]:
    if metrics.kind:
        return Status.WRONG, metrics.kind
    if metrics.numel == 0 and oracle != "metadata":
        return Status.VACUOUS, "no elements"
    if op_class == OpClass.MODEL and metrics.noise_floor == math.inf:
        return Status.INVALID, KIND_ORACLE
    kind = "nonfinite" if metrics.nonfinite else "numbers"
    if policy.rule == "absolute":
        near = metrics.classic if metrics.max_diff is None else metrics.max_diff < policy.bound
        ok = near and not metrics.nonfinite
        return (Status.PASS, "") if ok else (Status.WRONG, kind)
    if policy.rule == "classic" or has_stored_oracle_only(oracle, op_class):
        return (Status.PASS, "") if metrics.classic else (Status.WRONG, kind)
    if own_tolerance and metrics.classic:
        return Status.PASS, ""
    limit = policy.limit(label, str(op_class), dtype, precision)
    value = limit.measure(metrics)
    if value is None:
        return (Status.PASS, "") if metrics.classic else (Status.WRONG, kind)
    # Infinite units: NaN or Inf out of place, or another integer than the right one, which is no matter of ulps.
    beyond = metrics.nonfinite or metrics.error_units == math.inf
    if value <= limit.value and not beyond:
        return Status.PASS, ""
    if beyond or limit.imprecise == "never":
        return Status.WRONG, kind
    if limit.imprecise in IMPRECISE:
        scale = (metrics.error_units or 0.0) * max(EPS.get(dtype, EPS["float32"]), EPS.get(precision, 0.0))
        near = metrics.classic and scale <= limit.gross and (limit.ulps is None or limit.imprecise == "classic")
        # An integer has no digits to lose.
        digits = dtype in EPS and value <= BAND * limit.value and scale <= DIGIT
        near = {"band": near or digits, "digits": digits, "classic": near}[limit.imprecise]
    else:
        near = value <= float(limit.imprecise)
    if near and (metrics.flip_units or 0.0) > limit.value:
        return Status.WRONG, "flip"
    return (Status.IMPRECISE if near else Status.WRONG), kind
