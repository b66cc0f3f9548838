"""The one table of generated operators: how cases of each are made, and how it is put into a graph.

What is true of an operator whoever asks is its row in `tasks.operators.table`; what only generating asks is here, so that the core knows
nothing of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tasks.fuzz import values
from tasks.fuzz.graphs import steps
from tasks.fuzz.graphs.steps import IMAGE, ROWS, Put
from tasks.fuzz.onnx import axes, elements, moves, windows
from tasks.fuzz.onnx.elements import function
from tasks.fuzz.onnx.spec import EVERY, FLOATS, INTEGERS, NUMBERS, OPSETS, SIGNED, UNSIGNED, Draw, Made, takes
from tasks.fuzz.values import Domain
from tasks.model.dtypes import TABLE


@dataclass(frozen=True)
class Spec:
    """An operator that is generated. Which dtypes and operator sets it has is asked of `onnx.defs`, within what is said here."""

    #: ONNX's name of it.
    op: str
    #: Makes a case of it by itself.
    make: Callable[[Draw], Made]
    #: Dtypes under test.
    dtypes: tuple[str, ...] = FLOATS
    #: The first operator set that is tried.
    since: int = 13
    #: The input that has the dtype under test.
    place: int = 0
    #: Puts it after a tensor of a graph; None for an operator that is in no graph.
    put: Put | None = None
    #: Ranks of the tensor that it is put after.
    ranks: range = range(0, 6)
    #: Whether torch is its second oracle: onnx's evaluator computes it element by element in Python.
    by_torch: bool = False
    #: Where onnx's evaluator (1.23) and the farm's reference disagree, or it refuses a valid case: what it does, and the sentence of the
    #: operator's text by which the farm's reference is right. tests/tasks/test_fuzz_references.py holds both against each other.
    at_fault: tuple[str, str] | None = None


SUMMABLE = (*FLOATS, "int32", "int64", "uint32", "uint64")
COMMON = (*FLOATS, "int32", "int64", "int8", "uint8")
_STASH = (
    "Depending on `stash_type` attribute, the actual computation must happen in different floating-point precision."
)

#: Those that are put into graphs are first, the simplest first of all. A graph is a list of numbers, which choose among them in this
#: order: a new one goes below the last of them.
_ROWS = (
    Spec("Relu", elements.plain(), (*FLOATS, *SIGNED), put=steps.one("Relu")),
    Spec("Sigmoid", function(values.REAL), put=steps.one("Sigmoid")),
    Spec("Tanh", function(values.REAL), put=steps.one("Tanh")),
    Spec("Abs", lambda d: Made((d.tensor(d.shape(), elements.half(d)),)), NUMBERS, put=steps.one("Abs")),
    Spec("Neg", lambda d: Made((d.tensor(d.shape(), elements.half(d)),)), (*FLOATS, *SIGNED), put=steps.one("Neg")),
    Spec(
        "Erf",
        function(values.REAL),
        put=steps.one("Erf"),
        at_fault=("rounds float64 to float32", "Computes the error function of the given input tensor element-wise."),
    ),
    Spec("Exp", function(elements.GROWS), put=steps.one("Exp", -8.0, 5.0)),
    Spec("Log", function(values.POSITIVE), put=steps.one("Log", 0.25, 4096.0)),
    Spec(
        "Sqrt",
        function(Domain(0.0, 2.0**60, ("halves", "powers", "tiny", "large"))),
        put=steps.one("Sqrt", 0.25, 4096.0),
    ),
    Spec("Reciprocal", function(values.POSITIVE), put=steps.one("Reciprocal", 0.25, 4096.0)),
    Spec(
        "LeakyRelu",
        function(values.ANY, alpha=[0.01, 0.5, 0.0, 1.5, 0.2]),
        put=steps.one("LeakyRelu", alpha=[0.01, 0.5]),
    ),
    Spec("Elu", function(elements.LOSES, alpha=[1.0, 0.5, 2.0, 0.0, 0.3]), put=steps.one("Elu", alpha=[1.0, 0.5])),
    Spec(
        "HardSigmoid",
        function(values.REAL, alpha=[0.2, 0.5, 1.0, 0.0], beta=[0.5, 0.0, 0.6, 0.25]),
        put=steps.one("HardSigmoid", alpha=[0.2, 0.5], beta=[0.5, 0.25]),
    ),
    Spec(
        "HardSwish",
        function(values.REAL),
        put=steps.one("HardSwish"),
        at_fault=("rounds alpha to float32 in float64", "where alpha = 1/6 and beta = 0.5"),
    ),
    Spec("Softplus", function(values.REAL), put=steps.one("Softplus", *steps.NO_TAIL)),
    Spec(
        "Gelu",
        function(values.REAL, approximate=["none", "tanh"]),
        put=steps.one("Gelu", *steps.NO_TAIL, approximate=["none", "tanh"]),
        at_fault=("rounds erf and constants of float64 to float32", "$y = 0.5 * x * (1 + erf(x/sqrt(2)))$"),
    ),
    Spec("Clip", elements.clip, NUMBERS, put=steps.clip),
    Spec("Cast", elements.cast, EVERY, put=steps.cast),
    Spec("PRelu", elements.prelu, put=steps.prelu),
    Spec("Add", elements.two(elements.half), NUMBERS, put=steps.two("Add", False)),
    Spec("Sub", elements.subtract, NUMBERS, put=steps.two("Sub")),
    Spec("Mul", elements.two(elements.root), NUMBERS, put=steps.two("Mul", False)),
    Spec("Div", elements.divide, NUMBERS, put=steps.div),
    Spec("Max", elements.variadic(elements.any_), NUMBERS, put=steps.two("Max", False)),
    Spec("Min", elements.variadic(elements.any_), NUMBERS, put=steps.two("Min", False)),
    Spec("Pow", elements.power, (*FLOATS, "int32", "int64"), put=steps.pow_),
    Spec("Where", elements.where, EVERY, place=1, put=steps.where),
    Spec(
        "ReduceSum",
        axes.reduce(axes.domain_of_sums, 13),
        SUMMABLE,
        put=steps.build_reduction("ReduceSum", 13),
        ranks=ROWS,
    ),
    Spec("ReduceMean", axes.reduce(axes.domain_of_sums), put=steps.build_reduction("ReduceMean"), ranks=ROWS),
    Spec("ReduceMax", axes.reduce(lambda d: values.ANY), COMMON, put=steps.build_reduction("ReduceMax"), ranks=ROWS),
    Spec("ReduceMin", axes.reduce(lambda d: values.ANY), COMMON, put=steps.build_reduction("ReduceMin"), ranks=ROWS),
    Spec("CumSum", axes.cumulate, (*FLOATS, "int32", "int64"), put=steps.put_cumsum, ranks=ROWS),
    Spec("Softmax", axes.softmax, put=steps.along("Softmax"), ranks=ROWS),
    Spec(
        "LogSoftmax",
        axes.softmax,
        put=steps.along("LogSoftmax"),
        ranks=ROWS,
        at_fault=(
            "takes the logarithm of a softmax underflowed to 0",
            "LogSoftmax(input, axis) = Log(Softmax(input, axis=axis))",
        ),
    ),
    Spec("LayerNormalization", axes.layer, put=steps.layer, ranks=ROWS, at_fault=("has only stash_type 1", _STASH)),
    Spec("BatchNormalization", axes.batch, since=14, put=steps.batch, ranks=range(2, 6)),
    Spec("InstanceNormalization", axes.instance, put=steps.instance, ranks=IMAGE),
    Spec("MatMul", axes.matmul, SUMMABLE, put=steps.matmul, ranks=range(2, 6)),
    Spec("Gemm", axes.gemm, (*FLOATS, "int32", "int64"), put=steps.gemm, ranks=range(2, 3)),
    Spec("Conv", windows.conv, put=steps.conv, ranks=IMAGE, by_torch=True),
    Spec("ConvTranspose", windows.conv_transpose, put=steps.conv_transpose, ranks=IMAGE, by_torch=True),
    Spec(
        "MaxPool", windows.max_pool, (*FLOATS, "int8", "uint8"), put=steps.pool("MaxPool"), ranks=IMAGE, by_torch=True
    ),
    Spec(
        "AveragePool",
        windows.average_pool,
        put=steps.pool("AveragePool", count_include_pad=[0, 1]),
        ranks=IMAGE,
        by_torch=True,
    ),
    Spec("GlobalAveragePool", windows.over_image(windows.SUMS), put=steps.one("GlobalAveragePool"), ranks=IMAGE),
    Spec(
        "GlobalMaxPool",
        windows.over_image(values.ANY),
        put=steps.one("GlobalMaxPool"),
        ranks=IMAGE,
        at_fault=(
            "reduces axes other than the spatial ones of a non-image",
            "applies max pooling across the values in the same channel",
        ),
    ),
    Spec("Transpose", moves.transpose, EVERY, put=steps.transpose, ranks=range(2, 6)),
    Spec("Reshape", moves.reshape, EVERY, put=steps.reshape),
    Spec("Flatten", moves.flatten, EVERY, put=steps.flatten, ranks=ROWS),
    Spec("Concat", moves.concat, EVERY, put=steps.concat, ranks=ROWS),
    Spec("Split", moves.split, EVERY, put=steps.split, ranks=ROWS),
    Spec("Slice", moves.slice_, EVERY, put=steps.slice_, ranks=ROWS),
    Spec(
        "Pad",
        moves.pad,
        EVERY,
        put=steps.pad,
        ranks=ROWS,
        at_fault=("rejects pads below 0", "the number of padding elements to add or remove (if negative)"),
    ),
    Spec("Expand", moves.expand, EVERY, put=steps.expand),
    Spec("Unsqueeze", moves.unsqueeze, EVERY, put=steps.unsqueeze, ranks=range(0, 5)),
    Spec("Squeeze", moves.squeeze, EVERY, put=steps.squeeze),
    Spec("Gather", moves.gather, EVERY, put=steps.gather, ranks=ROWS),
    Spec("Tile", moves.tile, EVERY, put=steps.tile, ranks=ROWS),
    Spec("Acos", function(elements.UNIT)),
    Spec("Acosh", function(Domain(1.0, 2.0**20, ("halves", "powers", "large")))),
    Spec("Asin", function(elements.UNIT)),
    Spec("Asinh", function(values.REAL)),
    Spec("Atan", function(values.REAL)),
    Spec("Atanh", function(Domain(-0.96875, 0.96875, ("halves", "zeros", "tiny")))),
    Spec("Ceil", function(values.ANY)),
    Spec("Celu", function(elements.LOSES, alpha=[1.0, 0.5, 2.0, 3.7, 0.1])),
    Spec("Cos", function(elements.ANGLE)),
    Spec("Cosh", function(elements.GROWS)),
    Spec("Floor", function(values.ANY)),
    Spec("Mish", function(values.REAL)),
    Spec("Round", function(values.ANY)),
    Spec("Selu", function(elements.LOSES, alpha=[1.0, 2.0, 0.5], gamma=[1.0, 2.0, 0.5])),
    Spec("Sin", function(elements.ANGLE)),
    Spec("Sinh", function(elements.GROWS)),
    Spec(
        "Softsign",
        function(values.REAL),
        at_fault=("rejects scalars", "Calculates the softsign (x/(1+|x|)) of the given input tensor element-wise."),
    ),
    Spec("Tan", function(Domain(-1.5, 1.5, ("halves", "powers", "zeros", "tiny")))),
    Spec("ThresholdedRelu", function(values.ANY, alpha=[1.0, 0.5, 0.0, 2.0])),
    Spec("Sign", elements.plain(), NUMBERS),
    Spec("Identity", elements.plain(), EVERY),
    Spec("Not", elements.plain(), ("bool",)),
    Spec("BitwiseNot", elements.plain(), INTEGERS),
    Spec("IsInf", elements.is_inf),
    Spec("IsNaN", elements.is_nan),
    Spec("Shrink", elements.shrink),
    Spec("Mod", elements.modulo, NUMBERS),
    Spec("BitShift", elements.shift, UNSIGNED),
    Spec("BitwiseAnd", elements.two(elements.any_), INTEGERS),
    Spec("BitwiseOr", elements.two(elements.any_), INTEGERS),
    Spec("BitwiseXor", elements.two(elements.any_), INTEGERS),
    Spec("And", elements.two(elements.any_), ("bool",)),
    Spec("Or", elements.two(elements.any_), ("bool",)),
    Spec("Xor", elements.two(elements.any_), ("bool",)),
    Spec("Equal", elements.two(elements.any_), EVERY),
    Spec("Greater", elements.two(elements.any_), NUMBERS),
    Spec("GreaterOrEqual", elements.two(elements.any_), NUMBERS),
    Spec("Less", elements.two(elements.any_), NUMBERS),
    Spec("LessOrEqual", elements.two(elements.any_), NUMBERS),
    Spec("Sum", elements.variadic(lambda d: values.MILD)),
    Spec("Mean", elements.variadic(lambda d: values.MILD)),
    Spec("ReduceL1", axes.reduce(axes.domain_of_sums, still=False), SUMMABLE),
    Spec(
        "ReduceSumSquare",
        axes.reduce(axes.domain_of_sums, still=False),
        SUMMABLE,
        at_fault=(
            "returns another dtype for small integers",
            "Computes the sum square of the input tensor's elements along the provided axes.",
        ),
    ),
    Spec("ReduceL2", axes.reduce(axes.domain_of_sums, still=False)),
    Spec("ReduceLogSumExp", axes.reduce(axes.domain_of_sums)),
    Spec("ReduceLogSum", axes.reduce(lambda d: axes.ABOVE_0, still=False)),
    Spec("ReduceProd", axes.reduce(axes.one), SUMMABLE),
    Spec("ArgMax", axes.arg, NUMBERS),
    Spec("ArgMin", axes.arg, NUMBERS),
    Spec("Hardmax", axes.softmax),
    Spec("RMSNormalization", axes.rms, at_fault=("has only stash_type 1", _STASH)),
    Spec("GroupNormalization", axes.group, since=21),
    Spec(
        "LRN",
        axes.lrn,
        at_fault=(
            "reads beyond the last channel, and takes attributes of float32 to the end of float64",
            "max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))",
        ),
    ),
    Spec(
        "LpNormalization", axes.lp, at_fault=("sums signed elements for p = 1", "output = input / Lp_norm(input, axis)")
    ),
    Spec(
        "MeanVarianceNormalization",
        axes.mean_variance,
        ("float32",),
        at_fault=(
            "adds a float32 constant of the body to float64",
            "Perform mean variance normalization on the input tensor X",
        ),
    ),
    Spec("MatMulInteger", axes.matmul_integer, ("uint8", "int8")),
    Spec("Einsum", axes.einsum),
    Spec(
        "LpPool",
        windows.lp_pool,
        at_fault=(
            "rejects dilated kernels that exceed SAME pads",
            "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])",
        ),
    ),
    Spec(
        "GlobalLpPool",
        windows.global_lp,
        at_fault=("has none", "applies lp pool pooling across the values in the same channel"),
    ),
    Spec("DepthToSpace", moves.depth_to_space, EVERY),
    Spec("SpaceToDepth", moves.space_to_depth, EVERY),
    Spec("Trilu", moves.trilu, EVERY),
    Spec("Compress", moves.compress, EVERY),
    Spec("ReverseSequence", moves.reverse_sequence, EVERY),
    Spec(
        "GatherElements",
        moves.gather_elements,
        EVERY,
        at_fault=(
            "rejects indices smaller than the data outside the axis",
            "Its output shape is the same as the shape of `indices` and consists of one value (gathered from the `data`) for each element in `indices`.",
        ),
    ),
    Spec("GatherND", moves.gather_nd, EVERY),
    Spec("ScatterElements", moves.scatter_elements, EVERY),
    Spec("ScatterND", moves.scatter_nd, EVERY),
    Spec(
        "OneHot",
        moves.one_hot,
        ("int64", "int32", "uint8", "float32"),
        at_fault=("rejects a scalar depth", "Scalar or Rank 1 tensor containing exactly one element"),
    ),
    Spec("TopK", moves.top_k, NUMBERS),
    Spec("NonZero", moves.non_zero, EVERY),
    Spec("EyeLike", moves.eye_like, (*FLOATS, "int32", "int64")),
    Spec(
        "Shape",
        moves.shape,
        EVERY,
        at_fault=(
            "wraps an end before the first axis a second time",
            "axes will be clamped to the range [0, r], where r is the rank of the input tensor if they are out-of-range",
        ),
    ),
    Spec("Size", lambda d: Made((moves.some(d, 0),)), EVERY),
    Spec("Range", moves.range_, ("float32", "float64", "int32", "int64", "int16")),
    Spec("QuantizeLinear", moves.quantize, ("float32", "float16")),
    Spec(
        "DequantizeLinear",
        moves.dequantize,
        ("uint8", "int8", "int32", "uint16", "int16"),
        at_fault=(
            "has none before operator set 19",
            "The dequantization formula is `y = (x - x_zero_point) * x_scale`.",
        ),
    ),
)

#: By name.
SPECS: dict[str, Spec] = {spec.op: spec for spec in _ROWS}
#: Those that are put into graphs, in the order in which they are chosen.
STEPS: dict[str, Put] = {spec.op: spec.put for spec in _ROWS if spec.put}


@functools.cache
def first_opset(op: str) -> int:
    """The first operator set in which an operator is generated."""
    import onnx

    return next(version for version in sorted(OPSETS) if version >= SPECS[op].since and onnx.defs.has(op, version))


@functools.cache
def opsets(op: str, dtype: str) -> tuple[int, ...]:
    """Operator sets in which an operator takes a first input of a dtype, the simplest first; none where it never does."""
    spec = SPECS[op]
    if dtype not in spec.dtypes:
        return ()
    within = [version for version in OPSETS if spec.since <= version]
    return tuple(version for version in within if takes(op, version, dtype, spec.place))


#: Dtypes in the order in which they are fuzzed: those of other code paths first. The others follow as they come.
_ORDER = ("float32", "int64", "float16", "uint8", "int32", "bfloat16", "int8", "bool", "uint64")


def dtypes(op: str) -> tuple[str, ...]:
    """Dtypes that an operator has in any operator set."""
    known = dict.fromkeys((*_ORDER, *TABLE))
    return tuple(name for name in known if name in SPECS[op].dtypes and opsets(op, name))
