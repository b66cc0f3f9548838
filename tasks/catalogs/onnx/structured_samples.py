"""Structured samples of ONNX's node suite: a case's own inputs, with an input that selects (indices, classes, conditions) in a
structure, against the float64 evaluation of its graph."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from tasks.catalogs.base import Failure, Sample
from tasks.draw import structure
from tasks.draw.seeds import derive_seed
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.expected_outputs import compute_graph_leaves
from tasks.model import Group, is_inexact_dtype

#: What the specification calls inputs that select.
SELECTING = ("indices", "target", "labels", "condition")
#: Structures that an input is tried with.
TURNS = 8


def find_selecting_inputs(case: Any, inputs: list[Any]) -> list[int]:
    """Places of the inputs of a case that select, of a graph of one node whose inputs are all tensors; by the
    operator's schema."""
    from onnx import defs

    graph = case.model.graph
    if len(graph.node) != 1 or not all(isinstance(x, np.ndarray) for x in inputs):
        return []
    (node,) = graph.node
    version = max(int(x.version) for x in case.model.opset_import if x.domain == node.domain)
    try:
        schema = defs.get_schema(node.op_type, version, node.domain)
    except defs.SchemaError:
        return []
    called = {name: schema.inputs[min(k, len(schema.inputs) - 1)].name for k, name in enumerate(node.input) if name}
    return [
        place
        for place, x in enumerate(graph.input)
        if called.get(x.name) in SELECTING and inputs[place].dtype.kind in "biu" and inputs[place].size > 1
    ]


def make_structured_onnx_samples(
    group: Group, case: Any, inputs: list[Any], draws: int, skip: Collection[int] = ()
) -> Iterator[Sample]:
    """Up to ``group.samples`` samples, each structure once; vacuous where the float64 evaluation does not take one."""
    model = case.model.SerializeToString(deterministic=True)
    names = [x.name for x in case.model.graph.input]
    done: set[tuple[int, str]] = set()
    for turn in range(TURNS):
        for place in find_selecting_inputs(case, inputs):
            found = structure.draw_structure_like(
                inputs[place], turn, derive_seed(group.seed, f"{group.label}/{names[place]}/{turn}")
            )
            if found is None or (place, found[0]) in done or len(done) == group.samples:
                continue
            index = len(done)
            done.add((place, found[0]))
            if index in skip:
                yield Sample(index)
                continue
            given = [found[1] if k == place else x for k, x in enumerate(inputs)]
            made = Sample.of(index, given, model=model)
            made.columns["structure"] = structure.write_structure_label(names[place], found[0])
            try:
                with np.errstate(all="ignore"):
                    made.expected, made.op_class = compute_graph_leaves(
                        EvaluatedGraph(case.model), dict(zip(names, given)), draws
                    )
                leaves = [x.reference for x in made.expected if x.reference is not None and is_inexact_dtype(x.dtype)]
                if any(np.isnan(x).any() for x in leaves):
                    raise ValueError("the reference is NaN")
            except Exception as error:  # an evaluation of an operator, whatever it raises
                made.failure = Failure.vacuous(f"{names[place]} {found[0]} is not taken: {error}")
            yield made
    if not done:
        yield Sample(-1, failure=Failure.vacuous("no structure of an input that selects differs from its own"))
