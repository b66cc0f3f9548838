"""An ONNX model on given inputs: its nodes, their exact tensors, pieces of it."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.graphs.branches import inline_branches
from tasks.graphs.cut_graph import (
    add_graph_outputs,
    cut_graph_part,
    index_tensor_producers,
    list_crossing_tensors,
    list_node_reads,
    list_tensor_types,
)
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import compute_node_floor, reference_and_floor
from tasks.graphs.widening import NoOracle
from tasks.hunt.dialogue import DialoguePiece
from tasks.hunt.program import HuntProgram, Move
from tasks.model.dtypes import DTYPE_OF_ELEMENT, get_numpy_dtype


def inline_model_functions(model: Any) -> Any:
    """The ModelProto without functions of its own: what they are made of are nodes as well."""
    import onnx

    return onnx.inliner.inline_local_functions(model) if model.functions else model


class OnnxProgram(HuntProgram):
    """model: a ModelProto; feeds: its inputs by name."""

    def __init__(self, model: Any, feeds: Mapping[str, Any], dtype: str = "float32") -> None:
        super().__init__(feeds, dtype, [x.name for x in model.graph.output])
        self.model = model

    @classmethod
    def inlined(cls, model: Any, feeds: Mapping[str, Any], dtype: str = "float32") -> OnnxProgram:
        """With the nodes of functions and of the branches that are taken in their place. Raises NoOracle."""
        return cls(inline_branches(inline_model_functions(model), feeds), feeds, dtype)

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        return list_tensor_types(self.model)

    @property
    def graph(self) -> Any:
        return self.model.graph

    @functools.cached_property
    def places(self) -> list[int]:
        """Places of the nodes that compute: a Constant does not."""
        return [i for i, node in enumerate(self.graph.node) if node.op_type != "Constant"]

    @functools.cached_property
    def producer(self) -> dict[str, int]:
        return index_tensor_producers(self.graph)

    def op(self, place: int) -> str:
        return str(self.graph.node[place].op_type)

    def makes(self, place: int) -> list[str]:
        return list(self.graph.node[place].output)

    def name(self, place: int) -> str:
        return str(self._nodes[next(x for x in self.graph.node[place].output if x)].name)

    @functools.cached_property
    def evaluated(self) -> EvaluatedGraph:
        return EvaluatedGraph(self.model)

    @functools.cached_property
    def _nodes(self) -> dict[str, Any]:
        return {name: node for node in self.evaluated.nodes for name in node.outputs if name}

    def of_node(self, place: int, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
        node, inputs = self._call(place, feeds)
        if node.blocks:
            return EvaluatedGraph(self.piece([place], feeds).program).run(dict(feeds))
        return dict(zip(node.outputs, self.evaluated.run_node(node, inputs)))

    def spread_of(self, place: int, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What `floor_of` comes to for a sum of products, by one evaluation instead of one a draw; nothing for other
        nodes.

        Each term a·b is moved by ε(s·u + s′·u′) with random signs and u in [½, 1], so the variance of their sum is
        2·E[u²]·ε²·Σ a²b², E[u²] = 7/12: the same node of squares. The largest of four draws is 1.5 times the root of
        it.
        """
        node, inputs = self._call(place, feeds)
        plain = float(node.attributes.get("alpha", 1)) == float(node.attributes.get("beta", 1)) == 1
        if node.operator.sums != "layer" or not plain or any(x is not None and x.dtype.kind != "f" for x in inputs):
            return {}
        squares = [None if x is None else np.square(x.astype(np.float64)) for x in inputs]
        found = zip(node.outputs, self.evaluated.run_node(node, squares))
        return {name: 1.5 * self.evaluated.eps(name) * np.sqrt(7 / 6 * np.abs(y)) for name, y in found}

    def floor_of(self, place: int, feeds: Mapping[str, np.ndarray], draws: int) -> dict[str, np.ndarray]:
        node, inputs = self._call(place, feeds)
        if node.blocks:
            part = EvaluatedGraph(self.piece([place], feeds).program)
            return dict(zip(part.outputs, reference_and_floor(part, dict(feeds), draws).floors))
        return dict(zip(node.outputs, compute_node_floor(self.evaluated, node, inputs, draws)))

    def _call(self, place: int, feeds: Mapping[str, np.ndarray]) -> tuple[Any, list[Any]]:
        """A node of the evaluation and its inputs by place. Raises NoOracle where one is not to be had."""
        node = self._nodes[next(name for name in self.graph.node[place].output if name)]
        known = self.weights
        if lacking := [x for x in node.inputs if x and x not in feeds and x not in known]:
            raise NoOracle(f"nothing gives the tensor {lacking[0]!r}")
        return node, [None if not x else feeds[x] if x in feeds else known[x] for x in node.inputs]

    def evaluate(self, keep: Sequence[str] = (), move: Move | None = None) -> dict[str, Any]:
        moved = None if move is None else lambda name, x, eps: move(name, x)
        return self.evaluated.run(dict(self.feeds), move=moved, keep=keep)

    def rounded(self, name: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype != np.float64:
            return value
        known = self.types.get(name)
        dtype = DTYPE_OF_ELEMENT.get(known.type.tensor_type.elem_type, "") if known is not None else ""
        with np.errstate(all="ignore"):
            return value.astype(get_numpy_dtype(dtype or self.dtype))

    def border(self, place: int) -> tuple[list[str], list[str]]:
        node = self.graph.node[place]
        inside = [x for x in list_node_reads(node) if x in self._variable]
        return inside, [x for x in node.output if x and x in self._taken]

    @functools.cached_property
    def _variable(self) -> set[str]:
        given = {x.name for x in self.graph.initializer}
        made = {x for place in self.places for x in self.graph.node[place].output}
        return made | {x.name for x in self.graph.input if x.name not in given}

    @functools.cached_property
    def _taken(self) -> set[str]:
        return {x for node in self.graph.node for x in list_node_reads(node)} | set(self.outputs)

    def piece(self, places: Collection[int], given: Mapping[str, np.ndarray] | None = None) -> DialoguePiece:
        """Its own inputs come first, in their order, then what other nodes make."""
        given, read = self.exact if given is None else given, self._reads(places)
        crossed, outputs = list_crossing_tensors(self.graph, places)
        inputs = list(dict.fromkeys([*(name for name in self.feeds if name in read), *crossed]))
        known = {name: source[name] for name in inputs for source in (self.feeds, given) if name in source}
        return DialoguePiece(cut_graph_part(self.model, inputs, outputs, self.types), known, tuple(outputs))

    def _reads(self, places: Collection[int]) -> set[str]:
        return {name for place in places for name in list_node_reads(self.graph.node[place])}

    def probed(self, names: Sequence[str]) -> DialoguePiece:
        further = [name for name in dict.fromkeys(names) if name not in self.outputs]
        return DialoguePiece(add_graph_outputs(self.model, further, self.types), self.feeds, (*self.outputs, *further))

    def with_values(self, values: Mapping[str, np.ndarray]) -> list[Any]:
        later = self._after(values)
        known = self.exact | dict(values)
        wanted = [name for name in self.outputs if self.producer.get(name) in later and name not in values]
        if wanted:
            read = self._reads(later)
            inputs = list(
                dict.fromkeys(
                    [*list_crossing_tensors(self.graph, later)[0], *(name for name in values if name in read)]
                )
            )
            part = cut_graph_part(self.model, inputs, wanted, self.types)
            left = {x.name for x in part.graph.input}
            known |= EvaluatedGraph(part).run({name: known[name] for name in inputs if name in left})
        return [self.rounded(name, np.asarray(known[name])) for name in self.outputs]

    def _after(self, names: Collection[str]) -> set[int]:
        """Places of the nodes that tensors reach, but for those that only make ``names`` themselves."""
        reached, later = set(names), set()
        for place in self.places:
            node = self.graph.node[place]
            if reached.intersection(list_node_reads(node)) and not set(filter(None, node.output)) <= set(names):
                later.add(place)
                reached |= set(node.output)
        return later

    def attributes(self, place: int) -> dict[str, str]:
        from onnx import helper

        plain = [x for x in self.graph.node[place].attribute if not (x.HasField("g") or x.graphs)]
        values = {x.name: helper.get_attribute_value(x) for x in plain}
        return {k: v.decode(errors="replace") if isinstance(v, bytes) else str(v) for k, v in values.items()}

    def takes(self, place: int) -> list[str]:
        return list(self.graph.node[place].input)

    @property
    def weights(self) -> Mapping[str, Any]:
        return self.evaluated.weights
