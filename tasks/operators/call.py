"""One call of an ONNX operator in float64: what an evaluation of `tasks.operators.table` is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: What may be widened; the low-bit floats may not: their rounding is what their cases are about.
NARROW = ("float32", "float16", "bfloat16")


class NoOracle(Exception):
    """A model or a node has no float64 evaluation; the text says why."""


@dataclass(frozen=True)
class OperatorCall:
    """inputs: by place, None for one that is left out, floats as float64; attributes: those that the node gives, by
    name, as Python values; opset: version of the operator's set; outputs: how many outputs the node names."""

    inputs: Sequence[Any]
    attributes: Mapping[str, Any]
    opset: int
    outputs: int

    @property
    def epsilon(self) -> float:
        """What a normalisation adds to the variance: its attribute, or ONNX's default, a float32."""
        return float(self.attributes.get("epsilon", np.float32(1e-5)))

    def arrays(self) -> list[np.ndarray]:
        """The inputs that are given."""
        return [np.asarray(x) for x in self.inputs if x is not None]

    def at(self, place: int) -> Any:
        """The input at a place, None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def three(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Two inputs and a third that may be left out."""
        return np.asarray(self.inputs[0]), np.asarray(self.inputs[1]), self.at(2)


#: Outputs of a call in the node's order; None where onnx's own evaluator is to do it.
Evaluate = Callable[[OperatorCall], "list[np.ndarray] | None"]


def change_since_opset(version: int, operator: Evaluate) -> Evaluate:
    """An operator as it is from an operator set on: before, it said the same by attributes, or did not broadcast."""
    return lambda call: operator(call) if call.opset >= version else None
