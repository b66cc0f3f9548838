"""A model whose products take rounded weights, as a runtime rounds them that computes in TF32 or bfloat16.

The weights alone: every runtime rounds them alike, while the roundings of what is computed hang on its order of sums,
and are others in each. So the part of the error that the weights make is a fingerprint of the precision.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.graphs import moved_tensors
from tasks.graphs.evaluate_graph import EvaluatedGraph, GraphRun, Move, Values
from tasks.graphs.graph_nodes import GraphNode
from tasks.graphs.products import Change
from tasks.graphs.widening import NoOracle
from tasks.model import EPS, LARGEST, OpClass, round_to_dtype
from tasks.model.dtypes import round_to_digits


def round_product_weights(graph: EvaluatedGraph, feeds: Mapping[str, Any], precision: str) -> list[np.ndarray]:
    """The outputs of a graph in order, in float64, the weights of its products rounded to ``precision``.

    Raises NoOracle as `Graph.run` does.
    """
    weights = list_product_weights(graph)
    found = graph.run(feeds, move=lambda name, x, eps: round_coarse_factor(x, precision) if name in weights else x)
    return [np.asarray(found[name], order="C") for name in graph.outputs]


def evaluate_in_precision(model: bytes, inputs: Sequence[Any], precision: str) -> Iterator[list[np.ndarray]]:
    """The outputs of an ONNX model in float64 where all that floats is rounded to ``precision`` first, inputs, weights
    and what nodes make: numbers beyond its range to Inf, then to its largest number.

    Nothing where onnx is missing, a node has no float64 evaluation, or the precision has the range of float32 (TF32).
    """
    try:
        import onnx
    except ImportError:
        return
    if precision not in LARGEST:
        return
    with contextlib.suppress(NoOracle, KeyError, ValueError):
        graph = EvaluatedGraph(onnx.load_from_string(model))
        for most in (np.inf, LARGEST[precision]):
            found = graph.run(dict(zip(graph.inputs, inputs)), move=_make_weight_rounding(precision, most))
            yield [np.asarray(found[name], order="C") for name in graph.outputs]


class CoarseProducts(EvaluatedGraph):
    """A graph whose products take the factors that ``change`` makes of theirs (`tasks.graphs.products`); ``found``:
    names of the products and Fourier transforms that were computed."""

    def __init__(self, model: Any, change: Change | None = None) -> None:
        super().__init__(model)
        self.found: list[str] = []
        self._change, self._numbers = change, itertools.count(1)

    def _outputs(self, node: GraphNode, inputs: list[Any], outer: Values, run: GraphRun) -> list[Any]:
        product = node.operator.multiplies
        if product or node.operator.sums == "transform":
            self.found.append(node.op)
        if product and self._change is not None:
            inputs = [x if k == node.operator.added else self._change_factor(x) for k, x in enumerate(inputs)]
        return super()._outputs(node, inputs, outer, run)

    def _change_factor(self, x: Any) -> Any:
        wide = isinstance(x, np.ndarray) and x.dtype == np.float64
        return self._change(x, next(self._numbers)) if wide and self._change else x


def _make_weight_rounding(precision: str, most: float) -> Move:
    """To a precision, finite numbers to ``most`` at most; Inf and NaN are as they are."""

    def move(name: str, x: np.ndarray, eps: float) -> np.ndarray:
        with np.errstate(all="ignore"):
            made = round_to_dtype(x, precision)
        return np.where(np.isfinite(x), np.clip(made, -most, most), made)

    return move


def list_product_weights(graph: EvaluatedGraph) -> frozenset[str]:
    """Names of the weights that products take, as they are or moved about (transposed, reshaped …) before."""
    nodes = list(graph.block.walk())
    made_by = {name: node for node in nodes for name in node.outputs}
    left = [name for node in nodes if node.operator.multiplies for name in node.inputs]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in graph.movable:
            found.add(name)
        elif name in made_by and moved_tensors.class_graph_node(made_by[name]) is OpClass.EXACT:
            left += made_by[name].inputs[:1]
    return frozenset(found)


def round_coarse_factor(x: np.ndarray, precision: str) -> np.ndarray:
    """float64 numbers to the nearest with the digits of ``precision``, ties to even; the range is left as it is."""
    return round_to_digits(x, EPS[precision])
