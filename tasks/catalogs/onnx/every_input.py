"""Every input of ONNX's operators of one tensor, all values of the dtype in one sample, and every pair of 8 bits of those of two
(`tasks.arrays.every_value`), against float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tasks.arrays import every_value
from tasks.arrays.every_value import FLOAT8
from tasks.catalogs import mpmath_oracle
from tasks.catalogs.base import Entry, Sample
from tasks.counterparts import by_torch
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.expected_outputs import compute_graph_leaves
from tasks.graphs.widening import NARROW
from tasks.model import EXHAUSTIVE, Group, OpClass, Oracle, is_inexact_dtype
from tasks.model.dtypes import ELEMENT_TYPE
from tasks.operators import table as operators
from tasks.operators.schemas import list_operator_schemas, name_schema_dtypes

#: The inputs of a model.
NAMES = ("x", "z")
#: Shapes, by sample: a kernel has a path for whole vectors and one for what is left of them.
SHAPES = ("one dimension", "two", "a tail")


@functools.cache
def _choose_operator_opsets(op: str) -> dict[str, int]:
    """The opset of the model, by dtype: the oldest one that takes it. No dtype of which not every value can be
    tried."""
    row = operators.find_operator(op)
    return {
        dtype: opset
        for opset, schema in reversed(list_operator_schemas(op))
        for dtype in sorted(name_schema_dtypes(schema.inputs[0]))
        if dtype not in row.refused
        and (_has_dtype_pairs(dtype) if row.elementwise == 2 else every_value.has_every_value(dtype))
    }


def _has_dtype_pairs(dtype: str) -> bool:
    """Whether it has 8 bits of its own, or holds a float8."""
    return dtype in ("int8", "uint8", *NARROW)


def list_every_input_entries(catalog: str) -> list[Entry]:
    """A line for every operator and variant."""
    return [
        Entry(f"{catalog}:{row.name}", variant, tuple(_choose_operator_opsets(row.name)), distributions=(EXHAUSTIVE,))
        for arity in (1, 2)
        for row in operators.ROWS
        if row.elementwise == arity
        for variant in ("", *row.variants)
    ]


def make_every_input_samples(group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
    """Up to ``group.samples`` samples of all values, one a shape (`SHAPES`); of all pairs, one a float8."""
    row = operators.find_operator(group.op_name)
    two = row.elementwise == 2
    for index in range(min(group.samples, len(FLOAT8 if two else SHAPES))):
        given = _make_every_value(group.dtype, row, index, group.seed)
        given = given if two else [_shape_every_value(given[0], index)]
        if row.open_at_nan and is_inexact_dtype(group.dtype):
            given = [np.where(np.isnan(x), np.ones((), x.dtype), x) for x in given]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = Sample(index) if index in skip else _make_every_input_sample(group, index, given, draws)
        yield made


def _make_every_value(dtype: str, row: operators.OnnxOperator, index: int, seed: int) -> list[np.ndarray]:
    """Of a dtype all values, or all pairs, twice (256, 256); of integers what is not defined is replaced."""
    if is_inexact_dtype(dtype):
        return (
            list(every_value.pair_every_value(dtype, FLOAT8[index]))
            if row.elementwise == 2
            else [every_value.list_every_value(dtype, seed)]
        )
    given = (
        list(every_value.pair_every_value(dtype))
        if row.elementwise == 2
        else [every_value.list_every_value(dtype, seed)]
    )
    return row.defined(given) if row.defined else given


def _shape_every_value(values: np.ndarray, index: int) -> np.ndarray:
    """The values in one of SHAPES; for a tail the last ones once more, so that no vector is whole at the end."""
    if SHAPES[index] == "two":
        return values.reshape(-1, 16)
    return np.concatenate([values, values[:13]]) if SHAPES[index] == "a tail" else values


def _make_every_input_sample(group: Group, index: int, given: list[np.ndarray], draws: int) -> Sample:
    attributes = dict(operators.find_operator(group.op_name).variants[group.variant] if group.variant else {})
    if group.op_name == "Mod" and is_inexact_dtype(group.dtype):
        attributes["fmod"] = 1  # without it a float is refused
    model = _make_operator_model(group.op_name, group.dtype, [x.shape for x in given], attributes)
    graph = EvaluatedGraph(model)
    feeds = dict(zip(NAMES, given))
    leaves, op_class = compute_graph_leaves(graph, feeds, draws)
    first, others = leaves[0].reference, []
    if first is not None and op_class is not OpClass.EXACT and group.dtype in (*NARROW, "float64"):
        others = _compute_second_oracle(model, feeds, first)
        others += (
            []
            if group.variant or len(given) > 1
            else mpmath_oracle.compute_mpmath_oracle(group.op_name, given[0], first)
        )
    return Sample.of(
        index,
        given,
        expected=leaves,
        op_class=op_class,
        others=others,
        model=model.SerializeToString(deterministic=True),
    )


def _make_operator_model(op: str, dtype: str, shapes: list[tuple[int, ...]], attributes: Mapping[str, Any]) -> Any:
    from onnx import checker, helper

    opset = _choose_operator_opsets(op)[dtype]
    schema = next(x for first, x in reversed(list_operator_schemas(op)) if first <= opset)
    same = schema.outputs[0].type_str == schema.inputs[0].type_str
    given, made = ELEMENT_TYPE[dtype], ELEMENT_TYPE[dtype if same else "bool"]
    graph = helper.make_graph(
        [helper.make_node(op, list(NAMES[: len(shapes)]), ["y"], **attributes)],
        op,
        [helper.make_tensor_value_info(name, given, shape) for name, shape in zip(NAMES, shapes)],
        [helper.make_tensor_value_info("y", made, shapes[0])],
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    checker.check_model(model, full_check=True)
    return model


def _compute_second_oracle(model: Any, feeds: Mapping[str, np.ndarray], first: np.ndarray) -> list[Oracle]:
    """torch's evaluation in float64 of an operator that it has, where two libraries need to agree: not of NaN and
    Inf."""
    found = by_torch.evaluate_model_by_torch(model, feeds)
    if found is None:
        return []
    finite = np.logical_and.reduce([np.isfinite(x.astype(np.float64)) for x in feeds.values()])
    return [Oracle(by_torch.NAME, [np.where(finite, found[0], first)])]
