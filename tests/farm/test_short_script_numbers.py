"""A script of few lines has the model of its row, and says of numbers what the judge does."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from planted_small import graph

from farm.minimise.script import _allowed, _broken, _graph, _judged, _Writer
from tasks.backends.shared.few_lines import NoScript
from tasks.judge import properties, verdict
from tasks.judge.plain import compare
from tasks.judge.policy import judge
from tasks.model import Leaf, OpClass, Status


def test_a_result_wider_than_the_cases_dtype_is_allowed_what_its_own_is() -> None:
    """A graph of a bfloat16 case in float32 between two casts: a lake says bfloat16 where no precision is declared."""
    leaf = Leaf("float32", (1,), np.array([-0.00301668]))
    row = {"op_class": "composite", "limit": 4.0, "dtype": "bfloat16", "compute_precision": "bfloat16"}
    assert _allowed(leaf, row) < 1e-7 and _allowed(leaf, {**row, "compute_precision": "tfloat32"}) > 1e-6


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


#: (dtype, oracle, noise floor in parts of the result): only what is rounded, and computed in float64, has one.
CASES = [
    *itertools.product(ODD, ["float64", "stored", "float64, own tolerance"], [0.0]),
    *itertools.product(["float16", "float32", "complex64"], ["float64", "float64, own tolerance"], [0.3, np.inf]),
]


@pytest.mark.parametrize(("dtype", "oracle", "noise"), CASES)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["error_units", "classic", "absolute"])
def test_a_short_script_says_of_each_number_what_the_judge_does(
    name: str, dtype: str, oracle: str, noise: float
) -> None:
    policy = verdict.load(name)
    for op_class in (OpClass.COMPOSITE, OpClass.EXACT):
        for exact, came in itertools.product(ODD[dtype], ODD[dtype]):
            a = np.array([came], dtype)
            y = np.array([exact], a.dtype if a.dtype.kind in "iub" else "c16" if a.dtype.kind == "c" else "f8")
            rounds = noise and np.isfinite(y).all() and op_class is OpClass.COMPOSITE
            floor = np.full(1, noise) * (1 if np.isinf(noise) else np.abs(y)) if rounds else None
            leaf = Leaf(dtype, (1,), y, floor, *((0.5, 0.25) if "own" in oracle else (None, None)))
            limit = policy.limit_value("torch:x", op_class, dtype)
            status, _ = judge(compare([a], [leaf], op_class), policy, "torch:x", op_class, dtype, oracle)
            row = {"status": "wrong", "op_class": op_class.value, "limit": limit, "dtype": dtype, "oracle": oracle}
            row |= {"rule": policy.rule, "bound": policy.bound}
            if limit is None and floor is not None and np.isinf(noise):
                with pytest.raises(NoScript, match="has no bound"):
                    _judged([leaf], row, _Writer())
                continue
            text = "\n".join(["import ml_dtypes, numpy as np", *_judged([leaf], row, _Writer())])
            with pytest.raises(SystemExit) as end:
                exec(text, {"got": [a]})
            # A moved complex number is judged part by part: of one that is not finite a script may say less.
            less = op_class is OpClass.EXACT and a.dtype.kind == "c" and not np.isfinite([came, exact]).all()
            said, told = end.value.code == "wrong", status is not Status.PASS
            assert said is told or (less and told), (op_class, came, exact, status)


def test_a_short_script_takes_zero_for_what_a_device_flushes_and_needs_a_limit() -> None:
    leaf = Leaf("float32", (2,), np.array([1e-40, 1e-30]))
    row = {"op_class": "exact", "limit": 0.5, "flags": "threads=1 flushes=float16,float32"}
    assert (_allowed(leaf, row) >= [1e-40, 0]).all() and _allowed(leaf, row)[1] < 1e-36
    assert _allowed(leaf, {**row, "flags": "flushes=float16"})[0] < 1e-44
    with pytest.raises(NoScript, match="no limit judges it"):
        _allowed(leaf, {**row, "limit": None})


@pytest.mark.parametrize("parts", itertools.product([-1.0, -0.0, 0.0, 2.0, np.inf, np.nan], repeat=2))
def test_a_complex_number_keeps_the_signs_of_its_zeros(parts: tuple[float, float]) -> None:
    z = np.complex64(complex(*parts))
    for x in (np.array([z]), np.array([z, z]), np.array([z, np.conj(z), z])):
        again = eval(_Writer().value(x), {"np": np})
        assert again.dtype == x.dtype and np.array_equal(again, x, equal_nan=True)
        for a, b in ((again.real, x.real), (again.imag, x.imag)):
            assert (np.signbit(a) == np.signbit(b))[~np.isnan(b)].all()


@pytest.mark.parametrize("off", [0, 1, 2])
def test_a_promise_of_order_allows_one_place_among_the_smallest_numbers(off: int) -> None:
    x = np.float32([1, 2])
    y = np.array([3 + off, 3], np.uint32).view(np.float32)  # subnormal
    text = "\n".join(["import numpy as np", *_broken("not rising: …", "[x]", Leaf("float32", (2,), y))])
    with pytest.raises(SystemExit) as end:
        exec(text, {"x": x, "got": [y]})
    assert (end.value.code == "wrong") is bool(properties.broken("torch:exp", [x], y)) is (off > 1)


def test_a_script_makes_the_model_that_its_row_has() -> None:
    model = graph("a = Conv(x, w; strides=[2, 2])", "y = Elu(a; alpha=0.1)", w=np.ones((2, 3, 2, 2), np.float32))
    for value, shape in ((model.graph.input[0], ["n", 3, None, None]), (model.graph.output[0], ["n", 2, None, None])):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    names = {"np": np, "onnx": onnx} | {x: getattr(onnx, x) for x in ("helper", "numpy_helper", "TensorProto")}
    exec("\n".join(_graph(model, _Writer())), names)
    made = names["model"]
    for field in ("node", "input", "output", "initializer"):
        assert list(getattr(made.graph, field)) == list(getattr(model.graph, field)), field
    assert list(made.opset_import) == list(model.opset_import) and made.ir_version == model.ir_version
