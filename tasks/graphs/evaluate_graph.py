"""A whole ONNX graph evaluated in float64, node by node; what is used up is freed, what is asked for is kept."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.graphs import graph_nodes, moved_tensors
from tasks.graphs.cast_roundings import Round
from tasks.graphs.graph_nodes import GraphBlock, GraphNode
from tasks.graphs.widening import NARROW, NoOracle, widen_model_value
from tasks.model import EPS, WITHOUT_NOISE, OpClass, round_to_dtype
from tasks.model.errors import format_error_essence
from tasks.operators.call import Evaluate, OperatorCall
from tasks.operators.table import EVALUATED

#: A moved twin of a tensor: of its name, its float64 values and the ε of the dtype that it has in the model.
Move = Callable[[str, np.ndarray, float], np.ndarray]
#: Tensors of a run by name; a sequence is a list of arrays.
Values = dict[str, Any]


@dataclass(frozen=True)
class GraphRun:
    """How a graph is evaluated once: see `Graph.run`. kept: what is kept so far, by name."""

    move: Move | None = None
    round: Round | None = None
    keep: frozenset[str] = frozenset()
    kept: Values = field(default_factory=dict)

    def round_value(self, x: np.ndarray, dtype: str, exact: bool, node: str) -> np.ndarray:
        """What a cast makes of float64 values."""
        return round_to_dtype(x, dtype) if self.round is None else self.round(x, dtype, exact, node)


class EvaluatedGraph:
    """An ONNX model in float64.

    nodes: those of the main graph in order, with unique names; inputs, outputs: names of tensors; weights: of the main
    graph, as stored; dtypes: of all tensors whose type is known, as the model has them; places: a number of each
    tensor; movable: the weights that noise moves. Operators are those given (`tasks.operators.table`), else of onnx's
    evaluator.
    """

    def __init__(self, model: Any, operators: Mapping[str, Evaluate] = EVALUATED) -> None:
        """``model``: a ModelProto that the checker takes. Raises NoOracle for one that cannot be held."""
        self._operators = operators
        self.block, self.dtypes = graph_nodes.read_graph_nodes(model)
        self.nodes, self.inputs, self.outputs = self.block.nodes, self.block.inputs, self.block.outputs
        self.weights = self.block.weights
        self.fixed = moved_tensors.find_fixed_tensors(self.block, self.dtypes)
        self.movable = moved_tensors.list_moved_weights(self.block, self.dtypes, self.fixed)
        every = [*self.inputs, *self.block.all_weights(), *(x for node in self.block.walk() for x in node.outputs)]
        self.places = {name: place for place, name in enumerate(dict.fromkeys(every), 1)}
        self._by_name = {node.name: node for node in self.block.walk()}
        self._rounding = {node.name: moved_tensors.does_node_round(node, self.dtypes) for node in self.block.walk()}
        #: By the name of a node that casts to a narrower dtype: that dtype.
        self.casts = moved_tensors.list_narrowing_casts(self.block, self.dtypes)
        self._given = moved_tensors.find_exact_tensors(self.block, self.dtypes)
        self._still = moved_tensors.list_tensors_of_casts(self.block, self.dtypes, self.casts) - self.fixed
        if self._still:
            self._still |= frozenset(self.inputs)
        self._composes = {
            node.name: self._rounding[node.name] and moved_tensors.class_graph_node(node) not in WITHOUT_NOISE
            for node in self.block.walk()
        }
        self._foreign: dict[tuple[str, ...], Any] = {}

    def order_inputs(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """What each input is given, in the graph's order."""
        return [np.array(feeds[name], order="C") for name in self.inputs]

    def node(self, name: str) -> GraphNode:
        """The node of a name, in subgraphs as well. Raises KeyError."""
        return self._by_name[name]

    def eps(self, name: str) -> float:
        """ε of the dtype that a tensor has in the model; that of float32 where nothing is known of it."""
        return EPS.get(self.dtypes.get(name) or "float32", 0.0)

    def run(
        self,
        feeds: Mapping[str, Any],
        *,
        move: Move | None = None,
        keep: Collection[str] = (),
        round: Round | None = None,
    ) -> dict[str, np.ndarray]:
        """The outputs, and the tensors named in ``keep`` (those of a subgraph: from its last run), by name; floats as
        float64.

        A Cast to a narrower dtype rounds to it: the model asks for that. feeds: an array for every input, in the
        model's dtype or wider. move: what moves floating inputs, movable weights and the outputs of nodes that round.
        round: what such a Cast makes instead; ``move`` then moves its result where a node that rounds reads it, by the
        ε of what that computes in. Raises KeyError for an input that is not given, NoOracle for a node that has no
        float64 evaluation.
        """
        values: Values = {}
        for name in self.inputs:
            still = round is not None and name in self._still
            values[name] = self._perturb_value(name, widen_model_value(feeds[name]), None if still else move)
        run = GraphRun(move, round, frozenset(keep), {name: values[name] for name in keep if name in values})
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = self._execute(self.block, values, run)
            kept = {name: self._weight(self.weights[name], name, move) for name in keep if name in self.weights}
        return dict(zip(self.outputs, found)) | run.kept | kept

    def run_node(self, node: GraphNode, inputs: Sequence[Any], move: Move | None = None) -> list[Any]:
        """Outputs of one node on the inputs of its places (None for one left out), in float64.

        move: of what is inside its subgraphs; the outputs themselves are as they are. Raises NoOracle.
        """
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self._outputs(node, [widen_model_value(x) for x in inputs], {}, GraphRun(move))

    def run_among(self, node: GraphNode, values: Values, move: Move | None = None) -> list[Any]:
        """Outputs of a node of the main graph on tensors by name; the weights that it reads come from the model, as
        ``move`` moves them. Raises NoOracle."""
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            reads = {name: self._value(name, self.block, values, move) for name in node.reads}
            return self._outputs(node, [reads[x] if x else None for x in node.inputs], reads, GraphRun(move))

    def _execute(self, block: GraphBlock, values: Values, run: GraphRun) -> list[Any]:
        """Outputs of a block whose inputs, and what it captures, are in ``values``, which is used up."""
        left = Counter(block.use_counts)
        for node in block.nodes:
            reads = {name: self._read(name, node, block, values, run) for name in node.reads}
            outputs = self._outputs(node, [reads[x] if x else None for x in node.inputs], reads, run)
            for name in node.reads:
                left[name] -= 1
                if not left[name]:
                    values.pop(name, None)
            cast = run.round is not None and node.name in self.casts
            rounding = run.move is not None and self._rounding[node.name] and not cast
            for name, value in zip(node.outputs, outputs):
                made = self._perturb_value(name, value, run.move) if rounding and name not in self.fixed else value
                if left[name]:
                    values[name] = made
                if name in run.keep:
                    run.kept[name] = made
        return [self._value(name, block, values, run.move) for name in block.outputs]

    def _read(self, name: str, node: GraphNode, block: GraphBlock, values: Values, run: GraphRun) -> Any:
        """A tensor as a node reads it. Beside casts, what was given or cast is exact: it moves for a node that sums or
        composes, whose rounding inside that stands for, and not for one that rounds its result alone."""
        given = name in self._still or name in block.weights
        if run.round is None or not self._still or not given:
            return self._value(name, block, values, run.move)
        value = self._value(name, block, values, None)
        moves = self._composes[node.name] and (name in self._still or name in self.movable)
        return self._perturb_value(name, value, run.move) if moves else value

    def _value(self, name: str, block: GraphBlock, values: Values, move: Move | None) -> Any:
        if name in values:
            return values[name]
        if name in block.weights:
            return self._weight(block.weights[name], name, move)
        raise NoOracle(f"nothing computes the tensor {name!r}")

    def _weight(self, stored: np.ndarray, name: str, move: Move | None) -> Any:
        return self._perturb_value(name, widen_model_value(stored), move if name in self.movable else None)

    def _perturb_value(self, name: str, value: Any, move: Move | None) -> Any:
        if move is None or not isinstance(value, np.ndarray) or value.dtype != np.float64:
            return value
        return move(name, value, self.eps(name))

    def _outputs(self, node: GraphNode, inputs: list[Any], outer: Values, run: GraphRun) -> list[Any]:
        def body(name: str, given: Mapping[str, Any]) -> list[Any]:
            block = node.blocks[name]
            captured = {x: outer[x] for x in block.captured_names}
            return self._execute(block, captured | dict(given), run)

        try:
            if node.op in _CONTROL:
                return _CONTROL[node.op](node, inputs, body)
            if any(block.captured_names for block in node.blocks.values()):
                raise NoOracle(f"node {node.name!r}: {node.op} has no float64 evaluation here")
            found = None
            if node.op in self._operators and not any(
                isinstance(x, list) for x in inputs
            ):  # of tensors; of text as well
                found = self._operators[node.op](OperatorCall(inputs, node.attributes, node.version, len(node.outputs)))
            found = self._by_onnx(node, inputs) if found is None else found
        except NoOracle:
            raise
        except Exception as error:
            raise NoOracle(f"node {node.name!r} ({node.op}): {format_error_essence(error)}") from None
        made = [self._widen_result(node, value, inputs) for value in found]
        if node.name in self.casts:
            exact = node.inputs[0] in self._given
            return [run.round_value(x, self.casts[node.name], exact, node.name) for x in made]
        return made

    @staticmethod
    def _widen_result(node: GraphNode, value: Any, inputs: list[Any]) -> Any:
        """A result with its floats in float64. Raises NoOracle for digits that were lost on the way."""
        if not isinstance(value, np.ndarray) or value.dtype.name not in NARROW:
            return value
        floats = any(isinstance(x, np.ndarray) and x.dtype == np.float64 for x in inputs)
        if floats or (not node.operator.draws and moved_tensors.class_graph_node(node) is not OpClass.EXACT):
            raise NoOracle(f"node {node.name!r}: onnx computes {node.op} in {value.dtype.name}")
        return value.astype(np.float64)

    def _by_onnx(self, node: GraphNode, inputs: list[Any]) -> list[Any]:
        """Outputs by onnx's own evaluator, of a model of this node alone; it is built once for each dtype of the
        inputs."""
        given = {name: x for name, x in zip(node.inputs, inputs) if name}
        key = (node.name, *(x.dtype.name if isinstance(x, np.ndarray) else "" for x in given.values()))
        if key not in self._foreign:
            self._foreign[key] = _find_node_evaluator(node, given)
        names = [name for name in node.outputs if name]
        found = iter(self._foreign[key].run(names, given))
        return [next(found) if name else None for name in node.outputs]


def _find_node_evaluator(node: GraphNode, given: Mapping[str, Any]) -> Any:
    import onnx
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    if "." in node.op and not node.op.startswith("ai.onnx"):
        raise NoOracle(
            f"node {node.name!r}: {node.op} is no operator of ONNX: give the model without it, or judge it against a "
            "reference of your own (catalog user)"
        )
    values = []
    for name, x in given.items():
        if isinstance(x, np.ndarray) and x.dtype != object:
            kind = helper.np_dtype_to_tensor_dtype(x.dtype)
            values.append(helper.make_tensor_value_info(name, kind, list(x.shape)))
        else:
            values.append(onnx.ValueInfoProto(name=name))
    outputs = [onnx.ValueInfoProto(name=name) for name in node.outputs if name]
    graph = helper.make_graph([node.proto], "node", values, outputs)
    inside = [inner for block in node.blocks.values() for inner in block.walk()]
    opsets = {x.proto.domain: x.version for x in (*inside, node)}
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
    for operator in evaluator.rt_nodes_:  # a float32 attribute times a Python number is float32: digits would be lost
        for name, value in list(vars(operator).items()):
            if isinstance(value, np.float32):
                setattr(operator, name, float(value))
    return evaluator


# --- ops with subgraphs: onnx's Loop stacks wrongly, and none of them lets what is inside be moved ------------------

Body = Callable[[str, Mapping[str, Any]], "list[Any]"]


def _evaluate_if(node: GraphNode, inputs: list[Any], body: Body) -> list[Any]:
    return body("then_branch" if bool(np.asarray(inputs[0]).reshape(-1)[0]) else "else_branch", {})


def _evaluate_loop(node: GraphNode, inputs: list[Any], body: Body) -> list[Any]:
    most, going, *states = inputs
    block = node.blocks["body"]
    count = len(block.inputs) - 2
    stacked: list[list[Any]] = [[] for _ in block.outputs[1 + count :]]
    limit = None if most is None else int(np.asarray(most).reshape(-1)[0])
    go, step = going is None or bool(np.asarray(going).reshape(-1)[0]), 0
    while go and (limit is None or step < limit):
        given = dict(zip(block.inputs, [np.asarray(step, np.int64), np.asarray(go), *states]))
        condition, *outputs = body("body", given)
        go, states, step = bool(np.asarray(condition).reshape(-1)[0]), outputs[:count], step + 1
        for rows, value in zip(stacked, outputs[count:]):
            rows.append(value)
    if not step and stacked:
        raise NoOracle(f"node {node.name!r}: a Loop without a turn has no shape of its scan outputs")
    return [*states, *(np.stack(rows) for rows in stacked)]


def _evaluate_scan(node: GraphNode, inputs: list[Any], body: Body) -> list[Any]:
    if node.version < 9:
        raise NoOracle(f"node {node.name!r}: Scan of opset 8 has no float64 evaluation here")
    a, block = node.attributes, node.blocks["body"]
    many = int(a["num_scan_inputs"])
    states, scanned = inputs[: len(inputs) - many], inputs[len(inputs) - many :]
    results = len(block.outputs) - len(states)

    def read_axes(name: str, count: int) -> list[int]:
        return list(a.get(name) or [0] * count)

    rows = [np.moveaxis(x, axis, 0) for x, axis in zip(scanned, read_axes("scan_input_axes", many))]
    rows = [x[::-1] if back else x for x, back in zip(rows, read_axes("scan_input_directions", many))]
    stacked: list[list[Any]] = [[] for _ in range(results)]
    for step in range(len(rows[0])):
        outputs = body("body", dict(zip(block.inputs, [*states, *(x[step] for x in rows)])))
        states = outputs[: len(states)]
        for made, value in zip(stacked, outputs[len(states) :]):
            made.append(value)
    found = [made[::-1] if back else made for made, back in zip(stacked, read_axes("scan_output_directions", results))]
    axes = read_axes("scan_output_axes", results)
    return [*states, *(np.stack(made, axis=axis) for made, axis in zip(found, axes))]


#: By the operators that act as control.
_CONTROL: dict[str, Callable[[GraphNode, list[Any], Body], list[Any]]] = {
    "If": _evaluate_if,
    "Loop": _evaluate_loop,
    "Scan": _evaluate_scan,
}
