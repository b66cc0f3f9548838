"""A sound runtime of ONNX operators, and twenty mutants of it: each with one fault such as real ones have had."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.backends.base import Backend
from tasks.backends.shared.onnx_form import name_onnx_inputs
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.widening import NoOracle
from tasks.model import Form, Program, RuntimeInfo, Unsupported
from tasks.model.dtypes import DTYPE_OF_ELEMENT, get_numpy_dtype
from tasks.operators.table import EVALUATED

Feeds = dict[str, Any]


@dataclass
class Site:
    """A model of one node and its inputs, which a fault may change before they are computed."""

    model: Any
    feeds: Feeds

    @property
    def node(self) -> Any:
        return self.model.graph.node[0]

    @property
    def op(self) -> str:
        return str(self.node.op_type)

    @property
    def opset(self) -> int:
        return int(self.model.opset_import[0].version)

    def get(self, name: str) -> Any:
        from onnx import helper

        return next((helper.get_attribute_value(x) for x in self.node.attribute if x.name == name), None)

    def put(self, name: str, value: Any) -> None:
        """Set an attribute, or leave it out (None); one that is not there is not set."""
        from onnx import helper

        for k, x in enumerate(self.node.attribute):
            if x.name == name:
                if value is None:
                    del self.node.attribute[k]
                else:
                    x.CopyFrom(helper.make_attribute(name, value))
                return

    def change(self, place: int, how: Callable[[np.ndarray], np.ndarray], fed: bool | None = None) -> None:
        """Change the values of an input; fed: only if it is (or is not) an input of the graph."""
        from onnx import numpy_helper

        name = self.node.input[place] if place < len(self.node.input) else ""
        if name in self.feeds and fed is not False:
            x = self.feeds[name]
            self.feeds[name] = np.asarray(how(x)).astype(x.dtype)
        for tensor in self.model.graph.initializer if fed is not True else ():
            if tensor.name == name and tensor.data_type != 16:
                x = numpy_helper.to_array(tensor)
                tensor.CopyFrom(numpy_helper.from_array(np.asarray(how(x)).astype(x.dtype), name))


def without(*names: str) -> Callable[[Site], None]:
    def fault(site: Site) -> None:
        for name in names:
            site.put(name, None)

    return fault


def _swap_pads(site: Site) -> None:
    if pads := site.get("pads"):
        half = len(pads) // 2
        site.put("pads", [*pads[half:], *pads[:half]])


def _lower_is_upper(site: Site) -> None:
    if site.get("auto_pad") == b"SAME_LOWER":
        site.put("auto_pad", "SAME_UPPER")


def _no_wrap(site: Site) -> None:
    if site.op in ("Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"):
        site.change(1, lambda x: np.maximum(x, 0))


def _runtime_zero(site: Site) -> None:
    if site.op in ("Slice", "Gather", "Pad", "Trilu"):
        site.change(1, np.zeros_like, fed=True)


def _strides_reversed(site: Site) -> None:
    if strides := site.get("strides"):
        site.put("strides", list(strides)[::-1])


def _through_float(site: Site) -> None:
    if site.op in ("Add", "Max", "Min", "Sub", "Equal"):
        for place in range(len(site.node.input)):
            site.change(
                place, lambda x: x.astype(np.float32) if x.dtype.kind in "iu" and abs(x.max(initial=0)) < 2**62 else x
            )


def _last_tie(site: Site) -> None:
    if site.op in ("ArgMax", "ArgMin"):
        from onnx import helper

        last = site.get("select_last_index")
        site.put("select_last_index", None)
        site.node.attribute.append(helper.make_attribute("select_last_index", 0 if last else 1))


def _symbolic_order(site: Site) -> None:
    open_dims = any(d.HasField("dim_param") for x in site.model.graph.input for d in x.type.tensor_type.shape.dim)
    if site.op == "Transpose" and open_dims:
        site.put("perm", None)


def _early_axes(site: Site) -> None:
    if site.opset < 18 and (axes := site.get("axes")) and site.op.startswith("Reduce"):
        site.put("axes", sorted({max(k, 0) for k in axes}))


def _channel_scale(site: Site) -> None:
    if site.op in ("QuantizeLinear", "DequantizeLinear"):
        site.change(1, lambda x: np.full_like(x, x.reshape(-1)[0]) if x.size > 1 else x)


#: Name → what is done to the model and its inputs.
BEFORE: Mapping[str, Callable[[Site], None]] = {
    "alpha": without("alpha"),
    "keepdims": without("keepdims"),
    "epsilon": without("epsilon"),
    "pads": _swap_pads,
    "ceil": without("ceil_mode"),
    "lower": _lower_is_upper,
    "nowrap": _no_wrap,
    "runtime": _runtime_zero,
    "strides": _strides_reversed,
    "dilations": lambda site: without("dilations")(site) if "Pool" in site.op else None,
    "include": without("count_include_pad"),
    "exclusive": without("exclusive"),
    "fmod": without("fmod"),
    "float": _through_float,
    "tie": _last_tie,
    "symbolic": _symbolic_order,
    "axes": _early_axes,
    "scale": _channel_scale,
}


def _half_up(site: Site, y: np.ndarray) -> np.ndarray:
    if site.op != "Round":
        return y
    (x,) = site.feeds.values()
    return np.asarray(np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5))


def _tail(site: Site, y: np.ndarray) -> np.ndarray:
    """What is left behind whole vectors of eight is not written."""
    if site.op not in ("Relu", "Abs", "Neg", "Sqrt", "Exp", "Tanh", "Add", "Mul") or y.size < 9 or y.size % 8 != 1:
        return y
    made = y.copy()
    made.reshape(-1)[-1] = 0
    return made


#: Name → what is done to the outputs.
AFTER: Mapping[str, Callable[[Site, np.ndarray], np.ndarray]] = {"half": _half_up, "tail": _tail}
#: Every mutant; the sound twin is called "sound".
MUTANTS = (*BEFORE, *AFTER)


class Mutant(Backend):
    """A device is a mutant of `MUTANTS`, or "sound"."""

    forms = ("onnx",)
    devices = ("sound", *MUTANTS)
    closed = True

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        self.vendor = f"Mutant {device}"

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo("1", "numpy")

    def build(self, form: Form) -> Program:
        import onnx

        site = Site(onnx.load_from_string(form.model or b""), dict(name_onnx_inputs(form)))
        dtypes = [DTYPE_OF_ELEMENT[x.type.tensor_type.elem_type] for x in site.model.graph.output]
        if self.device in BEFORE:
            BEFORE[self.device](site)

        def run() -> list[np.ndarray]:
            try:
                graph = EvaluatedGraph(site.model, EVALUATED)
                found = graph.run(site.feeds)
            except NoOracle as error:
                raise Unsupported(str(error)) from None
            after = AFTER.get(self.device, lambda site, y: y)
            with np.errstate(all="ignore"):
                return [
                    after(site, found[name]).astype(get_numpy_dtype(dtype))
                    for name, dtype in zip(graph.outputs, dtypes)
                ]

        return Program(run)
