"""A minimal case for people, and what tells a finding from others: ops, attributes that are not the default, modes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tasks.arrays import layouts
from tasks.arrays.tree import TensorSpec, list_tensor_specs
from tasks.draw import structure
from tasks.hunt.call_case import CallCase
from tasks.hunt.case import HuntCase
from tasks.hunt.chosen_case import ChosenCase
from tasks.hunt.graph_case import GraphCase
from tasks.hunt.traced_case import TracedCase, list_operation_options

#: Elements up to which all values of a tensor are told.
ALL = 64


def describe_minimal_case(case: HuntCase) -> dict[str, Any]:
    """ops, attributes (those that are not the default, by op), modes, opset, inputs (name, dtype, shape, how it is
    given, values)."""
    if isinstance(case, ChosenCase):  # as it was made: what it says is what the choices came to
        case = case.graph() or case.call()
    attributes, modes, more = dict[str, Any](), list[str](), dict[str, Any]()
    called, how = dict[str, str](), dict[str, str]()
    if isinstance(case, TracedCase):
        attributes = _list_minimal_options(case)
    elif isinstance(case, CallCase):
        attributes, modes = (
            dict(_list_minimal_arguments(case)),
            [*_list_input_layouts(case), *_describe_minimal_structures(case)],
        )
        called, how = case.tensor_names, case.lie
    elif isinstance(case, GraphCase):
        weights = {x.name for x in case.model.graph.initializer} - set(case.feeds)
        attributes, modes, how = (
            _list_unusual_attributes(case),
            _list_minimal_modes(case, weights),
            dict.fromkeys(weights, "initializer"),
        )
        more = {"opset": {x.domain: int(x.version) for x in case.model.opset_import}}
    inputs = [_describe_minimal_input(called.get(k, k), x, how.get(k, "input")) for k, x in case.arrays.items()]
    return {"ops": list(case.ops), "attributes": attributes, "modes": modes, **more, "inputs": inputs}


def _list_minimal_options(case: TracedCase) -> dict[str, Any]:
    """Arguments of its operations that are no tensors."""
    given = [(f"{op}.{name}", value) for op, one in case.operations for name, value, _ in list_operation_options(one)]
    return {
        name: _describe_plain_value(value)
        for name, value in given
        if not (isinstance(value, dict) and value["$"] == "node")
    }


def _describe_plain_value(node: Any) -> Any:
    return node if isinstance(node, (bool, int, float, str)) else json.dumps(node)[:100]


def _list_minimal_arguments(case: CallCase) -> Iterator[tuple[str, Any]]:
    """(name, value) of the arguments that are no tensors: those left at their default are not among them any more."""
    op = case.ops[0].rpartition(".")[2]
    for name, node in case.named_arguments:
        if node is not None and not list_tensor_specs(node):
            yield f"{op}.{name}", _describe_plain_value(node)


def _list_input_layouts(case: CallCase) -> list[str]:
    specs = list_tensor_specs([case.args, case.kwargs])
    return sorted({_name_layout_mode(x) for x in specs if x.strides or x.layout != "strided"})


def _name_layout_mode(spec: TensorSpec) -> str:
    if spec.layout != "strided":
        return f"{spec.layout} input"
    layout = layouts.identify_layout(spec)
    return "input with gaps" if layout in ("row_gaps", "steps", "") else f"{layout} input"


def _describe_minimal_structures(case: CallCase) -> list[str]:
    """What its inputs are, where it takes that."""
    return [
        structure.describe_structure_labels(structure.write_structure_label(*pair))
        for pair in structure.parse_structure_labels(case.structure).items()
    ]


def _list_unusual_attributes(case: GraphCase) -> dict[str, Any]:
    from onnx import helper

    found: dict[str, Any] = {}
    versions = {x.domain: x.version for x in case.model.opset_import}
    for node in case.model.graph.node:
        if node.op_type == "Constant":
            continue
        defaults = _list_default_attributes(node.op_type, node.domain, versions.get(node.domain, 1))
        for attribute in node.attribute:
            if attribute.HasField("g") or attribute.graphs:
                continue
            value = helper.get_attribute_value(attribute)
            value = value.decode(errors="replace") if isinstance(value, bytes) else value
            plain = (
                value
                if isinstance(value, (int, float, str))
                else str(list(value))[:100]
                if hasattr(value, "__iter__")
                else "…"
            )
            if attribute.name not in defaults or defaults[attribute.name] != value:
                found[f"{node.op_type}.{attribute.name}"] = plain
    return found


def _list_default_attributes(op: str, domain: str, version: int) -> dict[str, Any]:
    from onnx import defs, helper

    try:
        schema = defs.get_schema(op, int(version), domain)
    except defs.SchemaError:
        return {}
    found = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            value = helper.get_attribute_value(attribute.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def _list_minimal_modes(case: GraphCase, weights: set[str]) -> list[str]:
    """Ways of giving tensors that are not the usual one: an input that says what is computed at run time, open
    sizes."""
    found = []
    for node in case.model.graph.node:
        for place, name in enumerate(node.input):
            x = case.feeds.get(name)
            if place and isinstance(x, np.ndarray) and x.dtype.kind == "i" and name not in weights:
                found.append(f"{node.op_type} input {place} at run time")
    if any(d.dim_param for x in case.model.graph.input for d in x.type.tensor_type.shape.dim):
        found.append("open sizes")
    return found


def _describe_minimal_input(name: str, x: np.ndarray, how: str) -> dict[str, Any]:
    values = x.astype(np.float64).tolist() if x.dtype.kind == "V" or x.dtype.name == "bfloat16" else x.tolist()
    return {
        "name": name,
        "dtype": x.dtype.name,
        "shape": list(x.shape),
        "how": how,
        "values": repr(values) if x.size <= ALL else "",
    }
