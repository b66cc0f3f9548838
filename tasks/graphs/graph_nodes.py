"""A model read into nodes with unique names, weights apart from them, and the dtype that each tensor has in the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tasks.graphs.cut_graph import infer_tensor_types
from tasks.graphs.widening import NoOracle, widen_onnx_graph
from tasks.model.dtypes import DTYPE_OF_ELEMENT
from tasks.operators import table as operators
from tasks.operators.table import OnnxOperator


@dataclass(frozen=True, eq=False)
class GraphNode:
    """A node of a model.

    name: unique in the model; op: its type, with its domain before a dot unless it is ONNX's own; inputs, outputs:
    names of tensors, "" for one that is left out; attributes: Python values of those that it gives (floats exactly as
    the model's float32), subgraphs apart as ``blocks``; proto: the node in double; version: of its domain's operators.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    blocks: Mapping[str, GraphBlock]
    proto: Any
    version: int

    @cached_property
    def operator(self) -> OnnxOperator:
        """What is known of its operator."""
        return operators.find_operator(self.op)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Names of the tensors that it needs: its inputs, and what its subgraphs take from outside."""
        own = [x for x in self.inputs if x]
        return tuple(dict.fromkeys([*own, *(name for block in self.blocks.values() for name in block.captured_names)]))


@dataclass(frozen=True, eq=False)
class GraphBlock:
    """A graph or subgraph: names of its inputs and outputs, its nodes in order, its weights as the model stores
    them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[GraphNode, ...]
    weights: Mapping[str, np.ndarray] = field(repr=False)

    @cached_property
    def use_counts(self) -> Counter[str]:
        """How often each tensor is read: by nodes, and as an output."""
        return Counter(name for node in self.nodes for name in node.reads) + Counter(self.outputs)

    @cached_property
    def captured_names(self) -> tuple[str, ...]:
        """Names that it takes from the graph around it."""
        known = {*self.inputs, *self.weights, *(name for node in self.nodes for name in node.outputs)}
        read = [*(name for node in self.nodes for name in node.reads), *self.outputs]
        return tuple(dict.fromkeys(name for name in read if name not in known))

    def walk(self) -> Iterator[GraphNode]:
        """Its nodes and those of all subgraphs, each after the node that it is inside of."""
        for node in self.nodes:
            yield node
            for block in node.blocks.values():
                yield from block.walk()

    def all_weights(self) -> dict[str, np.ndarray]:
        """Its weights and those of all subgraphs."""
        found = dict(self.weights)
        for node in self.nodes:
            for block in node.blocks.values():
                found |= block.all_weights()
        return found


def read_graph_nodes(model: Any) -> tuple[GraphBlock, dict[str, str]]:
    """The main graph of a ModelProto, and the dtype of every tensor whose type is known, by name.

    Functions of the model's own are written out in it; nodes Constant become weights. Raises NoOracle for what it
    cannot hold (sparse weights, weights in files that were not loaded).
    """
    from onnx import numpy_helper
    from onnx.external_data_helper import uses_external_data

    if model.graph.sparse_initializer:
        raise NoOracle("a model with sparse weights has no float64 evaluation here")
    if outside := [x.name for x in model.graph.initializer if uses_external_data(x)]:
        raise NoOracle(f"the weight {outside[0]} is in a file beside the model that was not loaded")
    weights = {x.name: np.asarray(numpy_helper.to_array(x)) for x in model.graph.initializer}
    bare = infer_tensor_types(model)
    dtypes = _list_tensor_dtypes(bare.graph) | {
        x.name: DTYPE_OF_ELEMENT.get(x.data_type, "") for x in model.graph.initializer
    }
    widen_onnx_graph(bare.graph)
    versions = {x.domain: x.version for x in bare.opset_import}
    names: set[str] = set()
    inputs = tuple(x.name for x in model.graph.input if x.name not in weights)
    return _read_graph_block(bare.graph, weights, inputs, versions, names), dtypes


def _list_tensor_dtypes(graph: Any) -> dict[str, str]:
    """The dtype of every tensor whose type is known, in subgraphs as well."""
    found = {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            found[value.name] = DTYPE_OF_ELEMENT.get(value.type.tensor_type.elem_type, "")
    found |= {x.name: DTYPE_OF_ELEMENT.get(x.data_type, "") for x in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _list_tensor_dtypes(attribute.g)
            elif node.op_type == "Constant" and attribute.HasField("t"):
                found[node.output[0]] = DTYPE_OF_ELEMENT.get(attribute.t.data_type, "")
            elif node.op_type == "Constant" and attribute.name.startswith("value_float"):
                found[node.output[0]] = "float32"
    return found


def _read_graph_block(
    graph: Any, weights: Mapping[str, np.ndarray], inputs: Sequence[str], versions: Mapping[str, int], names: set[str]
) -> GraphBlock:
    weights, nodes = dict(weights), []
    for proto in graph.node:
        if proto.op_type == "Constant" and proto.domain in ("", "ai.onnx"):
            weights[proto.output[0]] = _read_constant_node(proto)
        else:
            nodes.append(_read_graph_node(proto, versions, names))
    return GraphBlock(tuple(inputs), tuple(x.name for x in graph.output), tuple(nodes), weights)


def _read_constant_node(proto: Any) -> np.ndarray:
    from onnx import helper, numpy_helper

    (attribute,) = proto.attribute
    value = helper.get_attribute_value(attribute)
    if attribute.name == "value":
        return np.asarray(numpy_helper.to_array(value))
    if attribute.name in ("value_float", "value_floats"):
        return np.asarray(value, np.float32)
    if attribute.name in ("value_int", "value_ints"):
        return np.asarray(value, np.int64)
    if attribute.name in ("value_string", "value_strings"):
        return np.asarray([x.decode() for x in value] if isinstance(value, list) else value.decode(), object)
    raise NoOracle(f"a constant given as {attribute.name} has no float64 evaluation here")


def _read_graph_node(proto: Any, versions: Mapping[str, int], names: set[str]) -> GraphNode:
    import onnx
    from onnx import helper, numpy_helper

    domain = "" if proto.domain == "ai.onnx" else proto.domain
    name = base = proto.name or f"{proto.op_type}_{proto.output[0]}"
    count = 1
    while name in names:
        count += 1
        name = f"{base}#{count}"
    names.add(name)
    attributes: dict[str, Any] = {}
    blocks = {}
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            own = {x.name: np.asarray(numpy_helper.to_array(x)) for x in attribute.g.initializer}
            inner = [x.name for x in attribute.g.input]
            blocks[attribute.name] = _read_graph_block(attribute.g, own, inner, versions, names)
            continue
        value = helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        attributes[attribute.name] = value
    op = f"{domain}.{proto.op_type}" if domain else proto.op_type
    version = versions.get(proto.domain, versions.get("ai.onnx" if not domain else domain, 1))
    return GraphNode(name, op, tuple(proto.input), tuple(proto.output), attributes, blocks, proto, version)
