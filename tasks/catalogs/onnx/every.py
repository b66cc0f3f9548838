"""Every input of ONNX's operators of one tensor: all values of the dtype in one sample (`tasks.arrays.every`), against float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tasks.arrays import every
from tasks.arrays.tree import TensorSpec
from tasks.catalogs import exactly
from tasks.catalogs.base import Entry, Sample
from tasks.counterparts import by_torch
from tasks.graphs.evaluate import Graph
from tasks.graphs.expected import expected
from tasks.graphs.widening import NARROW, NoOracle
from tasks.model import EXHAUSTIVE, Group, OpClass, Oracle, is_inexact
from tasks.model.dtypes import DTYPE_OF_ELEMENT, ELEMENT_TYPE

#: The operators, element by element, of one tensor.
OPS = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity "
    "IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan "
    "Tanh ThresholdedRelu"
).split()
#: Attributes other than the defaults, by operator and variant.
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "Gelu": {"tanh": {"approximate": "tanh"}},
    "IsInf": {"negative": {"detect_positive": 0}},
}
#: Operators that are told by max, min or comparisons alone, of which the specification does not say what they are at NaN (IEEE 754
#: has a max that keeps it and one that does not): they are not given it.
OPEN_AT_NAN = "Celu HardSigmoid HardSwish Relu Sign ThresholdedRelu".split()
#: The oldest opset that a model has: runtimes take few older ones.
OLDEST = 13
#: Shapes, by sample: a kernel has a path for whole vectors and one for what is left of them.
SHAPES = ("one dimension", "two", "a tail")


@functools.cache
def _schemas(op: str) -> tuple[Any, ...]:
    """Schemas of an operator in the default domain from the oldest on, by the opset they hold from."""
    import onnx

    found = [s for s in onnx.defs.get_all_schemas_with_history() if s.name == op and s.domain == ""]
    return tuple(sorted(found, key=lambda s: s.since_version))


@functools.cache
def _opsets(op: str) -> dict[str, int]:
    """The opset of the model, by dtype: the oldest one that takes it. No dtype of which not every value can be tried."""
    made: dict[str, int] = {}
    schemas = _schemas(op)
    for place, schema in enumerate(schemas):
        if place + 1 < len(schemas) and schemas[place + 1].since_version <= OLDEST:
            continue  # another one holds by then
        for kind in schema.inputs[0].types:
            dtype = DTYPE_OF_ELEMENT.get(_element(kind))
            if dtype is not None and every.has(dtype):
                made.setdefault(dtype, max(schema.since_version, OLDEST))
    return made


@functools.cache
def _element(kind: str) -> int:
    """Number of the elements of a type of a schema, "tensor(float16)"; 0 for what is no tensor."""
    import onnx

    name = kind.removeprefix("tensor(").removesuffix(")")
    found = {"float": "FLOAT", "double": "DOUBLE"}.get(name, name.upper())
    return int(getattr(onnx.TensorProto, found, 0)) if kind.startswith("tensor(") else 0


def entries(catalog: str) -> list[Entry]:
    """A line for every operator and variant."""
    return [
        Entry(f"{catalog}:{op}", variant, tuple(_opsets(op)), distributions=(EXHAUSTIVE,))
        for op in OPS
        for variant in ("", *VARIANTS.get(op, ()))
    ]


def samples(group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
    """Up to ``group.samples`` samples of all values, one a shape (`SHAPES`)."""
    values = every.values(group.dtype, group.seed)
    if group.op_name in OPEN_AT_NAN and is_inexact(group.dtype):
        values = np.where(np.isnan(values), np.ones((), values.dtype), values)
    for index in range(min(group.samples, len(SHAPES))):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = Sample(index) if index in skip else _sample(group, index, _shaped(values, index), draws)
        yield made


def _shaped(values: np.ndarray, index: int) -> np.ndarray:
    """The values in one of SHAPES; for a tail the last ones once more, so that no vector is whole at the end."""
    if SHAPES[index] == "two":
        return values.reshape(-1, 16)
    return np.concatenate([values, values[:13]]) if SHAPES[index] == "a tail" else values


def _sample(group: Group, index: int, given: np.ndarray, draws: int) -> Sample:
    attributes = VARIANTS[group.op_name][group.variant] if group.variant else {}
    model = _model(group.op_name, group.dtype, given.shape, attributes)
    graph = Graph(model)
    feeds = {"x": given}
    leaves, op_class = expected(graph, feeds, draws)
    first, others = leaves[0].reference, []
    if first is not None and op_class is not OpClass.EXACT and group.dtype in (*NARROW, "float64"):
        others = _second(model, feeds, first)
        others += [] if group.variant else exactly.oracle(group.op_name, given, first)
    return Sample(
        index,
        (TensorSpec(id=0),),
        arrays=[given],
        expected=leaves,
        op_class=op_class,
        others=others,
        model=model.SerializeToString(deterministic=True),
    )


def _model(op: str, dtype: str, shape: tuple[int, ...], attributes: Mapping[str, Any]) -> Any:
    from onnx import checker, helper

    opset = _opsets(op)[dtype]
    schema = next(s for s in reversed(_schemas(op)) if s.since_version <= opset)
    same = schema.outputs[0].type_str == schema.inputs[0].type_str
    given, made = ELEMENT_TYPE[dtype], ELEMENT_TYPE[dtype if same else "bool"]
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        op,
        [helper.make_tensor_value_info("x", given, shape)],
        [helper.make_tensor_value_info("y", made, shape)],
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports))
    checker.check_model(model, full_check=True)
    return model


def _second(model: Any, feeds: Mapping[str, np.ndarray], first: np.ndarray) -> list[Oracle]:
    """torch's evaluation in float64 of an operator that it has, where two libraries need to agree: not of NaN and Inf."""
    try:
        found = Graph(model, by_torch.operators()).run(feeds)["y"]
    except (NoOracle, ImportError):
        return []
    return [Oracle("torch-operators-float64", [np.where(np.isfinite(feeds["x"].astype(np.float64)), found, first)])]
