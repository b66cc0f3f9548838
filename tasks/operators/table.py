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
from tasks.operators.call import Evaluate, since
from tasks.operators.torch_names import Counterpart


@dataclass(frozen=True)
class Operator:
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


def _of_one(
    name: str, placement: Placement, function: Any, by_name: Counterpart | None = None, **more: Any
) -> Operator:
    """An operator of one tensor, element by element, by a function of NumPy's."""
    return Operator(name, placement, elementwise.of_one(function), by_name, elementwise=1, **more)


def _of_two(
    name: str, placement: Placement, function: Any, by_name: Counterpart | None = None, **more: Any
) -> Operator:
    """An operator of two tensors, element by element, by a function of NumPy's; before operator set 7 it did not
    broadcast as NumPy does."""
    return Operator(name, placement, since(7, elementwise.of_two(function)), by_name, elementwise=2, **more)


ROWS = (
    _of_one("Abs", BITS, np.abs, named.one("abs"), defined=integers.avoid_least),
    _of_one("Acos", TABULATED, np.arccos),
    _of_one("Acosh", TABULATED, np.arccosh),
    Operator("Adagrad", COMPOSES),
    Operator("Adam", COMPOSES),
    _of_two("Add", ROUNDED, np.add, lambda o: o.t(0) + o.t(1), of_sizes=True, defined=integers.keep_range(np.add, 0)),
    Operator("AffineGrid", COMPOSES),
    Operator("And", SELECTS, since(7, elementwise.of_two(np.logical_and)), named.two("logical_and")),
    Operator("ArgMax", FIRST, reductions.make_arg(np.argmax)),
    Operator("ArgMin", FIRST, reductions.make_arg(np.argmin)),
    Operator("ArrayFeatureExtractor", MOVES),
    _of_one("Asin", TABULATED, np.arcsin),
    _of_one("Asinh", TABULATED, np.arcsinh),
    _of_one("Atan", TABULATED, np.arctan),
    _of_one("Atanh", TABULATED, np.arctanh),
    Operator("Attention", COMPOSES, sums="attention"),
    Operator("AveragePool", REDUCES, pooling.evaluate_average_pool, named.average_pool, witnessed=True, texts=AUTO_PAD),
    Operator(
        "BatchNormalization", NORMALISES, normalising.evaluate_batch_normalization, named.batch_norm, witnessed=True
    ),
    Operator("Bernoulli", DRAWS),
    Operator("Binarizer", SELECTS),
    Operator("BitCast", BITS),
    Operator("BitShift", BITS, elementwise.evaluate_bit_shift),
    _of_two("BitwiseAnd", BITS, np.bitwise_and),
    _of_one("BitwiseNot", BITS, np.bitwise_not),
    _of_two("BitwiseOr", BITS, np.bitwise_or),
    _of_two("BitwiseXor", BITS, np.bitwise_xor),
    Operator("BlackmanWindow", COMPOSES, elementwise.make_cosine_window(0.42, 0.5, 0.08)),
    Operator("Cast", ROUNDS, since(6, elementwise.evaluate_cast), named.cast, acts="cast", to_integers=True),
    Operator("CastLike", ROUNDS, acts="cast"),
    Operator("CausalConvWithState", CONTRACTS),
    _of_one("Ceil", ROUNDS, np.ceil, to_integers=True),
    Operator("Celu", ACTIVATES, elementwise.evaluate_celu, elementwise=1, open_at_nan=True),
    Operator("CenterCropPad", MOVES),
    Operator("Clip", SELECTS, since(11, elementwise.evaluate_clip), named.clip, structural=range(1, 3)),
    Operator("Col2Im", REDUCES),
    Operator("Compress", MOVES, movement.evaluate_compress),
    Operator(
        "Concat",
        MOVES,
        since(4, movement.evaluate_concat),
        lambda o: o("cat", [o.t(k) for k in range(len(o.inputs))], int(o.attributes["axis"])),
        of_sizes=True,
    ),
    Operator("Constant", MOVES),
    Operator("ConstantOfShape", MOVES, movement.evaluate_constant_of_shape, structural=(0,), not_zero=(0,)),
    Operator(
        "Conv", CONTRACTS, spatial.evaluate_conv, named.conv, witnessed=True, sums="layer", added=2, texts=AUTO_PAD
    ),
    Operator("ConvInteger", BITS, texts=AUTO_PAD),
    Operator(
        "ConvTranspose",
        CONTRACTS,
        spatial.evaluate_conv_transpose,
        named.conv_transpose,
        witnessed=True,
        sums="layer",
        added=2,
        texts=AUTO_PAD,
    ),
    _of_one("Cos", TABULATED, np.cos),
    _of_one("Cosh", TABULATED, np.cosh),
    Operator("CumProd", REDUCES),
    Operator("CumSum", REDUCES, reductions.make_cumulative(np.cumsum, 0), named.cum_sum),
    Operator("DFT", CONTRACTS, not_zero=(1,), sums="transform"),
    Operator("DeformConv", CONTRACTS, added=3),
    Operator("DepthToSpace", MOVES, movement.evaluate_depth_to_space, texts={"mode": ("DCR", "CRD")}),
    Operator("DequantizeLinear", STEPS, quantizing.evaluate_dequantize_linear, structural=range(1, 3), not_zero=(1,)),
    Operator("Det", SOLVES),
    Operator(
        "Div",
        TABULATED,
        since(7, elementwise.evaluate_divide),
        lambda o: o.t(0) / o.t(1),
        of_sizes=True,
        elementwise=2,
        defined=integers.avoid_zero_divisors,
    ),
    Operator("Dropout", DROPS, structural=range(1, 3)),
    Operator("DynamicQuantizeLinear", STEPS, quantizing.evaluate_dynamic_quantize_linear),
    Operator(
        "Einsum",
        CONTRACTS,
        reductions.evaluate_einsum,
        lambda o: o("einsum", [o.t(k) for k in range(len(o.inputs))], o.attributes["equation"]),
    ),
    Operator(
        "Elu",
        ACTIVATES,
        elementwise.evaluate_elu,
        lambda o: o("nn.functional.elu", o.t(0), float(o.attributes.get("alpha", 1.0))),
        witnessed=True,
        elementwise=1,
    ),
    _of_two("Equal", SELECTS, np.equal, named.two("eq")),
    Operator("Erf", TABULATED, elementwise.evaluate_erf, named.one("erf"), witnessed=True, elementwise=1),
    _of_one("Exp", TABULATED, np.exp, named.one("exp")),
    Operator("Expand", MOVES, movement.evaluate_expand, named.expand, structural=(1,), not_zero=(1,), of_sizes=True),
    Operator("EyeLike", MOVES, movement.evaluate_eye_like),
    Operator("Flatten", MOVES, movement.evaluate_flatten, named.flatten, hands_on=True),
    Operator("FlexAttention", COMPOSES, sums="attention"),
    _of_one("Floor", ROUNDS, np.floor, to_integers=True),
    Operator("GRU", COMPOSES, recurrent.evaluate_gru, witnessed=True, sums="recurrent", texts=DIRECTION),
    Operator("Gather", MOVES, movement.evaluate_gather, named.gather, of_sizes=True),
    Operator(
        "GatherElements",
        MOVES,
        movement.evaluate_gather_elements,
        lambda o: o("gather", o.t(0), int(o.attributes.get("axis", 0)), o.t(1)),
    ),
    Operator("GatherND", MOVES, movement.evaluate_gather_nd, named.gather_nd),
    Operator(
        "Gelu",
        ACTIVATES,
        elementwise.evaluate_gelu,
        named.gelu,
        witnessed=True,
        elementwise=1,
        variants={"tanh": {"approximate": "tanh"}},
        texts={"approximate": ("none", "tanh")},
    ),
    Operator("Gemm", CONTRACTS, since(7, reductions.evaluate_gemm), named.gemm, witnessed=True, sums="layer", added=2),
    Operator(
        "GlobalAveragePool", REDUCES, pooling.evaluate_global_average_pool, named.over_image("mean"), witnessed=True
    ),
    Operator("GlobalLpPool", UNPLACED, since(2, pooling.evaluate_global_lp_pool)),
    Operator("GlobalMaxPool", SELECTS, pooling.evaluate_global_max_pool, named.over_image("amax")),
    _of_two("Greater", SELECTS, np.greater, named.two("gt")),
    _of_two("GreaterOrEqual", SELECTS, np.greater_equal, named.two("ge")),
    Operator(
        "GridSample",
        SAMPLES,
        texts=dict(padding_mode=("zeros", "border", "reflection"), mode=("linear", "nearest", "cubic")),
    ),
    Operator("GroupNormalization", NORMALISES, normalising.evaluate_group_normalization),
    Operator("HammingWindow", COMPOSES, elementwise.make_cosine_window(25 / 46, 21 / 46)),
    Operator("HannWindow", COMPOSES, elementwise.make_cosine_window(0.5, 0.5)),
    Operator(
        "HardSigmoid",
        ACTIVATES,
        elementwise.evaluate_hard_sigmoid,
        named.hard_sigmoid,
        witnessed=True,
        elementwise=1,
        open_at_nan=True,
    ),
    Operator(
        "HardSwish",
        ACTIVATES,
        elementwise.evaluate_hard_swish,
        named.one("nn.functional.hardswish"),
        witnessed=True,
        elementwise=1,
        open_at_nan=True,
    ),
    Operator("Hardmax", SELECTS, reductions.evaluate_hardmax),
    _of_one("Identity", MOVES, np.asarray, lambda o: o.t(0), hands_on=True, of_sizes=True),
    Operator("If", MOVES, acts="control"),
    Operator("ImageDecoder", COMPOSES),
    Operator(
        "InstanceNormalization",
        NORMALISES,
        normalising.evaluate_instance_normalization,
        lambda o: o("nn.functional.instance_norm", o.t(0), None, None, o.t(1), o.t(2), eps=named.epsilon(o)),
        witnessed=True,
    ),
    Operator(
        "IsInf", SELECTS, elementwise.evaluate_is_inf, elementwise=1, variants={"negative": {"detect_positive": 0}}
    ),
    _of_one("IsNaN", SELECTS, np.isnan, named.one("isnan")),
    Operator("LRN", NORMALISES, normalising.evaluate_lrn),
    Operator("LSTM", COMPOSES, recurrent.evaluate_lstm, witnessed=True, sums="recurrent", texts=DIRECTION),
    Operator("LabelEncoder", SELECTS),
    Operator(
        "LayerNormalization", NORMALISES, normalising.evaluate_layer_normalization, named.layer_norm, witnessed=True
    ),
    Operator(
        "LeakyRelu",
        ROUNDED,
        elementwise.evaluate_leaky_relu,
        lambda o: o("nn.functional.leaky_relu", o.t(0), float(o.attributes.get("alpha", np.float32(0.01)))),
        elementwise=1,
    ),
    _of_two("Less", SELECTS, np.less, named.two("lt")),
    _of_two("LessOrEqual", SELECTS, np.less_equal, named.two("le")),
    Operator("LinearAttention", COMPOSES, sums="attention"),
    _of_one("Log", TABULATED, np.log, named.one("log")),
    Operator("LogSoftmax", NORMALISES, normalising.evaluate_log_softmax, named.along("log_softmax"), witnessed=True),
    Operator("Loop", MOVES, acts="control"),
    Operator("LpNormalization", NORMALISES, normalising.evaluate_lp_normalization),
    Operator("LpPool", REDUCES, since(2, pooling.evaluate_lp_pool), texts=AUTO_PAD),
    Operator("MatMul", CONTRACTS, reductions.evaluate_matmul, named.two("matmul"), witnessed=True, sums="layer"),
    Operator("MatMulInteger", BITS, reductions.evaluate_matmul_integer),
    Operator(
        "Max",
        SELECTS,
        elementwise.make_fold(np.maximum),
        named.many("maximum"),
        of_sizes=True,
        elementwise=2,
        open_at_nan=True,
    ),
    Operator("MaxPool", SELECTS, pooling.evaluate_max_pool, named.max_pool, witnessed=True, texts=AUTO_PAD),
    Operator("MaxUnpool", MOVES),
    Operator("Mean", REDUCES, lambda call: [sum(call.arrays()[1:], call.arrays()[0]) / len(call.arrays())]),
    Operator("MeanVarianceNormalization", NORMALISES, normalising.evaluate_mean_variance_normalization),
    Operator("MelWeightMatrix", COMPOSES),
    Operator(
        "Min",
        SELECTS,
        elementwise.make_fold(np.minimum),
        named.many("minimum"),
        of_sizes=True,
        elementwise=2,
        open_at_nan=True,
    ),
    Operator("Mish", ACTIVATES, elementwise.evaluate_mish, elementwise=1),
    Operator(
        "Mod", STEPS, elementwise.evaluate_modulo, of_sizes=True, elementwise=2, defined=integers.avoid_zero_divisors
    ),
    Operator("Momentum", COMPOSES),
    _of_two(
        "Mul",
        ROUNDED,
        np.multiply,
        lambda o: o.t(0) * o.t(1),
        of_sizes=True,
        defined=integers.keep_range(np.multiply, 1),
    ),
    Operator("Multinomial", DRAWS),
    _of_one("Neg", BITS, np.negative, lambda o: -o.t(0), of_sizes=True, defined=integers.avoid_least),
    Operator("NegativeLogLikelihoodLoss", LOSES, reductions.make_loss, texts=OF_LOSS),
    Operator("NonMaxSuppression", STEPS, structural=range(2, 5)),
    Operator("NonZero", SELECTS, movement.evaluate_non_zero),
    Operator("Not", SELECTS, elementwise.of_one(np.logical_not)),
    Operator("OneHot", MOVES, movement.evaluate_one_hot, structural=range(1, 3), not_zero=(1,)),
    Operator("OptionalGetElement", MOVES),
    Operator("OptionalHasElement", MOVES),
    Operator("Or", SELECTS, since(7, elementwise.of_two(np.logical_or))),
    Operator("PRelu", ROUNDED, since(7, elementwise.evaluate_prelu), named.p_relu),
    Operator(
        "Pad",
        MOVES,
        since(11, movement.evaluate_pad),
        named.pad,
        structural=range(1, 4),
        texts=dict(mode=("constant", "edge", "reflect", "wrap")),
    ),
    Operator(
        "Pow",
        TABULATED,
        since(7, elementwise.evaluate_power),
        lambda o: o.t(0) * o.t(0) if named.is_two(o) else o("pow", o.t(0), o.t(1)),
        structural=(1,),
        elementwise=2,
        defined=integers.avoid_negative_exponents,
        refused=("bfloat16",),
    ),
    Operator("QLinearConv", STEPS, not_zero=(1, 4, 6), texts=AUTO_PAD),
    Operator("QLinearMatMul", STEPS, not_zero=(1, 4, 6)),
    Operator("QuantizeLinear", STEPS, quantizing.evaluate_quantize_linear, structural=range(1, 3), not_zero=(1,)),
    Operator("RMSNormalization", NORMALISES, normalising.evaluate_rms_normalization),
    Operator("RNN", COMPOSES, recurrent.evaluate_rnn, sums="recurrent", texts=DIRECTION),
    Operator("RandomNormal", DRAWS),
    Operator("RandomNormalLike", DRAWS),
    Operator("RandomUniform", DRAWS),
    Operator("RandomUniformLike", DRAWS),
    Operator(
        "Range",
        ROUNDED,
        movement.evaluate_range,
        structural=range(0, 3),
        not_zero=(2,),
        to_integers=True,
        of_sizes=True,
    ),
    _of_one("Reciprocal", TABULATED, lambda x: 1.0 / x, named.one("reciprocal")),
    Operator("ReduceL1", REDUCES, reductions.make_reduction(lambda x, a, k: np.abs(x).sum(axis=a, keepdims=k))),
    Operator(
        "ReduceL2", REDUCES, reductions.make_reduction(lambda x, a, k: np.sqrt(np.square(x).sum(axis=a, keepdims=k)))
    ),
    Operator("ReduceLogSum", REDUCES, reductions.make_reduction(lambda x, a, k: np.log(x.sum(axis=a, keepdims=k)))),
    Operator("ReduceLogSumExp", REDUCES, reductions.make_reduction(formulas.compute_log_sum_exp)),
    Operator(
        "ReduceMax",
        SELECTS,
        reductions.make_reduction(reductions.make_extreme(True)),
        named.make_reduction("amax"),
        of_sizes=True,
    ),
    Operator(
        "ReduceMean",
        REDUCES,
        reductions.make_reduction(lambda x, a, k: x.mean(axis=a, keepdims=k)),
        named.make_reduction("mean"),
        witnessed=True,
    ),
    Operator(
        "ReduceMin",
        SELECTS,
        reductions.make_reduction(reductions.make_extreme(False)),
        named.make_reduction("amin"),
        of_sizes=True,
    ),
    Operator(
        "ReduceProd", REDUCES, reductions.make_reduction(lambda x, a, k: x.prod(axis=a, keepdims=k)), of_sizes=True
    ),
    Operator(
        "ReduceSum",
        REDUCES,
        reductions.make_reduction(lambda x, a, k: x.sum(axis=a, keepdims=k)),
        named.make_reduction("sum"),
        witnessed=True,
        of_sizes=True,
    ),
    Operator(
        "ReduceSumSquare", REDUCES, reductions.make_reduction(lambda x, a, k: np.square(x).sum(axis=a, keepdims=k))
    ),
    Operator("RegexFullMatch", SELECTS),
    _of_one(
        "Relu",
        SELECTS,
        lambda x: np.maximum(x, np.zeros((), x.dtype)),
        named.one("nn.functional.relu"),
        open_at_nan=True,
    ),
    Operator(
        "Reshape",
        MOVES,
        since(5, movement.evaluate_reshape),
        named.reshape,
        structural=(1,),
        hands_on=True,
        of_sizes=True,
    ),
    Operator(
        "Resize",
        RESAMPLES,
        by_name=named.resize,
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
    Operator("ReverseSequence", MOVES, movement.evaluate_reverse_sequence),
    Operator("RoiAlign", COMPOSES, texts=dict(coordinate_transformation_mode=COORDINATES, mode=("avg", "max"))),
    Operator("RotaryEmbedding", COMPOSES),
    _of_one("Round", ROUNDS, np.rint, to_integers=True),
    Operator("STFT", CONTRACTS, not_zero=(1, 3), sums="transform"),
    Operator("Scan", COMPOSES, acts="control"),
    Operator("Scatter", MOVES),
    Operator("ScatterElements", REDUCES, movement.evaluate_scatter_elements, texts=OF_SCATTER),
    Operator("ScatterND", REDUCES, movement.evaluate_scatter_nd, of_sizes=True, texts=OF_SCATTER),
    Operator("Selu", ACTIVATES, since(6, elementwise.evaluate_selu), elementwise=1),
    Operator("SequenceInsert", MOVES),
    Operator("SequenceMap", COMPOSES),
    Operator("Shape", MOVES, movement.evaluate_shape, acts="size"),
    Operator("Shrink", COMPOSES, elementwise.evaluate_shrink, elementwise=1),
    _of_one("Sigmoid", DERIVED, formulas.compute_sigmoid, named.one("sigmoid"), witnessed=True),
    _of_one("Sign", SELECTS, np.sign, open_at_nan=True),
    _of_one("Sin", TABULATED, np.sin),
    _of_one("Sinh", TABULATED, np.sinh),
    Operator("Size", MOVES, lambda call: [np.asarray(np.asarray(call.inputs[0]).size, np.int64)], acts="size"),
    Operator(
        "Slice",
        MOVES,
        since(10, movement.evaluate_slice),
        named.slice_,
        structural=range(1, 5),
        not_zero=(4,),
        of_sizes=True,
    ),
    Operator("Softmax", NORMALISES, normalising.evaluate_softmax, named.along("softmax"), witnessed=True),
    Operator("SoftmaxCrossEntropyLoss", LOSES, reductions.make_loss, texts=OF_LOSS),
    _of_one("Softplus", ACTIVATES, formulas.compute_softplus, named.one("nn.functional.softplus"), witnessed=True),
    _of_one("Softsign", DERIVED, lambda x: x / (1.0 + np.abs(x))),
    Operator("SpaceToDepth", MOVES, movement.evaluate_space_to_depth),
    Operator("Split", MOVES, since(13, movement.evaluate_split), named.split),
    Operator("SplitToSequence", MOVES),
    _of_one("Sqrt", TABULATED, np.sqrt, named.one("sqrt")),
    Operator("Squeeze", MOVES, movement.evaluate_squeeze, named.squeeze, hands_on=True, of_sizes=True),
    Operator("StringConcat", SELECTS),
    Operator("StringNormalizer", SELECTS),
    Operator("StringSplit", SELECTS),
    _of_two(
        "Sub",
        ROUNDED,
        np.subtract,
        lambda o: o.t(0) - o.t(1),
        of_sizes=True,
        defined=integers.keep_range(np.subtract, 0),
    ),
    Operator("Sum", REDUCES, elementwise.make_fold(np.add)),
    Operator("SwiGLU", ACTIVATES),
    Operator("Swish", ACTIVATES),
    _of_one("Tan", TABULATED, np.tan),
    _of_one("Tanh", TABULATED, np.tanh, named.one("tanh"), witnessed=True),
    Operator("TensorScatter", MOVES),
    Operator("TfIdfVectorizer", REDUCES),
    Operator("ThresholdedRelu", SELECTS, elementwise.evaluate_thresholded_relu, elementwise=1, open_at_nan=True),
    Operator(
        "Tile",
        MOVES,
        since(6, movement.evaluate_tile),
        lambda o: o("tile", o.t(0), tuple(o.numbers(1) or ())),
        structural=(1,),
        not_zero=(1,),
    ),
    Operator("TopK", FIRST, since(10, movement.evaluate_top_k), named.top_k, structural=(1,), not_zero=(1,)),
    Operator(
        "Transpose",
        MOVES,
        movement.evaluate_transpose,
        lambda o: o("permute", o.t(0), tuple(o.attributes.get("perm") or reversed(range(len(o.inputs[0].shape))))),
        hands_on=True,
    ),
    Operator("TreeEnsemble", REDUCES),
    Operator("Trilu", MOVES, movement.evaluate_trilu),
    Operator("Unique", SELECTS),
    Operator("Unsqueeze", MOVES, movement.evaluate_unsqueeze, named.unsqueeze, hands_on=True, of_sizes=True),
    Operator("Upsample", RESAMPLES, structural=(1,), not_zero=(1,)),
    Operator("Where", MOVES, elementwise.evaluate_where, lambda o: o("where", o.t(1), o.t(0), o.t(2))),
    Operator("Xor", SELECTS, since(7, elementwise.of_two(np.logical_xor))),
)


def index_rows(rows: Sequence[Operator]) -> dict[str, Operator]:
    """By name. Raises ValueError for an operator that has two rows."""
    found = {row.name: row for row in rows}
    for row in rows:
        if found[row.name] is not row:
            raise ValueError(f"tasks.operators.table: {row.name} has two rows")
    return found


#: By name.
TABLE: Mapping[str, Operator] = index_rows(ROWS)
#: The operators that have a float64 evaluation of the farm's own.
EVALUATED: dict[str, Evaluate] = {row.name: row.evaluate for row in ROWS if row.evaluate}
#: Those that are told by torch's names.
NAMED: dict[str, Counterpart] = {row.name: row.by_name for row in ROWS if row.by_name}


@functools.lru_cache(maxsize=4096)
def of(name: str) -> Operator:
    """The row of an operator; of one that has none, or is another domain's, a row of defaults."""
    return TABLE.get(name) or Operator(name)
