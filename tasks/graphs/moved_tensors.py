"""What the noise of a model moves, and what it leaves alone: weights that are data, outputs of nodes that round."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from tasks.graphs.graph_nodes import GraphBlock, GraphNode
from tasks.graphs.widening import WIDENED
from tasks.judge import op_classes
from tasks.model import EPS, OpClass
from tasks.model.dtypes import does_dtype_hold


def does_node_round(node: GraphNode, dtypes: Mapping[str, str]) -> bool:
    """Whether a node's outputs carry a rounding of their own; those of subgraphs have got it inside."""
    if node.operator.acts == "control":
        return False
    if node.operator.acts == "cast":
        before, after = (EPS.get(dtypes.get(names[0], ""), 0.0) for names in (node.inputs, node.outputs))
        return after > before > 0.0
    return class_graph_node(node) is not OpClass.EXACT


def list_narrowing_casts(block: GraphBlock, dtypes: Mapping[str, str]) -> dict[str, str]:
    """By the name of a node that casts to a floating dtype that does not hold every number of the one before: the
    dtype. That is a rounding which the model asks for, unlike that of an operator, which may be left out where more
    digits are kept."""
    found = {}
    for node in block.walk():
        if node.operator.acts == "cast":
            before, after = (dtypes.get(names[0]) or "float32" for names in (node.inputs, node.outputs))
            if after in WIDENED and before != "str" and not does_dtype_hold(after, before):
                found[node.name] = after
    return found


def find_exact_tensors(block: GraphBlock, dtypes: Mapping[str, str]) -> frozenset[str]:
    """Names of the tensors that no rounding makes uncertain: inputs, weights, and what is moved, chosen, compared or
    cast of such."""
    found = {*block.inputs, *block.all_weights()}
    for node in block.walk():
        plain = not node.blocks and (node.operator.acts == "cast" or not does_node_round(node, dtypes))
        if plain and node.operator.acts != "control" and found.issuperset(node.reads):
            found.update(node.outputs)
    return frozenset(found)


def list_tensors_of_casts(block: GraphBlock, dtypes: Mapping[str, str], narrowing: Collection[str]) -> frozenset[str]:
    """Names of the tensors that casts to narrower dtypes make, and of what is only moved of these."""
    found: set[str] = set()
    for node in block.walk():
        loses = does_node_round(node, dtypes)
        moved = not node.blocks and not loses and not found.isdisjoint(node.reads)
        if moved or (loses and node.name in narrowing):
            found.update(name for name in node.outputs if _is_tensor_floating(name, dtypes))
    return frozenset(found)


def class_graph_node(node: GraphNode) -> OpClass:
    """The class by which a node's results are judged."""
    return op_classes.find_op_class(f"onnx:{node.op}", kwargs=dict(node.attributes)).op_class


def is_input_structural(node: GraphNode, place: int) -> bool:
    """Whether an input of a node says what is computed, not on what."""
    return place in node.operator.structural


def find_fixed_tensors(block: GraphBlock, dtypes: Mapping[str, str]) -> frozenset[str]:
    """Names of the tensors that are left alone: weights and what is made of weights and shapes alone, where it ends as
    a shape, scale, exponent, bound or axis; and weights of one element."""
    nodes, weights = list(block.walk()), block.all_weights()
    static = set(weights)
    for node in nodes:
        if node.operator.acts == "size" or (node.reads and not node.blocks and static.issuperset(node.reads)):
            static.update(node.outputs)
    made_by = {name: node for node in nodes for name in node.outputs}
    left = [
        name
        for node in nodes
        for place, name in enumerate(node.inputs)
        if is_input_structural(node, place)
        or (node.operator.to_integers and not _is_tensor_floating(node.outputs[0], dtypes))
    ]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name in static and name not in found:
            found.add(name)
            left += made_by[name].inputs if name in made_by and made_by[name].operator.acts != "size" else ()
    return frozenset(found | {name for name, x in weights.items() if x.size == 1})


def _is_tensor_floating(name: str, dtypes: Mapping[str, str]) -> bool:
    return dtypes.get(name, "float32") in WIDENED


def list_moved_weights(
    block: GraphBlock, dtypes: Mapping[str, str], left_alone: Collection[str]
) -> dict[str, np.ndarray]:
    """The weights that are moved, by name: floating ones of more than one element that are not left alone."""
    return {
        name: x
        for name, x in block.all_weights().items()
        if name not in left_alone and x.size > 1 and _is_tensor_floating(name, dtypes) and x.dtype.name in WIDENED
    }
