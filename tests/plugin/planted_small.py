"""Small graphs as a catalog, and a backend that computes them rightly but for one planted fault, which its device names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tasks import checks
from tasks.arrays.tree import TensorSpec
from tasks.backends.base import Backend
from tasks.backends.shared.onnx_form import name_onnx_inputs
from tasks.backends.shared.recipe import NoProgram, ProgramRecipe
from tasks.catalogs.base import Catalog, Entry, Sample
from tasks.graphs.evaluate_graph import EvaluatedGraph
from tasks.graphs.expected_outputs import compute_graph_leaves
from tasks.graphs.graph_nodes import GraphNode
from tasks.graphs.harvest import find_tensor_dtype
from tasks.model import Form, Group, Program, RuntimeInfo, get_numpy_dtype


def graph(*lines: str, opset: int = 18, **weights: Any) -> Any:
    """A ModelProto of lines "y = Op(x, w; attribute=value)"; inputs are what nothing makes, float32 [4, 6]; the last
    line's result is the output."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, made = [], set(weights)
    for line in lines:
        output, _, call = line.partition(" = ")
        op, _, rest = call.rstrip(")").partition("(")
        names, _, attributes = rest.partition(";")
        given = {k.strip(): eval(v) for k, _, v in (a.partition("=") for a in attributes.split("&") if a.strip())}
        nodes.append(helper.make_node(op, [x.strip() for x in names.split(",")], [output], **given))
    made |= {x for node in nodes for x in node.output}
    fed = dict.fromkeys(x for node in nodes for x in node.input if x and x not in made)
    inputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, [4, 6]) for x in fed]
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(np.asarray(x), name) for name, x in weights.items()]
    made_graph = helper.make_graph(nodes, "small", inputs, [output], held)
    return helper.make_model(made_graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


#: By op of the catalog.
GRAPHS: Mapping[str, Callable[[], Any]] = {
    "softmax": lambda: graph("y = Softmax(x; axis=0)"),
    "chain": lambda: graph(
        "a = Tanh(x)", "b = Mul(a, z)", "c = Relu(b)", "d = Add(c, x)", "e = Sigmoid(d)", "f = Sub(e, b)", "g = Neg(f)",
        "y = Abs(g)",
    ),
    "errors": lambda: graph("a = Neg(x)", "y = Abs(a)"),
    "gather": lambda: graph("y = Gather(x, i; axis=1)", i=np.int64([1, 3, -2])),
    "sigmoid": lambda: graph("y = Sigmoid(x)"),
    "neg": lambda: graph("y = Neg(x)"),
    "tanh": lambda: graph("y = Tanh(x)"),
    "relu": lambda: graph("y = Relu(x)"),
}  # fmt: skip


class SmallCatalog(Catalog):
    name = "small"
    forms = ("onnx",)

    def version(self) -> str:
        return "1"

    def entries(self) -> list[Entry]:
        return [Entry(f"small:{name}", "", ("float32",)) for name in sorted(GRAPHS)]

    def samples(self, group: Group, draws: int, skip: Collection[int] = ()) -> Iterator[Sample]:
        import onnx

        model = onnx.shape_inference.infer_shapes(GRAPHS[group.op_name]())
        random = np.random.default_rng(7)
        feeds = {x.name: random.uniform(-2, 2, (4, 6)).astype(np.float32) for x in model.graph.input}
        leaves, op_class = compute_graph_leaves(EvaluatedGraph(model), feeds, draws)
        arrays = list(feeds.values())
        args = tuple(TensorSpec(i) for i in range(len(arrays)))
        yield Sample(0, args, {}, arrays, leaves, op_class, model=model.SerializeToString())


#: (node, its inputs, its outputs, float64, to be changed in place)
Fault = Callable[[GraphNode, list[Any], list[Any]], None]


def _axis(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    """Softmax's axis is ignored."""
    if node.op == "Softmax":
        e = np.exp(inputs[0] - inputs[0].max(-1, keepdims=True))
        outputs[0] = e / e.sum(-1, keepdims=True)


def _wide(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    """Relu is wrong in the fifth column and behind it."""
    if node.op == "Relu":
        outputs[0] = np.where(np.arange(outputs[0].shape[-1]) < 4, outputs[0], outputs[0] + 1)


def _negative(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    """Gather takes the first for a negative index."""
    if node.op == "Gather":
        axis = node.attributes.get("axis", 0)
        outputs[0] = np.take(inputs[0], np.maximum(inputs[1], 0), axis=axis)


def _segfault(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    if node.op == "Sigmoid" and inputs[0].size > 3:
        os.kill(os.getpid(), signal.SIGSEGV)


def _hang(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    if node.op == "Tanh" and inputs[0].shape[-1] > 2:
        time.sleep(600)


def _raises(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    if node.op == "Abs":
        raise RuntimeError(f"no kernel for '{node.name}' of tensor<{inputs[0].shape}> at {id(inputs):#x}")
    if node.op == "Neg" and inputs[0].size < 4:
        raise RuntimeError("another failure altogether")


def _odd() -> bool:
    """True in every second run, whatever the process."""
    with open(os.environ["FARM_SMALL_RUNS"], "a+b") as file:
        file.write(b"x")
        file.flush()
        return os.fstat(file.fileno()).st_size % 2 == 1


def _sometimes(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    """Wrong in every second run."""
    if _odd():
        outputs[0] = outputs[0] + 1


def _stalls(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    """Hangs in every second run."""
    if node.op == "Tanh" and _odd():
        time.sleep(600)


#: What the cases of this process have left behind.
_left: set[str] = set()


def _after(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
    """Neg dies in a process that has seen Gather."""
    if node.op == "Neg" and "Gather" in _left:
        os.kill(os.getpid(), signal.SIGSEGV)
    _left.add(node.op)


def _all(*faults: Fault) -> Fault:
    def struck(node: GraphNode, inputs: list[Any], outputs: list[Any]) -> None:
        for fault in faults:
            fault(node, inputs, outputs)

    return struck


FAULTS: Mapping[str, Fault] = {
    "numbers": _all(_axis, _wide, _negative),
    "dies": _all(_segfault, _raises),
    "clean": lambda node, inputs, outputs: None,
    "hang": _hang,
    "sometimes": _sometimes,
    "stalls": _stalls,
    "after": _after,
}


class Small(Backend):
    """The float64 evaluation of a graph, rounded to its dtypes, with a fault; a device "pair.A.B" is wrong where an op
    B takes what an op A makes, "op.A" where there is an op A, "open.A" where there is one and a size is open; "unbuilt"
    only builds, and not what has an Abs. The option ``version`` is what it says of itself."""

    vendor = "Planted"
    forms = ("onnx",)
    takes = ("version",)

    def __init__(self, name: str, device: str, options: dict[str, object]) -> None:
        super().__init__(name, device, options)
        if device == "unbuilt":
            self.checks = (checks.Build.name,)

    def probe(self) -> RuntimeInfo:
        return RuntimeInfo(str(self.options.get("version", "1.0")), "cpu")

    def build(self, form: Form) -> Program:
        import onnx

        model = EvaluatedGraph(onnx.load_from_string(form.model))
        if self.device == "unbuilt" and any(node.op == "Abs" for node in model.nodes):
            raise RuntimeError("no lowering of Abs")
        dims = [d for x in onnx.load_from_string(form.model).graph.input for d in x.type.tensor_type.shape.dim]
        sound = self.device.startswith("open.") and not any(d.dim_param for d in dims)

        def given(arrays: list[Any]) -> Callable[[], list[Any]]:
            feeds = name_onnx_inputs(replace(form, arrays=arrays))
            return lambda: (self.but(device="clean") if sound else self)._run(model, feeds)

        return Program(given(form.arrays), "CPU", given=given)

    def recipe(self, form: Form) -> ProgramRecipe:
        """What a device computes that ignores Softmax's axis, dies of Neg after Gather, or is wrong, or hangs, in every
        second run; of Sigmoid, nothing that shows a crash."""
        import onnx

        ops = [node.op_type for node in onnx.load_from_string(form.model).graph.node]
        known: dict[str, Any] = {"Softmax": run_softmax, "Sigmoid": run_nothing}
        if self.device == "after":
            known = {"Gather": run_after_gather, "Neg": run_after_gather}
        elif self.device == "stalls":
            known = {"Tanh": run_and_stall}
        elif self.device == "sometimes":
            known = {"Relu": run_sometimes_wrong}
        if len(ops) > 1 or ops[0] not in known:
            raise NoProgram("no folder: none is planted")
        uses = (count_run,) if known[ops[0]] in (run_and_stall, run_sometimes_wrong) else ()
        return ProgramRecipe(known[ops[0]], {}, uses)

    def _run(self, model: EvaluatedGraph, feeds: Mapping[str, Any]) -> list[Any]:
        values: dict[str, Any] = {k: x.astype(np.float64) if x.dtype.kind == "f" else x for k, x in feeds.items()}
        made_by = {name: node.op for node in model.nodes for name in node.outputs}
        values |= {k: x.astype(np.float64) if x.dtype.kind == "f" else x for k, x in model.weights.items()}
        for node in model.nodes:
            inputs = [values[x] if x else None for x in node.inputs]
            outputs = list(model.run_node(node, inputs))
            self._fault(node, inputs, outputs, [made_by.get(x, "") for x in node.inputs])
            values |= {
                name: y
                if y.dtype.kind != "f"
                else y.astype(get_numpy_dtype(find_tensor_dtype(model, name, y))).astype(np.float64)
                for name, y in zip(node.outputs, outputs)
            }
        return [
            values[x].astype(get_numpy_dtype(find_tensor_dtype(model, x, values[x])))
            if values[x].dtype.kind == "f"
            else values[x]
            for x in model.outputs
        ]

    def _fault(self, node: GraphNode, inputs: list[Any], outputs: list[Any], sources: list[str]) -> None:
        kind, _, ops = self.device.partition(".")
        if kind in FAULTS:
            FAULTS[kind](node, inputs, outputs)
        elif node.op == ops or (kind == "pair" and any(ops == f"{source}.{node.op}" for source in sources)):
            outputs[0] = outputs[0] * 1.5 + 0.25


def run_softmax(model: str, inputs: dict) -> list:
    """Softmax along the last axis, whatever the model says."""
    e = np.exp(inputs["x"] - inputs["x"].max(-1, keepdims=True))
    return [e / e.sum(-1, keepdims=True)]


def run_nothing(model: str, inputs: dict) -> list:
    """No outputs."""
    return []


def run_after_gather(model: str, inputs: dict) -> list:
    """Die of any other operator after Gather."""
    import os
    import sys

    import onnx

    if onnx.load(model).graph.node[0].op_type == "Gather":
        sys.gathered = True
    elif hasattr(sys, "gathered"):
        os.abort()
    return []


def count_run() -> int:
    """How many runs there have been, over processes."""
    import os

    with open(os.environ["FARM_SMALL_RUNS"], "a+b") as file:
        file.write(b"x")
        file.flush()
        return os.fstat(file.fileno()).st_size


def run_and_stall(model: str, inputs: dict) -> list:
    """Hang in every second run."""
    import time

    if count_run() % 2:
        time.sleep(600)
    return [np.tanh(inputs["x"])]


def run_sometimes_wrong(model: str, inputs: dict) -> list:
    """Relu, off by one in every second run."""
    return [np.maximum(inputs["x"], 0) + np.float32(count_run() % 2)]
