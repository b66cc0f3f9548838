"""A graph of ONNX operators while it grows: every tensor's shape, dtype and exact values are known, so each step is valid."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.draw.choices import DrawnChoices
from tasks.fuzz import values
from tasks.fuzz.onnx.spec import ELEMENTS, SpecDraw, does_operator_take
from tasks.fuzz.values import ValueDomain
from tasks.graphs.widening import WIDENED, NoOracle, widen_model_value
from tasks.model.dtypes import get_numpy_dtype, name_numpy_dtype
from tasks.operators.call import OperatorCall
from tasks.operators.table import EVALUATED

#: Largest number that a node may make, by dtype: what follows is to stay far from overflow.
_MOST = {"float16": 256.0}
_LARGEST = 4096.0


class Refused(Exception):
    """A step that does not go with the tensors that there are; the text says why."""


@dataclass(frozen=True, eq=False)
class GrownTensor:
    """value: exact, floats as float64; dtype: as the model has it; source: the operator that makes it, "" for an
    input."""

    name: str
    dtype: str
    value: np.ndarray
    source: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def rank(self) -> int:
        return self.value.ndim


@dataclass(frozen=True)
class GrownStep:
    """A node: operator, names of inputs ("" for one left out) and outputs, attributes."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict)


class GrownGraph(SpecDraw):
    """The choices of one graph and what has grown so far.

    feeds: arrays of the graph's inputs, weights: of its initializers, both by name; tensors: these; made: what nodes
    gave, in order; fed: whether weights are inputs of the graph; words: modes, attributes, edges, for people and for
    telling findings apart.
    """

    def __init__(self, choose: DrawnChoices, dtype: str, opset: int, fed: bool) -> None:
        super().__init__(choose, dtype, opset)
        self.fed = fed
        self.feeds: dict[str, np.ndarray] = {}
        self.weights: dict[str, np.ndarray] = {}
        self.steps: list[GrownStep] = []
        self.made: list[GrownTensor] = []
        self.words: list[str] = []
        self.tensors: dict[str, GrownTensor] = {}

    def input(self, shape: Sequence[int], domain: ValueDomain = values.MILD, dtype: str = "") -> GrownTensor:
        """An input of the graph with values of its own."""
        return self._add_array(self.feeds, "x", self.tensor(shape, domain, dtype=dtype).array)

    def weight(self, shape: Sequence[int], domain: ValueDomain = values.MILD, dtype: str = "") -> GrownTensor:
        """An initializer, or an input of the graph, as the case has it."""
        store = self.feeds if self.fed else self.weights
        return self._add_array(store, "w", self.tensor(shape, domain, dtype=dtype).array)

    def constant(self, array: Any) -> GrownTensor:
        """An initializer of these values: what says what is computed."""
        return self._add_array(self.weights, "c", np.asarray(array))

    def number(self, value: float, like: GrownTensor) -> GrownTensor:
        """A scalar initializer of the dtype of a tensor."""
        return self.constant(np.asarray(value, get_numpy_dtype(like.dtype)))

    def ints(self, numbers: Sequence[int]) -> GrownTensor:
        """An initializer of int64: axes, sizes, pads."""
        return self.constant(np.asarray(numbers, np.int64))

    def _add_array(self, store: dict[str, np.ndarray], letter: str, array: np.ndarray) -> GrownTensor:
        name = f"{letter}{len(self.feeds) + len(self.weights)}"
        store[name] = np.array(array, order="C")
        self.tensors[name] = GrownTensor(name, name_numpy_dtype(array.dtype), widen_model_value(store[name]))
        return self.tensors[name]

    def add(
        self, op: str, inputs: Sequence[GrownTensor | None], outputs: int = 1, dtype: str = "", **attributes: Any
    ) -> list[GrownTensor]:
        """A node; what it makes is of the dtype of its first input, or of another. Raises Refused where its exact
        result is not finite, too large, or not defined."""
        for place, x in enumerate(inputs):
            if x is not None and not does_operator_take(op, self.opset, x.dtype, place):
                raise Refused(f"{op} takes no {x.dtype} in operator set {self.opset}")
        given = [None if x is None else x.value for x in inputs]
        exact = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in attributes.items()}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = EVALUATED[op](OperatorCall(given, exact, self.opset, outputs))
        except NoOracle as error:
            raise Refused(f"{op}: {error}") from None
        if found is None:
            raise Refused(f"{op} has no reference for {attributes}")
        assert inputs[0] is not None
        kind = dtype or inputs[0].dtype
        for y in found:
            self._check(op, np.asarray(widen_model_value(y)), kind)
        names = tuple(f"y{len(self.made) + k}" for k in range(outputs))
        new = [GrownTensor(name, kind, np.array(widen_model_value(y), order="C"), op) for name, y in zip(names, found)]
        self.steps.append(GrownStep(op, tuple("" if x is None else x.name for x in inputs), names, attributes))
        self.made += new
        self._tell(op, inputs, attributes)
        return new

    @staticmethod
    def _check(op: str, y: np.ndarray, dtype: str) -> None:
        if not 0 < y.size <= 2 * ELEMENTS:
            raise Refused(f"{op} makes {y.size} elements")
        if dtype in WIDENED and not np.abs(y).max() <= _MOST.get(dtype, _LARGEST):
            raise Refused(f"{op} makes numbers that are too large")

    def _tell(self, op: str, inputs: Sequence[GrownTensor | None], attributes: dict[str, Any]) -> None:
        self.words += [f"{x.source}>{op}" for x in inputs if x is not None and x.source]
        for name, value in sorted(attributes.items()):
            shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            self.words.append(f"{op}.{name}={shown}")

    def find_read_tensors(self) -> set[str]:
        """Names of the tensors that some node reads."""
        return {name for step in self.steps for name in step.inputs}
