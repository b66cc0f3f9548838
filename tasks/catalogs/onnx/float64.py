"""The float64 oracle of the ONNX node suite: a case's graph evaluated node by node (`tasks.graphs`)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.arrays import noise
from tasks.catalogs.base import Sample
from tasks.graphs.evaluate import Graph
from tasks.graphs.floor import raised
from tasks.graphs.widening import WIDENED, NoOracle, is_floating, widen
from tasks.model import EPS, Leaf, OpClass, Oracle, np_dtype, wide

#: Output elements beyond which a case is left to its stored output: onnx pools in a Python loop (3 cases, 60 % of the time).
LARGEST_OUTPUT = 20_000


def judge_by(sample: Sample, case: Any, inputs: list[Any], draws: int) -> None:
    """Make the float64 evaluation a sample's first oracle, with a noise floor, and the stored output its second.

    Nothing is changed for a sample whose stored output is exact, is not compared, has no floating output or is large.
    Raises NoOracle where the graph has no float64 evaluation.
    """
    stored = sample.expected
    if sample.op_class in (OpClass.EXACT, OpClass.RANDOM, OpClass.UNINITIALISED) or sample.definition:
        return
    if (
        not any(leaf.dtype in WIDENED for leaf in stored)
        or max(np.prod(leaf.shape) for leaf in stored) > LARGEST_OUTPUT
    ):
        return
    graph = Graph(case.model)
    exact = _outputs(graph, [widen(x) for x in inputs])
    references = [_like(y, leaf) for y, leaf in zip(exact, stored, strict=True)]
    noise_floor = _noise(graph, case, inputs, stored, references, sample.op_class, draws)
    sample.expected = [replace(leaf, reference=y, noise=d) for leaf, y, d in zip(stored, references, noise_floor)]
    sample.oracle = "float64"
    sample.others.append(
        Oracle("stored", [leaf.reference for leaf in stored if leaf.reference is not None], rounded=True)
    )


def _outputs(graph: Graph, inputs: Sequence[Any]) -> list[Any]:
    """What comes out, flat. Raises NoOracle."""
    found = graph.run(dict(zip(graph.inputs, inputs, strict=True)))
    return [y for name in graph.outputs for y in (found[name] if isinstance(found[name], list) else [found[name]])]


def _like(y: Any, leaf: Leaf) -> np.ndarray:
    array = np.asarray(y)
    dtype = np_dtype(wide(leaf.dtype))
    if array.dtype != dtype or array.shape != leaf.shape:
        raise NoOracle(f"returns {array.dtype} of shape {array.shape} for {dtype} of shape {leaf.shape}")
    return np.array(array, order="C")


def _noise(
    graph: Graph,
    case: Any,
    inputs: list[Any],
    stored: list[Leaf],
    references: list[np.ndarray],
    op_class: OpClass,
    draws: int,
) -> list[np.ndarray | None]:
    """δ per output (`tasks.arrays.noise`), the stored outputs being what somebody computed in the dtype under test.

    Where moving all inputs changes a shape or is refused (the scales of a Resize), only the first floating one is moved.
    It is `tasks.graphs.floor.raised`.
    """
    kinds = {node.op_type for node in case.model.graph.node}
    places = [k for k, x in enumerate(inputs) if is_floating(x)]
    elements = sum(x.size for value in inputs for x in (value if isinstance(value, list) else [value]) if x is not None)
    witness = [None if leaf.reference is None else (leaf.reference, EPS.get(leaf.dtype, 0.0)) for leaf in stored]
    floor: list[np.ndarray | None] = [np.full(y.shape, np.inf) if places else None for y in references]
    for movable in (places, places[:1]) if places else ():
        evaluate = functools.partial(_moved, graph, inputs, references, movable)
        try:
            floor = noise.floor(references, evaluate, op_class, draws, elements, witness)
            break
        except NoOracle:
            pass
    return [raised(d, y, leaf.dtype, kinds, bool(places)) for d, y, leaf in zip(floor, references, stored)]


def _moved(
    graph: Graph, inputs: list[Any], references: list[np.ndarray], movable: list[int], draws: Sequence[int]
) -> Iterator[list[np.ndarray]]:
    """The outputs for the inputs of each draw. Raises NoOracle where one is refused or changes a shape."""
    for draw in draws:
        places = itertools.count(1)

        def move(x: np.ndarray, eps: float, draw: int = draw, places: Iterator[int] = places) -> np.ndarray:
            return noise.moved(x, eps, draw, next(places))

        given = [widen(x, move if k in movable else None) for k, x in enumerate(inputs)]
        outputs = [np.asarray(y) for y in _outputs(graph, given)]
        if [y.shape for y in outputs] != [y.shape for y in references]:
            raise NoOracle("the shape of an output depends on the values of the inputs")
        yield outputs
