"""What a minimal case is put otherwise in, one thing at a time, to see what triggers its failure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tasks.draw import structure
from tasks.hunt.call_case import CallCase
from tasks.hunt.case import HuntCase
from tasks.hunt.graph_case import GraphCase, copy_searched_model

#: Toggles that are tried.
MOST = 16


def list_case_toggles(case: HuntCase) -> Iterator[tuple[str, HuntCase]]:
    """(what is otherwise, the case)."""
    found = _list_graph_toggles(case) if isinstance(case, GraphCase) else case.simpler()
    if isinstance(case, CallCase) and case.structure and (plain := case.ordinary(0)) is not None:
        told = f"ordinary values of {', '.join(structure.parse_structure_labels(case.structure))}"
        found = itertools.chain([(told, plain)], found)
    for place, (what, other) in enumerate(found):
        if place >= MOST:
            return
        yield what, other


def _list_graph_toggles(case: GraphCase) -> Iterator[tuple[str, HuntCase]]:
    for what, other in case.simpler():
        if not what.startswith("output"):
            yield f"without {what}", other
    yield from _list_input_toggles(case)
    yield from _list_opset_toggles(case)


def _list_input_toggles(case: GraphCase) -> Iterator[tuple[str, HuntCase]]:
    """Inputs given as initializers, initializers as inputs, open sizes."""
    from onnx import helper, numpy_helper

    fed = [x.name for x in case.model.graph.input if isinstance(case.feeds.get(x.name), np.ndarray)]
    for name in fed if len(fed) > 1 else ():
        model = copy_searched_model(case.model)
        model.graph.initializer.append(numpy_helper.from_array(case.feeds[name], name))
        _drop_toggled_attribute(model.graph.input, name)
        feeds = {k: x for k, x in case.feeds.items() if k != name}
        yield f"input {name} as an initializer", replace(case, model=model, feeds=feeds)
    for tensor in case.model.graph.initializer:
        value = np.asarray(numpy_helper.to_array(tensor))
        model = copy_searched_model(case.model)
        _drop_toggled_attribute(model.graph.initializer, tensor.name)
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, value.shape))
        yield (
            f"initializer {tensor.name} as an input",
            replace(case, model=model, feeds={**case.feeds, tensor.name: value}),
        )
    model = copy_searched_model(case.model)
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{axis}"
    yield "with open sizes", replace(case, model=model)


def _list_opset_toggles(case: GraphCase) -> Iterator[tuple[str, HuntCase]]:
    """The same in the newest operator set, or in an older one."""
    import onnx

    newest = onnx.defs.onnx_opset_version()
    for own in case.model.opset_import:
        if own.domain not in ("", "ai.onnx"):
            continue
        for version in (newest, 17, 13):
            if version == own.version:
                continue
            try:
                model: Any = onnx.version_converter.convert_version(case.model, version)
            except Exception:  # no adapter, or none of the op before
                continue
            yield f"opset {version} instead of {own.version}", replace(case, model=model)


def _drop_toggled_attribute(values: Any, name: str) -> None:
    kept = [x for x in values if x.name != name]
    del values[:]
    values.extend(kept)
