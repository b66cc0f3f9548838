"""Every input of ONNX's operators of one tensor, all values of the dtype in one sample, and every pair of 8 bits of those of two
(`tasks.arrays.every`), against float64."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from tasks.arrays import every
from tasks.arrays.every import FLOAT8
from tasks.arrays.tree import TensorSpec
from tasks.catalogs import exactly
from tasks.catalogs.base import Entry, Sample
from tasks.counterparts import by_torch
from tasks.graphs.evaluate import Graph
from tasks.graphs.expected import compute_expected
from tasks.graphs.widening import NARROW, NoOracle
from tasks.model import EXHAUSTIVE, Group, OpClass, Oracle, is_inexact
from tasks.model.dtypes import DTYPE_OF_ELEMENT, ELEMENT_TYPE, integers

#: The operators, element by element, of one tensor.
OPS = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity "
    "IsInf IsNaN LeakyRelu Log Mish Neg Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan "
    "Tanh ThresholdedRelu"
).split()
#: The operators, element by element, of two tensors: given every pair of their own 8 bits, or of a float8 as numbers of a wider dtype.
PAIRS = (
    "Add BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Pow Sub"
).split()
#: What is beyond the range of an integer ONNX does not define: of these no pair is given, and no number, that makes it (but 0s or 1s).
_LEAVE = {"Add": (np.add, 0), "Sub": (np.subtract, 0), "Mul": (np.multiply, 1)}
_NEGATE = ("Abs", "Neg")
#: What an operator's schema names and onnx's own shape inference refuses.
_REFUSED = (("Pow", "bfloat16"),)
#: Of integers a zero as the second number, or a negative one, is not defined: it is a 1.
_DIVIDE, _RAISE = ("Div", "Mod"), ("Pow",)
#: Attributes other than the defaults, by operator and variant.
VARIANTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "Gelu": {"tanh": {"approximate": "tanh"}},
    "IsInf": {"negative": {"detect_positive": 0}},
}
#: Operators that are told by max, min or comparisons alone, of which the specification does not say what they are at NaN (IEEE 754
#: has a max that keeps it and one that does not): they are not given it.
OPEN_AT_NAN = "Celu HardSigmoid HardSwish Max Min Relu Sign ThresholdedRelu".split()
#: The oldest opset that a model has: runtimes take few older ones.
OLDEST = 13
#: The inputs of a model.
NAMES = ("x", "z")
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
            if (
                dtype is not None
                and (op, dtype) not in _REFUSED
                and (_has_pairs(dtype) if op in PAIRS else every.has(dtype))
            ):
                made.setdefault(dtype, max(schema.since_version, OLDEST))
    return made


def _has_pairs(dtype: str) -> bool:
    """Whether it has 8 bits of its own, or holds a float8."""
    return dtype in ("int8", "uint8", *NARROW)


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
        for op in (*OPS, *PAIRS)
        for variant in ("", *VARIANTS.get(op, ()))
    ]


def samples(group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
    """Up to ``group.samples`` samples of all values, one a shape (`SHAPES`); of all pairs, one a float8."""
    two = group.op_name in PAIRS
    for index in range(min(group.samples, len(FLOAT8 if two else SHAPES))):
        given = _pairs(group, index) if two else [_shape_values(_values(group), index)]
        if group.op_name in OPEN_AT_NAN and is_inexact(group.dtype):
            given = [np.where(np.isnan(x), np.ones((), x.dtype), x) for x in given]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = Sample(index) if index in skip else _sample(group, index, given, draws)
        yield made


def _values(group: Group) -> np.ndarray:
    values = every.values(group.dtype, group.seed)
    if group.op_name not in _NEGATE or is_inexact(group.dtype) or values.min() == 0:
        return values
    return np.where(values == values.min(), values.max(), values)


def _pairs(group: Group, index: int) -> list[np.ndarray]:
    """Twice (256, 256). The quotient of the smallest integer by -1 is none of the dtype, and so it is not given."""
    if is_inexact(group.dtype):
        return list(every.pairs(group.dtype, FLOAT8[index]))
    first, second = every.pairs(group.dtype)
    if group.op_name in _LEAVE:
        function, instead = _LEAVE[group.op_name]
        low, high = integers(group.dtype)
        exact = function(first.astype(np.int64), second.astype(np.int64))
        second = np.where((exact < low) | (exact > high), np.full((), instead, second.dtype), second)
    if group.op_name in (*_DIVIDE, *_RAISE):
        bad = second == 0 if group.op_name in _DIVIDE else second < 0
        second = np.where(bad, np.ones((), second.dtype), second)
        if group.dtype == "int8":
            first = np.where((second == -1) & (first == first.min()), np.ones((), first.dtype), first)
    return [first, second]


def _shape_values(values: np.ndarray, index: int) -> np.ndarray:
    """The values in one of SHAPES; for a tail the last ones once more, so that no vector is whole at the end."""
    if SHAPES[index] == "two":
        return values.reshape(-1, 16)
    return np.concatenate([values, values[:13]]) if SHAPES[index] == "a tail" else values


def _sample(group: Group, index: int, given: list[np.ndarray], draws: int) -> Sample:
    attributes = dict(VARIANTS[group.op_name][group.variant] if group.variant else {})
    if group.op_name == "Mod" and is_inexact(group.dtype):
        attributes["fmod"] = 1  # without it a float is refused
    model = _model(group.op_name, group.dtype, [x.shape for x in given], attributes)
    graph = Graph(model)
    feeds = dict(zip(NAMES, given))
    leaves, op_class = compute_expected(graph, feeds, draws)
    first, others = leaves[0].reference, []
    if first is not None and op_class is not OpClass.EXACT and group.dtype in (*NARROW, "float64"):
        others = _second(model, feeds, first)
        others += [] if group.variant or len(given) > 1 else exactly.oracle(group.op_name, given[0], first)
    return Sample(
        index,
        tuple(TensorSpec(id=k) for k in range(len(given))),
        arrays=given,
        expected=leaves,
        op_class=op_class,
        others=others,
        model=model.SerializeToString(deterministic=True),
    )


def _model(op: str, dtype: str, shapes: list[tuple[int, ...]], attributes: Mapping[str, Any]) -> Any:
    from onnx import checker, helper

    opset = _opsets(op)[dtype]
    schema = next(s for s in reversed(_schemas(op)) if s.since_version <= opset)
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


def _second(model: Any, feeds: Mapping[str, np.ndarray], first: np.ndarray) -> list[Oracle]:
    """torch's evaluation in float64 of an operator that it has, where two libraries need to agree: not of NaN and Inf."""
    try:
        found = Graph(model, by_torch.operators()).run(feeds)["y"]
    except (NoOracle, ImportError):
        return []
    finite = np.logical_and.reduce([np.isfinite(x.astype(np.float64)) for x in feeds.values()])
    return [Oracle("torch-operators-float64", [np.where(finite, found, first)])]
