"""Distinct nodes of models with their true tensors, each as a model of its own: what a catalog of nodes is made of.

Two nodes are the same case if op, operator set, attributes, shapes, dtypes and small integers among the weights are. Of
each case two instances are kept: the one with the largest numbers, and the one that cancels most.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.graphs.cut_graph import cut_graph_part, is_constant_node, list_crossing_tensors
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.graph_nodes import GraphNode
from tasks.graphs.noise_floor import compute_node_floor
from tasks.graphs.widening import NoOracle
from tasks.model import get_numpy_dtype

#: Integers of a weight up to which they say what is computed: a shape, axes, pads.
_SMALL = 64


@dataclass(frozen=True)
class HarvestedNode:
    """A node where it stood. op: its type; key: digest of its case; source: the model and sample; node: its name there;
    dtype: of its first floating input, else of its first; largest: |x| of its floating inputs; cancels: how many times
    their relative movement its result's is (root mean squares); model: serialized, of the node alone; inputs: by
    name."""

    op: str
    key: str
    source: str
    node: str
    dtype: str
    opset: int
    largest: float
    cancels: float
    model: bytes = field(repr=False)
    inputs: Mapping[str, np.ndarray] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the model and its inputs."""
        return len(self.model) + sum(x.nbytes for x in self.inputs.values())


class NodeHarvest:
    """Instances of distinct nodes, added model by model. left_out: nodes by the reason why they are none."""

    def __init__(self) -> None:
        self.largest: dict[str, HarvestedNode] = {}
        self.cancelling: dict[str, HarvestedNode] = {}
        self.left_out: dict[str, int] = {}
        self.seen = 0

    def add(self, model: Any, feeds: Mapping[str, Any], source: str, only: Collection[str] = ()) -> None:
        """The nodes of a ModelProto on these inputs; ``only``: those of these names. Raises NoOracle."""
        for one in iterate_harvested_nodes(model, feeds, source, only, self.left_out):
            self.seen += 1
            for kept, size in ((self.largest, "largest"), (self.cancelling, "cancels")):
                before = kept.get(one.key)
                if before is None or getattr(one, size) > getattr(before, size):
                    kept[one.key] = one

    def select_instances(self, mib: float) -> tuple[list[tuple[str, HarvestedNode]], int]:
        """(kind, instance) of what fits into ``mib`` MiB, small ones first, so that as many cases as can be are among
        them; and how many cases are not. kind: "largest", "cancelling", or "only" where one instance is both."""
        left, found, lost = mib * 2**20, [], 0
        for key in sorted(self.largest, key=lambda key: self.largest[key].size):
            one, other = self.largest[key], self.cancelling[key]
            kinds = [("only", one)] if one is other else [("largest", one), ("cancelling", other)]
            fitting = kinds if sum(x.size for _, x in kinds) <= left else kinds[-1:]
            if sum(x.size for _, x in fitting) > left:
                lost += 1
                continue
            left -= sum(x.size for _, x in fitting)
            found += fitting
        return found, lost


def iterate_harvested_nodes(
    model: Any, feeds: Mapping[str, Any], source: str, only: Collection[str], left_out: dict[str, int]
) -> Iterator[HarvestedNode]:
    """The nodes of a ModelProto's main graph with the tensors that come to them: float64 results, rounded to the dtypes
    that they have in the model. ``left_out`` counts others by reason. Raises NoOracle."""
    from onnx import helper

    if model.functions:
        from onnx import inliner

        model = inliner.inline_local_functions(model)
    graph = EvaluatedGraph(model)
    places = [k for k, proto in enumerate(model.graph.node) if not is_constant_node(proto)]
    assert [model.graph.node[k].op_type for k in places] == [n.op.rpartition(".")[2] for n in graph.nodes]
    every = {name for node in graph.nodes for name in (*node.inputs, *node.outputs) if name} - set(graph.weights)
    values = graph.run(feeds, keep=every)
    types = {
        name: helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(get_numpy_dtype(find_tensor_dtype(graph, name, x))), x.shape
        )
        for name, x in values.items()
        if isinstance(x, np.ndarray) and x.dtype.kind not in "OUS"
    }
    for place, node in zip(places, graph.nodes):
        if only and node.name not in only:
            continue
        reason = _explain_not_harvested(node, values, types)
        inputs, outputs = list_crossing_tensors(model.graph, [place]) if not reason else ([], [])
        if not reason and not (inputs and outputs):
            reason = "computed of weights alone, or by nobody taken"
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        part = cut_graph_part(model, inputs, outputs, types)
        arrays = {
            name: values[name].astype(get_numpy_dtype(find_tensor_dtype(graph, name, values[name]))) for name in inputs
        }
        yield _harvest_node(graph, node, values, source, part, arrays)


def find_tensor_dtype(graph: EvaluatedGraph, name: str, value: np.ndarray) -> str:
    """The dtype that a tensor has in the model; of one whose type is not known, float32 for float64 values."""
    return graph.dtypes.get(name) or ("float32" if value.dtype == np.float64 else value.dtype.name)


def _explain_not_harvested(node: GraphNode, values: Mapping[str, Any], types: Mapping[str, Any]) -> str:
    """Why a node is no case; "" for one that is."""
    if node.blocks:
        return "has a graph inside"
    if node.operator.draws:
        return "draws at random"
    if any(name in values and name not in types for name in (*node.inputs, *node.outputs)):
        return "takes or gives what is no tensor of numbers"
    return ""


def _harvest_node(
    graph: EvaluatedGraph,
    node: GraphNode,
    values: Mapping[str, Any],
    source: str,
    part: Any,
    arrays: Mapping[str, np.ndarray],
) -> HarvestedNode:
    given = [_find_harvested_value(graph, values, name) for name in node.inputs]
    floating = [x for x in given if x is not None and x.dtype.kind == "f" and x.size]
    dtypes = [find_tensor_dtype(graph, name, x) for name, x in zip(node.inputs, given) if x is not None]
    inexact = [d for d, x in zip(dtypes, (x for x in given if x is not None)) if x.dtype.kind in "fV"]
    finite = [np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in (np.asarray(x, np.float64) for x in floating)]
    return HarvestedNode(
        node.op,
        _make_harvest_key(graph, node, given),
        source,
        node.name,
        (inexact or dtypes)[0],
        node.version,
        float(max(finite, default=0.0)),
        _measure_node_cancellation(graph, node, given, values),
        part.SerializeToString(deterministic=True),
        arrays,
    )


def _find_harvested_value(graph: EvaluatedGraph, values: Mapping[str, Any], name: str) -> np.ndarray | None:
    if not name:
        return None
    return np.asarray(values[name] if name in values else graph.weights[name])


def _make_harvest_key(graph: EvaluatedGraph, node: GraphNode, given: list[np.ndarray | None]) -> str:
    def describe_input(name: str, x: np.ndarray | None) -> Any:
        if x is None:
            return None
        weight = name in graph.weights
        says = x.tolist() if weight and x.size <= _SMALL and x.dtype.kind in "iub" else None
        return [find_tensor_dtype(graph, name, x), list(x.shape), weight, says]

    attributes = sorted(x.SerializeToString(deterministic=True).hex() for x in node.proto.attribute)
    case = [
        node.op,
        node.version,
        attributes,
        len(node.outputs),
        [describe_input(*pair) for pair in zip(node.inputs, given)],
    ]
    return hashlib.sha256(json.dumps(case).encode()).hexdigest()[:10]


def _measure_node_cancellation(
    graph: EvaluatedGraph, node: GraphNode, given: list[np.ndarray | None], values: Mapping[str, Any]
) -> float:
    """The largest over the outputs of rms(δ) ÷ (ε · rms(y)), δ from one draw; 0 where there is no answer."""
    try:
        floors = compute_node_floor(graph, node, given, 1)
    except NoOracle:
        return 0.0
    found = [0.0]
    for name, delta in zip((x for x in node.outputs), floors):
        y = values.get(name)
        if not isinstance(y, np.ndarray) or y.dtype != np.float64 or not y.size or delta is None:
            continue
        with np.errstate(all="ignore"):
            share = np.sqrt(np.mean(np.square(delta))) / (graph.eps(name) * np.sqrt(np.mean(np.square(y))))
        found.append(float(share) if np.isfinite(share) else 0.0)
    return max(found)
