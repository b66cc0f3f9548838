"""Metrics and a policy make a status; a policy is data, and judging needs nothing but a row's metrics."""

from __future__ import annotations

import datetime
import difflib
import fnmatch
import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.judge.compare import Metrics, is_coarser
from tasks.model import DTYPES, EPS, OpClass, Status

POLICIES = Path(__file__).parent / "policies"
RULES = ("error_units", "classic", "absolute")
#: Relative error, in units of the op's own scale, that leaves no right digit: nothing so far off is "imprecise".
GROSS = 0.25
#: End of the name of an oracle whose case brings a tolerance of its own, within which a result is right.
OWN_TOLERANCE = ", own tolerance"


class PolicyError(ValueError):
    """A policy that cannot be used; the text names the file and the key."""


@dataclass(frozen=True)
class Limit:
    """One line of a policy: up to where a result is right, for the ops, classes and dtypes that it names.

    Exactly one of ``units`` (error units) and ``ulps`` (spacings of the output dtype at the reference) is set.
    imprecise: "classic" (the classic tolerance tells imprecise from wrong), a number in the limit's own measure, or
    "never". gross: error in units of the op's own scale, relative to 1, beyond which nothing is merely imprecise.
    ops: globs over the op's label, with its catalog; classes, dtypes: names; empty means all.
    """

    evidence: str
    date: str
    units: float | None = None
    ulps: float | None = None
    imprecise: str | float = "classic"
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
    (the classic tolerance alone), "absolute" (max_diff < ``bound``)."""

    name: str
    version: int
    rule: str
    reason: str
    limits: tuple[Limit, ...] = ()
    bound: float = 1e-2

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}"

    def limit(self, label: str, op_class: str, dtype: str, precision: str = "") -> Limit:
        """The limit that holds for an op (its label with catalog and variant), its class and a dtype.

        In a declared coarser ``precision`` an error unit is larger, and what rounds to it still sums in float32: error units
        are bounded as those of a 16-bit dtype are, and nothing that is grossly off is right.
        """
        key = (label, op_class, dtype, precision)
        if key not in self._found:
            found = next(x for x in reversed(self.limits) if x.covers(label, op_class, dtype))
            if found.units is not None and is_coarser(precision, dtype):
                narrow = (
                    self.limit(label, op_class, "bfloat16" if precision == "bfloat16" else "float16").units
                    or found.units
                )
                found = replace(found, units=min(found.units, narrow, found.gross / EPS[precision]))
            self._found[key] = found
        return self._found[key]

    @functools.cached_property
    def _found(self) -> dict[tuple[str, str, str, str], Limit]:
        return {}


def names() -> list[str]:
    return sorted(p.stem for p in POLICIES.glob("*.json"))


def load(name: str) -> Policy:
    """The policy of a name (`names()`) or of a path to a JSON file. Raises PolicyError."""
    path = Path(name) if name.endswith(".json") else POLICIES / f"{name}.json"
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        raise PolicyError(f"policy {name!r}: no such file {path}; known policies: {', '.join(names())}") from None
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error})") from None
    except ValueError as error:
        raise PolicyError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise PolicyError(f"{path}: a policy is a JSON object")
    return from_json(data, str(path))


def from_json(data: dict[str, Any], path: str = "policy") -> Policy:
    """The policy that ``data`` (a JSON object, `dataclasses.asdict` of a Policy) describes. Raises PolicyError.

    ``path`` says in an error where the data came from.
    """
    unknown = set(data) - set(Policy.__dataclass_fields__)
    if unknown:
        valid = ", ".join(Policy.__dataclass_fields__)
        raise PolicyError(f"{path}: unknown key {sorted(unknown)[0]!r}; valid: {valid}")
    for key in ("name", "rule", "reason"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise PolicyError(f"{path}: a policy needs a {key}")
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise PolicyError(f"{path}: a policy needs a version (a number from 1 on), not {version!r}")
    if data["rule"] not in RULES:
        raise PolicyError(f"{path}: rule {data['rule']!r} is none of {', '.join(RULES)}")
    bound = data.get("bound", 1e-2)
    if not _positive(bound):
        raise PolicyError(f"{path}: bound must be a positive number, not {bound!r}")
    limits = data.get("limits", [])
    if not isinstance(limits, (list, tuple)):
        raise PolicyError(f"{path}: limits must be a list of objects")
    made = tuple(_limit(entry, f"{path}: limits[{i}]") for i, entry in enumerate(limits))
    if data["rule"] == "error_units" and (not made or made[0].ops or made[0].classes or made[0].dtypes):
        raise PolicyError(f"{path}: limits[0] must hold for everything: give it no ops, classes or dtypes")
    return Policy(**{**data, "limits": made})


def _limit(entry: Any, where: str) -> Limit:
    if not isinstance(entry, dict):
        raise PolicyError(f"{where}: a limit is an object")
    fields = {k: v for k, v in entry.items() if v is not None}
    if unknown := set(fields) - set(Limit.__dataclass_fields__):
        raise PolicyError(
            f"{where}: unknown key {sorted(unknown)[0]!r}; valid: {', '.join(Limit.__dataclass_fields__)}"
        )
    for key in ("evidence", "date"):
        if not isinstance(fields.get(key), str) or not fields[key].strip():
            raise PolicyError(
                f"{where}: a limit needs its {key}" + (": why this value" if key == "evidence" else " (YYYY-MM-DD)")
            )
    try:
        datetime.date.fromisoformat(fields["date"])
    except ValueError:
        raise PolicyError(f"{where}: date {fields['date']!r} is no date (YYYY-MM-DD)") from None
    if ("units" in fields) == ("ulps" in fields):
        raise PolicyError(f"{where}: a limit has either units or ulps")
    for key in ("units", "ulps", "gross"):
        if key in fields and not _positive(fields[key]):
            raise PolicyError(f"{where}.{key} must be a positive number, not {fields[key]!r}")
    imprecise = fields.get("imprecise", "classic")
    if imprecise not in ("classic", "never") and not _positive(imprecise):
        raise PolicyError(f'{where}.imprecise must be "classic", "never" or a positive number, not {imprecise!r}')
    if not isinstance(imprecise, str) and imprecise <= (fields["units"] if "units" in fields else fields["ulps"]):
        raise PolicyError(f"{where}.imprecise must lie beyond the limit, not {imprecise!r}")
    known: dict[str, Iterable[str]] = {"classes": [c.value for c in OpClass], "dtypes": DTYPES}
    for key in ("ops", "classes", "dtypes"):
        value = fields.get(key, [])
        if not isinstance(value, (list, tuple)) or not all(isinstance(x, str) and x for x in value):
            raise PolicyError(f"{where}.{key} must be a list of names")
        for name in value:
            if key in known and name not in known[key]:
                near = difflib.get_close_matches(name, known[key], 1, 0.5) or list(known[key])[:8]
                raise PolicyError(f"{where}.{key}: unknown {name!r}; did you mean {' or '.join(near)}?")
        fields[key] = tuple(value)
    return Limit(**fields)


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf


def judge(
    metrics: Metrics, policy: Policy, label: str, op_class: str, dtype: str, oracle: str, precision: str = ""
) -> tuple[Status, str]:
    """(status, kind) of a result with these metrics; ``precision``: the declared compute precision, if coarser.

    Where the expected output is a stored one (oracle "stored") there is no noise floor: the classic tolerance
    decides, except for exact ops, whose stored output is exact. Where the case brings a tolerance of its own (an oracle
    ending in OWN_TOLERANCE), a result within it passes, and one outside is judged as any other.
    """
    if metrics.kind:
        return Status.WRONG, metrics.kind
    if metrics.numel == 0 and oracle != "metadata":
        return Status.VACUOUS, "no elements"
    kind = "nonfinite" if metrics.nonfinite else "numbers"
    if policy.rule == "absolute":
        near = metrics.classic if metrics.max_diff is None else metrics.max_diff < policy.bound
        ok = near and not metrics.nonfinite
        return (Status.PASS, "") if ok else (Status.WRONG, kind)
    if policy.rule == "classic" or (oracle == "stored" and op_class != OpClass.EXACT):
        return (Status.PASS, "") if metrics.classic else (Status.WRONG, kind)
    if oracle.endswith(OWN_TOLERANCE) and metrics.classic:
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
    if limit.imprecise == "classic":
        scale = (metrics.error_units or 0.0) * max(EPS.get(dtype, EPS["float32"]), EPS.get(precision, 0.0))
        near = metrics.classic and scale <= limit.gross
    else:
        near = value <= float(limit.imprecise)
    return (Status.IMPRECISE if near else Status.WRONG), kind
