"""Samples of the roundtrip check: a model as it was exported, and its torch form exported again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tasks import catalogs
from tasks.catalogs.base import Sample
from tasks.checks.roundtrip import AGAIN
from tasks.judge.weak_samples import compare_two_oracles
from tasks.model import Group, Unsupported, Vacuous
from tasks.model.errors import find_error_text
from tasks.prepare.derived.parts import SAME, Spoilt, explain_graphs_differ, list_part_feeds


def derive(base: Sample, number: int, group: Group, draws: int) -> Sample:
    """The sample ``base``, or the same with the model exported again.

    Raises Spoilt where a graph is not the module in float64, or cannot be exported again; Vacuous for a model that has
    no torch form.
    """
    try:
        module = catalogs.get_catalog(group.catalog).call(group)
    except Unsupported as error:
        raise Vacuous(str(error)) from None
    for oracle in base.others:
        found = compare_two_oracles(oracle.references, base.expected, base.op_class, oracle.rounding)
        if oracle.name == "torch-float64" and found["units"] > SAME:
            raise Spoilt("exporter", f"in float64 the graph is another function than the module: {found['detail']}")
    if number != AGAIN:
        return replace(base, index=number, columns=base.columns | {"flags": "exported=once"})
    import onnx

    first = onnx.load_model_from_string(base.model)
    try:
        second = _save_and_load(module, base, first)
        onnx.checker.check_model(second)
    except Exception as error:
        raise Spoilt(
            "exporter",
            f"torch's exporter does not take the module that torch.export has loaded: {find_error_text(error)}",
        ) from None
    _check_same_function(base, first, second)
    made = second.SerializeToString()
    return replace(base, index=number, model=made, columns=base.columns | {"flags": "exported=again"})


def _save_and_load(module: Any, base: Sample, first: Any) -> Any:
    """The ModelProto of a module that torch.export has taken apart, saved and loaded."""
    import torch

    from tasks.catalogs.models.exporting import export_model_module

    given = [torch.from_numpy(np.array(x)) for x in list_part_feeds(base, first).values()]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = str(Path(folder) / "module.pt2")
        torch.export.save(torch.export.export(module, tuple(given), strict=False), path)
        loaded = torch.export.load(path).module()
    inputs, outputs = (tuple(x.name for x in values) for values in (first.graph.input, first.graph.output))
    return export_model_module(loaded, given, inputs, outputs)


def _check_same_function(base: Sample, first: Any, second: Any) -> None:
    """Raise Spoilt where the graphs are not the same in float64; one of them is evaluated by whoever made ``base``."""
    from tasks.graphs.evaluate_graph import EvaluatedGraph
    from tasks.graphs.widening import NoOracle

    try:
        found = [EvaluatedGraph(x).run(list_part_feeds(base, x)) for x in (first, second)]
    except NoOracle as error:
        raise Vacuous(f"no float64 evaluation of what was exported again: {error}") from None
    if different := explain_graphs_differ(*found):
        raise Spoilt("exporter", f"exported again it is another function in float64: {different}")
