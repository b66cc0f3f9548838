"""Metrics and a policy make a status; a policy is data, and judging needs nothing but a row's metrics."""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasks.compare import Metrics
from tasks.model import Status

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
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise PolicyError(f"policy {name!r}: no such file {path}; known policies: {', '.join(names())}") from None
    except ValueError as error:
        raise PolicyError(f"{path}: not JSON ({error})") from None
    unknown = set(data) - set(Policy.__dataclass_fields__)
    if unknown:
        raise PolicyError(f"{path}: unknown key {sorted(unknown)[0]!r}")
    try:
        policy = Policy(**data)
    except TypeError as error:
        raise PolicyError(f"{path}: {error}") from None
    if policy.rule not in RULES:
        raise PolicyError(f"{path}: rule {policy.rule!r} is none of {', '.join(RULES)}")
    for key, value in {"threshold": policy.threshold, "bound": policy.bound, **policy.by_dtype}.items():
        if not value > 0:
            raise PolicyError(f"{path}: {key} must be positive, not {value}")
    if not policy.reason:
        raise PolicyError(f"{path}: a policy needs a reason")
    return policy


def judge(metrics: Metrics, policy: Policy, dtype: str, oracle: str) -> tuple[Status, str]:
    """(status, kind) of a result with these metrics. ``oracle`` "stored" has no noise floor: classic decides."""
    if metrics.kind:
        return Status.WRONG, metrics.kind
    if metrics.numel == 0 and oracle != "metadata":
        return Status.VACUOUS, "no elements"
    kind = "nonfinite" if metrics.nonfinite else "numbers"
    if policy.rule == "absolute":
        ok = not metrics.nonfinite and (metrics.max_diff is None or metrics.max_diff < policy.bound)
        return (Status.PASS, "") if ok else (Status.WRONG, kind)
    if policy.rule == "classic" or oracle == "stored" or metrics.error_units is None:
        return (Status.PASS, "") if metrics.classic else (Status.WRONG, kind)
    if metrics.error_units <= policy.limit(dtype):
        return Status.PASS, ""
    return (Status.IMPRECISE, kind) if metrics.classic else (Status.WRONG, kind)
