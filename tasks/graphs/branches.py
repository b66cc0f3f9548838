"""A graph without its Ifs: each is replaced by the nodes of the branch that it takes for the inputs at hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.graphs.evaluate_graph import EvaluatedGraph


def inline_branches(model: Any, feeds: Mapping[str, np.ndarray]) -> Any:
    """The ModelProto with the branches that ``feeds`` lead into in place of its Ifs, those of the branches as well;
    itself if it has none. Raises NoOracle where it has no float64 evaluation."""
    while conditions := [node.input[0] for node in model.graph.node if _is_if_node(node)]:
        values = EvaluatedGraph(model).run(feeds, keep=conditions)
        known = {x.name: feeds[x.name] for x in model.graph.input if x.name in feeds} | values
        model = _splice_branches(model, {name: bool(np.asarray(known[name]).reshape(-1)[0]) for name in conditions})
    return model


def _is_if_node(node: Any) -> bool:
    return node.op_type == "If" and node.domain in ("", "ai.onnx")


def _splice_branches(model: Any, conditions: Mapping[str, bool]) -> Any:
    import onnx

    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for place, node in enumerate(model.graph.node):
        if not _is_if_node(node):
            made.graph.node.append(node)
            continue
        branch = "then_branch" if conditions[node.input[0]] else "else_branch"
        body = next(x.g for x in node.attribute if x.name == branch)
        _splice_branch_body(made.graph, body, list(node.output), f"{node.name or f'If_{place}'}/")
    return made


def _splice_branch_body(graph: Any, body: Any, outputs: list[str], prefix: str) -> None:
    """Append the nodes of a branch, its outputs as ``outputs``. Its own tensors keep their names unless another branch
    has had them."""
    import onnx

    own = [x.name for x in body.initializer] + [name for node in body.node for name in node.output if name]
    taken = {x.name for x in graph.initializer} | {name for node in graph.node for name in node.output}
    names = {name: prefix + name if name in taken else name for name in own}
    by_nodes = {name for node in body.node for name in node.output}
    left, given = [], set[str]()
    for value, output in zip(body.output, outputs):
        if value.name in by_nodes and value.name not in given and output:
            names[value.name] = output
            given.add(value.name)
        else:  # a tensor from outside, a weight, or one that is an output twice
            left.append((value.name, output))
    for tensor in body.initializer:
        graph.initializer.append(tensor)
        graph.initializer[-1].name = names[tensor.name]
    for node in body.node:
        graph.node.append(node)
        _rename_node_tensors(graph.node[-1], names)
    for name, output in left:
        if output:
            graph.node.append(onnx.helper.make_node("Identity", [names.get(name, name)], [output], f"{prefix}{output}"))


def _rename_node_tensors(node: Any, names: Mapping[str, str]) -> None:
    """Give the tensors of a NodeProto, and those that its bodies read from outside, other names."""
    node.input[:] = [names.get(x, x) for x in node.input]
    node.output[:] = [names.get(x, x) for x in node.output]
    for attribute in node.attribute:
        for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            hidden = {x.name for x in (*body.input, *body.initializer)} | {x for n in body.node for x in n.output}
            seen = {old: new for old, new in names.items() if old not in hidden}
            for inner in body.node:
                _rename_node_tensors(inner, seen)
            for value in body.output:
                value.name = seen.get(value.name, value.name)
