"""The table of ONNX's operators, held against onnx's own schemas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from tasks.model import OpClass
from tasks.model.placement import MOVES
from tasks.operators import formulas, table
from tasks.operators.table import ROWS, OnnxOperator

SCHEMAS = {schema.name: schema for schema in onnx.defs.get_all_schemas_with_history()}
for _schema in onnx.defs.get_all_schemas():
    SCHEMAS[_schema.name] = _schema


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_what_fits_the_schema(row: OnnxOperator) -> None:
    schema = SCHEMAS[row.name]
    places = [*row.structural, *row.not_zero, *([] if row.added is None else [row.added])]
    assert all(place < schema.max_input for place in places)
    assert row.elementwise == 0 or schema.min_input <= row.elementwise <= schema.max_input
    known = set(schema.attributes)
    assert known >= {*row.texts, *(name for given in row.variants.values() for name in given)}
    for name, values in row.texts.items():
        default = schema.attributes[name].default_value
        assert not default.name or onnx.helper.get_attribute_value(default).decode() in values
    assert {f"tensor({dtype})" for dtype in row.refused} <= {x for given in schema.inputs for x in given.types}
    has_blocks = onnx.defs.OpSchema.AttrType.GRAPH in {a.type for a in schema.attributes.values()}
    assert row.acts != "control" or has_blocks


def test_an_operator_without_a_row_is_judged_as_composite() -> None:
    row = table.find_operator("com.acme.Whatever")
    assert (row.placement.op_class, row.evaluate, row.by_name, row.multiplies) == (OpClass.COMPOSITE, None, None, False)


def test_two_rows_of_an_operator_are_refused() -> None:
    with pytest.raises(ValueError, match="Tile has two rows"):
        table.index_operator_rows(
            [OnnxOperator("Tile", MOVES), OnnxOperator("Size", MOVES), OnnxOperator("Tile", MOVES)]
        )


@pytest.mark.parametrize(
    ("name", "of", "multiplies", "draws"),
    [
        ("Conv", "layer", True, False),
        ("Einsum", "", True, False),
        ("STFT", "transform", False, False),
        ("LSTM", "recurrent", True, False),
        ("Attention", "attention", True, False),
        ("Softmax", "", False, False),
        ("RandomNormalLike", "", False, True),
    ],
)
def test_what_a_class_says_is_in_no_column(name: str, of: str, multiplies: bool, draws: bool) -> None:
    row = table.find_operator(name)
    assert (row.sums, row.multiplies, row.draws) == (of, multiplies, draws)


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.trunc(a / b)


#: By operator: what it makes of integers, without an end to their range; Mod is defined where the quotient is.
EXACT: dict[str, Callable[..., np.ndarray]] = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _quotient,
    "Mod": _quotient,
    "Pow": lambda a, b: np.where(b >= 0, 0, np.inf),
}


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("row", [row for row in ROWS if row.defined], ids=lambda row: row.name)
def test_of_integers_what_is_not_defined_is_replaced_and_nothing_else(row: OnnxOperator, dtype: str) -> None:
    if (row.name, dtype) == ("Neg", "uint8"):
        return  # ONNX has none
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    every = np.arange(low, high + 1)
    given = np.meshgrid(every, every) if row.elementwise == 2 else [every]
    assert row.defined
    made = [x.astype(np.int64) for x in row.defined([x.astype(dtype) for x in given])]

    def is_defined(values: list[np.ndarray]) -> np.ndarray:
        exact = EXACT[row.name](*values)
        return np.asarray(np.isfinite(exact) & (exact >= low) & (exact <= high))

    assert is_defined(made).all()
    same = np.logical_and.reduce([a == b for a, b in zip(made, given)])
    assert np.array_equal(same, is_defined(given))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_formulas_stay_in_their_dtype_and_do_not_overflow(dtype: str) -> None:
    x = np.array([[-60.0, -3.0, 0.0, 1.5, 60.0], [200.0, 200.5, -200.0, 0.25, 199.0]], dtype)
    for made in (
        formulas.compute_softmax(x),
        formulas.compute_log_softmax(x),
        formulas.compute_sigmoid(x),
        formulas.compute_softplus(x),
        formulas.compute_gelu(x),
        formulas.compute_standardised(x / x.dtype.type(8), -1, 1e-5),
        formulas.compute_log_sum_exp(x, -1, keep=False),
    ):
        assert made.dtype == x.dtype and np.isfinite(made).all()
    with np.errstate(over="ignore", invalid="ignore"):
        assert not np.isfinite(formulas.compute_softmax(x.astype("float32") * 2, shifted=False)).all()
