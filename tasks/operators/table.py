"""The one table of ONNX's operators: a row holds what the farm knows of an operator that its schema (`onnx.defs`) does not say.

Every reader takes its column: models, nodes, ONNX's node suite, diagnosis, networks by a framework's functions. What is
asked of a schema is in no row: inputs and which of them are optional, dtypes, attributes and their defaults.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from tasks.model import OpClass
from tasks.model.placement import (
    ACTIVATES,
    BITS,
    COMPOSES,
    CONTRACTS,
    DERIVED,
    DRAWS,
    FIRST,
    LOSES,
    MOVES,
    NORMALISES,
    REDUCES,
    ROUNDED,
    ROUNDS,
    SELECTS,
    SOLVES,
    STEPS,
    TABULATED,
    UNPLACED,
    Placement,
)
from tasks.operators import (
    elementwise,
    formulas,
    integers,
    movement,
    normalising,
    pooling,
    quantizing,
    recurrent,
    reductions,
    spatial,
)
from tasks.operators import torch_names as named
from tasks.operators.call import Evaluate, change_since_opset
from tasks.operators.torch_names import Counterpart


@dataclass(frozen=True)
class OnnxOperator:
    """An operator of ONNX. A column that a reader has no use for is left at its default."""

    #: As `onnx.defs` has it; unique over the domains.
    name: str
    #: How it is judged, and why.
    placement: Placement = UNPLACED
    #: It in float64. Where there is none, or it returns None, onnx's own evaluator is asked where that is allowed:
    #: never where it is the second oracle. tests/tasks/test_fuzz_references.py holds both against each other.
    evaluate: Evaluate | None = None
    #: It by torch's names of operations, for torch and for every framework with counterparts.
    by_name: Counterpart | None = None
    #: Whether torch's computation of it in float64 is a second oracle: of the operators that are more than one plain
    #: NumPy function.
    witnessed: bool = False
    #: "control": has subgraphs, in which what is inside is evaluated, and moved, node by node. "cast": changes the
    #: dtype of its input. "size": its output does not depend on the values of its input.
    acts: Literal["", "control", "cast", "size"] = ""
    #: Places of inputs that say what is computed, not on what: a moved scale of Resize changes a shape, a moved
    #: exponent of Pow makes NaN.
    structural: Collection[int] = ()
    #: Places of inputs (sizes, steps, scales) of which the specification says nothing if they are 0. A reference may
    #: take them all the same.
    not_zero: Collection[int] = ()
    #: Whether it rounds to an integer: its input counts as structural where it depends on shapes and weights alone.
    to_integers: bool = False
    #: Whether it hands on all elements of its first input, in another shape or order.
    hands_on: bool = False
    #: Whether shapes are computed with it: int64 comes out where int64 goes in.
    of_sizes: bool = False
    #: How it sums products, where its class alone does not say it. "layer": of data and the weights of a layer, its
    #: first two inputs. "transform": a Fourier transform, whose sums no matrix unit computes. "recurrent", "attention":
    #: made of products, and judged as what is done beside them.
    sums: Literal["", "layer", "transform", "recurrent", "attention"] = ""
    #: The place of the input that is added to its products, not multiplied.
    added: int | None = None
    #: How many tensors it takes element by element; 0 for an operator that does not compute each element by itself, or
    #: is not given every input (`tasks.catalogs.onnx.every_input`).
    elementwise: int = 0
    #: Integer inputs, every number or pair of them, with what ONNX does not define replaced.
    defined: integers.Defined | None = None
    #: Whether it is told by max, min or comparisons alone, and the specification does not say what it is at NaN (IEEE
    #: 754 has a max that keeps it and one that does not).
    open_at_nan: bool = False
    #: Dtypes that its schema names and onnx's own shape inference refuses.
    refused: tuple[str, ...] = ()
    #: Attributes other than the defaults with which it is another function, by variant.
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Values of attributes of text that one may be taken for another of: a schema has them in prose alone.
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def draws(self) -> bool:
        """Whether its result is drawn at random."""
        return self.placement.op_class is OpClass.RANDOM

    @property
    def multiplies(self) -> bool:
        """Whether matrix units compute it: a contraction, or what is made of some."""
        contracts = self.placement.op_class is OpClass.CONTRACTION and self.sums != "transform"
        return contracts or self.sums in ("recurrent", "attention")


AUTO_PAD = {"auto_pad": ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")}
DIRECTION = {"direction": ("forward", "reverse")}
OF_LOSS = {"reduction": ("none", "mean", "sum")}
OF_SCATTER = {"reduction": ("none", "add", "mul", "max", "min")}
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric")
RESAMPLES = replace(STEPS, unless=("mode=linear", "mode=cubic"))
SAMPLES = replace(COMPOSES, unless=("mode=nearest",), instead=OpClass.DISCONTINUOUS)
DROPS = replace(MOVES, why="dropped at random in training, else moved; judged as the suite's stored output tells")


def _make_unary_row(
    name: str, placement: Placement, function: Any, by_name: Counterpart | None = None, **more: Any
) -> OnnxOperator:
    """An operator of one tensor, element by element, by a function of NumPy's."""
    return OnnxOperator(name, placement, elementwise.make_unary_operator(function), by_name, elementwise=1, **more)


def _make_binary_row(
    name: str, placement: Placement, function: Any, by_name: Counterpart | None = None, **more: Any
) -> OnnxOperator:
    """An operator of two tensors, element by element, by a function of NumPy's; before operator set 7 it did not
    broadcast as NumPy does."""
    return OnnxOperator(
        name,
        placement,
        change_since_opset(7, elementwise.make_binary_operator(function)),
        by_name,
        elementwise=2,
        **more,
    )


ROWS = (
    _make_unary_row("Abs", BITS, np.abs, named.name_unary_operator("abs"), defined=integers.avoid_least_integer),
    _make_unary_row("Acos", TABULATED, np.arccos),
    _make_unary_row("Acosh", TABULATED, np.arccosh),
    OnnxOperator("Adagrad", COMPOSES),
    OnnxOperator("Adam", COMPOSES),
    _make_binary_row(
        "Add", ROUNDED, np.add, lambda o: o.t(0) + o.t(1), of_sizes=True, defined=integers.keep_integer_range(np.add, 0)
    ),
    OnnxOperator("AffineGrid", COMPOSES),
    OnnxOperator(
        "And",
        SELECTS,
        change_since_opset(7, elementwise.make_binary_operator(np.logical_and)),
        named.name_binary_operator("logical_and"),
    ),
    OnnxOperator("ArgMax", FIRST, reductions.make_arg_operator(np.argmax)),
    OnnxOperator("ArgMin", FIRST, reductions.make_arg_operator(np.argmin)),
    OnnxOperator("ArrayFeatureExtractor", MOVES),
    _make_unary_row("Asin", TABULATED, np.arcsin),
    _make_unary_row("Asinh", TABULATED, np.arcsinh),
    _make_unary_row("Atan", TABULATED, np.arctan),
    _make_unary_row("Atanh", TABULATED, np.arctanh),
    OnnxOperator("Attention", COMPOSES, sums="attention"),
    OnnxOperator(
        "AveragePool", REDUCES, pooling.evaluate_average_pool, named.apply_average_pool, witnessed=True, texts=AUTO_PAD
    ),
    OnnxOperator(
        "BatchNormalization",
        NORMALISES,
        normalising.evaluate_batch_normalization,
        named.apply_batch_norm,
        witnessed=True,
    ),
    OnnxOperator("Bernoulli", DRAWS),
    OnnxOperator("Binarizer", SELECTS),
    OnnxOperator("BitCast", BITS),
    OnnxOperator("BitShift", BITS, elementwise.evaluate_bit_shift),
    _make_binary_row("BitwiseAnd", BITS, np.bitwise_and),
    _make_unary_row("BitwiseNot", BITS, np.bitwise_not),
    _make_binary_row("BitwiseOr", BITS, np.bitwise_or),
    _make_binary_row("BitwiseXor", BITS, np.bitwise_xor),
    OnnxOperator("BlackmanWindow", COMPOSES, elementwise.make_cosine_window(0.42, 0.5, 0.08)),
    OnnxOperator(
        "Cast",
        ROUNDS,
        change_since_opset(6, elementwise.evaluate_cast),
        named.apply_cast,
        acts="cast",
        to_integers=True,
    ),
    OnnxOperator("CastLike", ROUNDS, acts="cast"),
    OnnxOperator("CausalConvWithState", CONTRACTS),
    _make_unary_row("Ceil", ROUNDS, np.ceil, to_integers=True),
    OnnxOperator("Celu", ACTIVATES, elementwise.evaluate_celu, elementwise=1, open_at_nan=True),
    OnnxOperator("CenterCropPad", MOVES),
    OnnxOperator(
        "Clip", SELECTS, change_since_opset(11, elementwise.evaluate_clip), named.apply_clip, structural=range(1, 3)
    ),
    OnnxOperator("Col2Im", REDUCES),
    OnnxOperator("Compress", MOVES, movement.evaluate_compress),
    OnnxOperator(
        "Concat",
        MOVES,
        change_since_opset(4, movement.evaluate_concat),
        lambda o: o("cat", [o.t(k) for k in range(len(o.inputs))], int(o.attributes["axis"])),
        of_sizes=True,
    ),
    OnnxOperator("Constant", MOVES),
    OnnxOperator("ConstantOfShape", MOVES, movement.evaluate_constant_of_shape, structural=(0,), not_zero=(0,)),
    OnnxOperator(
        "Conv",
        CONTRACTS,
        spatial.evaluate_conv,
        named.apply_conv,
        witnessed=True,
        sums="layer",
        added=2,
        texts=AUTO_PAD,
    ),
    OnnxOperator("ConvInteger", BITS, texts=AUTO_PAD),
    OnnxOperator(
        "ConvTranspose",
        CONTRACTS,
        spatial.evaluate_conv_transpose,
        named.apply_conv_transpose,
        witnessed=True,
        sums="layer",
        added=2,
        texts=AUTO_PAD,
    ),
    _make_unary_row("Cos", TABULATED, np.cos),
    _make_unary_row("Cosh", TABULATED, np.cosh),
    OnnxOperator("CumProd", REDUCES),
    OnnxOperator("CumSum", REDUCES, reductions.make_cumulative_operator(np.cumsum, 0), named.apply_cum_sum),
    OnnxOperator("DFT", CONTRACTS, not_zero=(1,), sums="transform"),
    OnnxOperator("DeformConv", CONTRACTS, added=3),
    OnnxOperator("DepthToSpace", MOVES, movement.evaluate_depth_to_space, texts={"mode": ("DCR", "CRD")}),
    OnnxOperator(
        "DequantizeLinear", STEPS, quantizing.evaluate_dequantize_linear, structural=range(1, 3), not_zero=(1,)
    ),
    OnnxOperator("Det", SOLVES),
    OnnxOperator(
        "Div",
        TABULATED,
        change_since_opset(7, elementwise.evaluate_divide),
        lambda o: o.t(0) / o.t(1),
        of_sizes=True,
        elementwise=2,
        defined=integers.avoid_zero_divisors,
    ),
    OnnxOperator("Dropout", DROPS, structural=range(1, 3)),
    OnnxOperator("DynamicQuantizeLinear", STEPS, quantizing.evaluate_dynamic_quantize_linear),
    OnnxOperator(
        "Einsum",
        CONTRACTS,
        reductions.evaluate_einsum,
        lambda o: o("einsum", [o.t(k) for k in range(len(o.inputs))], o.attributes["equation"]),
    ),
    OnnxOperator(
        "Elu",
        ACTIVATES,
        elementwise.evaluate_elu,
        lambda o: o("nn.functional.elu", o.t(0), float(o.attributes.get("alpha", 1.0))),
        witnessed=True,
        elementwise=1,
    ),
    _make_binary_row("Equal", SELECTS, np.equal, named.name_binary_operator("eq")),
    OnnxOperator(
        "Erf", TABULATED, elementwise.evaluate_erf, named.name_unary_operator("erf"), witnessed=True, elementwise=1
    ),
    _make_unary_row("Exp", TABULATED, np.exp, named.name_unary_operator("exp")),
    OnnxOperator(
        "Expand", MOVES, movement.evaluate_expand, named.apply_expand, structural=(1,), not_zero=(1,), of_sizes=True
    ),
    OnnxOperator("EyeLike", MOVES, movement.evaluate_eye_like),
    OnnxOperator("Flatten", MOVES, movement.evaluate_flatten, named.apply_flatten, hands_on=True),
    OnnxOperator("FlexAttention", COMPOSES, sums="attention"),
    _make_unary_row("Floor", ROUNDS, np.floor, to_integers=True),
    OnnxOperator("GRU", COMPOSES, recurrent.evaluate_gru, witnessed=True, sums="recurrent", texts=DIRECTION),
    OnnxOperator("Gather", MOVES, movement.evaluate_gather, named.apply_gather, of_sizes=True),
    OnnxOperator(
        "GatherElements",
        MOVES,
        movement.evaluate_gather_elements,
        lambda o: o("gather", o.t(0), int(o.attributes.get("axis", 0)), o.t(1)),
    ),
    OnnxOperator("GatherND", MOVES, movement.evaluate_gather_nd, named.apply_gather_nd),
    OnnxOperator(
        "Gelu",
        ACTIVATES,
        elementwise.evaluate_gelu,
        named.apply_gelu,
        witnessed=True,
        elementwise=1,
        variants={"tanh": {"approximate": "tanh"}},
        texts={"approximate": ("none", "tanh")},
    ),
    OnnxOperator(
        "Gemm",
        CONTRACTS,
        change_since_opset(7, reductions.evaluate_gemm),
        named.apply_gemm,
        witnessed=True,
        sums="layer",
        added=2,
    ),
    OnnxOperator(
        "GlobalAveragePool",
        REDUCES,
        pooling.evaluate_global_average_pool,
        named.reduce_over_image("mean"),
        witnessed=True,
    ),
    OnnxOperator("GlobalLpPool", UNPLACED, change_since_opset(2, pooling.evaluate_global_lp_pool)),
    OnnxOperator("GlobalMaxPool", SELECTS, pooling.evaluate_global_max_pool, named.reduce_over_image("amax")),
    _make_binary_row("Greater", SELECTS, np.greater, named.name_binary_operator("gt")),
    _make_binary_row("GreaterOrEqual", SELECTS, np.greater_equal, named.name_binary_operator("ge")),
    OnnxOperator(
        "GridSample",
        SAMPLES,
        texts=dict(padding_mode=("zeros", "border", "reflection"), mode=("linear", "nearest", "cubic")),
    ),
    OnnxOperator("GroupNormalization", NORMALISES, normalising.evaluate_group_normalization),
    OnnxOperator("HammingWindow", COMPOSES, elementwise.make_cosine_window(25 / 46, 21 / 46)),
    OnnxOperator("HannWindow", COMPOSES, elementwise.make_cosine_window(0.5, 0.5)),
    OnnxOperator(
        "HardSigmoid",
        ACTIVATES,
        elementwise.evaluate_hard_sigmoid,
        named.apply_hard_sigmoid,
        witnessed=True,
        elementwise=1,
        open_at_nan=True,
    ),
    OnnxOperator(
        "HardSwish",
        ACTIVATES,
        elementwise.evaluate_hard_swish,
        named.name_unary_operator("nn.functional.hardswish"),
        witnessed=True,
        elementwise=1,
        open_at_nan=True,
    ),
    OnnxOperator("Hardmax", SELECTS, reductions.evaluate_hardmax),
    _make_unary_row("Identity", MOVES, np.asarray, lambda o: o.t(0), hands_on=True, of_sizes=True),
    OnnxOperator("If", MOVES, acts="control"),
    OnnxOperator("ImageDecoder", COMPOSES),
    OnnxOperator(
        "InstanceNormalization",
        NORMALISES,
        normalising.evaluate_instance_normalization,
        lambda o: o("nn.functional.instance_norm", o.t(0), None, None, o.t(1), o.t(2), eps=o.epsilon),
        witnessed=True,
    ),
    OnnxOperator(
        "IsInf", SELECTS, elementwise.evaluate_is_inf, elementwise=1, variants={"negative": {"detect_positive": 0}}
    ),
    _make_unary_row("IsNaN", SELECTS, np.isnan, named.name_unary_operator("isnan")),
    OnnxOperator("LRN", NORMALISES, normalising.evaluate_lrn),
    OnnxOperator("LSTM", COMPOSES, recurrent.evaluate_lstm, witnessed=True, sums="recurrent", texts=DIRECTION),
    OnnxOperator("LabelEncoder", SELECTS),
    OnnxOperator(
        "LayerNormalization",
        NORMALISES,
        normalising.evaluate_layer_normalization,
        named.apply_layer_norm,
        witnessed=True,
    ),
    OnnxOperator(
        "LeakyRelu",
        ROUNDED,
        elementwise.evaluate_leaky_relu,
        lambda o: o("nn.functional.leaky_relu", o.t(0), float(o.attributes.get("alpha", np.float32(0.01)))),
        elementwise=1,
    ),
    _make_binary_row("Less", SELECTS, np.less, named.name_binary_operator("lt")),
    _make_binary_row("LessOrEqual", SELECTS, np.less_equal, named.name_binary_operator("le")),
    OnnxOperator("LinearAttention", COMPOSES, sums="attention"),
    _make_unary_row("Log", TABULATED, np.log, named.name_unary_operator("log")),
    OnnxOperator(
        "LogSoftmax",
        NORMALISES,
        normalising.evaluate_log_softmax,
        named.apply_softmax_along("log_softmax"),
        witnessed=True,
    ),
    OnnxOperator("Loop", MOVES, acts="control"),
    OnnxOperator("LpNormalization", NORMALISES, normalising.evaluate_lp_normalization),
    OnnxOperator("LpPool", REDUCES, change_since_opset(2, pooling.evaluate_lp_pool), texts=AUTO_PAD),
    OnnxOperator(
        "MatMul",
        CONTRACTS,
        reductions.evaluate_matmul,
        named.name_binary_operator("matmul"),
        witnessed=True,
        sums="layer",
    ),
    OnnxOperator("MatMulInteger", BITS, reductions.evaluate_matmul_integer),
    OnnxOperator(
        "Max",
        SELECTS,
        elementwise.make_variadic_operator(np.maximum),
        named.name_variadic_operator("maximum"),
        of_sizes=True,
        elementwise=2,
        open_at_nan=True,
    ),
    OnnxOperator("MaxPool", SELECTS, pooling.evaluate_max_pool, named.apply_max_pool, witnessed=True, texts=AUTO_PAD),
    OnnxOperator("MaxUnpool", MOVES),
    OnnxOperator("Mean", REDUCES, lambda call: [sum(call.arrays()[1:], call.arrays()[0]) / len(call.arrays())]),
    OnnxOperator("MeanVarianceNormalization", NORMALISES, normalising.evaluate_mean_variance_normalization),
    OnnxOperator("MelWeightMatrix", COMPOSES),
    OnnxOperator(
        "Min",
        SELECTS,
        elementwise.make_variadic_operator(np.minimum),
        named.name_variadic_operator("minimum"),
        of_sizes=True,
        elementwise=2,
        open_at_nan=True,
    ),
    OnnxOperator("Mish", ACTIVATES, elementwise.evaluate_mish, elementwise=1),
    OnnxOperator(
        "Mod", STEPS, elementwise.evaluate_modulo, of_sizes=True, elementwise=2, defined=integers.avoid_zero_divisors
    ),
    OnnxOperator("Momentum", COMPOSES),
    _make_binary_row(
        "Mul",
        ROUNDED,
        np.multiply,
        lambda o: o.t(0) * o.t(1),
        of_sizes=True,
        defined=integers.keep_integer_range(np.multiply, 1),
    ),
    OnnxOperator("Multinomial", DRAWS),
    _make_unary_row("Neg", BITS, np.negative, lambda o: -o.t(0), of_sizes=True, defined=integers.avoid_least_integer),
    OnnxOperator("NegativeLogLikelihoodLoss", LOSES, reductions.evaluate_loss, texts=OF_LOSS),
    OnnxOperator("NonMaxSuppression", STEPS, structural=range(2, 5)),
    OnnxOperator("NonZero", SELECTS, movement.evaluate_non_zero),
    OnnxOperator("Not", SELECTS, elementwise.make_unary_operator(np.logical_not)),
    OnnxOperator("OneHot", MOVES, movement.evaluate_one_hot, structural=range(1, 3), not_zero=(1,)),
    OnnxOperator("OptionalGetElement", MOVES),
    OnnxOperator("OptionalHasElement", MOVES),
    OnnxOperator("Or", SELECTS, change_since_opset(7, elementwise.make_binary_operator(np.logical_or))),
    OnnxOperator("PRelu", ROUNDED, change_since_opset(7, elementwise.evaluate_prelu), named.apply_p_relu),
    OnnxOperator(
        "Pad",
        MOVES,
        change_since_opset(11, movement.evaluate_pad),
        named.apply_pad,
        structural=range(1, 4),
        texts=dict(mode=("constant", "edge", "reflect", "wrap")),
    ),
    OnnxOperator(
        "Pow",
        TABULATED,
        change_since_opset(7, elementwise.evaluate_power),
        lambda o: o.t(0) * o.t(0) if named.is_exponent_two(o) else o("pow", o.t(0), o.t(1)),
        structural=(1,),
        elementwise=2,
        defined=integers.avoid_negative_exponents,
        refused=("bfloat16",),
    ),
    OnnxOperator("QLinearConv", STEPS, not_zero=(1, 4, 6), texts=AUTO_PAD),
    OnnxOperator("QLinearMatMul", STEPS, not_zero=(1, 4, 6)),
    OnnxOperator("QuantizeLinear", STEPS, quantizing.evaluate_quantize_linear, structural=range(1, 3), not_zero=(1,)),
    OnnxOperator("RMSNormalization", NORMALISES, normalising.evaluate_rms_normalization),
    OnnxOperator("RNN", COMPOSES, recurrent.evaluate_rnn, sums="recurrent", texts=DIRECTION),
    OnnxOperator("RandomNormal", DRAWS),
    OnnxOperator("RandomNormalLike", DRAWS),
    OnnxOperator("RandomUniform", DRAWS),
    OnnxOperator("RandomUniformLike", DRAWS),
    OnnxOperator(
        "Range",
        ROUNDED,
        movement.evaluate_range,
        structural=range(0, 3),
        not_zero=(2,),
        to_integers=True,
        of_sizes=True,
    ),
    _make_unary_row("Reciprocal", TABULATED, lambda x: 1.0 / x, named.name_unary_operator("reciprocal")),
    OnnxOperator(
        "ReduceL1", REDUCES, reductions.make_reduction_operator(lambda x, a, k: np.abs(x).sum(axis=a, keepdims=k))
    ),
    OnnxOperator(
        "ReduceL2",
        REDUCES,
        reductions.make_reduction_operator(lambda x, a, k: np.sqrt(np.square(x).sum(axis=a, keepdims=k))),
    ),
    OnnxOperator(
        "ReduceLogSum", REDUCES, reductions.make_reduction_operator(lambda x, a, k: np.log(x.sum(axis=a, keepdims=k)))
    ),
    OnnxOperator("ReduceLogSumExp", REDUCES, reductions.make_reduction_operator(formulas.compute_log_sum_exp)),
    OnnxOperator(
        "ReduceMax",
        SELECTS,
        reductions.make_reduction_operator(reductions.make_extreme_operator(True)),
        named.reduce_along_axes("amax"),
        of_sizes=True,
    ),
    OnnxOperator(
        "ReduceMean",
        REDUCES,
        reductions.make_reduction_operator(lambda x, a, k: x.mean(axis=a, keepdims=k)),
        named.reduce_along_axes("mean"),
        witnessed=True,
    ),
    OnnxOperator(
        "ReduceMin",
        SELECTS,
        reductions.make_reduction_operator(reductions.make_extreme_operator(False)),
        named.reduce_along_axes("amin"),
        of_sizes=True,
    ),
    OnnxOperator(
        "ReduceProd",
        REDUCES,
        reductions.make_reduction_operator(lambda x, a, k: x.prod(axis=a, keepdims=k)),
        of_sizes=True,
    ),
    OnnxOperator(
        "ReduceSum",
        REDUCES,
        reductions.make_reduction_operator(lambda x, a, k: x.sum(axis=a, keepdims=k)),
        named.reduce_along_axes("sum"),
        witnessed=True,
        of_sizes=True,
    ),
    OnnxOperator(
        "ReduceSumSquare",
        REDUCES,
        reductions.make_reduction_operator(lambda x, a, k: np.square(x).sum(axis=a, keepdims=k)),
    ),
    OnnxOperator("RegexFullMatch", SELECTS),
    _make_unary_row(
        "Relu",
        SELECTS,
        lambda x: np.maximum(x, np.zeros((), x.dtype)),
        named.name_unary_operator("nn.functional.relu"),
        open_at_nan=True,
    ),
    OnnxOperator(
        "Reshape",
        MOVES,
        change_since_opset(5, movement.evaluate_reshape),
        named.apply_reshape,
        structural=(1,),
        hands_on=True,
        of_sizes=True,
    ),
    OnnxOperator(
        "Resize",
        RESAMPLES,
        by_name=named.apply_resize,
        witnessed=True,
        structural=range(1, 4),
        not_zero=(2, 3),
        texts=dict(
            coordinate_transformation_mode=COORDINATES,
            nearest_mode=("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
            keep_aspect_ratio_policy=("stretch", "not_larger", "not_smaller"),
            mode=("nearest", "linear", "cubic"),
        ),
    ),
    OnnxOperator("ReverseSequence", MOVES, movement.evaluate_reverse_sequence),
    OnnxOperator("RoiAlign", COMPOSES, texts=dict(coordinate_transformation_mode=COORDINATES, mode=("avg", "max"))),
    OnnxOperator("RotaryEmbedding", COMPOSES),
    _make_unary_row("Round", ROUNDS, np.rint, to_integers=True),
    OnnxOperator("STFT", CONTRACTS, not_zero=(1, 3), sums="transform"),
    OnnxOperator("Scan", COMPOSES, acts="control"),
    OnnxOperator("Scatter", MOVES),
    OnnxOperator("ScatterElements", REDUCES, movement.evaluate_scatter_elements, texts=OF_SCATTER),
    OnnxOperator("ScatterND", REDUCES, movement.evaluate_scatter_nd, of_sizes=True, texts=OF_SCATTER),
    OnnxOperator("Selu", ACTIVATES, change_since_opset(6, elementwise.evaluate_selu), elementwise=1),
    OnnxOperator("SequenceInsert", MOVES),
    OnnxOperator("SequenceMap", COMPOSES),
    OnnxOperator("Shape", MOVES, movement.evaluate_shape, acts="size"),
    OnnxOperator("Shrink", COMPOSES, elementwise.evaluate_shrink, elementwise=1),
    _make_unary_row("Sigmoid", DERIVED, formulas.compute_sigmoid, named.name_unary_operator("sigmoid"), witnessed=True),
    _make_unary_row("Sign", SELECTS, np.sign, open_at_nan=True),
    _make_unary_row("Sin", TABULATED, np.sin),
    _make_unary_row("Sinh", TABULATED, np.sinh),
    OnnxOperator("Size", MOVES, lambda call: [np.asarray(np.asarray(call.inputs[0]).size, np.int64)], acts="size"),
    OnnxOperator(
        "Slice",
        MOVES,
        change_since_opset(10, movement.evaluate_slice),
        named.apply_slice,
        structural=range(1, 5),
        not_zero=(4,),
        of_sizes=True,
    ),
    OnnxOperator(
        "Softmax", NORMALISES, normalising.evaluate_softmax, named.apply_softmax_along("softmax"), witnessed=True
    ),
    OnnxOperator("SoftmaxCrossEntropyLoss", LOSES, reductions.evaluate_loss, texts=OF_LOSS),
    _make_unary_row(
        "Softplus",
        ACTIVATES,
        formulas.compute_softplus,
        named.name_unary_operator("nn.functional.softplus"),
        witnessed=True,
    ),
    _make_unary_row("Softsign", DERIVED, lambda x: x / (1.0 + np.abs(x))),
    OnnxOperator("SpaceToDepth", MOVES, movement.evaluate_space_to_depth),
    OnnxOperator("Split", MOVES, change_since_opset(13, movement.evaluate_split), named.apply_split),
    OnnxOperator("SplitToSequence", MOVES),
    _make_unary_row("Sqrt", TABULATED, np.sqrt, named.name_unary_operator("sqrt")),
    OnnxOperator("Squeeze", MOVES, movement.evaluate_squeeze, named.apply_squeeze, hands_on=True, of_sizes=True),
    OnnxOperator("StringConcat", SELECTS),
    OnnxOperator("StringNormalizer", SELECTS),
    OnnxOperator("StringSplit", SELECTS),
    _make_binary_row(
        "Sub",
        ROUNDED,
        np.subtract,
        lambda o: o.t(0) - o.t(1),
        of_sizes=True,
        defined=integers.keep_integer_range(np.subtract, 0),
    ),
    OnnxOperator("Sum", REDUCES, elementwise.make_variadic_operator(np.add)),
    OnnxOperator("SwiGLU", ACTIVATES),
    OnnxOperator("Swish", ACTIVATES),
    _make_unary_row("Tan", TABULATED, np.tan),
    _make_unary_row("Tanh", TABULATED, np.tanh, named.name_unary_operator("tanh"), witnessed=True),
    OnnxOperator("TensorScatter", MOVES),
    OnnxOperator("TfIdfVectorizer", REDUCES),
    OnnxOperator("ThresholdedRelu", SELECTS, elementwise.evaluate_thresholded_relu, elementwise=1, open_at_nan=True),
    OnnxOperator(
        "Tile",
        MOVES,
        change_since_opset(6, movement.evaluate_tile),
        lambda o: o("tile", o.t(0), tuple(o.numbers(1) or ())),
        structural=(1,),
        not_zero=(1,),
    ),
    OnnxOperator(
        "TopK",
        FIRST,
        change_since_opset(10, movement.evaluate_top_k),
        named.apply_top_k,
        structural=(1,),
        not_zero=(1,),
    ),
    OnnxOperator(
        "Transpose",
        MOVES,
        movement.evaluate_transpose,
        lambda o: o("permute", o.t(0), tuple(o.attributes.get("perm") or reversed(range(len(o.inputs[0].shape))))),
        hands_on=True,
    ),
    OnnxOperator("TreeEnsemble", REDUCES),
    OnnxOperator("Trilu", MOVES, movement.evaluate_trilu),
    OnnxOperator("Unique", SELECTS),
    OnnxOperator("Unsqueeze", MOVES, movement.evaluate_unsqueeze, named.apply_unsqueeze, hands_on=True, of_sizes=True),
    OnnxOperator("Upsample", RESAMPLES, structural=(1,), not_zero=(1,)),
    OnnxOperator("Where", MOVES, elementwise.evaluate_where, lambda o: o("where", o.t(1), o.t(0), o.t(2))),
    OnnxOperator("Xor", SELECTS, change_since_opset(7, elementwise.make_binary_operator(np.logical_xor))),
)


def index_operator_rows(rows: Sequence[OnnxOperator]) -> dict[str, OnnxOperator]:
    """By name. Raises ValueError for an operator that has two rows."""
    found = {row.name: row for row in rows}
    for row in rows:
        if found[row.name] is not row:
            raise ValueError(f"tasks.operators.table: {row.name} has two rows")
    return found


#: By name.
TABLE: Mapping[str, OnnxOperator] = index_operator_rows(ROWS)
#: The operators that have a float64 evaluation of the farm's own.
EVALUATED: dict[str, Evaluate] = {row.name: row.evaluate for row in ROWS if row.evaluate}
#: Those that are told by torch's names.
NAMED: dict[str, Counterpart] = {row.name: row.by_name for row in ROWS if row.by_name}


@functools.lru_cache(maxsize=4096)
def find_operator(name: str) -> OnnxOperator:
    """The row of an operator; of one that has none, or is another domain's, a row of defaults."""
    return TABLE.get(name) or OnnxOperator(name)
