"""Policies: what is refused and where it says so; what each rule makes of metrics."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import verdict
from tasks.compare import Metrics, compare
from tasks.model import Leaf, Status
from tasks.verdict import Policy, PolicyError, judge, load

GOOD: dict[str, Any] = {"name": "mine", "version": 2, "rule": "error_units", "threshold": 4, "reason": "measured",
                        "by_dtype": {"float16": 8}}  # fmt: skip


def write(path: Path, **change: Any) -> str:
    data = {k: v for k, v in (GOOD | change).items() if v is not None}
    (path / "p.json").write_text(json.dumps(data))
    return str(path / "p.json")


def test_the_policies_that_come_with_the_farm() -> None:
    assert {"absolute", "classic", "error_units"} <= set(verdict.names())
    for name in verdict.names():
        policy = load(name)
        assert policy.name == name and policy.reason and policy.id == f"{name}-{policy.version}"


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    policy = load(write(tmp_path))
    assert policy.id == "mine-2"
    assert (policy.limit("float32"), policy.limit("float16")) == (4, 8)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"treshold": 3}, "unknown key 'treshold'"),
        ({"reason": None}, "reason"), ({"reason": ""}, "reason"), ({"name": None}, "name"),
        ({"version": "two"}, "version"), ({"rule": "majority"}, "error_units, classic, absolute"),
        ({"threshold": -1}, "threshold must be"), ({"threshold": 0}, "threshold must be"),
        ({"threshold": "32"}, "threshold must be"), ({"threshold": float("nan")}, "threshold must be"),
        ({"threshold": float("inf")}, "threshold must be"), ({"bound": -0.5}, "bound must be"),
        ({"by_dtype": {"float16": 0}}, "by_dtype.float16"), ({"by_dtype": [1]}, "by_dtype"),
        ({"by_dtype": {"flaot16": 4}}, "flaot16"),
    ],
)  # fmt: skip
def test_a_bad_policy_names_file_and_key(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load(write(tmp_path, **change))
    assert "p.json" in str(caught.value) and says in str(caught.value)


@pytest.mark.parametrize("text", (b"{", b"[]", b"3", b'["name"]', b"\xff\xfe"))
def test_a_file_that_holds_no_policy(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "p.json").write_bytes(text)
    with pytest.raises(PolicyError, match=r"p\.json"):
        load(str(tmp_path / "p.json"))


def test_no_such_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="classic"):
        load("clasic")
    with pytest.raises(PolicyError, match=r"nothing\.json"):
        load(str(tmp_path / "nothing.json"))
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(PolicyError, match=r"dir\.json"):
        load(str(tmp_path / "dir.json"))


UNITS, CLASSIC, ABSOLUTE = (load(n) for n in ("error_units", "classic", "absolute"))


def verdicts(metrics: Metrics, oracle: str = "float64", dtype: str = "float32") -> list[str]:
    return [judge(metrics, p, dtype, oracle)[0].value for p in (UNITS, CLASSIC, ABSOLUTE)]


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (Metrics(error_units=0, max_diff=0, numel=1), ["pass", "pass", "pass"]),
        (Metrics(error_units=UNITS.threshold, max_diff=1e-9, numel=1), ["pass", "pass", "pass"]),
        (Metrics(error_units=UNITS.threshold * 1.01, max_diff=1e-9, numel=1), ["imprecise", "pass", "pass"]),
        (Metrics(error_units=1e9, max_diff=1e-3, classic=False, mismatched=1, numel=1), ["wrong", "wrong", "pass"]),
        (Metrics(error_units=3, max_diff=0.5, classic=False, mismatched=1, numel=1), ["pass", "wrong", "wrong"]),
        (Metrics(error_units=1, max_diff=0.01, numel=1), ["pass", "pass", "wrong"]),  # the bound itself is outside
        (Metrics(error_units=np.inf, max_diff=0, classic=False, nonfinite=1, mismatched=1, numel=2), ["wrong"] * 3),
        (Metrics(kind="shape", classic=False), ["wrong"] * 3),
        (Metrics(numel=0), ["vacuous"] * 3),
        # Strings have no difference to bound: they are equal or wrong.
        (Metrics(error_units=np.inf, classic=False, mismatched=1, numel=2), ["wrong"] * 3),
        (Metrics(error_units=0, numel=2), ["pass"] * 3),
    ],
)  # fmt: skip
def test_the_three_rules(metrics: Metrics, expected: list[str]) -> None:
    assert verdicts(metrics) == expected


def test_kind_says_why() -> None:
    assert judge(Metrics(kind="dtype"), UNITS, "float32", "float64") == (Status.WRONG, "dtype")
    bad = Metrics(error_units=np.inf, max_diff=1, classic=False, nonfinite=1, mismatched=1, numel=1)
    for policy in (UNITS, CLASSIC, ABSOLUTE):
        assert judge(bad, policy, "float32", "float64") == (Status.WRONG, "nonfinite")
    numbers = Metrics(error_units=1e6, max_diff=1, classic=False, mismatched=1, numel=1)
    for policy in (UNITS, CLASSIC, ABSOLUTE):
        assert judge(numbers, policy, "float32", "float64") == (Status.WRONG, "numbers")


def test_a_stored_result_has_no_noise_floor_and_classic_decides() -> None:
    far_in_units = Metrics(error_units=1e4, max_diff=1e-7, numel=1)
    assert judge(far_in_units, UNITS, "float32", "float64")[0] is Status.IMPRECISE
    assert judge(far_in_units, UNITS, "float32", "stored")[0] is Status.PASS
    near_in_units = Metrics(error_units=1, max_diff=1, classic=False, mismatched=1, numel=1)
    assert judge(near_in_units, UNITS, "float32", "stored")[0] is Status.WRONG


def test_metadata_needs_no_elements() -> None:
    assert judge(Metrics(numel=0), UNITS, "float32", "metadata")[0] is Status.PASS
    assert judge(Metrics(kind="shape"), UNITS, "float32", "metadata")[0] is Status.WRONG


def test_threshold_by_dtype() -> None:
    policy = Policy("p", 1, "error_units", "r", 32, {"float16": 4})
    m = Metrics(error_units=10, max_diff=1e-9, numel=1)
    assert judge(m, policy, "float32", "float64")[0] is Status.PASS
    assert judge(m, policy, "float16", "float64")[0] is Status.IMPRECISE


@pytest.mark.parametrize("policy", (UNITS, CLASSIC, ABSOLUTE), ids=lambda p: p.name)
@pytest.mark.parametrize("planted", (0.0, np.nan, np.inf, -1.0, 1e30))
def test_no_policy_passes_a_planted_fault(policy: Policy, planted: float) -> None:
    y = np.linspace(1, 2, 100)
    a = y.astype(np.float32)
    expected = [Leaf("float32", y.shape, y)]
    assert judge(compare([a], expected), policy, "float32", "float64")[0] is Status.PASS
    a[57] = planted
    assert judge(compare([a], expected), policy, "float32", "float64")[0] is Status.WRONG


@pytest.mark.parametrize("planted", (0.0, 1e300, -np.inf))
def test_an_infinity_that_is_not_there_is_wrong_in_float64_too(planted: float) -> None:
    y = np.array([np.inf, 1.0])
    metrics = compare([np.array([planted, 1.0])], [Leaf("float64", y.shape, y)])
    assert verdicts(metrics, dtype="float64") == ["wrong"] * 3
