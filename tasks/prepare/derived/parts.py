"""What the derivations of samples share: how a case is spoilt, what a graph is fed, whether two graphs are one function."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.arrays.tree import flatten_nested_lists, make_contiguous_tensor
from tasks.catalogs.base import Sample
from tasks.judge.weak_samples import compare_two_oracles
from tasks.model import OpClass
from tasks.older_python import zip_equal


class Spoilt(Exception):
    """A sample that cannot be made, and what is to blame: its rows are `invalid`, whatever a runtime does."""

    def __init__(self, culprit: str, text: str) -> None:
        super().__init__(text)
        self.culprit = culprit


def list_part_feeds(sample: Sample, model: Any) -> dict[str, Any]:
    """What each input of a ModelProto is given by a sample, by name."""
    values = [_read_part_input(x, sample.arrays) for x in sample.args]
    return {k: v for k, v in zip_equal(list_part_inputs(model), values) if v is not None}


def _read_part_input(node: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(node, (list, tuple)):
        return [_read_part_input(x, arrays) for x in node]
    return None if node is None else make_contiguous_tensor(arrays[node.id], node)


def list_part_inputs(model: Any) -> dict[str, Any]:
    """The inputs of a ModelProto that have no default, ValueInfoProto by name."""
    defaults = {x.name for x in model.graph.initializer}
    return {x.name: x for x in model.graph.input if x.name not in defaults}


#: Error units up to which a graph is the module it was made of: both are float64, a part of a float32 unit is far off.
SAME = 1.0


def explain_model_differs(model: bytes, base: Sample) -> str | None:
    """How an exported model differs in float64 from what is expected of a sample; "" where it does not, None where
    nobody can say."""
    import onnx

    from tasks.graphs.evaluate_graph import EvaluatedGraph
    from tasks.graphs.widening import NoOracle

    if base.definition or base.op_class in (OpClass.RANDOM, OpClass.UNINITIALISED):
        return None
    proto = onnx.load_model_from_string(model)
    graph = EvaluatedGraph(proto)
    try:
        found = graph.run(list_part_feeds(base, proto))
    except NoOracle:
        return None
    far = compare_two_oracles([np.asarray(found[name]) for name in graph.outputs], base.expected, base.op_class)
    return str(far["detail"]) if far["units"] > SAME else ""


def explain_graphs_differ(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    """How the float64 outputs of two graphs differ beyond float64's own rounding; "" where they do not."""
    pairs = [[np.asarray(x) for x in flatten_nested_lists(list(side.values()))] for side in (left, right)]
    if len(pairs[0]) != len(pairs[1]):
        return f"{len(pairs[1])} outputs instead of {len(pairs[0])}"
    for number, (a, b) in enumerate(zip(*pairs)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {number} is {b.dtype}{list(b.shape)} instead of {a.dtype}{list(a.shape)}"
        if a.dtype.kind == "V":  # of few bits: exact in float64
            a, b = a.astype(np.float64), b.astype(np.float64)
        if a.dtype.kind not in "fc":
            if not np.array_equal(a, b):
                return f"output {number} differs in {int((a != b).sum())} of {a.size} elements"
            continue
        size = np.abs(a)
        scale = float(size.max(initial=0.0, where=np.isfinite(size)))
        if not np.allclose(a, b, rtol=2.0**-30, atol=scale * 2.0**-30, equal_nan=True):
            with np.errstate(invalid="ignore"):
                return f"output {number} differs by {np.nanmax(np.abs(a - b)):.3g} of at most {scale:.3g}"
    return ""
