"""What a graph of any number of nodes is to give on some inputs: float64, with the noise floor of one node or of them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.graphs import moved_tensors
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.harvest import find_tensor_dtype
from tasks.graphs.noise_floor import compute_node_floor, raise_graph_floor, reference_and_floor
from tasks.graphs.widening import NoOracle, is_value_widened
from tasks.model import Leaf, OpClass


def compute_graph_leaves(graph: EvaluatedGraph, feeds: Mapping[str, Any], draws: int) -> tuple[list[Leaf], OpClass]:
    """(a leaf per output in order, the class they are judged by): the class of its op for one node, "composite" for
    many, or "exact" where none of them rounds. Raises NoOracle."""
    values: list[tuple[Any, np.ndarray | None]]
    if len(graph.nodes) == 1 and not graph.nodes[0].blocks:
        (node,) = graph.nodes
        op_class = moved_tensors.class_graph_node(node)
        given = [_evaluate_tensor(graph, feeds, name) for name in node.inputs]
        exact = dict(zip(node.outputs, graph.run_node(node, given)))
        floors = dict(zip(node.outputs, compute_node_floor(graph, node, given, draws)))
        values = [(exact[name], floors[name]) for name in graph.outputs]
    else:
        op_class = OpClass.COMPOSITE
        if not any(moved_tensors.does_node_round(node, graph.dtypes) for node in graph.block.walk()):
            op_class = OpClass.EXACT
        references, element_floors, *_ = reference_and_floor(graph, dict(feeds), draws)
        ops = {node.op for node in graph.nodes}
        floats = any(is_value_widened(x) for x in feeds.values())
        dtypes = [find_tensor_dtype(graph, name, y) for name, y in zip(graph.outputs, references)]
        values = [
            (y, raise_graph_floor(d, y, name, ops, floats)) for y, d, name in zip(references, element_floors, dtypes)
        ]
    return [_make_graph_leaf(graph, name, y, floor) for name, (y, floor) in zip(graph.outputs, values)], op_class


def _evaluate_tensor(graph: EvaluatedGraph, feeds: Mapping[str, Any], name: str) -> Any:
    if not name:
        return None
    return feeds[name] if name in feeds else graph.weights[name]


def _make_graph_leaf(graph: EvaluatedGraph, name: str, y: Any, floor: Any) -> Leaf:
    if not isinstance(y, (np.ndarray, np.generic)):
        raise NoOracle(f"the output {name} is no tensor")
    exact = np.ascontiguousarray(y).reshape(np.shape(y))
    if exact.dtype.kind in "OUS":
        return Leaf("str", exact.shape, exact)
    return Leaf(
        find_tensor_dtype(graph, name, exact), exact.shape, exact, floor if floor is not None and floor.any() else None
    )
