"""A case in the words of a framework that takes no ONNX: the lines that make OP, a function of its tensors alone."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.arrays.tree import decode
from tasks.backends.shared.few_lines import NoScript
from tasks.backends.shared.function_form import input_arrays
from tasks.backends.shared.network import TENSOR, functions, network
from tasks.backends.shared.told_calls import Code, Trace
from tasks.counterparts import Counterpart, by_torch
from tasks.model import Form

#: A dtype by its name.
_DTYPE = {"jax": "jax.numpy.{}", "tensorflow": "tf.{}", "paddle": "'{}'", "mlx": "mx.{}"}


@dataclass(frozen=True)
class Words:
    """imports: of the lines; lines: that make OP; arrays: those of the tensors x; call: what is called of these."""

    imports: tuple[str, ...]
    lines: tuple[str, ...]
    arrays: Sequence[np.ndarray]
    call: str = "OP(*x)"


def in_words(form: Form, written: Callable[[np.ndarray], str]) -> Words:
    """The words for a framework's own call, and for a graph of ONNX's operators in torch; written: the source of an array. Raises NoScript, Unsupported."""
    return _in_torch(form, written) if form.kind == "torch" else _in_framework(form, written)


def _in_torch(form: Form, written: Callable[[np.ndarray], str]) -> Words:
    """The operations that the farm calls, one in a line."""
    program: Any = form.call
    made, body = list[str](), list[str]()

    for node in program.graph.nodes:
        if node.op == "get_attr":
            value = operator.attrgetter(node.target)(program).detach().numpy()
            made.append(f"{node.name} = torch.from_numpy({written(value)})")
        elif node.op == "call_function":
            target = "operator.getitem" if node.target is operator.getitem else f"torch.ops.{node.target}"
            given = [*map(_told, node.args), *(f"{name}={_told(x)}" for name, x in node.kwargs.items())]
            body.append(f"    {node.name} = {target}({', '.join(given)})")
        elif node.op == "output":
            body.append(f"    return {_told(node.args[0])}")
    names = ", ".join(node.name for node in program.graph.nodes if node.op == "placeholder")
    imports = ("import operator",) * any("operator.getitem" in line for line in body)
    return Words(imports, (*made, f"def OP({names}):", *body), input_arrays(form))


def _in_framework(form: Form, written: Callable[[np.ndarray], str]) -> Words:
    """What is called of the framework, one in a line."""
    trace, arrays = Trace(form.kind, written), input_arrays(form)
    found = _graph(form, trace, arrays) if form.model is not None else _call(form, trace, arrays)
    imports, made = trace.made()
    module, _ = TENSOR[form.kind]
    used = (f"import {module}",) * any(f"= {module}." in line for line in trace.lines)
    body = [*(f"    {line}" for line in trace.lines), f"    return {found}"]
    return Words((*used, *imports), (*made, "def OP(*x):", *body), arrays)


def _call(form: Form, trace: Trace, arrays: Sequence[np.ndarray]) -> str:
    """What one function returns. Raises NoScript."""
    if not isinstance(form.call, Counterpart):
        raise NoScript("no short script: it is no call of one function")
    given = iter([Code(trace, f"x[{k}]", x) for k, x in enumerate(arrays)])

    def leaf(kind: str, node: dict[str, Any]) -> Any:
        if kind == "torch.dtype":
            name = "bool_" if node["name"] == "bool" and form.kind in ("jax", "mlx") else node["name"]
            return Code(trace, _DTYPE[form.kind].format(name))
        return next(given) if kind == "tensor" else None  # layouts and devices say where a tensor is, not what

    found = trace.call(form.call, decode(form.args, leaf), dict(decode(form.kwargs, leaf)))
    return trace.told(found)


def _graph(form: Form, trace: Trace, arrays: Sequence[np.ndarray]) -> str:
    """What a graph returns. torch computes it meanwhile, which is here: what shapes it gives decides what is called next."""
    import torch

    assert form.model is not None
    of: Callable[[str], Any] = functions(form.kind)

    def named(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = by_torch.named(name)(*_known(args), **_known(kwargs))
            return trace.call(of(name), args, kwargs).also(found)

        return call

    def tensor(x: Any) -> Any:
        if isinstance(x, Code):
            return x
        made = trace.line(f"{'.'.join(TENSOR[form.kind])}({trace.told(x)})")
        return made.also(torch.from_numpy(np.array(x)))

    given = [Code(trace, f"x[{k}]", torch.from_numpy(np.array(x))) for k, x in enumerate(arrays)]
    return trace.told(network(form.kind, form.model).by(named, tensor, given))


def _known(x: Any) -> Any:
    """Arguments with torch's own tensors in them."""
    if isinstance(x, Code):
        return x.known
    if isinstance(x, dict):
        return {key: _known(y) for key, y in x.items()}
    return type(x)(map(_known, x)) if type(x) in (list, tuple) else x


def _told(x: Any) -> str:
    """Source of an argument of torch's: a tensor by its name."""
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(map(_told, x))}]"
    if isinstance(x, float) and x - x != 0:
        return f'float("{x}")'
    if type(x).__name__ == "device":
        return repr(str(x))
    return str(x.name) if hasattr(x, "name") else repr(x)
