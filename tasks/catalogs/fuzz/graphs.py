"""Samples that are graphs: the float64 evaluation and the noise floor are those of whole networks."""

from __future__ import annotations

from tasks.catalogs.base import Sample
from tasks.counterparts import by_torch
from tasks.draw.choices import DrawnChoices
from tasks.fuzz.graphs import build
from tasks.fuzz.graphs.build import FuzzedGraph
from tasks.fuzz.onnx.second import does_witness_agree
from tasks.fuzz.table import STEPS
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import reference_and_floor
from tasks.model import Leaf, OpClass
from tasks.operators.table import NAMED

#: Ends the name of an op whose cases are an operator and another one on what it makes; the op of larger graphs; of
#: graphs that are there twice, once written otherwise.
AND, GRAPH, TWICE = "+", "graph", "rewritten"
#: The variant of today's generator of graphs.
VARIANT = f"g{build.GENERATOR}"
#: Every op whose cases are graphs.
NAMES = (*(f"{op}{AND}" for op in sorted(STEPS)), GRAPH, TWICE)


_OF_MANY = {GRAPH: build.build_fuzz_graph, TWICE: build.build_graph_twice}


def choose_first_operator(op: str, seed: int, index: int) -> tuple[int, ...]:
    """What is chosen first: of pairs the second operator, in turn, so that a few groups hold every pair."""
    return () if op in _OF_MANY else ((seed * 8 + index) % len(build.PARTNERS),)


def build_fuzzed_graph(op: str, dtype: str, choose: DrawnChoices) -> FuzzedGraph:
    """The graph of some choices, which begins in a dtype of `build.DTYPES`."""
    if op in _OF_MANY:
        return _OF_MANY[op](dtype, choose)
    return build.build_pair_graph(op.removesuffix(AND), dtype, choose)


def make_graph_sample(index: int, op: str, one: FuzzedGraph, draws: int) -> Sample:
    """The sample of a graph. Raises NoOracle."""
    import onnx

    proto = onnx.load_from_string(one.model)
    graph = EvaluatedGraph(proto)
    exact = reference_and_floor(graph, one.feeds, draws)
    expected = [
        Leaf(graph.dtypes[name], y.shape, y, delta if delta.any() else None, jumps=jumps)
        for name, y, delta, jumps in zip(graph.outputs, exact.references, exact.steady, exact.jumps)
    ]
    found = by_torch.evaluate_model_by_torch(proto, one.feeds, NAMED)
    others = [] if found is None else does_witness_agree(by_torch.NAME, found, expected, OpClass.MODEL)
    columns = {"choices": one.choices, "flags": one.words, "second_oracle": others[0].name if others else ""}
    return Sample.of(
        index,
        graph.order_inputs(one.feeds),
        expected=expected,
        op_class=OpClass.MODEL,
        oracle="farm-float64",
        others=others,
        model=one.model,
        columns=columns,
        twins=len(expected) // 2 if op == TWICE else 0,
    )
