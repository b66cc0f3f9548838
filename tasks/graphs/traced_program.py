"""Torch programs as graphs of their operations: traced, cut into parts, evaluated in float64. torch is imported inside functions."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tasks.arrays import torch_tree
from tasks.arrays.pack import ArrayPack
from tasks.arrays.training import TrainingStep
from tasks.arrays.tree import NotEncodable, TensorSpec, decode_argument_tree, encode_argument_tree, encode_tensor_spec
from tasks.arrays.widened import compute_in_float64
from tasks.model import Form, Unsupported, round_to_dtype
from tasks.model.dtypes import does_dtype_hold
from tasks.older_python import zip_equal

#: The operation that picks one of several results, in a traced program and in a stored one.
PICK = "getitem"


@dataclass(frozen=True)
class ProgramPart:
    """What makes the tensors ``outputs`` of a traced program of the tensors ``inputs``, all by their names in it."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def trace_torch_module(call: Any, args: Sequence[Any]) -> Any:
    """The graph of operations (a torch.fx.GraphModule) that a torch module is for these arguments, with its weights.

    What writes to a part of a tensor makes a new one instead: no edge would lead from there to what reads the whole.
    Raises Unsupported where it is no module, or where torch.export does not take it.
    """
    import torch

    if not isinstance(call, torch.nn.Module):
        raise Unsupported("the torch form is no module, whose operations could be told apart")

    @functools.cache
    def export_module() -> Any:
        with torch.no_grad():
            return torch.export.export(call, tuple(args), strict=False)

    def graph(functional: bool) -> Any:
        return (export_module().run_decompositions({}) if functional else export_module()).module()

    return _prune_program(graph, "torch.export does not take the module")


def trace_training_step(step: TrainingStep, args: Sequence[Any]) -> tuple[Any, list[Any]]:
    """(the graph of operations of a training step in float32, backward ones among them, whose results are the loss and
    the gradients; its arguments: the parameters and buffers, then the step's own). Raises Unsupported where it computes
    under autocast or cannot be traced.
    """
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    if step.autocast:
        raise Unsupported(
            "a training step under autocast computes in two dtypes, which its operations alone do not tell"
        )

    # Buffers as well: what is written to one that the module has itself is neither seen nor undone.
    held = {**{name: step.before(name) for name in step.named}, **dict(step.module.named_buffers())}

    def trace_one_step(*given: Any) -> Any:
        parameters = [x.requires_grad_() for x in given[: len(step.named)]]
        state, tensors = dict(zip(held, given)), given[len(held) :]

        def module(*inputs: Any) -> Any:
            return torch.func.functional_call(step.module, state, inputs)

        loss = step.loss(module(*tensors[: step.inputs]), tensors[step.inputs :])
        return loss.detach(), *torch.autograd.grad(loss, parameters)

    @functools.cache
    def graph(functional: bool) -> Any:
        call = (
            torch.func.functionalize(graph(False)) if functional else trace_one_step
        )  # a gradient cannot be taken within it
        return make_fx(call, tracing_mode="fake", _allow_non_fake_inputs=True)(*given)

    given = [*(x.detach().clone() for x in held.values()), *args]
    return _prune_program(graph, "torch cannot trace the training step"), given


def _prune_program(graph: Callable[[bool], Any], failed: str) -> Any:
    """A program of what its results need; graph: makes it, as a functional one if need be; failed: begins what is said
    where that cannot be done. Raises Unsupported."""
    try:
        found = graph(False)
        if any(map(_does_operation_write_apart, found.graph.nodes)):
            found = graph(True)
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise Unsupported(f"{failed}: {type(error).__name__}: {first}") from None
    for node in reversed(list(found.graph.nodes)):
        # Guards of what was seen, among them dtypes, and what is written for the next call.
        if not node.users and node.op.startswith("call_"):
            found.graph.erase_node(node)
    found.recompile()
    return found


def _does_operation_write_apart(node: Any) -> bool:
    """Whether an operation writes to what others read by another name, or to an argument or a weight, and not only for
    the next call (a count of batches)."""
    if not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return False
    written = node.all_input_nodes[0]
    views = [x for x in (written, *written.users) if getattr(x.target, "is_view", False)]
    others = [x for x in written.users if x is not node and x > node]
    read, given = bool(node.users), written.op in ("get_attr", "placeholder")
    return bool(views or others) or (read if given else not read)


def name_traced_operation(node: Any) -> str:
    """What a node of a graph calls: "linear" of aten.linear.default."""
    packet = getattr(node.target, "overloadpacket", node.target)
    return str(getattr(packet, "__name__", packet))


def cut_program_part(program: Any, wanted: ProgramPart) -> Any:
    """A GraphModule of a part of a traced program, with the weights of the whole. Its arguments are the part's inputs.

    Raises ValueError for a tensor that the program does not have, or where the part reads an argument that is not
    given.
    """
    import torch

    nodes = {node.name: node for node in program.graph.nodes}
    if unknown := [name for name in (*wanted.inputs, *wanted.outputs) if name not in nodes]:
        raise ValueError(f"the program has no tensor {unknown[0]!r}")
    needed: set[Any] = set()
    waiting = [nodes[name] for name in wanted.outputs if name not in wanted.inputs]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [x for x in node.all_input_nodes if x.name not in wanted.inputs]
    graph, made = torch.fx.Graph(), {}
    for name in wanted.inputs:
        made[nodes[name]] = graph.placeholder(name)
        made[nodes[name]].meta = dict(nodes[name].meta)
    for node in program.graph.nodes:
        if node in needed:
            if node.op == "placeholder":
                raise ValueError(f"the part reads {node.name}, which is not among its inputs")
            made[node] = graph.node_copy(node, made.__getitem__)
    graph.output(tuple(made[nodes[name]] for name in wanted.outputs))
    return torch.fx.GraphModule(program, graph)


def lift_program_weights(program: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """(a traced program whose weights are arguments after its own, these weights by name). Raises Unsupported for a
    weight that is no tensor, as the body of a loop is none."""
    import torch

    given, weights = [x.name for x in program.graph.nodes if x.op == "placeholder"], dict[str, np.ndarray]()
    for node in program.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(program)
            if not isinstance(value, torch.Tensor):
                raise Unsupported(f"{node.name} of the program is no tensor")
            weights[node.name], node.meta["val"] = torch_tree.tensor_to_numpy(value.detach()), value
    return cut_program_part(
        program, ProgramPart((*given, *weights), tuple(dict.fromkeys(list_program_outputs(program))))
    ), weights


def encode_program(program: Any) -> dict[str, Any]:
    """A traced program without weights (`lift_program_weights`) as JSON, of which `decode_program` makes it again. Raises Unsupported for
    what is no operation of ATen's, or takes what cannot be stored."""
    import torch

    def leaf(x: Any) -> Any | None:
        return {"$": "node", "name": x.name} if isinstance(x, torch.fx.Node) else torch_tree.encode_torch_word(x)

    nodes = list[dict[str, Any]]()
    for node in program.graph.nodes:
        if node.op == "output":
            continue
        value, name = node.meta.get("val"), PICK if node.target is operator.getitem else str(node.target)
        one = {
            "name": node.name,
            "dtype": torch_tree.name_torch_dtype(value.dtype) if isinstance(value, torch.Tensor) else "",
        }
        if node.op == "call_function":
            find_traced_function(name)
            try:
                one |= {
                    "op": name,
                    "args": encode_argument_tree(tuple(node.args), leaf),
                    "kwargs": encode_argument_tree(dict(node.kwargs), leaf),
                }
            except NotEncodable as error:
                raise Unsupported(f"{node.name} of the program: {error}") from None
        nodes.append(one)
    return {"nodes": nodes, "outputs": list_program_outputs(program)}


def decode_program(stored: Mapping[str, Any]) -> Any:
    """The program (a torch.fx.GraphModule) that was `encode_program`. Raises Unsupported."""
    import torch

    graph, made = torch.fx.Graph(), dict[str, Any]()
    words = torch_tree.make_tensor_decoder(lambda i: np.empty(0), "cpu")

    def leaf(kind: str, node: dict[str, Any]) -> Any:
        return made[node["name"]] if kind == "node" else words(kind, node)

    for one in stored["nodes"]:
        if "op" in one:
            args, kwargs = decode_argument_tree(one["args"], leaf), decode_argument_tree(one["kwargs"], leaf)
            named = {_check_program_name(name): x for name, x in kwargs.items()}
            node = graph.create_node("call_function", find_traced_function(one["op"]), args, named, one["name"])
        else:
            node = graph.placeholder(_check_program_name(one["name"]))
        if one["dtype"]:
            node.meta["val"] = torch.empty(0, dtype=getattr(torch, one["dtype"]), device="meta")
        made[one["name"]] = node
    graph.output(tuple(made[name] for name in stored["outputs"]))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _check_program_name(text: Any) -> str:
    """A name of a stored program: torch.fx writes it into source that it runs. Raises Unsupported for what is more than
    a name."""
    if not isinstance(text, str) or not text.isidentifier():
        raise Unsupported(f"{text!r} is no name of an argument")
    return text


def find_traced_function(name: str) -> Any:
    """What an operation of a stored program calls, "aten.linear.default". It comes from a file: nothing but ATen's
    operations and the choice of one of several results is taken, and no operation that opens files. Raises
    Unsupported."""
    import torch

    if name == PICK:
        return operator.getitem
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None) if space == "aten" else None
    if not isinstance(found, torch._ops.OpOverload) or packet == "from_file":
        raise Unsupported(f"{name} is no operation of ATen's")
    return found


def evaluate_program(
    program: Any,
    feeds: Mapping[str, Any],
    given: Mapping[str, Any] | None = None,
    move: Callable[[str, np.ndarray], np.ndarray] | None = None,
    keep: Collection[str] = (),
) -> dict[str, Any]:
    """Tensors of a traced program in float64, by name: those in ``keep`` and its outputs.

    feeds: its arguments; given: tensors that are these, whatever would make them; move: asked for each floating weight
    of more than one element and each result that was not given. What torch raises is passed on.
    """
    import torch

    kept: dict[str, Any] = {}
    known = {name: _widen_program_tensor(x) for name, x in (given or {}).items()}

    class Wide(torch.fx.Interpreter):
        def run_node(self, node: Any) -> Any:
            made = known[node.name] if node.name in known else super().run_node(node)
            if isinstance(made, torch.Tensor):
                made = made.double() if made.is_floating_point() else made
                if node.name not in known and (narrow := _find_cast_dtype(node)):
                    made = torch.from_numpy(np.ascontiguousarray(round_to_dtype(made.numpy(), narrow))).reshape(
                        made.shape
                    )
                if move is not None and node.name not in known and made.is_floating_point():
                    if node.op != "get_attr" or made.numel() > 1:
                        made = torch.from_numpy(move(node.name, made.detach().numpy()))
                if node.name in keep:  # what an operation in place makes of it later is another tensor
                    kept[node.name] = made.detach().clone()
            return made

    arguments = [_widen_program_tensor(feeds[node.name]) for node in program.graph.nodes if node.op == "placeholder"]
    with torch.no_grad(), compute_in_float64():
        outputs = Wide(program).run(*arguments)
    return kept | dict(zip(list_program_outputs(program), torch_tree.list_output_tensors(outputs)))


def _find_cast_dtype(node: Any) -> str:
    """The dtype of a cast to one that does not have every number of the one before: the program rounds there. "" for
    anything else."""
    import torch

    if node.op != "call_function" or name_traced_operation(node) not in ("_to_copy", "to") or not node.all_input_nodes:
        return ""
    before, after = (x.meta.get("val") for x in (node.all_input_nodes[0], node))
    if not all(isinstance(x, torch.Tensor) and x.is_floating_point() for x in (before, after)):
        return ""
    narrow = torch_tree.name_torch_dtype(after.dtype)
    return "" if does_dtype_hold(narrow, torch_tree.name_torch_dtype(before.dtype)) else narrow


def _widen_program_tensor(x: Any) -> Any:
    import torch

    tensor = x if isinstance(x, torch.Tensor) else torch_tree.tensor_from_numpy(np.array(x))
    return tensor.double() if tensor.is_floating_point() else tensor


def list_program_outputs(program: Any) -> list[str]:
    """Names of the tensors that a traced program returns, flat."""
    import torch

    (node,) = [x for x in program.graph.nodes if x.op == "output"]
    return [x.name for x in torch_tree.list_output_tensors(node.args[0]) if isinstance(x, torch.fx.Node)]


def list_traced_arguments(form: Form) -> list[Any]:
    """The arguments of a torch form, in order. Raises Unsupported where some have names."""
    leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, "cpu")
    if decode_argument_tree(form.kwargs, leaf):
        raise Unsupported("the torch form takes arguments by name")
    return list(decode_argument_tree(form.args, leaf))


def name_program_arguments(program: Any, given: Sequence[Any]) -> dict[str, np.ndarray]:
    """Arguments (torch tensors) of a traced program by their names in it."""
    names = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    return {name: torch_tree.tensor_to_numpy(x) for name, x in zip_equal(names, given)}


def cut_traced_program(form: Form, pack: ArrayPack) -> Form:
    """The part of a form's program that a pack names (`inputs`, `outputs`), on the pack's arrays."""
    program = trace_torch_module(form.call, list_traced_arguments(form))
    made = cut_program_part(program, ProgramPart(tuple(pack.header["inputs"]), tuple(pack.header["outputs"])))
    arrays = [pack.array(i).copy() for i in range(len(pack.header["inputs"]))]
    args = {"$": "tuple", "v": [encode_tensor_spec(TensorSpec(i)) for i in range(len(arrays))]}
    return replace(copy.copy(form), call=made, arrays=arrays, args=args)
