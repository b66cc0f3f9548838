"""The float64 oracle of the ONNX node suite: a case's graph evaluated node by node (`tasks.graphs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.catalogs.base import Sample
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.noise_floor import compute_graph_floors, list_graph_floor_inputs
from tasks.graphs.widening import WIDENED, NoOracle, is_value_widened, widen_model_value
from tasks.model import EPS, Leaf, OpClass, Oracle, get_numpy_dtype, get_wide_dtype
from tasks.older_python import zip_equal

#: Output elements beyond which a case is left to its stored output: onnx pools in a Python loop (3 cases, 60 % of the
#: time).
LARGEST_OUTPUT = 20_000


def add_float64_oracle(sample: Sample, case: Any, inputs: list[Any], draws: int) -> None:
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
    graph = EvaluatedGraph(case.model)
    exact = _evaluate_suite_outputs(graph, [widen_model_value(x) for x in inputs])
    references = [_cast_like_leaf(y, leaf) for y, leaf in zip_equal(exact, stored)]
    noise_floor = _compute_suite_noise(graph, inputs, references, stored, sample.op_class, draws)
    sample.expected = [replace(leaf, reference=y, noise=d) for leaf, y, d in zip(stored, references, noise_floor)]
    sample.oracle = "float64"
    sample.others.append(
        Oracle("stored", [leaf.reference for leaf in stored if leaf.reference is not None], rounded=True)
    )


def _evaluate_suite_outputs(graph: EvaluatedGraph, inputs: Sequence[Any]) -> list[Any]:
    """What comes out, flat. Raises NoOracle."""
    found = graph.run(dict(zip_equal(graph.inputs, inputs)))
    return [y for name in graph.outputs for y in (found[name] if isinstance(found[name], list) else [found[name]])]


def _cast_like_leaf(y: Any, leaf: Leaf) -> np.ndarray:
    array = np.asarray(y)
    dtype = get_numpy_dtype(get_wide_dtype(leaf.dtype))
    if array.dtype != dtype or array.shape != leaf.shape:
        raise NoOracle(f"returns {array.dtype} of shape {array.shape} for {dtype} of shape {leaf.shape}")
    return np.array(array, order="C")


def _compute_suite_noise(
    graph: EvaluatedGraph,
    inputs: list[Any],
    references: list[np.ndarray],
    stored: list[Leaf],
    op_class: OpClass,
    draws: int,
) -> list[np.ndarray | None]:
    """δ per output (`tasks.graphs.noise_floor`), the stored outputs being what somebody computed in the dtype under test.

    Where moving all inputs changes a shape or is refused (the scales of a Resize), only the first floating one is
    moved.
    """
    ops, dtypes = {node.op for node in graph.block.walk()}, [leaf.dtype for leaf in stored]
    witness = [None if leaf.reference is None else (leaf.reference, EPS.get(leaf.dtype, 0.0)) for leaf in stored]

    def floors(still: Sequence[int]) -> list[np.ndarray | None]:
        given = list_graph_floor_inputs(inputs, still)
        return compute_graph_floors(
            references,
            lambda moved, draw: _evaluate_suite_outputs(graph, moved),
            given,
            ops,
            dtypes,
            op_class,
            draws,
            witness,
        )

    found = floors(())
    further = [place for place, x in enumerate(inputs) if is_value_widened(x)][1:]
    return floors(further) if further and any(d is not None and np.isinf(d).all() for d in found) else found
