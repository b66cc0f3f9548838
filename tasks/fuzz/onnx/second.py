"""A second opinion on a generated case: the same outputs by onnx's own evaluator, or by torch, in float64.

It speaks where it agrees with the farm's own reference, and is silent where it does not: onnx's evaluator is at fault often
enough (`AT_FAULT`), so that its word alone makes no reference suspect; runtimes decide then (`farm.policies.vote`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.counterparts import by_torch
from tasks.fuzz.onnx.generate import Generated
from tasks.graphs.evaluate import Graph
from tasks.graphs.widening import NoOracle
from tasks.judge.prepared import compare_oracles
from tasks.model import Leaf, OpClass, Oracle

_STASH = (
    "Depending on `stash_type` attribute, the actual computation must happen in different floating-point precision."
)
#: Where onnx's evaluator (1.23) and the farm's reference disagree, or it refuses a valid case: operator → what it does, and the
#: sentence of the operator's text by which the farm's reference is right. tests/tasks/test_fuzz_references.py holds both
#: against each other: what is not here agrees.
AT_FAULT: dict[str, tuple[str, str]] = {
    "DequantizeLinear": (
        "has none before operator set 19",
        "The dequantization formula is `y = (x - x_zero_point) * x_scale`.",
    ),
    "Erf": ("rounds float64 to float32", "Computes the error function of the given input tensor element-wise."),
    "GatherElements": (
        "rejects indices smaller than the data outside the axis",
        "Its output shape is the same as the shape of `indices` and consists of one value (gathered from the `data`) for each "
        "element in `indices`.",
    ),
    "Gelu": ("rounds erf and constants of float64 to float32", "$y = 0.5 * x * (1 + erf(x/sqrt(2)))$"),
    "GlobalLpPool": ("has none", "applies lp pool pooling across the values in the same channel"),
    "GlobalMaxPool": (
        "reduces axes other than the spatial ones of a non-image",
        "applies max pooling across the values in the same channel",
    ),
    "HardSwish": ("rounds alpha to float32 in float64", "where alpha = 1/6 and beta = 0.5"),
    "LRN": (
        "reads beyond the last channel, and takes attributes of float32 to the end of float64",
        "max(0, c - floor((size - 1) / 2)) <= i <= min(C - 1, c + ceil((size - 1) / 2))",
    ),
    "LayerNormalization": ("has only stash_type 1", _STASH),
    "LogSoftmax": (
        "takes the logarithm of a softmax underflowed to 0",
        "LogSoftmax(input, axis) = Log(Softmax(input, axis=axis))",
    ),
    "LpNormalization": ("sums signed elements for p = 1", "output = input / Lp_norm(input, axis)"),
    "LpPool": (
        "rejects dilated kernels that exceed SAME pads",
        "SAME_UPPER or SAME_LOWER: output_spatial_shape[i] = ceil(input_spatial_shape[i] / strides_spatial_shape[i])",
    ),
    "MeanVarianceNormalization": (
        "adds a float32 constant of the body to float64",
        "Perform mean variance normalization on the input tensor X",
    ),
    "OneHot": ("rejects a scalar depth", "Scalar or Rank 1 tensor containing exactly one element"),
    "Pad": ("rejects pads below 0", "the number of padding elements to add or remove (if negative)"),
    "RMSNormalization": ("has only stash_type 1", _STASH),
    "ReduceSumSquare": (
        "returns another dtype for small integers",
        "Computes the sum square of the input tensor's elements along the provided axes.",
    ),
    "Shape": (
        "wraps an end before the first axis a second time",
        "axes will be clamped to the range [0, r], where r is the rank of the input tensor if they are out-of-range",
    ),
    "Softsign": ("rejects scalars", "Calculates the softsign (x/(1+|x|)) of the given input tensor element-wise."),
}
#: What onnx's evaluator does element by element in Python: torch does it in its place.
_BY_TORCH = ("AveragePool", "Conv", "ConvTranspose", "MaxPool")
#: Output elements up to which onnx's evaluator is asked.
_MOST = 1 << 14
#: Error units within which two evaluations in float64 agree.
_AGREE = 4.0


def witness(one: Generated, model: bytes, expected: Sequence[Leaf], op_class: OpClass) -> list[Oracle]:
    """The second oracle of a case, if there is one and it agrees."""
    if sum(int(np.prod(leaf.shape)) for leaf in expected) > _MOST:
        return []
    name, found = (
        ("torch-operators-float64", _torch(one)) if one.op in _BY_TORCH else ("onnx-float64", _onnx(one, model))
    )
    return [] if found is None else agrees(name, found, expected, op_class)


def agrees(name: str, found: Sequence[np.ndarray], expected: Sequence[Leaf], op_class: OpClass) -> list[Oracle]:
    """The outputs of a second oracle, if they are those that are expected."""
    if len(found) != len(expected):
        return []
    made = []
    for y, leaf in zip(found, expected):
        assert leaf.reference is not None
        y = np.asarray(y)
        if y.dtype != leaf.reference.dtype or y.shape != leaf.reference.shape:
            return []
        made.append(np.array(y, order="C"))
    return [Oracle(name, made)] if compare_oracles(made, expected, op_class)["units"] <= _AGREE else []


def _torch(one: Generated) -> list[np.ndarray] | None:
    try:
        operator = by_torch.alone(one.op)
        with np.errstate(all="ignore"):
            return operator(one.call([None if x is None else x.array for x in one.made.inputs]))
    except (ImportError, RuntimeError, NoOracle):
        return None


def _onnx(one: Generated, model: bytes) -> list[np.ndarray] | None:
    import onnx

    try:
        graph = Graph(onnx.load_from_string(model), {})
        found = graph.run(dict(zip(graph.inputs, one.inputs)))
    except NoOracle:
        return None
    return [found[name] for name in graph.outputs]
