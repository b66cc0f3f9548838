"""The float64 oracle of the ONNX node suite: a case's model widened to double and run by onnx's own evaluator."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.catalogs.base import Sample
from tasks.model import EPS, Leaf, OpClass, Oracle, np_dtype, wide

#: Attributes that name the dtype something is computed or returned in.
_DTYPE_ATTRIBUTES = ("to", "dtype", "output_datatype", "stash_type", "softmax_precision", "output_dtype")

#: What may be widened; the low-bit floats may not: their rounding is what their cases are about.
_NARROW = ("float32", "float16", "bfloat16")
WIDENED = (*_NARROW, "float64")


#: Output elements beyond which a case is left to its stored output: onnx pools in a Python loop (3 cases, 60 % of the time).
LARGEST_OUTPUT = 20_000


class NoOracle(Exception):
    """The model has no float64 evaluation; the text says why."""


#: Recurrent ops: gates and states lie in [-1, 1] and are rounded there, so 1 - z of a saturated gate z is off by ε.
RECURRENT = ("GRU", "LSTM", "RNN")

#: Fourier transforms: their error is a share of the largest output (Higham, Accuracy and Stability of Numerical
#: Algorithms, 2nd ed., theorem 24.2: about log2(n) ε in the 2-norm), so an output that cancels to zero has none of its own.
TRANSFORMS = ("DFT", "STFT")


def judge_by(sample: Sample, case: Any, inputs: list[Any], draws: int) -> None:
    """Make the float64 evaluation a sample's first oracle, with a noise floor, and the stored output its second.

    Nothing is changed for a sample whose stored output is exact, is not compared, has no floating output or is large.
    Raises NoOracle where the evaluator does not take the widened model or returns anything but float64.
    """
    stored = sample.expected
    if sample.op_class in (OpClass.EXACT, OpClass.RANDOM, OpClass.UNINITIALISED) or sample.definition:
        return
    if (
        not any(leaf.dtype in WIDENED for leaf in stored)
        or max(np.prod(leaf.shape) for leaf in stored) > LARGEST_OUTPUT
    ):
        return
    widened = Widened(case.model)
    exact = widened.run([widen(x) for x in inputs])
    references = [_like(y, leaf) for y, leaf in zip(exact, stored, strict=True)]
    noise_floor = _noise(widened, case, inputs, stored, references, sample.op_class, draws)
    sample.expected = [replace(leaf, reference=y, noise=d) for leaf, y, d in zip(stored, references, noise_floor)]
    sample.oracle = "float64"
    sample.others.append(
        Oracle("stored", [leaf.reference for leaf in stored if leaf.reference is not None], rounded=True)
    )


def _like(y: Any, leaf: Leaf) -> np.ndarray:
    array = np.asarray(y)
    dtype = np_dtype(wide(leaf.dtype))
    if array.dtype != dtype or array.shape != leaf.shape:
        raise NoOracle(f"returns {array.dtype} of shape {array.shape} for {dtype} of shape {leaf.shape}")
    return np.array(array, order="C")


def _noise(
    widened: Widened,
    case: Any,
    inputs: list[Any],
    stored: list[Leaf],
    references: list[np.ndarray],
    op_class: OpClass,
    draws: int,
) -> list[np.ndarray | None]:
    """δ per output (`tasks.arrays.noise`), the stored outputs being what somebody computed in the dtype under test.

    Where moving all inputs changes a shape or is refused (the scales of a Resize), only the first floating one is moved.
    It is at least ε of the largest element in TRANSFORMS and where there is no input to be moved, ε in RECURRENT.
    """
    kinds = {node.op_type for node in case.model.graph.node}
    places = [k for k, x in enumerate(inputs) if _floats(x)]
    elements = sum(x.size for value in inputs for x in (value if isinstance(value, list) else [value]) if x is not None)
    witness = [None if leaf.reference is None else (leaf.reference, EPS.get(leaf.dtype, 0.0)) for leaf in stored]
    floor: list[np.ndarray | None] = [np.full(y.shape, np.inf) if places else None for y in references]
    for movable in (places, places[:1]) if places else ():
        evaluate = functools.partial(_moved, widened, inputs, references, movable)
        try:
            floor = noise.floor(references, evaluate, op_class, draws, elements, witness)
            break
        except NoOracle:
            pass
    found = [np.zeros(y.shape) if d is None else d for d, y in zip(floor, references)]
    for d, y, leaf in zip(found, references, stored):
        if leaf.dtype in WIDENED and kinds.intersection(RECURRENT):
            np.maximum(d, EPS[leaf.dtype], out=d)
        elif leaf.dtype in WIDENED and (kinds.intersection(TRANSFORMS) or not places):
            size = np.abs(y)
            np.maximum(d, EPS[leaf.dtype] * size.max(initial=0.0, where=np.isfinite(size)), out=d)
    return [d if d.any() else None for d in found]


def _floats(value: Any) -> bool:
    if isinstance(value, list):
        return any(_floats(x) for x in value)
    return isinstance(value, np.ndarray) and value.dtype.name in WIDENED


def _moved(
    widened: Widened, inputs: list[Any], references: list[np.ndarray], movable: list[int], draws: Sequence[int]
) -> Iterator[list[np.ndarray]]:
    """The outputs for the inputs of each draw. Raises NoOracle where one is refused or changes a shape."""
    for draw in draws:
        places = itertools.count(1)

        def move(x: np.ndarray, eps: float, draw: int = draw, places: Iterator[int] = places) -> np.ndarray:
            return noise.moved(x, eps, draw, next(places))

        outputs = [
            np.asarray(y) for y in widened.run([widen(x, move if k in movable else None) for k, x in enumerate(inputs)])
        ]
        if [y.shape for y in outputs] != [y.shape for y in references]:
            raise NoOracle("the shape of an output depends on the values of the inputs")
        yield outputs


class Widened:
    """A model with every float32, float16 and bfloat16 in it turned into float64."""

    def __init__(self, model: Any) -> None:
        """Raises NoOracle for a model that onnx's evaluator does not take."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        wide = onnx.ModelProto()
        wide.CopyFrom(model)
        _widen_graph(wide.graph)
        self.names = [x.name for x in model.graph.input]
        try:
            self._evaluator = ReferenceEvaluator(wide)
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None

    def run(self, inputs: list[Any]) -> list[Any]:
        """Outputs, flat, of inputs that `widen` widened. Raises NoOracle."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = self._evaluator.run(None, {k: v for k, v in zip(self.names, inputs) if v is not None})
        except Exception as error:
            raise NoOracle(f"{type(error).__name__}: {error}") from None
        return [y for x in found for y in (x if isinstance(x, (list, tuple)) else [x])]


def widen(value: Any, move: Callable[[np.ndarray, float], np.ndarray] | None = None) -> Any:
    """float64 twin of an array (or list of them) of a narrow dtype, as ``move`` moves it by ε; anything else as it is."""
    if isinstance(value, list):
        return [widen(x, move) for x in value]
    if not isinstance(value, np.ndarray) or value.dtype.name not in WIDENED:
        return value
    wide = value.astype(np.float64)
    return wide if move is None else move(wide, EPS[value.dtype.name])


def _widen_graph(graph: Any) -> None:
    import onnx
    from onnx import numpy_helper

    narrow = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)

    def tensor(proto: Any) -> None:
        if proto.data_type in narrow:
            array = np.asarray(numpy_helper.to_array(proto)).astype(np.float64)
            proto.CopyFrom(numpy_helper.from_array(array, proto.name))

    for proto in graph.initializer:
        tensor(proto)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type in narrow:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _widen_graph(attribute.g)
            if attribute.HasField("t"):
                tensor(attribute.t)
            if attribute.name in _DTYPE_ATTRIBUTES and attribute.i in narrow:
                attribute.i = onnx.TensorProto.DOUBLE
            if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
                values = np.asarray(
                    attribute.f if attribute.name == "value_float" else list(attribute.floats), np.float64
                )
                attribute.CopyFrom(onnx.helper.make_attribute("value", numpy_helper.from_array(values)))
