"""A model with every narrow float in it turned into float64, run by onnx's own evaluator."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from tasks.graphs.widening import NoOracle, widen_graph


class Widened:
    """A model with every float32, float16 and bfloat16 in it turned into float64."""

    def __init__(self, model: Any) -> None:
        """Raises NoOracle for a model that onnx's evaluator does not take."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        wide = onnx.ModelProto()
        wide.CopyFrom(model)
        widen_graph(wide.graph)
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
