"""The noise floor of a whole model, and of one node of it: how far float64 results move when what rounds moves by ε.

Of a model, inputs, movable weights and the outputs of all nodes that round are moved: inputs alone are no floor, since those
of a language model are integers. Of a node, its inputs alone. The steps are those of `tasks.arrays.noise`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.graphs import moving
from tasks.graphs.evaluate import Graph, Move
from tasks.graphs.nodes import Node
from tasks.graphs.widening import WIDENED, NoOracle, widen
from tasks.judge import op_classes
from tasks.model import EPS, OpClass, row_floor

#: Recurrent ops: gates and states lie in [-1, 1] and are rounded there, so 1 - z of a saturated gate z is off by ε.
RECURRENT = ("GRU", "LSTM", "RNN")

#: Fourier transforms: their error is a share of the largest output (Higham, Accuracy and Stability of Numerical
#: Algorithms, 2nd ed., theorem 24.2: about log2(n) ε in the 2-norm), so an output that cancels to zero has none of its own.
TRANSFORMS = ("DFT", "STFT")


def raised(
    floor: np.ndarray | None, y: np.ndarray, dtype: str, kinds: Collection[str], moved: bool
) -> np.ndarray | None:
    """The noise floor of an output ``y`` of nodes of some kinds: at least ε in RECURRENT, ε of the largest element in
    TRANSFORMS and where no input is moved; None for zero everywhere."""
    found = np.zeros(y.shape) if floor is None else floor
    if dtype in WIDENED and not {*kinds}.isdisjoint(RECURRENT):
        found = np.maximum(found, EPS[dtype])
    elif dtype in WIDENED and (not {*kinds}.isdisjoint(TRANSFORMS) or not moved):
        size = np.abs(y)
        found = np.maximum(found, EPS[dtype] * size.max(initial=0.0, where=np.isfinite(size)))
    return found if found.any() else None


#: Operators whose results are sums of products of two inputs, and of a third one's elements.
SUMS = ("Conv", "ConvTranspose", "MatMul", "Gemm")

#: The smallest float16 above 0.
_LEAST = 2.0**-24


def mover(graph: Graph, draw: int) -> Move:
    """How a draw moves the tensors of a graph."""

    def move(name: str, x: np.ndarray, eps: float) -> np.ndarray:
        made = noise.moved(x, eps, draw, graph.places[name])
        if eps == EPS["float16"] and x.size:  # whose subnormal numbers are not rare: 3e-8 is rounded by as much
            least = np.full(x.shape, _LEAST)
            made += noise.moved(least, 1.0, draw, graph.places[name]) - least
        return made

    return move


def reference_and_floor(
    graph: Graph, feeds: Mapping[str, Any], draws: int
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """(references, element floors δ, row floors) of the graph's outputs in order; float64, integers in their own dtype.

    The row floor of an element is the larger of its δ and the root mean square of δ over the last axis. Raises NoOracle
    for a model that has no float64 evaluation.
    """

    def outputs(move: Move | None) -> list[np.ndarray]:
        found = graph.run(feeds, move=move)
        return [np.array(found[name], order="C") for name in graph.outputs]  # a scalar stays one

    references = outputs(None)
    elements = sum(np.size(x) for x in feeds.values()) + sum(x.size for x in graph.movable.values())
    floors = _floors(references, lambda draw: outputs(mover(graph, draw)), OpClass.MODEL, draws, elements)
    return references, floors, [row_floor(delta) for delta in floors]


def node_floor(graph: Graph, node: Node, inputs: Sequence[Any], draws: int) -> list[np.ndarray]:
    """Element floors δ of a node's outputs on the float64 inputs of its places (None for one left out).

    Every floating input is moved by the ε of its dtype in the model, unless it says what is computed and not on what, or is
    a constant of one element. Raises NoOracle.
    """
    wide = [widen(x) for x in inputs]
    references = [np.asarray(y) for y in graph.run_node(node, wide)]
    movable = [
        isinstance(x, np.ndarray)
        and x.dtype == np.float64
        and not moving.is_structural(node, place)
        and node.inputs[place] not in graph.fixed
        for place, x in enumerate(wide)
    ]

    def outputs(draw: int) -> list[np.ndarray]:
        move = mover(graph, draw)
        moved = [move(name, x, graph.eps(name)) if moves else x for name, x, moves in zip(node.inputs, wide, movable)]
        return [np.asarray(y) for y in graph.run_node(node, moved, move)]

    op_class = op_classes.of(f"onnx:{node.op}").op_class
    elements = sum(x.size for x in wide if isinstance(x, np.ndarray))
    flushed = _flushed(node, wide)
    return [delta + flushed for delta in _floors(references, outputs, op_class, draws, elements)]


def _flushed(node: Node, inputs: Sequence[Any]) -> float:
    """What a sum of products loses where every subnormal float32, of its inputs and of its terms, is taken as 0.

    Devices may do so (OpenCL 3.0 C, 5.5: support of single precision denormals is optional), and trained networks have
    channels whose weights are all that small.
    """
    if node.op not in SUMS or any(not isinstance(x, np.ndarray) for x in inputs[:2]):
        return 0.0
    data, weights = inputs[:2]
    terms = data.shape[-1] if node.op in ("MatMul", "Gemm") else weights.size // max(weights.shape[0], 1)
    largest = max([1.0, *(float(np.abs(x).max(initial=0.0)) for x in (data, weights))])
    return float(terms * np.finfo(np.float32).tiny * largest) if np.isfinite(largest) else 0.0


def _floors(
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

    found = noise.floor(references, evaluate, op_class, draws, elements)
    return [np.zeros(y.shape) if delta is None else delta for y, delta in zip(references, found)]
