"""What an ONNX graph gives if attributes or optional inputs of its operators are ignored, or are taken for others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tasks.diagnose.error_model import FEW, ErrorModel, WrongResult
from tasks.operators import table as operators

#: Nodes of a graph, and ways in which it is computed again, at most: each takes a fraction of a millisecond a node.
NODES, WAYS = 40, 120
#: By how much the coordinates of a grid are moved to break a tie.
TIE = 1e-7
#: (words, what is done to a node: whether anything was).
Way = tuple[str, Callable[[Any], bool]]


def models(graph: bytes, inputs: Sequence[np.ndarray], result: WrongResult, place: int) -> Iterator[ErrorModel]:
    """Error models of the output at a ``place`` of an ONNX model, computed in float64; none where onnx is not there.

    inputs: of the graph, in its order. A way counts only if the graph as it is gives the exact result.
    """
    try:
        import onnx

        from tasks.graphs.evaluate_graph import EvaluatedGraph
    except ImportError:
        return
    model = onnx.load_from_string(graph)
    names = [x.name for x in model.graph.input if x.name not in {w.name for w in model.graph.initializer}]
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    if len(names) != len(inputs) or len(nodes) > NODES:
        return
    feeds = dict(zip(names, inputs))

    def compute_output(some: Sequence[Way], fed: Mapping[str, np.ndarray] = feeds) -> np.ndarray | None:
        """The output if all of these are so; None where one changes nothing, or that is no valid graph."""
        other = onnx.ModelProto()
        other.CopyFrom(model)
        for _, change in some:
            if not any([change(node) for node in other.graph.node]):
                return None
        for value in other.graph.output:
            value.type.tensor_type.ClearField("shape")
        try:
            return np.asarray(EvaluatedGraph(other).run(fed)[other.graph.output[place].name])
        except Exception:
            return None

    exact = compute_output(())
    if exact is None or not _is_graph_as_expected(exact, result):
        return
    for op in sorted({node.op_type for node in nodes if _is_mean_of_some(node, onnx)}):
        total, counted = compute_output([("", _make_attribute_changer(op, "reduction", "sum", onnx))]), inputs[1].size
        if total is not None and total.shape == exact.shape:
            yield ErrorModel("ignored targets are counted in the mean", total / counted)
    if len(nodes) == 1:
        for words, changed in _list_mistaken_inputs(nodes[0], feeds):
            found = compute_output((), {**feeds, **changed})
            if found is not None and found.shape == exact.shape:
                yield ErrorModel(words, found.astype(exact.dtype), digits=True)
    ways = list(_list_ignored_parts(nodes, onnx, max((x.ndim for x in inputs), default=0)))
    singles = [(way,) for way in ways]
    several = itertools.combinations(ways, 2) if result.off.sum() >= FEW else ()
    seen = [exact]
    for some in itertools.islice(itertools.chain(singles, several), WAYS):
        found = compute_output(some)
        if found is None or found.shape != exact.shape:
            continue
        if not any(
            np.array_equal(found, x, equal_nan=found.dtype.kind == "f") for x in seen
        ):  # a default by another word
            seen.append(found)
            yield ErrorModel(" and ".join(words for words, _ in some), found.astype(exact.dtype), digits=True)


def _list_mistaken_inputs(node: Any, feeds: Mapping[str, np.ndarray]) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """(words, other inputs) with which a node computes what is a known mistake of its operator."""
    names = list(node.input)
    if node.op_type == "GridSample" and names[1] in feeds:  # a tie falls to the side that it is moved to
        grid = feeds[names[1]].astype(np.float64)
        for words, to in (("up", TIE), ("down", -TIE)):
            yield f"halves between pixels are rounded {words}", {names[1]: grid + to}
    if node.op_type == "Attention" and all(feeds[x].ndim == 4 for x in names[:3] if x in feeds):
        query, key = feeds[names[0]].shape[1], feeds[names[1]].shape[1]
        heads = [x for k, x in enumerate(names) if k in (1, 2, 4, 5) and x in feeds]
        if key < query and query % key == 0:
            tiled = {x: np.tile(feeds[x], (1, query // key, 1, 1)) for x in heads}
            yield "heads of key and value are repeated in turn, not each by itself", tiled


def _is_mean_of_some(node: Any, onnx: Any) -> bool:
    """Whether an operator takes the mean over the targets that are not ignored."""
    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type):
        return False
    return {"reduction", "ignore_index"} <= set(onnx.defs.get_schema(node.op_type).attributes)


def _is_graph_as_expected(exact: np.ndarray, result: WrongResult) -> bool:
    """Whether the graph as it is gives what is expected; numbers that were stored in the output's dtype as well."""
    return exact.shape == result.exact.shape and bool(
        result.is_exact(exact) if result.real else np.array_equal(exact, result.exact)
    )


def _list_ignored_parts(nodes: Sequence[Any], onnx: Any, rank: int) -> Iterator[Way]:
    """One for each attribute and optional input of each operator, in all of its nodes at once; what is given first."""
    by_op: dict[str, list[Any]] = {}
    for node in nodes:
        if node.domain in ("", "ai.onnx"):
            by_op.setdefault(node.op_type, []).append(node)
    later: list[Way] = []
    for op, several in by_op.items():
        schema, told = onnx.defs.get_schema(op), "" if len(nodes) == 1 else f"{op}: "
        given = {a.name: onnx.helper.get_attribute_value(a) for node in several for a in node.attribute}
        for name in given:
            yield f"{told}attribute {name} is ignored", _make_attribute_dropper(op, name)
        for k, entry in enumerate(schema.inputs):
            if entry.option == onnx.defs.OpSchema.FormalParameterOption.Optional:
                yield f"{told}input {entry.name} is ignored", _make_input_dropper(op, k)
        later += _list_mistaken_attributes(op, told, given, schema, onnx, rank)
    yield from later


def _list_mistaken_attributes(
    op: str, told: str, given: Mapping[str, Any], schema: Any, onnx: Any, rank: int
) -> Iterator[Way]:
    """Attributes with another value than the one that holds."""
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        value = given.get(name, onnx.helper.get_attribute_value(default) if default.name else None)
        value = value.decode() if isinstance(value, bytes) else value
        others: Sequence[Any] = ()
        if isinstance(value, str):
            others = operators.find_operator(op).texts.get(name, ())
        elif isinstance(value, int) and name == "axis":
            others = [axis for axis in range(rank) if axis != value % max(rank, 1)]
        elif isinstance(value, int) and value in (0, 1):
            others = [1 - value]
        for other in others:
            if other != value:
                yield f"{told}{name} is taken for {other}", _make_attribute_changer(op, name, other, onnx)


def _make_attribute_dropper(op: str, name: str) -> Callable[[Any], bool]:
    def change(node: Any) -> bool:
        kept = [a for a in node.attribute if a.name != name]
        if node.op_type != op or len(kept) == len(node.attribute):
            return False
        del node.attribute[:]
        node.attribute.extend(kept)
        return True

    return change


def _make_input_dropper(op: str, place: int) -> Callable[[Any], bool]:
    def change(node: Any) -> bool:
        if node.op_type != op or len(node.input) <= place or not node.input[place]:
            return False
        node.input[place] = ""
        while node.input and not node.input[-1]:
            del node.input[-1]
        return True

    return change


def _make_attribute_changer(op: str, name: str, value: Any, onnx: Any) -> Callable[[Any], bool]:
    def change(node: Any) -> bool:
        if node.op_type != op:
            return False
        _make_attribute_dropper(op, name)(node)
        node.attribute.append(onnx.helper.make_attribute(name, value))
        return True

    return change
