"""Which weight layers of a network its outputs show: one that can be scaled by 1 + 2⁻⁶ unnoticed is not tested by them.

Random weights hide whole layers (a residual branch that ends in a zero gain), and so may inputs: what is wrong in such
a layer passes on every backend.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.graphs.evaluate_graph import EvaluatedGraph, Values
from tasks.graphs.graph_nodes import GraphNode
from tasks.judge.error_metrics import USUAL_UNITS
from tasks.model import EPS, SMALLEST_NORMAL

#: By how much a layer is scaled: 10⁵ times what float32 rounds.
SCALE = 1.0 + 2.0**-6
#: Row units by which some output is to move: what the judge notices.
NOTICED = USUAL_UNITS


def list_graph_weight_layers(graph: EvaluatedGraph) -> list[str]:
    """Names of the weight layers: matrices and kernels that noise moves, in the order of their first use."""
    used = dict.fromkeys(name for node in graph.block.walk() for name in node.inputs)
    return [name for name in used if name in graph.movable and graph.movable[name].ndim > 1]


def find_unobserved_layers(
    graph: EvaluatedGraph,
    feeds: Mapping[str, Any],
    references: Sequence[np.ndarray],
    row_floors: Sequence[np.ndarray],
    among: Collection[str] | None = None,
) -> list[str]:
    """Layers (of ``among``, default all) whose scaling moves no output by NOTICED row units, in their order.

    Only what depends on a layer is evaluated again. All tensors of the main graph are held meanwhile. Raises NoOracle.
    """
    wanted = [name for name in list_graph_weight_layers(graph) if among is None or name in among]
    made = [name for node in graph.nodes for name in node.outputs if name]
    kept = graph.run(feeds, keep=[*graph.inputs, *made]) if wanted else {}
    dtypes = [graph.dtypes.get(name) or "float32" for name in graph.outputs]
    units = [compute_graph_row_unit(dtype, y, floor) for dtype, y, floor in zip(dtypes, references, row_floors)]

    def changes_outputs(layer: str) -> bool:
        found = dict(_find_changed_tensors(graph, kept, layer))
        with np.errstate(all="ignore"):
            return any(
                name in found and not (np.abs(found[name] - y) <= NOTICED * u).all()
                for name, y, u in zip(graph.outputs, references, units)
            )

    return [layer for layer in wanted if not changes_outputs(layer)]


def compute_graph_row_unit(dtype: str, reference: np.ndarray, row_floor: np.ndarray) -> np.ndarray:
    """The row unit of an output's elements: ε|y| + floor + the smallest number."""
    return EPS.get(dtype, 0.0) * np.abs(reference) + row_floor + SMALLEST_NORMAL.get(dtype, 0.0)


def _find_changed_tensors(graph: EvaluatedGraph, kept: Values, layer: str) -> Iterator[tuple[str, Any]]:
    """The tensors of the main graph that are others when a layer is scaled, by name."""

    def scale(name: str, x: np.ndarray, eps: float) -> np.ndarray:
        return x * SCALE if name == layer else x

    changed: Values = {}
    for node in graph.nodes:
        if not _does_node_depend(node, changed, layer):
            continue
        outputs = graph.run_among(node, {**kept, **changed}, scale)
        for name, value in zip(node.outputs, outputs):
            if name and not (isinstance(value, np.ndarray) and np.array_equal(value, kept[name], equal_nan=True)):
                changed[name] = value
                yield name, value


def _does_node_depend(node: GraphNode, changed: Values, layer: str) -> bool:
    return (
        layer in node.inputs
        or not changed.keys().isdisjoint(node.reads)
        or any(layer in inner.inputs for block in node.blocks.values() for inner in block.walk())
    )
