"""Policies are data: read from a file and checked here, applied by `tasks.judge.policy.judge_by_policy`."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tasks.judge.policy import IMPRECISE, Limit, Policy, judge_by_policy
from tasks.model import DTYPES, OpClass, Refusal
from tasks.nearest import suggest_meant_names, suggest_nearest_names

__all__ = [
    "POLICIES",
    "RULES",
    "Limit",
    "Policy",
    "PolicyError",
    "judge_by_policy",
    "list_policy_names",
    "load_policy",
    "read_policy_json",
]

POLICIES = Path(__file__).parent / "policies"
RULES = ("error_units", "classic", "absolute")
#: Those that come with the farm and have been read: nobody changes them.
_own: dict[str, Policy] = {}


class PolicyError(Refusal, ValueError):
    """A policy that cannot be used; the text names the file and the key."""


def list_policy_names() -> list[str]:
    return sorted(p.stem for p in POLICIES.glob("*.json"))


def load_policy(name: str) -> Policy:
    """The policy of a name (`list_policy_names()`) or of a path to a JSON file. Raises PolicyError."""
    if name in _own:
        return _own[name]
    path = Path(name) if name.endswith(".json") else POLICIES / f"{name}.json"
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        known = list_policy_names()
        what = f"no such file {path}" if name.endswith(".json") else f"no policy {name!r}"
        words = f"{what} (known policies: {', '.join(known)}){suggest_meant_names(name, known)}"
        raise PolicyError(words) from None
    except OSError as error:
        raise PolicyError(f"{path}: cannot be read ({error})") from None
    except ValueError as error:
        raise PolicyError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise PolicyError(f"{path}: a policy is a JSON object")
    policy = read_policy_json(data, str(path))
    if path.parent == POLICIES:
        _own[name] = policy
    return policy


def read_policy_json(data: dict[str, Any], path: str = "policy") -> Policy:
    """The policy that ``data`` (a JSON object, `dataclasses.asdict` of a Policy) describes; with "like", the name of
    one or its path, that policy but for what ``data`` says. Raises PolicyError.

    ``path`` says in an error where the data came from.
    """
    if isinstance(like := data.get("like"), str):
        other = asdict(load_policy(like))
        data = other | {k: v for k, v in data.items() if k != "like"}
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
    if type(data.get("signed_zeros", False)) is not bool:
        raise PolicyError(f"{path}: signed_zeros must be true or false, not {data['signed_zeros']!r}")
    bound = data.get("bound", 1e-2)
    if not _is_positive_number(bound):
        raise PolicyError(f"{path}: bound must be a positive number, not {bound!r}")
    limits = data.get("limits", [])
    if not isinstance(limits, (list, tuple)):
        raise PolicyError(f"{path}: limits must be a list of objects")
    made = tuple(_read_policy_limit(entry, f"{path}: limits[{i}]") for i, entry in enumerate(limits))
    if data["rule"] == "error_units" and (not made or made[0].ops or made[0].classes or made[0].dtypes):
        raise PolicyError(f"{path}: limits[0] must hold for everything: give it no ops, classes or dtypes")
    return Policy(**{**data, "limits": made})


def _read_policy_limit(entry: Any, where: str) -> Limit:
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
        if key in fields and not _is_positive_number(fields[key]):
            raise PolicyError(f"{where}.{key} must be a positive number, not {fields[key]!r}")
    imprecise = fields.get("imprecise", "band")
    if imprecise not in IMPRECISE and not _is_positive_number(imprecise):
        known_words = ", ".join(f'"{word}"' for word in IMPRECISE)
        raise PolicyError(f"{where}.imprecise must be {known_words} or a positive number, not {imprecise!r}")
    if not isinstance(imprecise, str) and imprecise <= (fields["units"] if "units" in fields else fields["ulps"]):
        raise PolicyError(f"{where}.imprecise must lie beyond the limit, not {imprecise!r}")
    known: dict[str, Iterable[str]] = {"classes": [c.value for c in OpClass], "dtypes": DTYPES}
    for key in ("ops", "classes", "dtypes"):
        value = fields.get(key, [])
        if not isinstance(value, (list, tuple)) or not all(isinstance(x, str) and x for x in value):
            raise PolicyError(f"{where}.{key} must be a list of names")
        for name in value:
            if key in known and name not in known[key]:
                raise PolicyError(f"{where}.{key}: unknown {name!r}{suggest_nearest_names(name, known[key])}")
        fields[key] = tuple(value)
    return Limit(**fields)


def _is_positive_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf
