"""Every input of an op: all bit patterns are there, and a fault at any one of them is seen; its sound twin is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from farm.commands import report, reproduce, run
from tasks.arrays import every_value
from tasks.backends.base import Backend
from tasks.catalogs import mpmath_oracle
from tasks.judge import policy_files, properties
from tasks.judge.ascending_inputs import sort_inputs_ascending
from tasks.judging import judge_outputs
from tasks.model import EXHAUSTIVE, Form, Group, Program, RuntimeInfo, Status, get_numpy_dtype
from tasks.prepare.cases import PreparedSample, prepare_group
from tasks.runner import Runner, make_item_of_whole_group

torch = pytest.importorskip("torch")

from tasks.arrays import torch_tree  # noqa: E402
from tasks.catalogs.torch.every_input import LAYOUTS  # noqa: E402


@pytest.fixture(autouse=True)
def _without_mpmath(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second and more of each op: one test asks for it."""
    monkeypatch.setattr(mpmath_oracle, "compute_mpmath_oracle", lambda op, given, first: [])


_ORACLE = mpmath_oracle.compute_mpmath_oracle


def samples(op: str, dtype: str, number: int = 1) -> list[PreparedSample]:
    return prepared(Group(f"torch:{op}", "", dtype, number, distribution=EXHAUSTIVE))


def prepared(group: Group) -> list[PreparedSample]:
    found = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1].samples
    assert not any(s.failure for s in found)
    return sorted(found, key=lambda s: s.record.sample)


@pytest.mark.parametrize(
    ("dtype", "count"), [("float16", 1 << 16), ("bfloat16", 1 << 16), ("int16", 1 << 16), ("int8", 256)]
)
def test_every_bit_pattern_is_there_once(dtype: str, count: int) -> None:
    made = every_value.list_every_value(dtype)
    assert len(np.unique(made.view(f"u{made.dtype.itemsize}"))) == len(made) == count


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sweep_has_every_sign_and_exponent_and_what_lies_around_the_landmarks(dtype: str) -> None:
    made = every_value.list_every_value(dtype, seed=3)
    patterns = made.view(f"u{made.dtype.itemsize}")
    width = every_value.MANTISSA[dtype]
    heads = np.unique(patterns >> np.array(width, patterns.dtype))
    assert len(made) == every_value.SWEEP and len(heads) == 1 << (8 * made.dtype.itemsize - width)
    near = every_value.list_landmark_floats(dtype)
    assert np.isin(near, made).all() and {0.5, 1.0, get_numpy_dtype(dtype).type(np.pi / 2)} <= set(near)
    assert np.isnan(made).any() and np.isposinf(made).any() and {0.0} <= set(made)
    assert (
        made.tobytes()
        == every_value.list_every_value(dtype, seed=3).tobytes()
        != every_value.list_every_value(dtype, seed=4).tobytes()
    )


@pytest.mark.parametrize("dtype", ["complex64", "int64", "bool"])
def test_a_dtype_that_is_too_wide_is_vacuous_and_says_so(dtype: str) -> None:
    assert not every_value.has_every_value(dtype)
    op = "abs" if dtype != "bool" else "isnan"
    group = Group(f"torch:{op}", "", dtype, 1, distribution=EXHAUSTIVE)
    [sample] = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1].samples
    assert (
        sample.failure and sample.failure.status == "vacuous" and f"not every value of {dtype}" in sample.failure.error
    )


def test_ops_of_one_tensor_are_offered_it_and_others_are_not() -> None:
    from tasks import catalogs

    offers = {e.label: EXHAUSTIVE in e.distributions for e in catalogs.get_catalog("torch").entries()}
    assert all(offers[f"torch:{op}"] for op in ("exp", "nn.functional.gelu", "bitwise_not", "special.erfcx", "round"))
    assert not any(
        offers[f"torch:{op}"]
        for op in ("addmm", "softmax", "matmul", "nn.functional.rrelu", "dropout", "polar")
        if f"torch:{op}" in offers
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_same_values_in_several_layouts() -> None:
    found = samples("neg", "bfloat16", len(LAYOUTS))
    assert [s.record.shapes for s in found] == ["65536", "256x256", "256x256", "256x256"]
    for sample in found:
        [given] = sample.inputs()
        assert (
            len(np.unique(given.reshape(-1)[np.isfinite(given.reshape(-1).astype(np.float64))].view(np.uint16)))
            == 0xFF00
        )


Fault = Callable[[np.ndarray, np.ndarray], np.ndarray]  # from inputs and outputs, as float64


def _at(value: float, factor: float = 1.0, plus: float = 0.0) -> Fault:
    return lambda x, y: np.where(x == value, y * factor + plus, y)


#: Faults of at most 16 of 65,536 inputs: op, dtype, what becomes of the right outputs.
FAULTS: dict[str, tuple[str, str, Fault]] = {
    "one value": ("exp", "float16", _at(1.5, 1.05)),
    "one value, as a sign": ("sin", "float16", _at(2.0, -1.0)),
    "the largest": ("sqrt", "bfloat16", _at(3.3895313892515355e38, 1.5)),
    "zero": ("cos", "bfloat16", _at(0.0, 0.9)),
    "the smallest subnormal flushed": ("neg", "float16", _at(2.0**-24, 0.0)),
    "one exponent": ("tanh", "bfloat16", lambda x, y: np.where((x >= 2.0) & (x < 2.125), y * 0.9, y)),
    "infinity": ("sigmoid", "float16", lambda x, y: np.where(x == np.inf, 0.0, y)),
    "NaN becomes a number": (
        "nn.functional.relu",
        "float16",
        lambda x, y: np.where(np.isnan(x) & (np.cumsum(np.isnan(x)) == 9), 0.0, y),
    ),
    "a number becomes NaN": ("log1p", "float16", lambda x, y: np.where(x == 0.25, np.nan, y)),
    "overflow one step early": ("exp", "float16", lambda x, y: np.where((x > 11.08) & np.isfinite(y), np.inf, y)),
    "a tie away from zero": ("round", "float16", _at(2.5, plus=1.0)),
    "a domain that ends early": (
        "asin",
        "float16",
        lambda x, y: np.where((np.abs(x) > 0.9993) & ~np.isnan(y), np.nan, y),
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_at_a_few_of_all_inputs_is_caught_and_its_sound_twin_is_not(name: str) -> None:
    op, dtype, fault = FAULTS[name]
    [sample] = samples(op, dtype)
    [given] = [x.astype(np.float64) for x in sample.inputs()]
    short = op.removeprefix("nn.functional.")
    right = getattr(torch, short)(torch.from_numpy(given)).numpy()
    statuses, stored = [], []
    for outputs in (right, fault(given, right)):
        stored.append(torch_tree.tensor_to_numpy(torch.from_numpy(outputs).to(getattr(torch, dtype))))
        told = judge_outputs(sample, [stored[-1:]], policy_files.load_policy("error_units"), RuntimeInfo("1", "cpu"))
        statuses.append(told.status)
    changed = stored[0].view(np.uint16) != stored[1].view(np.uint16)
    assert 0 < changed.sum() <= 16
    assert statuses == [Status.PASS, Status.IMPRECISE if name.startswith("overflow") else Status.WRONG]


def test_a_reproduction_says_at_which_input(results: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        "dtypes: [bfloat16]\ncatalogs: [{name: torch, ops: [erf], samples: 1, distributions: [exhaustive]}]\n"
        "backends: [torch-cpu]\n"
    )
    run.main([str(config), "--on", "inline", "--results", str(results)])
    assert reproduce.main(["last:forward/torch:erf/bfloat16/exhaustive/0:torch-cpu", "--results", str(results)]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.startswith("  "))
    x, y = float(told["input"]), float(told["expected"])
    assert y == pytest.approx(2 / np.sqrt(np.pi) * x, rel=1e-6) and 0 < x < 1e-5
    picture, asked = tmp_path / "erf.png", ["--results", str(results), "--inputs"]
    assert report.main([*asked, "erf", "--plot", str(picture)]) == 0 and picture.read_bytes().startswith(b"\x89PNG")
    assert (
        report.main([*asked, "erff"]) == 2
        and "no exhaustive case of 'erff' in this run (--run names another); valid: torch:erf"
        in capsys.readouterr().err
    )
    assert report.main([*asked, "erf", "--dtype", "float16"]) == 2
    assert "erf was run in bfloat16, not in 'float16'" in capsys.readouterr().err


def test_onnx_operators_are_given_every_input_they_take() -> None:
    from tasks import catalogs

    found = {e.label: e for e in catalogs.get_catalog("onnx").entries() if EXHAUSTIVE in e.distributions}
    assert {"onnx:Exp", "onnx:Gelu.tanh", "onnx:Sign", "onnx:Tanh"} <= set(found) and "onnx:MatMul" not in found
    assert not any("own" in e.distributions for e in found.values())
    for label, dtype in (("onnx:Sigmoid", "bfloat16"), ("onnx:Round", "float16"), ("onnx:IsNaN", "float8_e5m2")):
        assert dtype in found[label].dtypes
        [sample] = prepared(Group(label, "", dtype, 1, distribution=EXHAUSTIVE))
        [given] = sample.inputs()
        assert given.size == 1 << 8 * given.dtype.itemsize and sample.record.model is not None
    [sample] = prepared(Group("onnx:Relu", "", "float16", 1, distribution=EXHAUSTIVE))
    assert not np.isnan(sample.inputs()[0]).any()  # max(NaN, 0) is open


class Flushing(Backend):
    """Computes exp, taking subnormal numbers for zero: as results, as inputs, or not at all."""

    forms = ("onnx",)

    def __init__(self, results: bool, inputs: bool) -> None:
        super().__init__("flushing-cpu", "cpu", {})
        self.results, self.inputs = results, inputs

    def build(self, form: Form) -> Program:
        def flushed(x: np.ndarray) -> np.ndarray:
            return np.where(np.abs(x) < 2.0**-126, 0 * x, x)

        def run() -> list[np.ndarray]:
            given = [x.astype(np.float64) for x in form.arrays]
            given = [flushed(x) for x in given] if self.inputs else given
            with np.errstate(all="ignore"):
                y = given[0] * given[1] if len(given) > 1 else np.log(given[0])
                return [(flushed(y) if self.results else y).astype(form.arrays[0].dtype)]

        return Program(run)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("results", "inputs"), [(False, False), (True, False), (True, True)])
def test_what_a_device_takes_for_zero_is_measured_and_judged_as_such(results: bool, inputs: bool) -> None:
    group = Group("onnx:Log", "", "bfloat16", 1, distribution=EXHAUSTIVE)
    made = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1]
    runner = Runner(
        Flushing(results, inputs), RuntimeInfo("1", "cpu"), policy_files.load_policy("error_units"), lambda *step: None
    )
    [row] = (x.row for x in runner.run([make_item_of_whole_group(made)]))
    assert row.status == Status.PASS
    assert (row.flags or "") == ("flushes=bfloat16 flushes_inputs=bfloat16" if inputs else "")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_row_counts_the_inputs_beyond_the_limit_and_names_the_worst() -> None:
    [sample] = samples("exp", "float16")
    [given] = sample.inputs()
    with np.errstate(all="ignore"):
        right = np.exp(given.astype(np.float64)).astype(np.float16)
    wrong = np.where((given == 1.5) | (given == -2.0), np.float16(1.1) * right, right)
    told = judge_outputs(sample, [[wrong]], policy_files.load_policy("error_units"), RuntimeInfo("1", "cpu"))
    assert told.columns["beyond"] == 2 and " of -2, at " in told.columns["worst"]


def test_mpmath_is_a_further_oracle_and_judges_the_float64_reference_too() -> None:
    x = np.array([1e-30, 0.5, -3.0, 0.0, np.inf, np.nan])
    with np.errstate(all="ignore"):
        [told] = _ORACLE("nn.functional.tanhshrink", x, x - np.tanh(x))
    assert told.name == "mpmath" and told.references[0][0] == pytest.approx(1e-90 / 3)  # float64 has no digit of it
    assert told.references[0][1] == pytest.approx(0.5 - np.tanh(0.5))
    assert np.isnan(told.references[0][5]) and told.references[0][3] == 0  # as the first oracle says
    assert (
        _ORACLE("nn.functional.tanhshrink", x, x - np.tanh(x))[0].references[0].tobytes()
        == told.references[0].tobytes()
    )
    assert _ORACLE("add", x, x) == [] == _ORACLE("exp", x, x.astype(np.float32))


def test_hard_cases_of_float64_and_float32_are_in_the_sweep() -> None:
    # The float and the double nearest to a multiple of π/2 (J.-M. Muller, Elementary Functions, 2nd ed., table 9.1).
    assert 16367173 * 2.0**72 in every_value.list_every_value(
        "float32"
    ) and 6381956970095103 * 2.0**797 in every_value.list_every_value("float64")
    for dtype, square in (("float32", 4095.0**2), ("float64", 67108863.0**2)):
        hard = every_value.list_hard_floats(dtype)
        assert {square, np.nextafter(get_numpy_dtype(dtype).type(square), get_numpy_dtype(dtype).type(0))} <= set(hard)
        assert np.isfinite(hard).all() and np.isin(hard, every_value.list_every_value(dtype)).mean() > 0.9


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("op", "dtype", "pairs"),
    [("maximum", "int8", 1 << 16), ("floor_divide", "uint8", 255 << 8), ("mul", "float16", 249 * 249)],
)
def test_an_op_of_two_tensors_is_given_every_pair(op: str, dtype: str, pairs: int) -> None:
    [sample] = samples(op, dtype)
    a, b = (x.reshape(-1).astype(np.float64) for x in sample.inputs())
    assert len({(x, y) for x, y in zip(a, b) if x == x and y == y}) >= pairs  # of float8_e5m2 249 are numbers
    statuses = []
    for wrong in (False, True):
        right = np.where(b == 0, 0, a // b) if op == "floor_divide" else a * b if op == "mul" else np.maximum(a, b)
        right = np.where(wrong & (a == 96) & (b == 112), right + (right if op == "mul" else 8), right)
        given = torch_tree.tensor_to_numpy(torch.from_numpy(right.reshape(256, 256)).to(getattr(torch, dtype)))
        statuses.append(
            judge_outputs(sample, [[given]], policy_files.load_policy("error_units"), RuntimeInfo("1", "cpu")).status
        )
    assert statuses == [Status.PASS, Status.WRONG]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("op", "dtype"), [("Div", "int8"), ("Mod", "uint8"), ("Sub", "int8"), ("Max", "float16")])
def test_an_onnx_operator_of_two_tensors_is_given_every_pair(op: str, dtype: str) -> None:
    [sample] = prepared(Group(f"onnx:{op}", "", dtype, 1, distribution=EXHAUSTIVE))
    a, b = (x.astype(np.float64) for x in sample.tensors())
    assert a.shape == (256, 256) and len(set(zip(a.ravel(), b.ravel()))) > 48_000  # what overflows is open
    made = {
        "Div": lambda: np.trunc(a / b),
        "Mod": lambda: np.mod(a, b),
        "Sub": lambda: a - b,
        "Max": lambda: np.maximum(a, b),
    }[op]()
    [leaf] = sample.expected()
    assert leaf.reference is not None
    wrapped = made.astype(np.int64).astype(dtype) if dtype == "int8" else made
    assert np.array_equal(leaf.reference, wrapped.astype(leaf.reference.dtype))


def test_pairs_of_a_wide_integer_are_not_tried_and_it_says_so() -> None:
    group = Group("torch:mul", "", "int16", 1, distribution=EXHAUSTIVE)
    [sample] = prepare_group(group, Path(os.environ["FARM_CACHE"]))[1].samples
    assert sample.failure and "not every pair of values of int16 can be tried" in sample.failure.error


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_gradient_of_an_op_of_one_tensor_is_given_every_input() -> None:
    [sample] = prepared(Group("torch:sqrt", "", "bfloat16", 1, check="backward", distribution=EXHAUSTIVE))
    assert sample.inputs()[0].size == 1 << 16 and list(sample.record.wrt) == [0]
    [y] = (leaf.reference for leaf in sample.expected())
    x, gradient = sample.inputs()[0].astype(np.float64), sample.inputs()[1].astype(np.float64)
    at = (x > 1) & (x < 4)
    assert y is not None and np.allclose(y[at], (gradient / (2 * np.sqrt(x)))[at])


#: Faults that no reference is needed for: op, what becomes of right outputs, a word of what is said.
BROKEN: dict[str, tuple[str, Fault, str]] = {
    "order": ("sqrt", lambda x, y: np.where((x > 8) & (x < 8.02), y * 0.996, y), "not rising"),
    "oddness": ("tanh", lambda x, y: np.where((x > 0.5) & (x < 0.51), y * 0.999, y), "not odd"),
    "a bound": ("sigmoid", lambda x, y: np.where(x == 40, 1.001, y), "outside [0, 1]"),
    "an exact point": ("cos", lambda x, y: np.where(np.abs(x) < 2e-5, 0.9995, y), "0.999511719"),
    "once more": ("round", lambda x, y: np.where(x == 3, 4, y), "not"),
    "commutation": ("mul", lambda a, b: np.where((a == 96) & (b == 112), a * b * 1.001, a * b), "not commutative"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", BROKEN)
def test_what_mathematics_promises_is_asked_of_all_inputs(name: str) -> None:
    op, fault, said = BROKEN[name]
    [sample] = samples(op, "float16")
    given = [x.astype(np.float64) for x in sample.tensors()]
    right = given[0] * given[1] if len(given) > 1 else getattr(torch, op)(torch.from_numpy(given[0])).numpy()
    outputs = [y.astype(np.float16) for y in (right, fault(given[0], given[1] if len(given) > 1 else right))]
    told = [
        judge_outputs(sample, [[y]], policy_files.load_policy("error_units"), RuntimeInfo("1", "cpu")) for y in outputs
    ]
    assert told[0].status == Status.PASS and "breaks" not in told[0].columns
    assert said in told[1].columns["breaks"] and told[1].status != Status.PASS


@pytest.mark.parametrize("op", ["add", "maximum", "relu", "floor", "exp2", "erf", "neg"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_correctly_rounded_kernel_breaks_none(op: str) -> None:
    name = f"nn.functional.{op}" if op == "relu" else op
    [sample] = samples(name, "bfloat16")
    [leaf] = sample.expected()
    assert leaf.reference is not None
    rounded = torch_tree.tensor_to_numpy(torch.from_numpy(leaf.reference.copy()).bfloat16())
    assert properties.find_broken_property(f"torch:{name}", sample.tensors(), rounded) is None


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_mirror_of_each_value_is_its_negative_up_to_the_largest(dtype: str) -> None:
    inputs = sort_inputs_ascending(every_value.list_every_value(dtype, seed=3))
    assert not np.isnan(inputs.values).any() and np.isinf(inputs.values[[0, -1]]).all()
    negative = np.isin(-inputs.values, inputs.values)
    assert negative.mean() > 0.03  # the random mantissas of the wide dtypes differ on the two sides
    assert (inputs.values[inputs.mirror_places] == -inputs.values)[negative].all()
