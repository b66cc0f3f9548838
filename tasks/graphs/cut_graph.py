"""Parts of an ONNX graph as models of their own, and a model that gives its intermediate tensors as well."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

#: Bytes of an initializer up to which shape inference is given its values: shapes, axes, scales.
_SMALL = 1 << 10


def cut_graph_part(
    model: Any, inputs: Collection[str], outputs: Collection[str], types: Mapping[str, Any] | None = None
) -> Any:
    """The part of a ModelProto that makes the tensors ``outputs`` of the tensors ``inputs``, as a valid ModelProto.

    Initializers, functions, opset imports and the types of tensors come along, also what only the body of an If, Loop
    or Scan reads from outside. An input may be any tensor of the main graph, an initializer too. types: ValueInfoProto
    by name, as `list_tensor_types` finds them (default: it is asked). Raises ValueError for a tensor that the graph does not
    have, for an output that is no node's, and where the part reads an input of the graph that is not among ``inputs``.

    onnx.utils.Extractor loses what only a body reads, takes a missing input silently, and refuses a tensor whose type
    shape inference does not know.
    """
    import onnx

    types = list_tensor_types(model) if types is None else types
    graph = model.graph
    places = _find_nodes_between(graph, set(inputs), outputs)
    needed = {name for place in places for name in list_node_reads(graph.node[place])} - set(inputs)
    made = {name for place in places for name in graph.node[place].output}
    lacking = sorted({x.name for x in graph.input} & needed - {x.name for x in graph.initializer})
    if lacking:
        raise ValueError(f"the part reads {', '.join(lacking)}, which is not among its inputs")
    part = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    part.opset_import.extend(model.opset_import)
    part.functions.extend(model.functions)
    part.graph.name = graph.name or "part"
    part.graph.node.extend(_drop_node_outputs(graph.node[place], inputs) for place in places)
    part.graph.initializer.extend(x for x in graph.initializer if x.name in needed)
    part.graph.sparse_initializer.extend(x for x in graph.sparse_initializer if x.values.name in needed)
    part.graph.input.extend(_get_value_info(name, types) for name in inputs)
    part.graph.output.extend(_get_value_info(name, types) for name in outputs)
    inside = made - set(outputs) - set(inputs)
    part.graph.value_info.extend(types[name] for name in sorted(inside & set(types)))
    part.graph.quantization_annotation.extend(
        x for x in graph.quantization_annotation if x.tensor_name in made | needed | set(inputs)
    )
    return part


def add_graph_outputs(model: Any, names: Iterable[str], types: Mapping[str, Any] | None = None) -> Any:
    """A copy of a ModelProto whose outputs are followed by the tensors ``names``, those that are none yet.

    types: as for `cut_graph_part`. Raises ValueError for a tensor that no node of the main graph makes.
    """
    import onnx

    types = list_tensor_types(model) if types is None else types
    made = {name for node in model.graph.node for name in node.output}
    known = {x.name for x in model.graph.output}
    further = [name for name in dict.fromkeys(names) if name not in known]
    if unknown := [name for name in further if name not in made]:
        raise ValueError(f"no node of the graph makes {unknown[0]!r}")
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.extend(_get_value_info(name, types) for name in further)
    return copy


def list_crossing_tensors(graph: Any, places: Collection[int]) -> tuple[list[str], list[str]]:
    """(inputs, outputs) of some nodes of a GraphProto, by their places: the tensors that come to them from other nodes
    or the graph's inputs, and those of theirs that others or the graph's outputs take. `cut_graph_part` takes both.

    What a Constant makes comes to nobody: `cut_graph_part` takes the Constant along.
    """
    producer = index_tensor_producers(graph)
    given = {x.name for x in graph.initializer} | {x.values.name for x in graph.sparse_initializer}
    inside = set(places)
    variable = {x.name for x in graph.input} - given
    inputs: dict[str, None] = {}
    for place in sorted(inside):
        for name in list_node_reads(graph.node[place]):
            source = producer.get(name)
            if name in variable or (
                source is not None and source not in inside and not is_constant_node(graph.node[source])
            ):
                inputs[name] = None
    taken = {x.name for x in graph.output}
    taken |= {name for place, node in enumerate(graph.node) if place not in inside for name in list_node_reads(node)}
    outputs = [name for place in sorted(inside) for name in graph.node[place].output if name and name in taken]
    return list(inputs), outputs


def index_tensor_producers(graph: Any) -> dict[str, int]:
    """The place of the node that makes a tensor, by the tensor's name."""
    return {name: place for place, node in enumerate(graph.node) for name in node.output if name}


def list_node_reads(node: Any) -> list[str]:
    """Names of the tensors that a NodeProto takes, also those that only its bodies read from outside."""
    found = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        for body in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            found |= dict.fromkeys(_list_outer_reads(body))
    return list(found)


def list_tensor_types(model: Any) -> dict[str, Any]:
    """ValueInfoProto of every tensor of the main graph whose type is known: declared, or by shape inference."""
    import onnx

    graph = infer_tensor_types(model).graph
    found = {x.name: x for values in (graph.value_info, graph.input, graph.output) for x in values}
    for tensor in model.graph.initializer:
        found[tensor.name] = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    return found


def infer_tensor_types(model: Any) -> Any:
    """The model with types by shape inference, in bodies too; its own functions are written out, large weights are
    inputs."""
    import onnx
    from onnx import inliner, shape_inference

    graph = model.graph
    light = onnx.ModelProto(ir_version=model.ir_version)
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.graph.name = "types"
    light.graph.node.extend(graph.node)
    for field in ("input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(graph, field))
    declared = {x.name for x in graph.input}
    for tensor in graph.initializer:  # inference needs no weights, and a message of 2 GiB has no bytes
        if tensor.ByteSize() <= _SMALL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in declared:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    if light.functions:
        light = inliner.inline_local_functions(light)
    try:
        return shape_inference.infer_shapes(light)
    except Exception:  # a graph that inference does not take may still run: its declared types are known
        return light


def _find_nodes_between(graph: Any, inputs: set[str], outputs: Collection[str]) -> list[int]:
    """Places of the nodes between the tensors, in the graph's order. Raises ValueError."""
    producer = index_tensor_producers(graph)
    known = producer.keys() | {x.name for x in graph.input} | {x.name for x in graph.initializer}
    known |= {x.values.name for x in graph.sparse_initializer}
    if unknown := sorted(inputs - known):
        raise ValueError(f"the graph has no tensor {unknown[0]!r}")
    if idle := [name for name in outputs if name not in producer or name in inputs]:
        raise ValueError(f"no node of the part makes {idle[0]!r}")
    found: set[int] = set()
    waiting = list(outputs)
    while waiting:
        place = producer.get(waiting.pop())
        if place is not None and place not in found:
            found.add(place)
            waiting += [name for name in list_node_reads(graph.node[place]) if name not in inputs]
    return sorted(found)


def _list_outer_reads(body: Any) -> list[str]:
    """Names that a body (GraphProto) reads and does not make."""
    own = {x.name for x in (*body.input, *body.initializer)} | {x.values.name for x in body.sparse_initializer}
    own |= {name for node in body.node for name in node.output}
    read = [name for node in body.node for name in list_node_reads(node)] + [x.name for x in body.output]
    return [name for name in read if name not in own]


def is_constant_node(node: Any) -> bool:
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def _drop_node_outputs(node: Any, names: Collection[str]) -> Any:
    """A NodeProto that makes none of ``names``: they are given, while others of its outputs are needed."""
    import onnx

    if not set(names) & set(node.output):
        return node
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = [f"{name}.unused" if name in names else name for name in node.output]
    return copy


def _get_value_info(name: str, types: Mapping[str, Any]) -> Any:
    import onnx

    return types[name] if name in types else onnx.ValueInfoProto(name=name)
