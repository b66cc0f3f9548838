"""Metrics and a policy make a status; a policy is data, and judging needs nothing but a row's metrics."""
from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.compare import Metrics
from tasks.model import EPS, Status

POLICIES = Path(__file__).parent / "policies"
RULES = ("error_units", "classic", "absolute")


class PolicyError(ValueError):
    """A policy that cannot be used; the text names the file and the key."""


@dataclass(frozen=True)
class Policy:
    """Which numbers are right. rule: "error_units" (within ``threshold`` units, else the classic tolerance
    tells imprecise from wrong), "classic" (the classic tolerance alone), "absolute" (max_diff < ``bound``)."""

    name: str
    version: int
    rule: str
    reason: str
    threshold: float = 32.0
    by_dtype: dict[str, float] = field(default_factory=dict)
    bound: float = 1e-2

    @property
    def id(self) -> str:
        return f"{self.name}-{self.version}"

    def limit(self, dtype: str) -> float:
        """Threshold in error units for ``dtype``."""
        return self.by_dtype.get(dtype, self.threshold)


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
    for key in ("name", "version", "rule", "reason"):
        kind = int if key == "version" else str
        if not isinstance(data.get(key), kind) or not data[key]:
            raise PolicyError(f"{path}: a policy needs a {key}" + (" (a number from 1 on)" if kind is int else ""))
    if data["rule"] not in RULES:
        raise PolicyError(f"{path}: rule {data['rule']!r} is none of {', '.join(RULES)}")
    by_dtype = data.get("by_dtype", {})
    if not isinstance(by_dtype, dict):
        raise PolicyError(f"{path}: by_dtype must be an object of thresholds by dtype")
    if strange := set(by_dtype) - set(EPS):
        raise PolicyError(f"{path}: by_dtype: {sorted(strange)[0]!r} is no floating or complex dtype")
    limits = {key: data[key] for key in ("threshold", "bound") if key in data} | {f"by_dtype.{k}": v for k, v in by_dtype.items()}
    for key, value in limits.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
            raise PolicyError(f"{path}: {key} must be a positive number, not {value!r}")
    return Policy(**data)


def judge(metrics: Metrics, policy: Policy, dtype: str, oracle: str) -> tuple[Status, str]:
    """(status, kind) of a result with these metrics. ``oracle`` "stored" has no noise floor: classic decides."""
    if metrics.kind:
        return Status.WRONG, metrics.kind
    if metrics.numel == 0 and oracle != "metadata":
        return Status.VACUOUS, "no elements"
    kind = "nonfinite" if metrics.nonfinite else "numbers"
    if policy.rule == "absolute":
        near = metrics.classic if metrics.max_diff is None else metrics.max_diff < policy.bound
        ok = near and not metrics.nonfinite
        return (Status.PASS, "") if ok else (Status.WRONG, kind)
    if policy.rule == "classic" or oracle == "stored" or metrics.error_units is None:
        return (Status.PASS, "") if metrics.classic else (Status.WRONG, kind)
    if metrics.error_units <= policy.limit(dtype):
        return Status.PASS, ""
    return (Status.IMPRECISE, kind) if metrics.classic else (Status.WRONG, kind)
