"""The one table of generated operators: how cases of each are made, and how it is put into a graph.

What is true of an operator whoever asks is its row in `tasks.operators.table`; what only generating asks is here, so
that the core knows nothing of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from tasks.fuzz import values
from tasks.fuzz.graphs import steps
from tasks.fuzz.graphs.steps import IMAGE, ROWS, Put
from tasks.fuzz.onnx import axes, elements, moves, windows
from tasks.fuzz.onnx.elements import draw_function
from tasks.fuzz.onnx.spec import (
    EVERY,
    FLOATS,
    INTEGERS,
    NUMBERS,
    OPSETS,
    SIGNED,
    UNSIGNED,
    DrawnSpec,
    SpecDraw,
    does_operator_take,
)
from tasks.fuzz.values import ValueDomain
from tasks.model.dtypes import TABLE


@dataclass(frozen=True)
class FuzzSpec:
    """An operator that is generated. Which dtypes and operator sets it has is asked of `onnx.defs`, within what is said
    here."""

    #: ONNX's name of it.
    op: str
    #: Makes a case of it by itself.
    make: Callable[[SpecDraw], DrawnSpec]
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
    #: Where onnx's evaluator (1.23) and the farm's reference disagree, or it refuses a valid case: what it does, and
    #: the sentence of the operator's text by which the farm's reference is right. tests/tasks/test_fuzz_references.py
    #: holds both against each other.
    at_fault: tuple[str, str] | None = None


SUMMABLE = (*FLOATS, "int32", "int64", "uint32", "uint64")
COMMON = (*FLOATS, "int32", "int64", "int8", "uint8")
_STASH = (
    "Depending on `stash_type` attribute, the actual computation must happen in different floating-point precision."
)

#: Those that are put into graphs are first, the simplest first of all. A graph is a list of numbers, which choose among
#: them in this order: a new one goes below the last of them.
_ROWS = (
    FuzzSpec("Relu", elements.draw_plain(), (*FLOATS, *SIGNED), put=steps.put_function("Relu")),
    FuzzSpec("Sigmoid", draw_function(values.REAL), put=steps.put_function("Sigmoid")),
    FuzzSpec("Tanh", draw_function(values.REAL), put=steps.put_function("Tanh")),
    FuzzSpec(
        "Abs",
        lambda d: DrawnSpec((d.tensor(d.shape(), elements.choose_sum_domain(d)),)),
        NUMBERS,
        put=steps.put_function("Abs"),
    ),
    FuzzSpec(
        "Neg",
        lambda d: DrawnSpec((d.tensor(d.shape(), elements.choose_sum_domain(d)),)),
        (*FLOATS, *SIGNED),
        put=steps.put_function("Neg"),
    ),
    FuzzSpec(
        "Erf",
        draw_function(values.REAL),
        put=steps.put_function("Erf"),
        at_fault=("rounds float64 to float32", "Computes the error function of the given input tensor element-wise."),
    ),
    FuzzSpec("Exp", draw_function(elements.GROWS), put=steps.put_function("Exp", -8.0, 5.0)),
    FuzzSpec("Log", draw_function(values.POSITIVE), put=steps.put_function("Log", 0.25, 4096.0)),
    FuzzSpec(
        "Sqrt",
        draw_function(ValueDomain(0.0, 2.0**60, ("halves", "powers", "tiny", "large"))),
        put=steps.put_function("Sqrt", 0.25, 4096.0),
    ),
    FuzzSpec("Reciprocal", draw_function(values.POSITIVE), put=steps.put_function("Reciprocal", 0.25, 4096.0)),
    FuzzSpec(
        "LeakyRelu",
        draw_function(values.ANY, alpha=[0.01, 0.5, 0.0, 1.5, 0.2]),
        put=steps.put_function("LeakyRelu", alpha=[0.01, 0.5]),
    ),
    FuzzSpec(
        "Elu",
        draw_function(elements.LOSES, alpha=[1.0, 0.5, 2.0, 0.0, 0.3]),
        put=steps.put_function("Elu", alpha=[1.0, 0.5]),
    ),
    FuzzSpec(
        "HardSigmoid",
        draw_function(values.REAL, alpha=[0.2, 0.5, 1.0, 0.0], beta=[0.5, 0.0, 0.6, 0.25]),
        put=steps.put_function("HardSigmoid", alpha=[0.2, 0.5], beta=[0.5, 0.25]),
    ),
    FuzzSpec(
        "HardSwish",
        draw_function(values.REAL),
        put=steps.put_function("HardSwish"),
        at_fault=("rounds alpha to float32 in float64", "where alpha = 1/6 and beta = 0.5"),
    ),
    FuzzSpec("Softplus", draw_function(values.REAL), put=steps.put_function("Softplus", *steps.NO_TAIL)),
    FuzzSpec(
        "Gelu",
        draw_function(values.REAL, approximate=["none", "tanh"]),
        put=steps.put_function("Gelu", *steps.NO_TAIL, approximate=["none", "tanh"]),
        at_fault=("rounds erf and constants of float64 to float32", "$y = 0.5 * x * (1 + erf(x/sqrt(2)))$"),
    ),
    FuzzSpec("Clip", elements.draw_clip, NUMBERS, put=steps.put_clip),
    FuzzSpec("Cast", elements.draw_cast, EVERY, put=steps.put_cast),
    FuzzSpec("PRelu", elements.draw_prelu, put=steps.put_prelu),
    FuzzSpec("Add", elements.draw_two(elements.choose_sum_domain), NUMBERS, put=steps.put_two("Add", False)),
    FuzzSpec("Sub", elements.draw_subtract, NUMBERS, put=steps.put_two("Sub")),
    FuzzSpec("Mul", elements.draw_two(elements.choose_product_domain), NUMBERS, put=steps.put_two("Mul", False)),
    FuzzSpec("Div", elements.draw_divide, NUMBERS, put=steps.put_div),
    FuzzSpec("Max", elements.draw_variadic(elements.choose_any_domain), NUMBERS, put=steps.put_two("Max", False)),
    FuzzSpec("Min", elements.draw_variadic(elements.choose_any_domain), NUMBERS, put=steps.put_two("Min", False)),
    FuzzSpec("Pow", elements.draw_power, (*FLOATS, "int32", "int64"), put=steps.put_pow),
    FuzzSpec("Where", elements.draw_where, EVERY, place=1, put=steps.put_where),
    FuzzSpec(
        "ReduceSum",
        axes.draw_reduction(axes.choose_domain_of_sums, 13),
        SUMMABLE,
        put=steps.put_reduction("ReduceSum", 13),
        ranks=ROWS,
    ),
    FuzzSpec(
        "ReduceMean", axes.draw_reduction(axes.choose_domain_of_sums), put=steps.put_reduction("ReduceMean"), ranks=ROWS
    ),
    FuzzSpec(
        "ReduceMax", axes.draw_reduction(lambda d: values.ANY), COMMON, put=steps.put_reduction("ReduceMax"), ranks=ROWS
    ),
    FuzzSpec(
        "ReduceMin", axes.draw_reduction(lambda d: values.ANY), COMMON, put=steps.put_reduction("ReduceMin"), ranks=ROWS
    ),
    FuzzSpec("CumSum", axes.draw_cumulative, (*FLOATS, "int32", "int64"), put=steps.put_cumsum, ranks=ROWS),
    FuzzSpec("Softmax", axes.draw_softmax, put=steps.put_along("Softmax"), ranks=ROWS),
    FuzzSpec(
        "LogSoftmax",
        axes.draw_softmax,
        put=steps.put_along("LogSoftmax"),
        ranks=ROWS,
        at_fault=(
            "takes the logarithm of a softmax underflowed to 0",
            "LogSoftmax(input, axis) = Log(Softmax(input, axis=axis))",
        ),
    ),
    FuzzSpec(
        "LayerNormalization",
        axes.draw_layer_norm,
        put=steps.put_layer_norm,
        ranks=ROWS,
        at_fault=("has only stash_type 1", _STASH),
    ),
    FuzzSpec("BatchNormalization", axes.draw_batch_norm, since=14, put=steps.put_batch_norm, ranks=range(2, 6)),
    FuzzSpec("InstanceNormalization", axes.draw_instance_norm, put=steps.put_instance_norm, ranks=IMAGE),
    FuzzSpec("MatMul", axes.draw_matmul, SUMMABLE, put=steps.put_matmul, ranks=range(2, 6)),
    FuzzSpec("Gemm", axes.draw_gemm, (*FLOATS, "int32", "int64"), put=steps.put_gemm, ranks=range(2, 3)),
    FuzzSpec("Conv", windows.draw_conv, put=steps.put_conv, ranks=IMAGE, by_torch=True),
    FuzzSpec("ConvTranspose", windows.draw_conv_transpose, put=steps.put_conv_transpose, ranks=IMAGE, by_torch=True),
    FuzzSpec(
        "MaxPool",
        windows.draw_max_pool,
        (*FLOATS, "int8", "uint8"),
        put=steps.put_pool("MaxPool"),
        ranks=IMAGE,
        by_torch=True,
    ),
    FuzzSpec(
        "AveragePool",
        windows.draw_average_pool,
        put=steps.put_pool("AveragePool", count_include_pad=[0, 1]),
        ranks=IMAGE,
        by_torch=True,
    ),
    FuzzSpec(
        "GlobalAveragePool",
        windows.draw_over_image(windows.SUMS),
        put=steps.put_function("GlobalAveragePool"),
        ranks=IMAGE,
    ),
    FuzzSpec(
        "GlobalMaxPool",
        windows.draw_over_image(values.ANY),
        put=steps.put_function("GlobalMaxPool"),
        ranks=IMAGE,
        at_fault=(
            "reduces axes other than the spatial ones of a non-image",
            "applies max pooling across the values in the same channel",
        ),
    ),
    FuzzSpec("Transpose", moves.draw_transpose, EVERY, put=steps.put_transpose, ranks=range(2, 6)),
    FuzzSpec("Reshape", moves.draw_reshape, EVERY, put=steps.put_reshape),
    FuzzSpec("Flatten", moves.draw_flatten, EVERY, put=steps.put_flatten, ranks=ROWS),
    FuzzSpec("Concat", moves.draw_concat, EVERY, put=steps.put_concat, ranks=ROWS),
    FuzzSpec("Split", moves.draw_split, EVERY, put=steps.put_split, ranks=ROWS),
    FuzzSpec("Slice", moves.draw_slice, EVERY, put=steps.put_slice, ranks=ROWS),
    FuzzSpec(
        "Pad",
        moves.draw_pad,
        EVERY,
        put=steps.put_pad,
        ranks=ROWS,
        at_fault=("rejects pads below 0", "the number of padding elements to add or remove (if negative)"),
    ),
    FuzzSpec("Expand", moves.draw_expand, EVERY, put=steps.put_expand),
    FuzzSpec("Unsqueeze", moves.draw_unsqueeze, EVERY, put=steps.put_unsqueeze, ranks=range(0, 5)),
    FuzzSpec("Squeeze", moves.draw_squeeze, EVERY, put=steps.put_squeeze),
    FuzzSpec("Gather", moves.draw_gather, EVERY, put=steps.put_gather, ranks=ROWS),
    FuzzSpec("Tile", moves.draw_tile, EVERY, put=steps.put_tile, ranks=ROWS),
    FuzzSpec("Acos", draw_function(elements.UNIT)),
    FuzzSpec("Acosh", draw_function(ValueDomain(1.0, 2.0**20, ("halves", "powers", "large")))),
    FuzzSpec("Asin", draw_function(elements.UNIT)),
    FuzzSpec("Asinh", draw_function(values.REAL)),
    FuzzSpec("Atan", draw_function(values.REAL)),
    FuzzSpec("Atanh", draw_function(ValueDomain(-0.96875, 0.96875, ("halves", "zeros", "tiny")))),
    FuzzSpec("Ceil", draw_function(values.ANY)),
    FuzzSpec("Celu", draw_function(elements.LOSES, alpha=[1.0, 0.5, 2.0, 3.7, 0.1])),
    FuzzSpec("Cos", draw_function(elements.ANGLE)),
    FuzzSpec("Cosh", draw_function(elements.GROWS)),
    FuzzSpec("Floor", draw_function(values.ANY)),
    FuzzSpec("Mish", draw_function(values.REAL)),
    FuzzSpec("Round", draw_function(values.ANY)),
    FuzzSpec("Selu", draw_function(elements.LOSES, alpha=[1.0, 2.0, 0.5], gamma=[1.0, 2.0, 0.5])),
    FuzzSpec("Sin", draw_function(elements.ANGLE)),
    FuzzSpec("Sinh", draw_function(elements.GROWS)),
    FuzzSpec(
        "Softsign",
        draw_function(values.REAL),
        at_fault=("rejects scalars", "Calculates the softsign (x/(1+|x|)) of the given input tensor element-wise."),
    ),
    FuzzSpec("Tan", draw_function(ValueDomain(-1.5, 1.5, ("halves", "powers", "zeros", "tiny")))),
    FuzzSpec("ThresholdedRelu", draw_function(values.ANY, alpha=[1.0, 0.5, 0.0, 2.0])),
    FuzzSpec("Sign", elements.draw_plain(), NUMBERS),
    FuzzSpec("Identity", elements.draw_plain(), EVERY),
    FuzzSpec("Not", elements.draw_plain(), ("bool",)),
    FuzzSpec("BitwiseNot", elements.draw_plain(), INTEGERS),
    FuzzSpec("IsInf", elements.draw_is_inf),
    FuzzSpec("IsNaN", elements.draw_is_nan),
    FuzzSpec("Shrink", elements.draw_shrink),
    FuzzSpec("Mod", elements.draw_modulo, NUMBERS),
    FuzzSpec("BitShift", elements.draw_shift, UNSIGNED),
    FuzzSpec("BitwiseAnd", elements.draw_two(elements.choose_any_domain), INTEGERS),
    FuzzSpec("BitwiseOr", elements.draw_two(elements.choose_any_domain), INTEGERS),
    FuzzSpec("BitwiseXor", elements.draw_two(elements.choose_any_domain), INTEGERS),
    FuzzSpec("And", elements.draw_two(elements.choose_any_domain), ("bool",)),
    FuzzSpec("Or", elements.draw_two(elements.choose_any_domain), ("bool",)),
    FuzzSpec("Xor", elements.draw_two(elements.choose_any_domain), ("bool",)),
    FuzzSpec("Equal", elements.draw_two(elements.choose_any_domain), EVERY),
    FuzzSpec("Greater", elements.draw_two(elements.choose_any_domain), NUMBERS),
    FuzzSpec("GreaterOrEqual", elements.draw_two(elements.choose_any_domain), NUMBERS),
    FuzzSpec("Less", elements.draw_two(elements.choose_any_domain), NUMBERS),
    FuzzSpec("LessOrEqual", elements.draw_two(elements.choose_any_domain), NUMBERS),
    FuzzSpec("Sum", elements.draw_variadic(lambda d: values.MILD)),
    FuzzSpec("Mean", elements.draw_variadic(lambda d: values.MILD)),
    FuzzSpec("ReduceL1", axes.draw_reduction(axes.choose_domain_of_sums, still=False), SUMMABLE),
    FuzzSpec(
        "ReduceSumSquare",
        axes.draw_reduction(axes.choose_domain_of_sums, still=False),
        SUMMABLE,
        at_fault=(
            "returns another dtype for small integers",
            "Computes the sum square of the input tensor's elements along the provided axes.",
        ),
    ),
    FuzzSpec("ReduceL2", axes.draw_reduction(axes.choose_domain_of_sums, still=False)),
    FuzzSpec("ReduceLogSumExp", axes.draw_reduction(axes.choose_domain_of_sums)),
    FuzzSpec("ReduceLogSum", axes.draw_reduction(lambda d: axes.ABOVE_0, still=False)),
    FuzzSpec("ReduceProd", axes.draw_reduction(axes.choose_factor_domain), SUMMABLE),
    FuzzSpec("ArgMax", axes.draw_arg_extreme, NUMBERS),
    FuzzSpec("ArgMin", axes.draw_arg_extreme, NUMBERS),
    FuzzSpec("Hardmax", axes.draw_softmax),
    FuzzSpec("RMSNormalization", axes.draw_rms_norm, at_fault=("has only stash_type 1", _STASH)),
    FuzzSpec("GroupNormalization", axes.draw_group_norm, since=21),
    FuzzSpec(
        "LRN",
        axes.draw_lrn,
        at_fault=(
            "reads beyond the last channel, and takes attributes of float32 to the end of float64",
            "max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))",
        ),
    ),
    FuzzSpec(
        "LpNormalization",
        axes.draw_lp_norm,
        at_fault=("sums signed elements for p = 1", "output = input / Lp_norm(input, axis)"),
    ),
    FuzzSpec(
        "MeanVarianceNormalization",
        axes.draw_mean_variance_norm,
        ("float32",),
        at_fault=(
            "adds a float32 constant of the body to float64",
            "Perform mean variance normalization on the input tensor X",
        ),
    ),
    FuzzSpec("MatMulInteger", axes.draw_matmul_integer, ("uint8", "int8")),
    FuzzSpec("Einsum", axes.draw_einsum),
    FuzzSpec(
        "LpPool",
        windows.draw_lp_pool,
        at_fault=(
            "rejects dilated kernels that exceed SAME pads",
            "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])",
        ),
    ),
    FuzzSpec(
        "GlobalLpPool",
        windows.draw_global_lp_pool,
        at_fault=("has none", "applies lp pool pooling across the values in the same channel"),
    ),
    FuzzSpec("DepthToSpace", moves.draw_depth_to_space, EVERY),
    FuzzSpec("SpaceToDepth", moves.draw_space_to_depth, EVERY),
    FuzzSpec("Trilu", moves.draw_trilu, EVERY),
    FuzzSpec("Compress", moves.draw_compress, EVERY),
    FuzzSpec("ReverseSequence", moves.draw_reverse_sequence, EVERY),
    FuzzSpec(
        "GatherElements",
        moves.draw_gather_elements,
        EVERY,
        at_fault=(
            "rejects indices smaller than the data outside the axis",
            "Its output shape is the same as the shape of `indices` and consists of one value (gathered from the `data`) for each element in `indices`.",
        ),
    ),
    FuzzSpec("GatherND", moves.draw_gather_nd, EVERY),
    FuzzSpec("ScatterElements", moves.draw_scatter_elements, EVERY),
    FuzzSpec("ScatterND", moves.draw_scatter_nd, EVERY),
    FuzzSpec(
        "OneHot",
        moves.draw_one_hot,
        ("int64", "int32", "uint8", "float32"),
        at_fault=("rejects a scalar depth", "Scalar or Rank 1 tensor containing exactly one element"),
    ),
    FuzzSpec("TopK", moves.draw_top_k, NUMBERS),
    FuzzSpec("NonZero", moves.draw_non_zero, EVERY),
    FuzzSpec("EyeLike", moves.draw_eye_like, (*FLOATS, "int32", "int64")),
    FuzzSpec(
        "Shape",
        moves.draw_shape,
        EVERY,
        at_fault=(
            "wraps an end before the first axis a second time",
            "axes will be clamped to the range [0, r], where r is the rank of the input tensor if they are out-of-range",
        ),
    ),
    FuzzSpec("Size", lambda d: DrawnSpec((moves.draw_any_tensor(d, 0),)), EVERY),
    FuzzSpec("Range", moves.draw_range, ("float32", "float64", "int32", "int64", "int16")),
    FuzzSpec("QuantizeLinear", moves.draw_quantize, ("float32", "float16")),
    FuzzSpec(
        "DequantizeLinear",
        moves.draw_dequantize,
        ("uint8", "int8", "int32", "uint16", "int16"),
        at_fault=(
            "has none before operator set 19",
            "The dequantization formula is `y = (x - x_zero_point) * x_scale`.",
        ),
    ),
)

#: By name.
SPECS: dict[str, FuzzSpec] = {spec.op: spec for spec in _ROWS}
#: Those that are put into graphs, in the order in which they are chosen.
STEPS: dict[str, Put] = {spec.op: spec.put for spec in _ROWS if spec.put}


@functools.cache
def find_first_fuzz_opset(op: str) -> int:
    """The first operator set in which an operator is generated."""
    import onnx

    return next(version for version in sorted(OPSETS) if version >= SPECS[op].since and onnx.defs.has(op, version))


@functools.cache
def list_fuzz_opsets(op: str, dtype: str) -> tuple[int, ...]:
    """Operator sets in which an operator takes a first input of a dtype, the simplest first; none where it never
    does."""
    spec = SPECS[op]
    if dtype not in spec.dtypes:
        return ()
    within = [version for version in OPSETS if spec.since <= version]
    return tuple(version for version in within if does_operator_take(op, version, dtype, spec.place))


#: Dtypes in the order in which they are fuzzed: those of other code paths first. The others follow as they come.
_ORDER = ("float32", "int64", "float16", "uint8", "int32", "bfloat16", "int8", "bool", "uint64")


def list_fuzz_dtypes(op: str) -> tuple[str, ...]:
    """Dtypes that an operator has in any operator set."""
    known = dict.fromkeys((*_ORDER, *TABLE))
    return tuple(name for name in known if name in SPECS[op].dtypes and list_fuzz_opsets(op, name))
