"""The farm's own references of ONNX operators against the node suite's stored outputs and against onnx's evaluator."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import onnx
import pytest

from tasks.catalogs.fuzz.catalog import VARIANT, Fuzz
from tasks.catalogs.onnx import node_suite
from tasks.fuzz import table
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.widening import widen_model_value
from tasks.model import Group
from tasks.operators.call import OperatorCall
from tasks.operators.left_open import LeftOpen
from tasks.operators.table import EVALUATED

#: Of the suite, what is not generated: words in a case's name, with the reason.
NOT_GENERATED = {
    "training_mode": "BatchNormalization in training",
    "constantofshape": "is not generated",
    "identity_": "sequences and optionals",
    "empty_set": "tensors without elements",
    "e4m3": "8 bits",
    "e5m2": "8 bits",
    "float4": "4 bits",
    "dynamicquantizelinear": "is not generated: half a step of its scale in float32",
}

#: By operator: what onnx's evaluator does, and the sentence by which it is at fault.
AT_FAULT = {spec.op: spec.at_fault for spec in table.SPECS.values() if spec.at_fault}


def _given(case: Any, inputs: list[Any]) -> tuple[Any, list[Any]]:
    graph = EvaluatedGraph(case.model, EVALUATED)
    (node,) = graph.nodes
    feeds = {x.name: node_suite._to_dense_array(y) for x, y in zip(case.model.graph.input, inputs)}
    return node, [widen_model_value(feeds.get(name, graph.weights.get(name))) if name else None for name in node.inputs]


def _agree(y: np.ndarray, want: np.ndarray) -> bool:
    if y.shape != want.shape or (y.dtype.kind != "f" and y.dtype != want.dtype):
        return False
    short = want.dtype.name in ("float16", "bfloat16")
    a, b = y.astype(np.float64), want.astype(np.float64)
    return np.allclose(a, b, rtol=2e-2 if short else 1e-3, atol=1e-2 if short else 1e-4, equal_nan=True)


def test_the_references_compute_what_the_node_suite_stores() -> None:
    seen: dict[str, int] = defaultdict(int)
    for name, case in node_suite._list_suite_cases().items():
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in table.SPECS or any(x in name.lower() for x in NOT_GENERATED):
            continue
        for inputs, outputs in case.data_sets:
            node, given = _given(case, inputs)
            with np.errstate(all="ignore"):
                try:
                    found = EVALUATED[node.op](OperatorCall(given, node.attributes, node.version, len(node.outputs)))
                except LeftOpen:
                    continue
            if found is None:  # casts to few bits
                assert node.op == "Cast", name
                continue
            named = [y for y, output in zip(found, node.outputs) if output]
            assert all(_agree(y, node_suite._to_dense_array(want)) for y, want in zip(named, outputs)), name
            seen[node.op] += 1
    # What the suite has no case of is held against torch and two runtimes alone.
    assert set(table.SPECS) - set(seen) == {"GlobalLpPool"}
    assert sum(seen.values()) > 700


@pytest.mark.parametrize("part", range(4))
def test_onnx_evaluator_agrees_but_where_it_is_at_fault(part: int) -> None:
    """Both ways: what is not in the table agrees on every case, what is in it does not on some."""
    apart: dict[str, list[str]] = defaultdict(list)
    ops = sorted(table.SPECS)[part::4]
    for op in ops:
        for dtype in table.list_fuzz_dtypes(op):
            for sample in Fuzz().samples(Group(f"fuzz:{op}", VARIANT, dtype, 16 if op in AT_FAULT else 3, 7), 4):
                large = sum(leaf.reference.size for leaf in sample.expected if leaf.reference is not None) > 2000
                if not sample.failure and not sample.others and not large and not table.SPECS[op].by_torch:
                    apart[op].append(f"{dtype} {sample.columns['flags']}")
    assert {op: said for op, said in apart.items() if op not in AT_FAULT} == {}
    assert {op for op in AT_FAULT if op in ops} - set(apart) == set()


@pytest.mark.parametrize("op", sorted(AT_FAULT))
def test_the_sentences_are_those_of_the_specification(op: str) -> None:
    text = ""
    for version in (13, 21, 23):
        if onnx.defs.has(op, version):
            schema = onnx.defs.get_schema(op, version)
            parts = [
                schema.doc,
                *(a.description for a in schema.attributes.values()),
                *(x.description for x in schema.inputs),
            ]
            text += " ".join(" ".join(parts).split())
    assert AT_FAULT[op][1] in text


def test_a_slope_of_prelu_that_is_larger_than_the_input_is_no_case() -> None:
    with pytest.raises(LeftOpen, match="unidirectional broadcastable"):
        EVALUATED["PRelu"](OperatorCall([np.ones((1, 1)), np.ones((2, 2))], {}, 16, 1))


def test_indices_of_one_hot_that_are_no_integers_are_cast_to_integers_first() -> None:
    """As the operator's text has it; the suite has whole numbers alone."""
    given = [np.array([0.5, 1.9, -0.5, -1.0, 3.0]), np.int64(3), np.array([0.0, 1.0])]
    (found,) = EVALUATED["OneHot"](OperatorCall(given, {}, 11, 1))
    assert found.argmax(-1).tolist()[:4] == [0, 1, 0, 2] and not found[4].any()
