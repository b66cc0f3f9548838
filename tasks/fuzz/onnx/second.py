"""A second opinion on a generated case: the same outputs by onnx's own evaluator, or by torch, in float64.

It speaks where it agrees with the farm's own reference, and is silent where it does not: onnx's evaluator is at fault
often enough (`tasks.fuzz.table.FuzzSpec.at_fault`), so that its word alone makes no reference suspect; runtimes decide then
(`farm.policies.vote`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.counterparts import by_torch
from tasks.fuzz.onnx.generate import GeneratedNode
from tasks.fuzz.table import SPECS
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.widening import NoOracle
from tasks.judge.weak_samples import compare_two_oracles
from tasks.model import Leaf, OpClass, Oracle

#: Output elements up to which onnx's evaluator is asked.
_MOST = 1 << 14
#: Error units within which two evaluations in float64 agree.
_AGREE = 4.0


def find_generated_witness(
    one: GeneratedNode, model: bytes, expected: Sequence[Leaf], op_class: OpClass
) -> list[Oracle]:
    """The second oracle of a case, if there is one and it agrees."""
    if sum(int(np.prod(leaf.shape)) for leaf in expected) > _MOST:
        return []
    name, found = (
        (by_torch.NAME, _evaluate_node_by_torch(one))
        if SPECS[one.op].by_torch
        else ("onnx-float64", _evaluate_node_by_onnx(one, model))
    )
    return [] if found is None else does_witness_agree(name, found, expected, op_class)


def does_witness_agree(
    name: str, found: Sequence[np.ndarray], expected: Sequence[Leaf], op_class: OpClass
) -> list[Oracle]:
    """The outputs of a second oracle, if they are those that are expected."""
    if len(found) != len(expected):
        return []
    made = []
    for y, leaf in zip(found, expected):
        assert leaf.reference is not None
        y = np.asarray(y)
        if y.dtype != leaf.reference.dtype or y.shape != leaf.reference.shape:
            return []
        made.append(np.array(y, order="C"))
    return [Oracle(name, made)] if compare_two_oracles(made, expected, op_class)["units"] <= _AGREE else []


def _evaluate_node_by_torch(one: GeneratedNode) -> list[np.ndarray] | None:
    try:
        operator = by_torch.compute_operator_by_torch(one.op)
        with np.errstate(all="ignore"):
            return operator(one.call([None if x is None else x.array for x in one.made.inputs]))
    except (ImportError, RuntimeError, NoOracle):
        return None


def _evaluate_node_by_onnx(one: GeneratedNode, model: bytes) -> list[np.ndarray] | None:
    import onnx

    try:
        graph = EvaluatedGraph(onnx.load_from_string(model), {})
        found = graph.run(dict(zip(graph.inputs, one.inputs)))
    except NoOracle:
        return None
    return [found[name] for name in graph.outputs]
