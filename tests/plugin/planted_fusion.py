"""A compiler of ONNX graphs that is sound, and some that err only where they fuse two given operators."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tasks.backends.base import Backend
from tasks.backends.shared.onnx_form import name_onnx_inputs
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.model import Form, Program, RuntimeInfo
from tasks.model.dtypes import DTYPE_OF_ELEMENT, get_numpy_dtype

#: What is fused, by device: the second operator on what the first makes, which nobody else takes. The second is then
#: forgotten.
FUSED = {"errs": ("Sub", "Tanh"), "negates": ("Neg", "Neg")}


class Fusing(Backend):
    """A device is "sound", or one of FUSED."""

    forms = ("onnx",)
    devices = ("sound", *FUSED)
    closed = True

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.vendor = f"Fusing {device}"

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("1", "numpy")

    def build(self, form: Form) -> Program:
        import onnx

        model = onnx.load_from_string(form.model or b"")
        feeds = dict(name_onnx_inputs(form))
        dtypes = [DTYPE_OF_ELEMENT[x.type.tensor_type.elem_type] for x in model.graph.output]
        graph = EvaluatedGraph(model)
        if self.device in FUSED:
            forgotten = set(_fused(model.graph, *FUSED[self.device]))
            nodes = [dataclasses.replace(n, op="Identity") if n.outputs[0] in forgotten else n for n in graph.nodes]
            graph.block = dataclasses.replace(graph.block, nodes=tuple(nodes))

        def run() -> list[np.ndarray]:
            found = graph.run(feeds)
            return [found[name].astype(get_numpy_dtype(dtype)) for name, dtype in zip(graph.outputs, dtypes)]

        return Program(run)


def _fused(graph: Any, first: str, second: str) -> list[str]:
    """Outputs of the second operators of such pairs."""
    made = {name: node for node in graph.node for name in node.output}
    taken = [name for node in graph.node for name in node.input] + [x.name for x in graph.output]
    return [
        node.output[0]
        for node in graph.node
        if node.op_type == second
        and node.input[0] in made
        and made[node.input[0]].op_type == first
        and taken.count(node.input[0]) == 1
    ]
