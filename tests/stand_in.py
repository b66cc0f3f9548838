"""A backend with one planted fault: ONNX Runtime without its optimiser, on the model with one node put otherwise."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.graphs.cut_graph import index_tensor_producers
from tasks.hunt.dialogue import Ask, DialoguePiece, Ran
from tasks.hunt.localise.search import Culprit


@dataclass(frozen=True)
class Fault:
    """What is done to the node that makes the tensor ``at``: it is put otherwise by ``rewrite``. chain: tensors that
    must be there and hidden (no outputs of the graph) for the fault to strike, as in a fusion of their nodes."""

    kind: str
    at: str
    rewrite: Callable[[Site], None]
    chain: tuple[str, ...] = ()

    def planted(self, model: Any) -> Any:
        """A copy of a ModelProto with the fault, where it has the node and, hidden, the chain."""
        import onnx

        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        made, shown = index_tensor_producers(copy.graph), {x.name for x in copy.graph.output}
        if self.at in made and all(name in made and name not in shown for name in self.chain):
            self.rewrite(Site(copy.graph, made[self.at]))
        return copy


@dataclass
class Site:
    """A node of a GraphProto that is being put otherwise."""

    graph: Any
    place: int

    @property
    def node(self) -> Any:
        return self.graph.node[self.place]

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        from onnx import numpy_helper

        name = f"planted.{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def weight(self, name: str) -> np.ndarray | None:
        from onnx import helper, numpy_helper

        for tensor in self.graph.initializer:
            if tensor.name == name:
                return np.asarray(numpy_helper.to_array(tensor))
        for node in self.graph.node:
            if node.op_type == "Constant" and node.output[0] == name and node.attribute[0].name == "value":
                return np.asarray(numpy_helper.to_array(helper.get_attribute_value(node.attribute[0])))
        return None

    def attribute(self, name: str, default: Any = None) -> Any:
        from onnx import helper

        return next((helper.get_attribute_value(x) for x in self.node.attribute if x.name == name), default)

    def set(self, name: str, value: Any) -> None:
        from onnx import helper

        kept = [x for x in self.node.attribute if x.name != name]
        del self.node.attribute[:]
        self.node.attribute.extend([*kept, helper.make_attribute(name, value)])

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        """A further node, before this one; its output."""
        from onnx import helper

        output = output or f"planted.{op}.{len(self.graph.node)}"
        nodes = list(self.graph.node)
        nodes.insert(self.place, helper.make_node(op, list(inputs), [output], **attributes))
        self._put(nodes)
        self.place += 1
        return output

    def instead(self, op: str, inputs: Sequence[str], **attributes: Any) -> None:
        """Another node in its place."""
        from onnx import helper

        nodes = list(self.graph.node)
        nodes[self.place] = helper.make_node(op, list(inputs), [self.node.output[0]], **attributes)
        self._put(nodes)

    def after(self, op: str, inputs: Callable[[str], Sequence[str]], **attributes: Any) -> None:
        """A further node behind it, which takes over its first output."""
        from onnx import helper

        output, hidden = self.node.output[0], f"{self.node.output[0]}.before"
        self.node.output[0] = hidden
        nodes = list(self.graph.node)
        nodes.insert(self.place + 1, helper.make_node(op, list(inputs(hidden)), [output], **attributes))
        self._put(nodes)

    def _put(self, nodes: list[Any]) -> None:
        import copy

        nodes = [copy.deepcopy(node) for node in nodes]
        del self.graph.node[:]
        self.graph.node.extend(nodes)


# --- kinds ----------------------------------------------------------------------------------------------------------


def bfloat16(site: Site) -> None:
    for k, name in enumerate(list(site.node.input)[:2]):
        low = site.add("Cast", [name], to=16)
        site.node.input[k] = site.add("Cast", [low], to=1)


def _tf32(site: Site) -> None:
    """Inputs rounded to eleven bits, by Veltkamp's splitting: (2¹³ + 1)·x − ((2¹³ + 1)·x − x)."""
    for k, name in enumerate(list(site.node.input)[:2]):
        large = site.add("Mul", [name, site.constant(8193)])
        site.node.input[k] = site.add("Sub", [large, site.add("Sub", [large, name])])


def _float16(site: Site) -> None:
    for k, name in enumerate(list(site.node.input)):
        low = site.add("Cast", [name], to=10)
        site.node.input[k] = site.add("Cast", [low], to=1)


def _no_bias(site: Site) -> None:
    if site.node.op_type == "Add":
        site.instead("Identity", [_variable(site)])
    else:
        del site.node.input[2]


def _variable(site: Site) -> str:
    return next(x for x in site.node.input if site.weight(x) is None)


def _one_bias(site: Site) -> None:
    """One element of the bias is lost: the one that matters most."""
    place = next(
        k for k, x in enumerate(site.node.input) if k != 1 - (site.node.op_type == "Add") and _is_bias(site, x)
    )
    bias = site.weight(site.node.input[place])
    assert bias is not None
    bias = bias.copy()
    bias.flat[np.abs(bias).argmax()] = 0
    site.node.input[place] = site.constant(bias)


def _is_bias(site: Site, name: str) -> bool:
    value = site.weight(name)
    return value is not None and value.dtype == np.float32 and value.size > 1 and value.size == max(value.shape)


def lost_rows(site: Site) -> None:
    table = site.weight(site.node.input[0])
    assert table is not None
    table = table.copy()
    table[len(table) // 16 :] = 0
    site.node.input[0] = site.constant(table)


def _erf(site: Site) -> None:
    """erf(x) ≈ tanh(√(4/π)·(x + 0.08943·x³)), what makes the tanh form of GELU of the exact one."""
    x = site.node.input[0]
    cube = site.add("Mul", [site.add("Mul", [x, x]), x])
    inner = site.add("Add", [x, site.add("Mul", [cube, site.constant(0.08943)])])
    site.instead("Tanh", [site.add("Mul", [inner, site.constant(1.1283792)])])


def heads(count: int) -> Callable[[Site], None]:
    """The first two of ``count`` heads, along axis 1, change places."""
    return lambda site: site.after("Gather", lambda x: [x, site.constant([1, 0, *range(2, count)], np.int64)], axis=1)


def shifted(site: Site) -> None:
    pads = list(site.attribute("pads"))
    half = len(pads) // 2
    pads[0] += 1
    pads[half] -= 1
    site.set("pads", pads)


def times(factor: float) -> Callable[[Site], None]:
    return lambda site: site.after("Mul", lambda x: [x, site.constant(factor)])


def setting(name: str, value: Any) -> Callable[[Site], None]:
    return lambda site: site.set(name, value)


def becoming(op: str, **attributes: Any) -> Callable[[Site], None]:
    return lambda site: site.instead(op, [site.node.input[0]], **attributes)


def kinds(site: Site, shape: Sequence[int]) -> Iterator[tuple[str, Callable[[Site], None]]]:
    """The faults that a node can have, given the shape of its first output."""
    node, op = site.node, site.node.op_type
    if op in ("Conv", "MatMul", "Gemm", "ConvTranspose"):
        yield from (("bfloat16", bfloat16), ("TF32", _tf32), ("float16", _float16))
    if op in ("Conv", "Gemm") and len(node.input) > 2 and node.input[2]:
        yield from (("no bias", _no_bias), ("one bias", _one_bias))
    if op == "Add" and sum(_is_bias(site, x) for x in node.input) == 1:
        yield from (("no bias", _no_bias), ("one bias", _one_bias))
    if op in ("Conv", "MaxPool", "AveragePool"):
        pads = list(site.attribute("pads", []))
        if pads and pads[len(pads) // 2] > 0 and site.attribute("auto_pad", b"NOTSET") in (b"NOTSET", b""):
            yield "shifted pad", shifted
    if op in ("Softmax", "LogSoftmax") and len(shape) > 2:
        yield "axis", setting("axis", -2)
    if op in ("LayerNormalization", "BatchNormalization", "InstanceNormalization"):
        yield "epsilon", setting("epsilon", 100 * site.attribute("epsilon", 1e-5) + 1e-4)
    if op == "Transpose" and len(shape) == 4 and shape[1] > 1 and 1 < shape[1] <= 64:
        yield "two heads", heads(shape[1])
    if op == "Resize":
        mode = site.attribute("mode", b"nearest")
        yield "Resize mode", setting("mode", "linear" if mode == b"nearest" else "nearest")
    table = site.weight(node.input[0]) if op == "Gather" else None
    if table is not None and table.dtype == np.float32 and table.ndim == 2 and len(table) > 64:
        yield "truncated table", lost_rows
    if op == "Erf":
        yield "tanh for erf", _erf
    if op == "Sigmoid":
        yield "hard sigmoid", becoming("HardSigmoid", alpha=0.25, beta=0.5)
    if op == "Relu":
        yield "leaky", becoming("LeakyRelu", alpha=0.01)
    if op == "AveragePool":
        yield "counts pads", setting("count_include_pad", 1 - site.attribute("count_include_pad", 0))
    if op in ("Mul", "Div", "ReduceMean", "Sqrt", "Pow", "Exp", "Tanh", "Sub", "GlobalAveragePool", "Softmax"):
        yield "a thousandth", times(1.001)


# --- running --------------------------------------------------------------------------------------------------------


def run(model: Any, feeds: Mapping[str, np.ndarray], fault: Fault | None = None) -> Ran:
    """What ONNX Runtime returns for the model with the fault, in float32 and node by node."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = fault.planted(model) if fault else model
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return Ran(session.run(None, dict(feeds)))
    except Exception as error:
        return Ran(None, f"{type(error).__name__}: {error}")


def driven(search: Generator[Ask, Ran, Culprit], ran: Callable[[Ask], Ran]) -> Culprit:
    """The end of a search whose questions ``ran`` answers."""
    try:
        asked = next(search)
        while True:
            asked = search.send(ran(asked))
    except StopIteration as end:
        found: Culprit = end.value
        return found


def answered(
    search: Generator[Ask, Ran, Culprit], model: Any, feeds: Mapping[str, np.ndarray], backend: Callable[..., Ran]
) -> Culprit:
    """The end of a search whose questions ``backend(model, feeds)`` answers."""
    return driven(search, lambda asked: backend(*model_of(asked, model, feeds)))


def model_of(asked: Ask, model: Any, feeds: Mapping[str, np.ndarray]) -> tuple[Any, Mapping[str, np.ndarray]]:
    """What a search asks to be run, with its inputs: ``model`` and ``feeds`` where that is the whole."""
    return (asked.case.program, asked.case.feeds) if isinstance(asked.case, DialoguePiece) else (model, feeds)
