"""A finding says of numbers what the judge does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from farm.reproduction import finding_checks
from farm.reproduction.bounds import compute_allowed_difference, list_expected_arrays
from tasks.backends.shared.recipe import NoProgram
from tasks.judge import policy_files, properties
from tasks.judge.error_metrics import compare_outputs
from tasks.judge.policy import judge_by_policy
from tasks.model import EPS, SMALLEST_NORMAL, Leaf, OpClass, Status


def test_a_result_wider_than_the_cases_dtype_is_allowed_what_its_own_is() -> None:
    """A graph of a bfloat16 case in float32 between two casts: a lake says bfloat16 where no precision is declared."""
    leaf = Leaf("float32", (1,), np.array([-0.00301668]))
    row = {"op_class": "composite", "limit": 4.0, "dtype": "bfloat16", "compute_precision": "bfloat16"}
    policy = policy_files.load_policy("error_units")
    assert compute_allowed_difference(leaf, row, policy) < 1e-7
    assert compute_allowed_difference(leaf, {**row, "compute_precision": "tfloat32"}, policy) > 1e-6


#: Numbers at which a rule of numbers may go astray, by dtype.
ODD: dict[str, list[Any]] = {
    "float16": [0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan, 65504.0, 3e4, -65504.0, 1e-7],
    "float32": [0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan, 3.4028235e38, 1.6e38, 1e-40],
    "float64": [0.0, 1.0, np.inf, -np.inf, np.nan, 1.7976931348623157e308, 5e-324],
    "complex64": [
        0j,
        1j,
        complex(np.inf, 0),
        complex(np.nan, 1),
        complex(3.4028235e38, 3),
        complex(0, -np.inf),
        -2 + 0j,
    ],
    "int8": [0, 1, -128, 127, -1],
    "int32": [0, 1, -(1 << 31), (1 << 31) - 1],
    "int64": [0, 1, -(1 << 63), (1 << 63) - 1, (1 << 62) + 1],
    "uint64": [0, 1, (1 << 63) + 1, 1 << 63, (1 << 64) - 1],
    "bool": [False, True],
}


#: (dtype, (oracle, whether the case brings a tolerance), noise floor in parts of the result): only what is rounded, and
#: computed in float64, has one.
CASES = [
    *itertools.product(ODD, [("float64", False), ("stored", False), ("float64", True)], [0.0]),
    *itertools.product(["float16", "float32", "complex64"], [("float64", False), ("float64", True)], [0.3, np.inf]),
]


@pytest.mark.parametrize(("dtype", "by", "noise"), CASES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["error_units", "classic", "absolute"])
def test_a_finding_says_of_each_number_what_the_judge_does(
    name: str, dtype: str, by: tuple[str, bool], noise: float
) -> None:
    policy, (oracle, own) = policy_files.load_policy(name), by
    for op_class in (OpClass.COMPOSITE, OpClass.EXACT):
        for exact, came in itertools.product(ODD[dtype], ODD[dtype]):
            a = np.array([came], dtype)
            y = np.array([exact], a.dtype if a.dtype.kind in "iub" else "c16" if a.dtype.kind == "c" else "f8")
            rounds = noise and np.isfinite(y).all() and op_class is OpClass.COMPOSITE
            floor = np.full(1, noise) * (1 if np.isinf(noise) else np.abs(y)) if rounds else None
            leaf = Leaf(dtype, (1,), y, floor, *((0.5, 0.25) if own else (None, None)))
            limit = policy.limit_value("torch:x", op_class, dtype)
            case = "torch:x", op_class, dtype, oracle
            status, _ = judge_by_policy(compare_outputs([a], [leaf], op_class), policy, *case, own_tolerance=own)
            row = {"status": "wrong", "op_class": op_class.value, "limit": limit, "dtype": dtype, "oracle": oracle}
            row["own_tolerance"] = own
            if limit is None and floor is not None and np.isinf(noise):
                with pytest.raises(NoProgram, match="has no bound"):
                    list_expected_arrays([leaf], row, policy)
                continue
            shown = finding_checks.compare_output([a], list_expected_arrays([leaf], row, policy))
            # A moved complex number is judged part by part: of one that is not finite a finding may say less.
            less = op_class is OpClass.EXACT and a.dtype.kind == "c" and not np.isfinite([came, exact]).all()
            said, told = shown == 1, status is not Status.PASS
            assert said is told or (less and told), (op_class, came, exact, status)


def test_a_finding_takes_zero_for_what_a_device_flushes_and_needs_a_limit() -> None:
    leaf = Leaf("float32", (2,), np.array([1e-40, 1e-30]))
    row = {"op_class": "exact", "limit": 0.5, "flags": "threads=1 flushes=float16,float32"}
    policy = policy_files.load_policy("error_units")
    assert (compute_allowed_difference(leaf, row, policy) >= [1e-40, 0]).all() and compute_allowed_difference(
        leaf, row, policy
    )[1] < 1e-36
    assert compute_allowed_difference(leaf, {**row, "flags": "flushes=float16"}, policy)[0] < 1e-44
    with pytest.raises(NoProgram, match="no limit judges it"):
        compute_allowed_difference(leaf, {**row, "limit": None}, policy)


@pytest.mark.parametrize("off", [0, 1, 2])
def test_a_promise_of_order_allows_one_place_among_the_smallest_numbers(off: int) -> None:
    x = np.float32([1, 2])
    y = np.array([3 + off, 3], np.uint32).view(np.float32)  # subnormal
    eps, smallest = EPS["float32"], SMALLEST_NORMAL["float32"]
    shown = finding_checks.find_disorder([y], x, 1, eps, smallest)
    assert bool(shown) is bool(properties.find_broken_property("torch:exp", [x], y)) is (off > 1)


@pytest.mark.parametrize(
    ("op", "shown"),
    [
        ("exp", lambda x, y: finding_checks.find_disorder([y], x, 1, EPS["float32"], SMALLEST_NORMAL["float32"])),
        ("erfc", lambda x, y: finding_checks.find_disorder([y], x, -1, EPS["float32"], SMALLEST_NORMAL["float32"])),
        ("sin", lambda x, y: finding_checks.find_asymmetry([y], x, -1)),
        ("cos", lambda x, y: finding_checks.find_asymmetry([y], x, 1)),
        ("sigmoid", lambda x, y: finding_checks.find_outside([y], x, 0.0, 1.0)),
        ("rsqrt", lambda x, y: finding_checks.find_missed_point([y], x, 4.0, 0.5)),
        ("i0", lambda x, y: finding_checks.find_missed_point([y], x, 0.0, 1.0)),
        ("floor", lambda x, y: finding_checks.find_other_twice([y], x, inverse=False)),
        ("neg", lambda x, y: finding_checks.find_other_twice([y], x, inverse=True)),
    ],
)
def test_a_finding_shows_the_promise_that_the_judge_finds_broken(op: str, shown: Any) -> None:
    """On results at random, of which nearly all break it, and on those of a sound op."""
    x = np.float32([-4, -2, -1, 0, 1, 2, 4])
    sound = {"floor": x, "neg": -x, "sin": x, "rsqrt": np.float32([0, 0, 0, 0, 1, 0.7, 0.5])}
    sound |= {"cos": np.ones(7), "exp": np.exp(x), "erfc": np.exp(-x.clip(-0.5)), "sigmoid": 1 / (1 + np.exp(-x))}
    sound |= {"i0": np.float32([9, 2, 1.5, 1, 1.5, 2, 9])}
    right = np.asarray(sound[op], np.float32)
    assert shown(x, right) == 0
    wrong = np.float32([2, -4, 1, 4, -2, 1, -1])
    found = properties.find_broken_property(f"torch:{op}", [x], wrong)
    assert found is not None and shown(x, wrong) == 1
