"""The noise floor of a whole model, of one node and of one call: how far float64 results move when what rounds moves by ε.

One draw (`move_by_graph_noise`) moves a tensor in all of them. Of a model, inputs, movable weights and the outputs of all nodes that
round are moved (`reference_and_floor`): inputs alone are no floor, since those of a language model are integers. Of a
node, a generated case or a case of ONNX's node suite, the inputs alone (`compute_graph_floors`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tasks.arrays import noise
from tasks.graphs import moved_tensors
from tasks.graphs.cast_roundings import CastRoundings, Round, compute_jumping_floor
from tasks.graphs.evaluate_graph import EvaluatedGraph, Move
from tasks.graphs.graph_nodes import GraphNode
from tasks.graphs.widening import WIDENED, NoOracle, is_value_widened, widen_model_value
from tasks.model import EPS, WITHOUT_NOISE, OpClass, compute_row_floor
from tasks.operators import table as operators

#: The smallest float16 above 0.
_LEAST = 2.0**-24


def move_by_graph_noise(x: np.ndarray, eps: float, draw: int, place: int) -> np.ndarray:
    """float64 numbers as a draw moves what has this ε in the model (`tasks.arrays.noise`); ``place`` tells tensors
    apart."""
    made = noise.perturb_by_noise(x, eps, draw, place)
    if eps == EPS["float16"] and x.size:  # whose subnormal numbers are not rare: 3e-8 is rounded by as much, 0 is not
        least = np.where(x == 0.0, 0.0, _LEAST)
        made += noise.perturb_by_noise(least, 1.0, draw, place) - least
    return made


def make_graph_mover(graph: EvaluatedGraph, draw: int) -> Move:
    """How a draw moves the tensors of a graph."""
    return lambda name, x, eps: move_by_graph_noise(x, eps, draw, graph.places[name])


@dataclass(frozen=True, eq=False)
class GraphFloorInput:
    """An input of a node or a case. value: an array in float64 (integers in their own dtype), a list of them, or None;
    eps: of the dtype that it has in the model, 0 for one that stands still; places: a number for each of its arrays."""

    value: Any
    eps: float
    places: tuple[int, ...]

    def at(self, draw: int) -> Any:
        """The value as a draw moves it."""
        if not self.eps:
            return self.value
        if isinstance(self.value, list):
            return [move_by_graph_noise(x, self.eps, draw, place) for x, place in zip(self.value, self.places)]
        return move_by_graph_noise(self.value, self.eps, draw, self.places[0])


def list_graph_floor_inputs(values: Sequence[Any], still: Collection[int] = ()) -> list[GraphFloorInput]:
    """Inputs in the dtypes of a case, which all move but those at the places ``still``."""
    found, counted = [], itertools.count(1)
    for place, value in enumerate(values):
        arrays = value if isinstance(value, list) else [value]
        known = {x.dtype.name for x in arrays if isinstance(x, np.ndarray)}
        eps = EPS[known.pop()] if place not in still and len(known) == 1 and known <= {*WIDENED} else 0.0
        found.append(
            GraphFloorInput(widen_model_value(value), eps, tuple(itertools.islice(counted, len(arrays) if eps else 0)))
        )
    return found


#: Outputs of a case for other inputs; the draw says how what is inside of it moves. It may raise NoOracle.
Evaluate = Callable[[list[Any], int], "list[np.ndarray]"]


def compute_graph_floors(
    references: list[np.ndarray],
    evaluate: Evaluate,
    inputs: Sequence[GraphFloorInput],
    ops: Collection[str],
    dtypes: Sequence[str],
    op_class: OpClass,
    draws: int,
    witness: noise.Witness | None = None,
) -> list[np.ndarray | None]:
    """δ of every output of one or more nodes whose inputs move; None for zero everywhere, infinite where a draw is
    refused or changes a shape.

    ops: of the nodes; dtypes: of the outputs in the model; witness: see `tasks.arrays.noise.compute_noise_floor`. What
    rounds to nothing counts as moved (`_estimate_flush_loss`), and no δ is lower than `raise_graph_floor` says.
    """

    def draw_outputs(places: Sequence[int]) -> Iterator[list[np.ndarray] | None]:
        for draw in places:
            try:
                yield [np.asarray(y) for y in evaluate([x.at(draw) for x in inputs], draw)]
            except NoOracle:
                yield None

    values = [x.value for x in inputs]
    elements = sum(x.size for value in values for x in (value if isinstance(value, list) else [value]) if x is not None)
    floors: list[np.ndarray | None] = [None] * len(references)
    if any(x.eps for x in inputs):
        floors = noise.compute_noise_floor(references, draw_outputs, op_class, draws, elements, witness)
    if op_class in WITHOUT_NOISE or not draws:
        return floors
    if flushed := _estimate_flush_loss(ops, values):
        floors = [flushed + (np.zeros(y.shape) if d is None else d) for d, y in zip(floors, references)]
    given = any(is_value_widened(x) for x in values)
    return [raise_graph_floor(d, y, dtype, ops, given) for d, y, dtype in zip(floors, references, dtypes)]


def raise_graph_floor(
    floor: np.ndarray | None, y: np.ndarray, dtype: str, ops: Collection[str], given: bool
) -> np.ndarray | None:
    """The noise floor of an output ``y`` of some nodes: None for zero everywhere.

    At least ε for a recurrent operator: its gates and states lie in [-1, 1] and are rounded there, so 1 - z of a
    saturated gate z is off by ε. At least ε of the largest element for a Fourier transform and where no input is a
    float: the error of a transform is a share of the largest output (Higham, Accuracy and Stability of Numerical
    Algorithms, 2nd ed., theorem 24.2: about log2(n) ε in the 2-norm), so an output that cancels to zero has none of its
    own.
    """
    found = np.zeros(y.shape) if floor is None else floor
    sums = {operators.find_operator(op).sums for op in ops}
    if dtype in WIDENED and "recurrent" in sums:
        found = np.maximum(found, EPS[dtype])
    elif dtype in WIDENED and ("transform" in sums or not given):
        size = np.abs(y)
        found = np.maximum(found, EPS[dtype] * size.max(initial=0.0, where=np.isfinite(size)))
    return found if found.any() else None


class ExpectedOutput(NamedTuple):
    """What a graph's outputs are to be, in order: float64, integers in their own dtype.

    floors: δ of each element. rows: as the outputs of a model are judged (`tasks.model.leaf.compute_model_floor`). steady: δ
    where every cast to a narrower dtype rounds as it does to exact values, which is pooled over rows; jumps: what it
    adds to an element that some round the other way, None where none may.
    """

    references: list[np.ndarray]
    floors: list[np.ndarray]
    rows: list[np.ndarray]
    steady: list[np.ndarray]
    jumps: list[np.ndarray | None]


def reference_and_floor(graph: EvaluatedGraph, feeds: Mapping[str, Any], draws: int) -> ExpectedOutput:
    """What a graph gives, with the noise floors. What a node makes is not surer in a graph than by itself
    (`raise_graph_floor`).

    Raises NoOracle for a model that has no float64 evaluation.
    """

    def outputs(move: Move | None, round: Round) -> list[np.ndarray]:
        found = graph.run(feeds, move=move, round=round)
        return [np.array(found[name], order="C") for name in graph.outputs]  # a scalar stays one

    def floors(round: Callable[[], Round]) -> list[np.ndarray]:
        return _compute_graph_floors(
            references, lambda draw: outputs(make_graph_mover(graph, draw), round()), OpClass.MODEL, draws, elements
        )

    casts = CastRoundings()
    references = outputs(None, casts.first)
    elements = sum(np.size(x) for x in feeds.values()) + sum(x.size for x in graph.movable.values())
    steady = floors(casts.again)
    for place, name in enumerate(graph.outputs):
        makers = [node.op for node in graph.nodes if name in node.outputs]
        higher = raise_graph_floor(
            steady[place], references[place], graph.dtypes.get(name) or "float32", makers, given=True
        )
        steady[place] = steady[place] if higher is None else higher
    if not casts.open:
        return ExpectedOutput(references, steady, [compute_row_floor(d) for d in steady], steady, [None] * len(steady))
    found = [np.maximum(a, b) for a, b in zip(steady, floors(casts.either))]
    jumps = [compute_jumping_floor(a, b) for a, b in zip(steady, found)]
    rows = [np.maximum(compute_row_floor(a), b) for a, b in zip(steady, jumps)]
    return ExpectedOutput(references, found, rows, steady, list(jumps))


def compute_node_floor(graph: EvaluatedGraph, node: GraphNode, inputs: Sequence[Any], draws: int) -> list[np.ndarray]:
    """Element floors δ of a node's outputs on the float64 inputs of its places (None for one left out).

    Every floating input is moved by the ε of its dtype in the model, unless it says what is computed and not on what,
    or is a constant of one element. Raises NoOracle.
    """
    wide = [widen_model_value(x) for x in inputs]
    references = [np.asarray(y) for y in graph.run_node(node, wide)]
    given = [
        GraphFloorInput(x, 0.0, ())
        if not _is_tensor_wide(x) or moved_tensors.is_input_structural(node, place) or node.inputs[place] in graph.fixed
        else GraphFloorInput(x, graph.eps(node.inputs[place]), (graph.places[node.inputs[place]],))
        for place, x in enumerate(wide)
    ]

    def outputs(moved: list[Any], draw: int) -> list[np.ndarray]:
        return graph.run_node(node, moved, make_graph_mover(graph, draw))

    dtypes = [graph.dtypes.get(name) or "float32" for name in node.outputs]
    found = compute_graph_floors(
        references, outputs, given, (node.op,), dtypes, moved_tensors.class_graph_node(node), draws
    )
    return [np.zeros(y.shape) if delta is None else delta for y, delta in zip(references, found)]


def _is_tensor_wide(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float64


def _estimate_flush_loss(ops: Collection[str], inputs: Sequence[Any]) -> float:
    """What a sum of products loses where every subnormal float32, of its inputs and of its terms, is taken as 0.

    Devices may do so (OpenCL 3.0 C, 5.5: support of single precision denormals is optional), and trained networks have
    channels whose weights are all that small.
    """
    if [operators.find_operator(op).sums for op in ops] != ["layer"] or not all(map(_is_tensor_wide, inputs[:2])):
        return 0.0
    (op,), (data, weights) = ops, inputs[:2]
    terms = data.shape[-1] if op in ("MatMul", "Gemm") else weights.size // max(weights.shape[0], 1)
    largest = max([1.0, *(float(np.abs(x).max(initial=0.0)) for x in (data, weights))])
    return float(terms * np.finfo(np.float32).tiny * largest) if np.isfinite(largest) else 0.0


def _compute_graph_floors(
    references: list[np.ndarray],
    outputs: Callable[[int], list[np.ndarray]],
    op_class: OpClass,
    draws: int,
    elements: int,
) -> list[np.ndarray]:
    """δ of every output; infinite where a draw is refused or changes a shape."""

    def evaluate(drawn: Sequence[int]) -> Iterator[list[np.ndarray] | None]:
        for draw in drawn:
            try:
                yield outputs(draw)
            except NoOracle:
                yield None

    found = noise.compute_noise_floor(references, evaluate, op_class, draws, elements)
    return [np.zeros(y.shape) if delta is None else delta for y, delta in zip(references, found)]
