"""Limits of a policy from a lake's rows of backends held to be right.

The rule, per class and dtype judged in error units: the threshold is the smallest power of two that is at least MARGIN
times the --quantile of the ops' largest error units, and at least LEAST (in 16 bits LEAST_ROUNDED_ONCE). What lies
beyond is named as a finding, never accommodated; an op that has a reason to need more gets a limit of its own, with
that reason (--op).
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from farm import lake
from farm.policies.margins import LEAST, LEAST_ROUNDED_ONCE, MARGIN, QUANTILE
from farm.policies.rejudge import DECIDED
from farm.report.words import format_report_number
from tasks.judge.policy_files import Limit, Policy, PolicyError
from tasks.model import EPS, OpClass, Status
from tasks.model.kind import OF_ROUNDING
from tasks.nearest import suggest_nearest_names

#: Classes whose limits are found; those of the others follow from what the class is, or from published bounds.
CALIBRATED = (OpClass.CONTRACTION, OpClass.REDUCTION, OpClass.NORMALISATION, OpClass.LINEAR_ALGEBRA, OpClass.COMPOSITE)
ROUNDED_ONCE = ("float16", "bfloat16")
#: What the reference is computed in is no dtype to be measured by it.
UNMEASURED = ("float64", "complex128")
#: Fewer ops than this are no evidence for a class.
FEWEST_OPS = 8


@dataclass(frozen=True)
class CalibratedLimit:
    """The evidence for the limit of one class and dtype.

    ops: largest error units by op, of those that count; failed: of ops with a row that is wrong or imprecise under the
    policy the lake was judged by, which is no evidence; cases: rows; limit: error units, None where there are too few
    ops.
    """

    op_class: str
    dtype: str
    ops: dict[str, float]
    failed: dict[str, float]
    cases: int
    limit: float | None

    @property
    def beyond(self) -> dict[str, float]:
        """Ops that the limit does not cover, the largest first."""
        over = self.failed | {
            name: units for name, units in self.ops.items() if self.limit is not None and units > self.limit
        }
        return dict(sorted(over.items(), key=lambda item: -item[1]))

    @property
    def largest(self) -> tuple[str, float]:
        """The op with the largest error units within the limit; of all ops where there is none."""
        within = {name: units for name, units in self.ops.items() if self.limit is None or units <= self.limit}
        return max(within.items(), key=lambda item: item[1], default=("", 0.0))


def find_least_limit(dtype: str) -> float:
    """The lowest limit for a dtype, in error units."""
    return LEAST_ROUNDED_ONCE if dtype in ROUNDED_ONCE else LEAST


def round_to_power_of_two(value: float) -> float:
    """The smallest power of two that is at least ``value``."""
    return 2.0 ** math.ceil(math.log2(value))


def select_calibration_evidence(rows: pd.DataFrame, backends: Sequence[str]) -> pd.DataFrame:
    """The rows that show how far right results lie: columns label, op_class, dtype, error_units, status, backend.

    Judged rows of ``backends`` in error units, of the calibrated classes and of dtypes that the reference resolves; not
    those with a stored expected output (which have none), a misplaced NaN or another kind of fault, or on which two
    oracles disagree. The label is the op's without its variant: 40 node cases of one op are one op.
    """
    wanted = (
        rows["backend"].isin(backends)
        & rows["status"].isin(DECIDED)
        & rows["kind"].fillna("").isin(OF_ROUNDING)
        & rows["op_class"].isin([c.value for c in CALIBRATED])
        & rows["error_units"].notna()
        & (rows["check"] == "forward")
        & rows["dtype"].isin([name for name in EPS if name not in UNMEASURED])
    )
    return rows[wanted].assign(label=rows["op"])[["label", "op_class", "dtype", "error_units", "status", "backend"]]


def calibrate_limits(
    found: pd.DataFrame, quantile: float = QUANTILE, apart: Sequence[str] = ()
) -> list[CalibratedLimit]:
    """The limits that rows of `select_calibration_evidence` support. ``apart``: globs of ops that do not count for their class."""
    counted = found[[not any(fnmatch.fnmatchcase(label, glob) for glob in apart) for label in found["label"]]]
    findings = []
    for (op_class, dtype), some in counted.groupby(["op_class", "dtype"], sort=True):
        worst = some.groupby("label")["error_units"].max()
        bad = set(some.loc[some["status"] != Status.PASS.value, "label"])
        ops = {str(name): float(units) for name, units in worst.items() if name not in bad}
        limit = None
        if len(ops) >= FEWEST_OPS:
            limit = round_to_power_of_two(
                max(
                    find_least_limit(str(dtype)),
                    MARGIN * float(np.quantile(list(ops.values()), quantile, method="lower")),
                )
            )
        failed = {str(name): float(worst[name]) for name in bad}
        findings.append(
            CalibratedLimit(str(op_class), str(dtype), ops, failed, int((~some["label"].isin(bad)).sum()), limit)
        )
    return findings


def make_limit_lines(
    found: pd.DataFrame,
    findings: Sequence[CalibratedLimit],
    reasons: Mapping[str, str],
    quantile: float,
    made_with: str,
) -> list[Limit]:
    """The lines of a policy: one per class and dtype, then those of the ops with a reason of their own to need more."""
    today = datetime.date.today().isoformat()
    lines = []
    for one in findings:
        if one.limit is None:
            continue
        name, units = one.largest
        beyond = f"; beyond: {', '.join(f'{op} {value:.3g}' for op, value in one.beyond.items())}" if one.beyond else ""
        text = (
            f"{one.cases} cases of {len(one.ops)} ops on {made_with}: {quantile:g} quantile of the ops' maxima "
            f"{float(np.quantile(list(one.ops.values()), quantile, method='lower')):.3g}, "
            f"largest within {units:.3g} ({name}){beyond}"
        )
        lines.append(Limit(text, today, units=one.limit, classes=(one.op_class,), dtypes=(one.dtype,)))
    of_class: dict[Any, float | None] = {(one.op_class, one.dtype): one.limit for one in findings}
    for glob, reason in reasons.items():
        own = found[[fnmatch.fnmatchcase(label, glob) for label in found["label"]]]
        for (op_class, dtype), some in own.groupby(["op_class", "dtype"], sort=True):
            units = float(some["error_units"].max())
            if units > (of_class.get((op_class, dtype)) or find_least_limit(str(dtype))):
                text = f"{reason}; {len(some)} cases on {made_with}, the largest {units:.3g}"
                lines.append(
                    Limit(text, today, units=round_to_power_of_two(MARGIN * units), ops=(glob,), dtypes=(str(dtype),))
                )
    return lines


def merge_calibrated_limits(policy: Policy, lines: Sequence[Limit]) -> Policy:
    """``policy`` with ``lines`` after its first limit, in the place of what an earlier calibration put there; one
    version on."""
    of_class = {(x.classes, x.dtypes) for x in lines if not x.ops}
    of_ops = {(x.ops, x.dtypes) for x in lines if x.ops}
    kept = [
        x
        for x in policy.limits[1:]
        if (x.ops, x.dtypes) not in of_ops and (x.ops or (x.classes, x.dtypes) not in of_class)
    ]
    # Ops of their own go last: they have precedence over every class.
    made = (policy.limits[0], *(x for x in lines if not x.ops), *kept, *(x for x in lines if x.ops))
    return replace(policy, version=policy.version + 1, limits=made)


def write_policy_json(policy: Policy) -> str:
    """The policy as its file has it: one line per limit, without empty and default keys."""
    default = Limit("", "", 1.0)
    order = ("classes", "ops", "dtypes", "units", "ulps", "imprecise", "gross", "evidence", "date")
    lines = []
    for limit in policy.limits:
        given = {k: getattr(limit, k) for k in order if getattr(limit, k) not in (None, ())}
        kept = {
            k: v for k, v in given.items() if k in ("units", "ulps", "evidence", "date") or v != getattr(default, k)
        }
        lines.append("    " + json.dumps({k: _make_policy_json(v) for k, v in kept.items()}, ensure_ascii=False))
    fields = {k: v for k, v in asdict(policy).items() if k != "limits" and v != Policy.__dataclass_fields__[k].default}
    head = "".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)},\n" for k, v in fields.items())
    return "{\n" + head + '  "limits": [\n' + ",\n".join(lines) + "\n  ]\n}\n"


def _make_policy_json(value: Any) -> Any:
    """JSON as it is written by hand: a list, a whole number without a point."""
    if isinstance(value, tuple):
        return list(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_glob_reasons(given: Sequence[str]) -> dict[str, str]:
    """ "GLOB=REASON" texts as a dict. Raises PolicyError."""
    reasons = {}
    for text in given:
        glob, _, reason = text.partition("=")
        if not glob or not reason.strip():
            raise PolicyError(
                f"--op {text!r}: GLOB=REASON, e.g. 'torch:linalg.pinv*=composes a decomposition and two products'"
            )
        reasons[glob] = reason.strip()
    return reasons


def propose_policy(
    rows: pd.DataFrame, policy: Policy, backends: Sequence[str], quantile: float, reasons: Mapping[str, str]
) -> tuple[Policy, list[CalibratedLimit]]:
    """``policy`` with the limits that ``rows`` of ``backends`` support, one version on, and the evidence.

    reasons: globs of ops that get a limit of their own, and why. Raises PolicyError for what does not fit the rows,
    LakeError for rows that are no evidence.
    """
    if not 0 < quantile <= 1:
        raise PolicyError(f"--quantile {quantile:g}: a number above 0, up to 1")
    if policy.rule != "error_units":
        raise PolicyError(
            f"--policy {policy.name}: its rule is {policy.rule}; only limits of error_units are calibrated"
        )
    for name in backends:
        if name not in set(rows["backend"]):
            raise PolicyError(
                f"--backends: no row of {name!r}{suggest_nearest_names(name, sorted(set(rows['backend'])))}"
            )
    if rows["op_class"].isna().any():
        raise lake.LakeError("rows of an older schema have no op_class; run them again to calibrate from them")
    found = select_calibration_evidence(rows, backends)
    if found.empty:
        raise lake.LakeError(f"no row of {', '.join(backends)} is judged in error units")
    for glob in reasons:
        if not any(fnmatch.fnmatchcase(label, glob) for label in found["label"]):
            raise PolicyError(
                f"--op {glob!r}: no op with such rows{suggest_nearest_names(glob, sorted(set(found['label'])))}"
            )
    findings = calibrate_limits(found, quantile, list(reasons))
    return merge_calibrated_limits(
        policy, make_limit_lines(found, findings, reasons, quantile, _describe_calibration_runs(rows, backends))
    ), findings


def _describe_calibration_runs(rows: pd.DataFrame, backends: Sequence[str]) -> str:
    texts = []
    for name in backends:
        versions = sorted(set(rows.loc[rows["backend"] == name, "runtime_version"].dropna()))
        texts.append(f"{name} ({', '.join(versions)})")
    return " and ".join(texts)


def table_calibration(policy: Policy, findings: Sequence[CalibratedLimit]) -> list[str]:
    """One line per class and dtype, and below it the ops that its limit does not cover."""
    lines = [f"{'class':16} {'dtype':10} {'ops':>4} {'cases':>6} {'median':>8} {'largest':>8} {'limit':>6}  before"]
    for one in findings:
        before = policy.limit("", one.op_class, one.dtype)
        middle = float(np.median(list(one.ops.values()))) if one.ops else math.nan
        limit = f"{one.limit:g}" if one.limit is not None else "–"
        lines.append(
            f"{one.op_class:16} {one.dtype:10} {len(one.ops):4} {one.cases:6} {format_report_number(middle):>8} {format_report_number(one.largest[1]):>8} {limit:>6}  {before}"
            + (f"  (fewer than {FEWEST_OPS} ops: no limit of its own)" if one.limit is None else "")
        )
        for name, units in one.beyond.items():
            lines.append(
                f"  {'failed' if name in one.failed else 'beyond'}: {name} {format_report_number(units)} error units"
            )
    return lines
