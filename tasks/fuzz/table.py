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
from tasks.fuzz.onnx.spec import EVERY, FLOATS, INTEGERS, NUMBERS, OPSETS, SIGNED, UNSIGNED, Draw, Made, takes
from tasks.fuzz.values import Domain
from tasks.model.dtypes import TABLE


@dataclass(frozen=True)
class Spec:
    """An operator that is generated. Which dtypes and operator sets it has is asked of `onnx.defs`, within what is said
    here."""

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
    Spec("Relu", elements.draw_plain(), (*FLOATS, *SIGNED), put=steps.put_function("Relu")),
    Spec("Sigmoid", draw_function(values.REAL), put=steps.put_function("Sigmoid")),
    Spec("Tanh", draw_function(values.REAL), put=steps.put_function("Tanh")),
    Spec(
        "Abs",
        lambda d: Made((d.tensor(d.shape(), elements.choose_sum_domain(d)),)),
        NUMBERS,
        put=steps.put_function("Abs"),
    ),
    Spec(
        "Neg",
        lambda d: Made((d.tensor(d.shape(), elements.choose_sum_domain(d)),)),
        (*FLOATS, *SIGNED),
        put=steps.put_function("Neg"),
    ),
    Spec(
        "Erf",
        draw_function(values.REAL),
        put=steps.put_function("Erf"),
        at_fault=("rounds float64 to float32", "Computes the error function of the given input tensor element-wise."),
    ),
    Spec("Exp", draw_function(elements.GROWS), put=steps.put_function("Exp", -8.0, 5.0)),
    Spec("Log", draw_function(values.POSITIVE), put=steps.put_function("Log", 0.25, 4096.0)),
    Spec(
        "Sqrt",
        draw_function(Domain(0.0, 2.0**60, ("halves", "powers", "tiny", "large"))),
        put=steps.put_function("Sqrt", 0.25, 4096.0),
    ),
    Spec("Reciprocal", draw_function(values.POSITIVE), put=steps.put_function("Reciprocal", 0.25, 4096.0)),
    Spec(
        "LeakyRelu",
        draw_function(values.ANY, alpha=[0.01, 0.5, 0.0, 1.5, 0.2]),
        put=steps.put_function("LeakyRelu", alpha=[0.01, 0.5]),
    ),
    Spec(
        "Elu",
        draw_function(elements.LOSES, alpha=[1.0, 0.5, 2.0, 0.0, 0.3]),
        put=steps.put_function("Elu", alpha=[1.0, 0.5]),
    ),
    Spec(
        "HardSigmoid",
        draw_function(values.REAL, alpha=[0.2, 0.5, 1.0, 0.0], beta=[0.5, 0.0, 0.6, 0.25]),
        put=steps.put_function("HardSigmoid", alpha=[0.2, 0.5], beta=[0.5, 0.25]),
    ),
    Spec(
        "HardSwish",
        draw_function(values.REAL),
        put=steps.put_function("HardSwish"),
        at_fault=("rounds alpha to float32 in float64", "where alpha = 1/6 and beta = 0.5"),
    ),
    Spec("Softplus", draw_function(values.REAL), put=steps.put_function("Softplus", *steps.NO_TAIL)),
    Spec(
        "Gelu",
        draw_function(values.REAL, approximate=["none", "tanh"]),
        put=steps.put_function("Gelu", *steps.NO_TAIL, approximate=["none", "tanh"]),
        at_fault=("rounds erf and constants of float64 to float32", "$y = 0.5 * x * (1 + erf(x/sqrt(2)))$"),
    ),
    Spec("Clip", elements.draw_clip, NUMBERS, put=steps.put_clip),
    Spec("Cast", elements.draw_cast, EVERY, put=steps.put_cast),
    Spec("PRelu", elements.draw_prelu, put=steps.put_prelu),
    Spec("Add", elements.draw_two(elements.choose_sum_domain), NUMBERS, put=steps.put_two("Add", False)),
    Spec("Sub", elements.draw_subtract, NUMBERS, put=steps.put_two("Sub")),
    Spec("Mul", elements.draw_two(elements.choose_product_domain), NUMBERS, put=steps.put_two("Mul", False)),
    Spec("Div", elements.draw_divide, NUMBERS, put=steps.put_div),
    Spec("Max", elements.draw_variadic(elements.choose_any_domain), NUMBERS, put=steps.put_two("Max", False)),
    Spec("Min", elements.draw_variadic(elements.choose_any_domain), NUMBERS, put=steps.put_two("Min", False)),
    Spec("Pow", elements.draw_power, (*FLOATS, "int32", "int64"), put=steps.put_pow),
    Spec("Where", elements.draw_where, EVERY, place=1, put=steps.put_where),
    Spec(
        "ReduceSum",
        axes.draw_reduction(axes.domain_of_sums, 13),
        SUMMABLE,
        put=steps.put_reduction("ReduceSum", 13),
        ranks=ROWS,
    ),
    Spec("ReduceMean", axes.draw_reduction(axes.domain_of_sums), put=steps.put_reduction("ReduceMean"), ranks=ROWS),
    Spec(
        "ReduceMax", axes.draw_reduction(lambda d: values.ANY), COMMON, put=steps.put_reduction("ReduceMax"), ranks=ROWS
    ),
    Spec(
        "ReduceMin", axes.draw_reduction(lambda d: values.ANY), COMMON, put=steps.put_reduction("ReduceMin"), ranks=ROWS
    ),
    Spec("CumSum", axes.draw_cumulative, (*FLOATS, "int32", "int64"), put=steps.put_cumsum, ranks=ROWS),
    Spec("Softmax", axes.draw_softmax, put=steps.put_along("Softmax"), ranks=ROWS),
    Spec(
        "LogSoftmax",
        axes.draw_softmax,
        put=steps.put_along("LogSoftmax"),
        ranks=ROWS,
        at_fault=(
            "takes the logarithm of a softmax underflowed to 0",
            "LogSoftmax(input, axis) = Log(Softmax(input, axis=axis))",
        ),
    ),
    Spec(
        "LayerNormalization",
        axes.draw_layer_norm,
        put=steps.put_layer_norm,
        ranks=ROWS,
        at_fault=("has only stash_type 1", _STASH),
    ),
    Spec("BatchNormalization", axes.draw_batch_norm, since=14, put=steps.put_batch_norm, ranks=range(2, 6)),
    Spec("InstanceNormalization", axes.draw_instance_norm, put=steps.put_instance_norm, ranks=IMAGE),
    Spec("MatMul", axes.draw_matmul, SUMMABLE, put=steps.put_matmul, ranks=range(2, 6)),
    Spec("Gemm", axes.draw_gemm, (*FLOATS, "int32", "int64"), put=steps.put_gemm, ranks=range(2, 3)),
    Spec("Conv", windows.draw_conv, put=steps.put_conv, ranks=IMAGE, by_torch=True),
    Spec("ConvTranspose", windows.draw_conv_transpose, put=steps.put_conv_transpose, ranks=IMAGE, by_torch=True),
    Spec(
        "MaxPool",
        windows.draw_max_pool,
        (*FLOATS, "int8", "uint8"),
        put=steps.put_pool("MaxPool"),
        ranks=IMAGE,
        by_torch=True,
    ),
    Spec(
        "AveragePool",
        windows.draw_average_pool,
        put=steps.put_pool("AveragePool", count_include_pad=[0, 1]),
        ranks=IMAGE,
        by_torch=True,
    ),
    Spec(
        "GlobalAveragePool",
        windows.draw_over_image(windows.SUMS),
        put=steps.put_function("GlobalAveragePool"),
        ranks=IMAGE,
    ),
    Spec(
        "GlobalMaxPool",
        windows.draw_over_image(values.ANY),
        put=steps.put_function("GlobalMaxPool"),
        ranks=IMAGE,
        at_fault=(
            "reduces axes other than the spatial ones of a non-image",
            "applies max pooling across the values in the same channel",
        ),
    ),
    Spec("Transpose", moves.draw_transpose, EVERY, put=steps.put_transpose, ranks=range(2, 6)),
    Spec("Reshape", moves.draw_reshape, EVERY, put=steps.put_reshape),
    Spec("Flatten", moves.draw_flatten, EVERY, put=steps.put_flatten, ranks=ROWS),
    Spec("Concat", moves.draw_concat, EVERY, put=steps.put_concat, ranks=ROWS),
    Spec("Split", moves.draw_split, EVERY, put=steps.put_split, ranks=ROWS),
    Spec("Slice", moves.draw_slice, EVERY, put=steps.put_slice, ranks=ROWS),
    Spec(
        "Pad",
        moves.draw_pad,
        EVERY,
        put=steps.put_pad,
        ranks=ROWS,
        at_fault=("rejects pads below 0", "the number of padding elements to add or remove (if negative)"),
    ),
    Spec("Expand", moves.draw_expand, EVERY, put=steps.put_expand),
    Spec("Unsqueeze", moves.draw_unsqueeze, EVERY, put=steps.put_unsqueeze, ranks=range(0, 5)),
    Spec("Squeeze", moves.draw_squeeze, EVERY, put=steps.put_squeeze),
    Spec("Gather", moves.draw_gather, EVERY, put=steps.put_gather, ranks=ROWS),
    Spec("Tile", moves.draw_tile, EVERY, put=steps.put_tile, ranks=ROWS),
    Spec("Acos", draw_function(elements.UNIT)),
    Spec("Acosh", draw_function(Domain(1.0, 2.0**20, ("halves", "powers", "large")))),
    Spec("Asin", draw_function(elements.UNIT)),
    Spec("Asinh", draw_function(values.REAL)),
    Spec("Atan", draw_function(values.REAL)),
    Spec("Atanh", draw_function(Domain(-0.96875, 0.96875, ("halves", "zeros", "tiny")))),
    Spec("Ceil", draw_function(values.ANY)),
    Spec("Celu", draw_function(elements.LOSES, alpha=[1.0, 0.5, 2.0, 3.7, 0.1])),
    Spec("Cos", draw_function(elements.ANGLE)),
    Spec("Cosh", draw_function(elements.GROWS)),
    Spec("Floor", draw_function(values.ANY)),
    Spec("Mish", draw_function(values.REAL)),
    Spec("Round", draw_function(values.ANY)),
    Spec("Selu", draw_function(elements.LOSES, alpha=[1.0, 2.0, 0.5], gamma=[1.0, 2.0, 0.5])),
    Spec("Sin", draw_function(elements.ANGLE)),
    Spec("Sinh", draw_function(elements.GROWS)),
    Spec(
        "Softsign",
        draw_function(values.REAL),
        at_fault=("rejects scalars", "Calculates the softsign (x/(1+|x|)) of the given input tensor element-wise."),
    ),
    Spec("Tan", draw_function(Domain(-1.5, 1.5, ("halves", "powers", "zeros", "tiny")))),
    Spec("ThresholdedRelu", draw_function(values.ANY, alpha=[1.0, 0.5, 0.0, 2.0])),
    Spec("Sign", elements.draw_plain(), NUMBERS),
    Spec("Identity", elements.draw_plain(), EVERY),
    Spec("Not", elements.draw_plain(), ("bool",)),
    Spec("BitwiseNot", elements.draw_plain(), INTEGERS),
    Spec("IsInf", elements.draw_is_inf),
    Spec("IsNaN", elements.draw_is_nan),
    Spec("Shrink", elements.draw_shrink),
    Spec("Mod", elements.draw_modulo, NUMBERS),
    Spec("BitShift", elements.draw_shift, UNSIGNED),
    Spec("BitwiseAnd", elements.draw_two(elements.choose_any_domain), INTEGERS),
    Spec("BitwiseOr", elements.draw_two(elements.choose_any_domain), INTEGERS),
    Spec("BitwiseXor", elements.draw_two(elements.choose_any_domain), INTEGERS),
    Spec("And", elements.draw_two(elements.choose_any_domain), ("bool",)),
    Spec("Or", elements.draw_two(elements.choose_any_domain), ("bool",)),
    Spec("Xor", elements.draw_two(elements.choose_any_domain), ("bool",)),
    Spec("Equal", elements.draw_two(elements.choose_any_domain), EVERY),
    Spec("Greater", elements.draw_two(elements.choose_any_domain), NUMBERS),
    Spec("GreaterOrEqual", elements.draw_two(elements.choose_any_domain), NUMBERS),
    Spec("Less", elements.draw_two(elements.choose_any_domain), NUMBERS),
    Spec("LessOrEqual", elements.draw_two(elements.choose_any_domain), NUMBERS),
    Spec("Sum", elements.draw_variadic(lambda d: values.MILD)),
    Spec("Mean", elements.draw_variadic(lambda d: values.MILD)),
    Spec("ReduceL1", axes.draw_reduction(axes.domain_of_sums, still=False), SUMMABLE),
    Spec(
        "ReduceSumSquare",
        axes.draw_reduction(axes.domain_of_sums, still=False),
        SUMMABLE,
        at_fault=(
            "returns another dtype for small integers",
            "Computes the sum square of the input tensor's elements along the provided axes.",
        ),
    ),
    Spec("ReduceL2", axes.draw_reduction(axes.domain_of_sums, still=False)),
    Spec("ReduceLogSumExp", axes.draw_reduction(axes.domain_of_sums)),
    Spec("ReduceLogSum", axes.draw_reduction(lambda d: axes.ABOVE_0, still=False)),
    Spec("ReduceProd", axes.draw_reduction(axes.factor_domain), SUMMABLE),
    Spec("ArgMax", axes.draw_arg_extreme, NUMBERS),
    Spec("ArgMin", axes.draw_arg_extreme, NUMBERS),
    Spec("Hardmax", axes.draw_softmax),
    Spec("RMSNormalization", axes.draw_rms_norm, at_fault=("has only stash_type 1", _STASH)),
    Spec("GroupNormalization", axes.draw_group_norm, since=21),
    Spec(
        "LRN",
        axes.draw_lrn,
        at_fault=(
            "reads beyond the last channel, and takes attributes of float32 to the end of float64",
            "max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))",
        ),
    ),
    Spec(
        "LpNormalization",
        axes.draw_lp_norm,
        at_fault=("sums signed elements for p = 1", "output = input / Lp_norm(input, axis)"),
    ),
    Spec(
        "MeanVarianceNormalization",
        axes.draw_mean_variance_norm,
        ("float32",),
        at_fault=(
            "adds a float32 constant of the body to float64",
            "Perform mean variance normalization on the input tensor X",
        ),
    ),
    Spec("MatMulInteger", axes.draw_matmul_integer, ("uint8", "int8")),
    Spec("Einsum", axes.draw_einsum),
    Spec(
        "LpPool",
        windows.draw_lp_pool,
        at_fault=(
            "rejects dilated kernels that exceed SAME pads",
            "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])",
        ),
    ),
    Spec(
        "GlobalLpPool",
        windows.draw_global_lp_pool,
        at_fault=("has none", "applies lp pool pooling across the values in the same channel"),
    ),
    Spec("DepthToSpace", moves.draw_depth_to_space, EVERY),
    Spec("SpaceToDepth", moves.draw_space_to_depth, EVERY),
    Spec("Trilu", moves.draw_trilu, EVERY),
    Spec("Compress", moves.draw_compress, EVERY),
    Spec("ReverseSequence", moves.draw_reverse_sequence, EVERY),
    Spec(
        "GatherElements",
        moves.draw_gather_elements,
        EVERY,
        at_fault=(
            "rejects indices smaller than the data outside the axis",
            "Its output shape is the same as the shape of `indices` and consists of one value (gathered from the `data`) for each element in `indices`.",
        ),
    ),
    Spec("GatherND", moves.draw_gather_nd, EVERY),
    Spec("ScatterElements", moves.draw_scatter_elements, EVERY),
    Spec("ScatterND", moves.draw_scatter_nd, EVERY),
    Spec(
        "OneHot",
        moves.draw_one_hot,
        ("int64", "int32", "uint8", "float32"),
        at_fault=("rejects a scalar depth", "Scalar or Rank 1 tensor containing exactly one element"),
    ),
    Spec("TopK", moves.draw_top_k, NUMBERS),
    Spec("NonZero", moves.draw_non_zero, EVERY),
    Spec("EyeLike", moves.draw_eye_like, (*FLOATS, "int32", "int64")),
    Spec(
        "Shape",
        moves.draw_shape,
        EVERY,
        at_fault=(
            "wraps an end before the first axis a second time",
            "axes will be clamped to the range [0, r], where r is the rank of the input tensor if they are out-of-range",
        ),
    ),
    Spec("Size", lambda d: Made((moves.draw_any_tensor(d, 0),)), EVERY),
    Spec("Range", moves.draw_range, ("float32", "float64", "int32", "int64", "int16")),
    Spec("QuantizeLinear", moves.draw_quantize, ("float32", "float16")),
    Spec(
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
    """Operator sets in which an operator takes a first input of a dtype, the simplest first; none where it never
    does."""
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
