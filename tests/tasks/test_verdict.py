"""Policies: what is refused and where it says so; which limit holds; what each rule makes of metrics."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.judge import policy_files
from tasks.judge.error_metrics import Metrics, compare_outputs
from tasks.judge.policy import BAND, DIGIT, GROSS
from tasks.judge.policy_files import Policy, PolicyError, judge_by_policy, load_policy, read_policy_json
from tasks.model import EPS, Leaf, OpClass, Status, get_numpy_dtype

WHY: dict[str, Any] = {"evidence": "measured", "date": "2026-11-20"}
GOOD: dict[str, Any] = {
    "name": "mine",
    "version": 2,
    "rule": "error_units",
    "reason": "measured",
    "limits": [WHY | {"units": 4}, WHY | {"units": 8, "dtypes": ["float16"]}],
}


def write(path: Path, **change: Any) -> str:
    data = {k: v for k, v in (GOOD | change).items() if v is not None}
    (path / "p.json").write_text(json.dumps(data))
    return str(path / "p.json")


def made(*limits: dict[str, Any], **change: Any) -> Policy:
    return read_policy_json(GOOD | {"limits": [WHY | limit for limit in limits]} | change)


def test_the_policies_that_come_with_the_farm() -> None:
    assert {"absolute", "classic", "error_units"} <= set(policy_files.list_policy_names())
    for name in policy_files.list_policy_names():
        policy = load_policy(name)
        assert policy.name == name and policy.reason and policy.id == f"{name}-{policy.version}"
        assert read_policy_json(asdict(policy)) == policy  # as a run's record keeps it


def test_a_policy_of_ones_own(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path))
    assert policy.id == "mine-2"
    assert policy.limit("torch:abs", "composite", "float32").value == 4
    assert policy.limit("torch:abs", "composite", "float16").value == 8


def limits(*changes: dict[str, Any]) -> dict[str, Any]:
    """A change of GOOD: its first limit, then one with each of ``changes``."""
    return {"limits": [WHY | {"units": 4}, *(WHY | {"units": 8} | change for change in changes)]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"threshold": 3}, "unknown key 'threshold'"),
        ({"reason": None}, "reason"),
        ({"reason": ""}, "reason"),
        ({"name": None}, "name"),
        ({"version": "two"}, "version"),
        ({"version": 0}, "version"),
        ({"version": -1}, "version"),
        ({"version": True}, "version"),
        ({"rule": "majority"}, "error_units, classic, absolute"),
        ({"bound": -0.5}, "bound must be"),
        ({"limits": {}}, "limits must be a list"),
        ({"limits": []}, "limits[0] must hold for everything"),
        ({"limits": [WHY | {"units": 4, "dtypes": ["float16"]}]}, "limits[0] must hold for everything"),
        (limits({}, {"unit": 3}), "limits[2]: unknown key 'unit'"),
        ({"limits": [{"units": 4, "date": "2026-11-20"}]}, "limits[0]: a limit needs its evidence"),
        (limits({"evidence": "  "}), "limits[1]: a limit needs its evidence"),
        (limits({"date": None}), "limits[1]: a limit needs its date"),
        (limits({"date": "yesterday"}), "limits[1]: date 'yesterday' is no date"),
        (limits({"units": -1}), "limits[1].units must be"),
        (limits({"units": 0}), "limits[1].units must be"),
        (limits({"units": "32"}), "limits[1].units must be"),
        (limits({"units": float("nan")}), "limits[1].units must be"),
        (limits({"units": float("inf")}), "limits[1].units must be"),
        (limits({"units": True}), "limits[1].units must be"),
        (limits({"ulps": 4}), "limits[1]: a limit has either units or ulps"),
        (limits({"units": None}), "limits[1]: a limit has either units or ulps"),
        (limits({"units": None, "ulps": -4}), "limits[1].ulps must be"),
        (limits({"gross": -1}), "limits[1].gross must be"),
        (limits({"imprecise": "sometimes"}), "limits[1].imprecise must be"),
        (limits({"imprecise": -2}), "limits[1].imprecise must be"),
        (limits({"dtypes": ["flaot16"]}), "limits[1].dtypes: unknown 'flaot16'; did you mean float16"),
        (limits({"classes": ["elementery"]}), "limits[1].classes: unknown 'elementery'; did you mean elementary"),
        (limits({"dtypes": "float16"}), "limits[1].dtypes must be a list"),
        (limits({"ops": [3]}), "limits[1].ops must be a list"),
        ({"limits": [3]}, "limits[0]: a limit is an object"),
    ],
)
def test_a_bad_policy_names_file_and_key(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_policy(write(tmp_path, **change))
    assert "p.json" in str(caught.value) and says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", (b"{", b"[]", b"3", b'["name"]', b"\xff\xfe"))
def test_a_file_that_holds_no_policy(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "p.json").write_bytes(text)
    with pytest.raises(PolicyError, match=r"p\.json"):
        load_policy(str(tmp_path / "p.json"))


def test_no_such_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="classic"):
        load_policy("clasic")
    with pytest.raises(PolicyError, match=r"nothing\.json"):
        load_policy(str(tmp_path / "nothing.json"))
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(PolicyError, match=r"dir\.json"):
        load_policy(str(tmp_path / "dir.json"))


# --- which limit holds ------------------------------------------------------------------------------------------


def test_the_last_limit_that_covers_a_case_holds() -> None:
    policy = made(
        {"units": 1},
        {"units": 2, "dtypes": ["float16", "bfloat16"]},
        {"units": 3, "classes": ["reduction"]},
        {"units": 4, "classes": ["reduction"], "dtypes": ["float16"]},
        {"units": 5, "ops": ["torch:sum", "onnx:Reduce*"]},
        {"ulps": 6, "ops": ["torch:std_mean.unbiased"], "dtypes": ["float32"]},
    )

    def held(label: str, op_class: str, dtype: str) -> float:
        return policy.limit(label, op_class, dtype).value

    assert held("torch:x", "composite", "float32") == 1
    assert held("torch:x", "composite", "bfloat16") == 2
    assert held("torch:x", "reduction", "bfloat16") == 3
    assert held("torch:x", "reduction", "float16") == 4
    assert held("torch:sum", "reduction", "float16") == 5
    assert held("torch:sum.variant", "reduction", "float32") == 3  # a glob matches the whole label
    assert held("onnx:ReduceMax", "exact", "float64") == 5
    assert held("torch:std_mean.unbiased", "reduction", "float32") == 6
    assert held("torch:std_mean", "reduction", "float32") == 3
    assert policy.limit("torch:std_mean.unbiased", "reduction", "float32").ulps == 6


def test_a_limit_knows_its_measure() -> None:
    units, ulps = made({"units": 4}).limits[0], made({"ulps": 0.5}).limits[0]
    metrics = Metrics(error_units=3, max_ulp=7)
    assert (units.measure(metrics), ulps.measure(metrics)) == (3, 7)
    assert (str(units), str(ulps)) == ("4 error units", "0.5 ulps")


# --- what judging makes of metrics ------------------------------------------------------------------------------

UNITS, CLASSIC, ABSOLUTE = (load_policy(n) for n in ("error_units", "classic", "absolute"))
LIMIT = UNITS.limit("torch:x", "composite", "float32").value


@pytest.mark.parametrize(
    ("dtype", "precision", "units"),
    [
        ("float32", "float16", 4),
        ("float32", "bfloat16", 4),
        ("float32", "tfloat32", 4),
        ("float32", "float8_e4m3fn", 2),
        ("float16", "float16", 4),
        ("float16", "float32", 4),
        ("float32", "", 32),
    ],
)
def test_a_declared_precision_is_no_licence(dtype: str, precision: str, units: float) -> None:
    assert UNITS.limit("torch:mm", "contraction", dtype, precision).value == units
    nothing = compare_outputs(
        [np.zeros(3)], [Leaf("float32", (3,), np.array([1.0, 2.0, 3.0]), np.zeros(3))], OpClass.CONTRACTION, precision
    )
    if dtype == "float32" and precision:
        assert (
            judge_by_policy(nothing, UNITS, "torch:mm", "contraction", dtype, "torch float64", precision)[0]
            is Status.WRONG
        )


def judged(
    metrics: Metrics,
    policy: Policy = UNITS,
    op_class: str = "composite",
    dtype: str = "float32",
    oracle: str = "float64",
    label: str = "torch:x",
) -> tuple[str, str]:
    status, kind = judge_by_policy(metrics, policy, label, op_class, dtype, oracle)
    return status.value, kind


def verdicts(metrics: Metrics, oracle: str = "float64", dtype: str = "float32") -> list[str]:
    return [judged(metrics, p, dtype=dtype, oracle=oracle)[0] for p in (UNITS, CLASSIC, ABSOLUTE)]


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (Metrics(error_units=0, max_diff=0, numel=1), ["pass", "pass", "pass"]),
        (Metrics(error_units=LIMIT, max_diff=1e-9, numel=1), ["pass", "pass", "pass"]),
        (Metrics(error_units=LIMIT * 1.01, max_diff=1e-9, numel=1), ["imprecise", "pass", "pass"]),
        (Metrics(error_units=1e5, max_diff=1e-3, classic=False, mismatched=1, numel=1), ["wrong", "wrong", "pass"]),
        (Metrics(error_units=1, max_diff=0.5, classic=False, mismatched=1, numel=1), ["pass", "wrong", "wrong"]),
        (Metrics(error_units=1, max_diff=0.01, numel=1), ["pass", "pass", "wrong"]),  # the bound itself is outside
        (Metrics(error_units=np.inf, max_diff=0, classic=False, nonfinite=1, mismatched=1, numel=2), ["wrong"] * 3),
        (Metrics(kind="shape", classic=False), ["wrong"] * 3),
        (Metrics(numel=0), ["vacuous"] * 3),
        # Strings have no difference to bound: they are equal or wrong.
        (Metrics(error_units=np.inf, classic=False, mismatched=1, numel=2), ["wrong"] * 3),
        (Metrics(error_units=0, numel=2), ["pass"] * 3),
    ],
)
def test_the_three_rules(metrics: Metrics, expected: list[str]) -> None:
    assert verdicts(metrics) == expected


@pytest.mark.parametrize("policy", (UNITS, CLASSIC, ABSOLUTE), ids=lambda p: p.name)
def test_kind_says_why(policy: Policy) -> None:
    for kind in ("dtype", "mutation", "nondeterministic", "not random"):
        assert judged(Metrics(kind=kind), policy) == ("wrong", kind)
    bad = Metrics(error_units=np.inf, max_diff=1, classic=False, nonfinite=1, mismatched=1, numel=1)
    assert judged(bad, policy) == ("wrong", "nonfinite")
    numbers = Metrics(error_units=1e6, max_diff=1, classic=False, mismatched=1, numel=1)
    assert judged(numbers, policy) == ("wrong", "numbers")


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_what_has_no_right_digit_is_not_merely_imprecise(dtype: str) -> None:
    """All within atol, as small numbers are: classic cannot tell, the op's own scale can."""
    edge = GROSS / EPS[dtype]
    policy = made({"units": 1})
    assert judged(Metrics(error_units=edge, max_diff=1e-9, numel=1), policy, dtype=dtype)[0] == "imprecise"
    assert judged(Metrics(error_units=edge * 1.01, max_diff=1e-9, numel=1), policy, dtype=dtype) == ("wrong", "numbers")
    kinder = made({"units": 1, "gross": 1.0})
    assert judged(Metrics(error_units=edge * 1.01, max_diff=1e-9, numel=1), kinder, dtype=dtype)[0] == "imprecise"
    # A unit of a coarser declared precision is a larger share of the scale.
    coarse = Metrics(error_units=2.0**6, max_diff=1e-9, numel=1)
    assert judge_by_policy(coarse, policy, "torch:x", "composite", "float32", "float64")[0] is Status.IMPRECISE
    assert judge_by_policy(coarse, policy, "torch:x", "composite", "float32", "float64", "bfloat16")[0] is Status.WRONG
    # Integers have no spacing of their own: float32's is taken.
    assert judged(Metrics(error_units=np.inf, max_diff=1e-9, numel=1), policy, dtype="int64")[0] == "wrong"


@pytest.mark.parametrize(
    ("imprecise", "units", "expected"),
    [
        ("never", 4, "pass"),
        ("never", 4.1, "wrong"),
        (16, 4.1, "imprecise"),
        (16, 16, "imprecise"),
        (16, 16.1, "wrong"),
        ("classic", 4.1, "imprecise"),
        ("band", 4.1, "imprecise"),
    ],
)
def test_what_a_limit_calls_imprecise(imprecise: Any, units: float, expected: str) -> None:
    policy = made({"units": 4, "imprecise": imprecise})
    assert judged(Metrics(error_units=units, max_diff=1e-9, numel=1), policy)[0] == expected
    # A misplaced NaN is never imprecise, whatever a limit says.
    lost = Metrics(error_units=np.inf, max_diff=0, classic=False, nonfinite=1, mismatched=1, numel=2)
    assert judged(lost, policy) == ("wrong", "nonfinite")


@pytest.mark.parametrize("op_class", ("contraction", "elementary"))
@pytest.mark.parametrize("dtype", ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "int32"))
def test_a_band_beyond_the_limit_is_imprecise_while_a_decimal_digit_is_right(dtype: str, op_class: str) -> None:
    """None of it within the classic tolerance, which in 16 bits is narrower than the limit."""
    limit = UNITS.limit("torch:x", op_class, dtype).value

    def of(units: float) -> str:
        far = Metrics(error_units=units, max_ulp=units, max_diff=1, classic=False, mismatched=1, numel=9)
        return judged(far, op_class=op_class, dtype=dtype)[0]

    assert of(limit) == "pass"
    band = min(BAND * limit, DIGIT / EPS[dtype]) if dtype in EPS else 0  # an integer has no digits to lose
    if band > limit:
        assert of(limit * 1.01) == of(band) == "imprecise"
    assert of(max(band, limit) * 1.01) == "wrong"
    # 16 bits: the sum of a kernel that accumulates in them is 4 to 25 units off; bfloat16 has a digit up to 8.
    if op_class == "contraction" and dtype in ("float16", "bfloat16"):
        assert band == {"float16": 32, "bfloat16": 8}[dtype]


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16", "int64", "bool"))
def test_exact_ops_are_equal_or_wrong(dtype: str) -> None:
    y = np.array([1.0, 0.0, 1.0])
    for at, value in ((0, 1 + EPS.get(dtype, 1.0)), (1, 1.0)):
        a = y.copy()
        a[at] = value
        expected = [Leaf(dtype, (3,), y if dtype in EPS else y.astype(dtype), np.ones(3))]
        good, bad = (compare_outputs([_cast(v, dtype)], expected, OpClass.EXACT) for v in (y, a))
        assert judged(good, op_class="exact", dtype=dtype) == ("pass", "")
        if not np.array_equal(_cast(a, dtype), _cast(y, dtype)):
            assert judged(bad, op_class="exact", dtype=dtype) == ("wrong", "numbers")


def _cast(values: np.ndarray, dtype: str) -> np.ndarray:
    from tasks.model import get_numpy_dtype

    return values.astype(get_numpy_dtype(dtype))


def test_elementary_functions_are_judged_in_ulps_of_the_result() -> None:
    def of(ulps: float) -> tuple[str, str]:
        # The units are what a noise floor would have excused: they must not be asked.
        return judged(
            Metrics(error_units=0.5, max_ulp=ulps, max_diff=1e-9, numel=1), op_class="elementary", label="torch:nothing"
        )

    limit = UNITS.limit("torch:nothing", "elementary", "float32")
    assert limit.ulps is not None
    assert of(limit.ulps) == ("pass", "")
    assert of(limit.ulps * 1.01) == of(limit.ulps * BAND) == ("imprecise", "numbers")
    assert of(limit.ulps * BAND * 1.01) == ("wrong", "numbers")  # though it is within the classic tolerance


def test_another_integer_is_no_matter_of_ulps() -> None:
    right = np.arange(10, dtype=np.int32)
    metrics = compare_outputs([right + 3], [Leaf("int32", (10,), right)], OpClass.ELEMENTARY)
    assert judged(metrics, op_class="elementary", dtype="int32", label="torch:add") == ("wrong", "numbers")


def test_a_jump_is_excused_by_the_noise_floor_of_its_own_height_alone() -> None:
    y, noise = np.array([4.0, 7.0]), np.array([1.0, 0.0])

    def of(values: list[float]) -> str:
        metrics = compare_outputs(
            [np.array(values, np.float32)], [Leaf("float32", (2,), y, noise)], OpClass.DISCONTINUOUS
        )
        return judged(metrics, op_class="discontinuous")[0]

    assert of([4, 7]) == of([5, 7]) == "pass"
    assert of([5, 8]) == of([20, 7]) == "wrong"


def test_a_stored_result_has_no_noise_floor_and_classic_decides() -> None:
    far_in_units = Metrics(error_units=1e4, max_diff=1e-7, numel=1)
    assert judged(far_in_units)[0] == "imprecise"
    assert judged(far_in_units, oracle="stored")[0] == "pass"
    near_in_units = Metrics(error_units=1, max_diff=1, classic=False, mismatched=1, numel=1)
    assert judged(near_in_units, oracle="stored")[0] == "wrong"


def test_the_stored_result_of_an_exact_op_is_exact() -> None:
    one_ulp = Metrics(error_units=1, max_ulp=1, max_diff=1e-7, numel=1)
    assert judged(one_ulp, op_class="exact", oracle="stored") == ("wrong", "numbers")
    assert (
        judged(Metrics(error_units=0, max_ulp=0, max_diff=0, numel=1), op_class="exact", oracle="stored")[0] == "pass"
    )
    assert judged(one_ulp, op_class="elementary", oracle="stored")[0] == "pass"  # numpy's own rounding is in it
    assert judged(one_ulp, CLASSIC, op_class="exact", oracle="stored")[0] == "pass"


def test_without_the_limits_own_metric_the_classic_tolerance_decides() -> None:
    """Strings: no ulps; equal or wrong."""
    assert judged(Metrics(error_units=0, numel=2), op_class="exact", dtype="str")[0] == "pass"
    assert (
        judged(Metrics(error_units=np.inf, classic=False, mismatched=1, numel=2), op_class="exact", dtype="str")[0]
        == "wrong"
    )


def test_metadata_needs_no_elements() -> None:
    assert judged(Metrics(numel=0), op_class="uninitialised", oracle="metadata")[0] == "pass"
    assert judged(Metrics(kind="shape"), op_class="uninitialised", oracle="metadata")[0] == "wrong"


def test_limits_by_dtype_and_op() -> None:
    policy = made({"units": 32}, {"units": 4, "dtypes": ["float16"]}, {"units": 100, "ops": ["torch:slow*"]})
    m = Metrics(error_units=10, max_diff=1e-9, numel=1)
    assert judged(m, policy)[0] == "pass"
    assert judged(m, policy, dtype="float16")[0] == "imprecise"
    assert judged(m, policy, dtype="float16", label="torch:slowly.variant")[0] == "pass"


@pytest.mark.parametrize("policy", (UNITS, CLASSIC, ABSOLUTE), ids=lambda p: p.name)
@pytest.mark.parametrize("op_class", [c for c in OpClass if c not in (OpClass.RANDOM, OpClass.UNINITIALISED)])
@pytest.mark.parametrize("planted", (0.0, np.nan, np.inf, -1.0, 1e30))
def test_no_policy_passes_a_planted_fault(policy: Policy, op_class: OpClass, planted: float) -> None:
    y = np.linspace(1, 2, 100).astype(np.float32).astype(np.float64)
    a = y.astype(np.float32)
    expected = [Leaf("float32", y.shape, y)]
    assert judged(compare_outputs([a], expected, op_class), policy, op_class.value)[0] == "pass"
    a[57] = planted
    assert judged(compare_outputs([a], expected, op_class), policy, op_class.value)[0] == "wrong"


@pytest.mark.parametrize("planted", (0.0, 1e300, -np.inf))
def test_an_infinity_that_is_not_there_is_wrong_in_float64_too(planted: float) -> None:
    y = np.array([np.inf, 1.0])
    metrics = compare_outputs([np.array([planted, 1.0])], [Leaf("float64", y.shape, y)])
    assert verdicts(metrics, dtype="float64") == ["wrong"] * 3


def test_status_is_one_of_the_closed_set() -> None:
    assert isinstance(
        judge_by_policy(Metrics(numel=1, error_units=0), UNITS, "x", "composite", "float32", "float64")[0], Status
    )


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"])
@pytest.mark.parametrize("op_class", [OpClass.COMPOSITE, OpClass.CONTRACTION, OpClass.REDUCTION])
def test_few_bits_are_no_licence_either(dtype: str, op_class: OpClass) -> None:
    """32 units of a float8 are four times the value: an all-zero result lay within them."""
    exact = np.array([1.0, 2.0, -3.0, 4.0])
    leaf = Leaf(dtype, exact.shape, exact, np.zeros(4))

    def status(outputs: np.ndarray) -> Status:
        metrics = compare_outputs([outputs.astype(get_numpy_dtype(dtype))], [leaf])
        return judge_by_policy(metrics, load_policy("error_units"), "torch:some", op_class, dtype, "float64")[0]

    assert status(exact) is Status.PASS
    assert status(np.zeros(4)) is Status.WRONG
    assert status(-exact) is Status.WRONG


def test_a_single_step_of_a_quantised_result_is_said_to_be_one() -> None:
    """Three codes of thousands that fell to the other side of a tie read like a total loss."""
    from tasks.judging import _count_single_steps

    step = Metrics(numel=3136, mismatched=3, max_diff=1.0)
    assert _count_single_steps(["uint8"], step) == "one step of uint8 off in 3 of 3,136 elements"
    assert not _count_single_steps(["uint8"], Metrics(numel=3136, mismatched=3, max_diff=7.0))
    assert not _count_single_steps(["float32"], step) and not _count_single_steps(["int64"], step)
