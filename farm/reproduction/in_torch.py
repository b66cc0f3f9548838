"""A call of torch as a program of its own: the op by a public name or its own source, its arguments as Python, its inputs as
tensors."""

from __future__ import annotations

import inspect
import keyword
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, count
from typing import Any

import numpy as np

from tasks import catalogs
from tasks.arrays import torch_tree
from tasks.arrays.tree import TensorSpec, decode_argument_tree, list_tensor_specs
from tasks.backends.shared.recipe import NoProgram
from tasks.catalogs.torch import variants
from tasks.catalogs.torch.differentiable import ORDERED, PROCESS
from tasks.catalogs.torch.variants import IN_PLACE, METHOD, OUT
from tasks.gradients.autograd import compute_gradients
from tasks.model import FORWARD, Form, Group

#: Where torch's own test database is, which takes packages beside torch (`tasks.packages.TORCH_CATALOG`).
OP_DB = "torch.testing._internal.common_methods_invocations"

_TO_TENSOR = """
def to_tensor(x):
    \"\"\"A tensor of an array; torch takes a dtype that numpy lacks as its bits alone.\"\"\"
    if x.dtype.isbuiltin == 1:
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16 if x.itemsize == 2 else np.uint8)).view(getattr(torch, x.dtype.name))
"""


def write_torch_arguments(form: Form) -> str:
    """Source of the arguments of a call whose tensors are ``x``. Raises NoProgram."""
    places = count()

    def tensor() -> str:
        return f"x[{next(places)}]"

    args = [write_torch_literal(node, tensor) for node in form.args["v"]]
    return ", ".join([*args, *(f"{name}={write_torch_literal(node, tensor)}" for name, node in form.kwargs["v"])])


def list_program_arrays(form: Form) -> list[np.ndarray]:
    """The arrays that the tensors of a program are made of: of each input its own, then the cotangents."""
    specs = list_tensor_specs([form.args, form.kwargs])
    own = [form.arrays[i] for spec in specs for i in (spec.parts or (spec.id,))]
    return own + [form.arrays[i] for i in form.cotangents if i >= 0]


def define_torch_tensors(form: Form, count: int, exotic: bool) -> str:
    """Source of ``tensors``, which makes those of a program of its ``count`` arrays; exotic: whether some have a dtype
    that numpy lacks. Raises NoProgram."""
    specs = list_tensor_specs([form.args, form.kwargs]) if form.args is not None else []
    made, views = "to_tensor" if exotic else "torch.from_numpy", _write_tensor_views(specs)
    lines = [f"    return [{made}(x) for x in arrays]"]
    if views:
        given = f"    given = [{made}(x) for x in arrays]"
        lines = [given, *(f"    {line}" for line in views), "    return given"]
    head = ["def tensors(arrays):", '    """The inputs as the call takes them."""']
    return f"{_TO_TENSOR.strip()}\n\n\n" * exotic + "\n".join([*head, *lines])


def _write_tensor_views(specs: Sequence[TensorSpec]) -> list[str]:
    """Lines that make of ``given``, tensors of arrays, those that the call is given: with gaps, or sparse. Raises
    NoProgram."""
    lines, ends = list[str](), accumulate(len(spec.parts) or 1 for spec in specs)
    for spec, end in reversed(list(zip(specs, ends))):  # each is one tensor then: what is before keeps its place
        shape, k = tuple(spec.shape or ()), end - (len(spec.parts) or 1)
        if spec.layout != "strided":
            lines.append(f"given[{k}:{end}] = [{_write_sparse_tensor(spec, f'*given[{k}:{end}]')}]")
            continue
        if spec.flags == torch_tree.COMPLEX32:
            lines.append(f"given[{k}] = given[{k}].to(torch.complex32)  # which numpy lacks")
        if min(spec.strides or (), default=0) < 0:  # NumPy's alone
            strides = f"[s * y.itemsize for s in {_read_int_list(spec.strides or ())}]"
            lines.append(f"y = given[{k}].numpy()")
            lines.append(
                f"given[{k}] = np.lib.stride_tricks.as_strided(y[{int(spec.offset)}:], {_read_int_list(shape)}, {strides})"
            )
        elif spec.strides is not None:
            lines.append(
                f"given[{k}] = given[{k}].as_strided({_read_int_list(shape)}, {_read_int_list(spec.strides)}, {int(spec.offset)})"
            )
    return lines


def _write_sparse_tensor(spec: TensorSpec, parts: str) -> str:
    """Source of a sparse tensor of its parts. Raises NoProgram for a layout that torch has no function for."""
    shape = _read_int_list(spec.shape or ())
    if spec.layout == "sparse_coo":
        made = f"torch.sparse_coo_tensor({parts}, {shape!r}, check_invariants=False)"
        return f"{made}._coalesced_({spec.flags == 'coalesced'})"
    if spec.layout not in ("sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"):
        raise NoProgram(f"no folder: a tensor of layout {spec.layout!r} cannot be written down")
    return f"torch.sparse_compressed_tensor({parts}, {shape!r}, layout=torch.{spec.layout}, check_invariants=False)"


def _read_int_list(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(x) for x in values)


def write_torch_literal(node: Any, tensor: Callable[[], str]) -> str:
    """Python source of an argument tree: names of torch are looked up here, everything else goes through repr().
    tensor: the name of the next tensor. Raises NoProgram."""
    if isinstance(node, list):
        return f"[{', '.join(write_torch_literal(x, tensor) for x in node)}]"
    if not isinstance(node, dict):
        if node is None or isinstance(node, (bool, int, float, str)):
            return repr(node)
        raise NoProgram(f"no folder: an argument of type {type(node).__name__} cannot be written down")
    kind: str = node["$"]
    v: Any = node.get("v")
    if kind == "tuple":
        inner = ", ".join(write_torch_literal(x, tensor) for x in v)
        return f"({inner},)" if len(v) == 1 else f"({inner})"
    if kind == "dict":
        return (
            "{" + ", ".join(f"{write_torch_literal(k, tensor)}: {write_torch_literal(x, tensor)}" for k, x in v) + "}"
        )
    if kind == "float":
        return f"float({repr(float(v))!r})"
    if kind == "complex":
        return f"complex(float({repr(float(v[0]))!r}), float({repr(float(v[1]))!r}))"
    if kind == "slice":
        return f"slice({', '.join(write_torch_literal(x, tensor) for x in v)})"
    if kind == "ellipsis":
        return "..."
    if kind == "range":
        return f"range({', '.join(repr(int(x)) for x in v)})"
    if kind == "torch.device":
        return "(x[0].device if x else None)"
    if kind in ("torch.dtype", "torch.layout", "torch.memory_format"):
        import torch

        name = str(node["name"])
        if not name.isidentifier() or type(getattr(torch, name, None)).__name__ != kind.partition(".")[2]:
            raise NoProgram(f"no folder: torch has no {kind} called {name!r}")
        return f"torch.{name}"
    if kind == "tensor":
        return tensor()
    raise NoProgram(f"no folder: an argument of kind {kind!r} cannot be written down")


def define_torch_op(form: Form, group: Group, target: str = "cpu", tried: bool = True) -> str:
    """The lines that define ``op``; tried: whether a public function is compared with it first. Raises NoProgram."""
    if group.check in (OUT, IN_PLACE, METHOD):
        return _write_op_variant(form, group, target, tried)
    own = form.call if form.call is not None else catalogs.get_catalog(group.catalog).call(group)
    processed = form.check != FORWARD and PROCESS in dict(form.kwargs["v"])  # which is no argument of the function's
    for path in () if processed else _list_public_paths(group.op_name, own):
        found = _resolve_torch_path(path)
        if found is own or (found is not None and (not tried or _give_same_bits(found, own, form, target))):
            return f"op = {path}"
    if group.catalog == "torch":
        return _render_op_lookup(form, group)
    return _inline_torch_source(own, group)


def _render_op_lookup(form: Form, group: Group) -> str:
    """The lines that take ``op`` from torch's own test database. Raises NoProgram."""
    found = f"next(x for x in op_db if (x.name, x.variant_test_name) == {(group.op_name, group.variant)!r})"
    said = (
        f"from {OP_DB} import op_db\n\n"
        "# No public function gives these bits on these inputs: torch's own test database wraps it.\n"
    )
    if form.check == FORWARD:
        return f"{said}op = {found}.op"
    if group.op_name in ORDERED:
        raise NoProgram(f"no folder: {group.op} has its outputs put in an order before they are differentiated")
    process = dict(form.kwargs["v"]).get(PROCESS)
    made = "found" if process is None else "process(found)"
    several = 'INFO.sample_inputs("cpu", torch.float64, requires_grad=True)'
    own = f"s.output_process_fn_grad for s in {several} if s.output_process_fn_grad.__qualname__ == {process!r}"
    return (
        f"{said}INFO = {found}\n{'' if process is None else f'process = next({own})' + chr(10)}\n\n"
        f"def op(*args, {PROCESS}=None, **kwargs):\n"
        "    found = INFO.gradcheck_wrapper(INFO.op, *args, **kwargs)\n"
        f"    return {made}"
    )


def _write_op_variant(form: Form, group: Group, target: str, tried: bool) -> str:
    """The lines that define ``op`` as the op called with out=, in place, or as a method. Raises NoProgram."""
    if group.check == OUT:
        plain = define_torch_op(replace(form, call=None), replace(group, check=FORWARD), target, tried)
        made = (inspect.getsource(x).rstrip() for x in (variants.make_gapped, variants.into))
        return "\n\n\n".join([plain, *made, "op = into(op)"])
    path = f"torch.Tensor.{group.op_name.rpartition('.')[2]}{'_' * (group.check == IN_PLACE)}"
    if _resolve_torch_path(path) is None:
        raise NoProgram(f"no folder: there is no {path}")
    return (
        f"op = {path}"
        if group.check == METHOD
        else f"def op(x, *args, **kwargs):\n    {path}(x, *args, **kwargs)\n    return x"
    )


def _list_public_paths(name: str, own: Callable[..., Any]) -> list[str]:
    """Where a function may be found in torch's public names, likeliest first."""
    names = list(dict.fromkeys([name, str(getattr(own, "__name__", name))]))
    found = []
    for one in names:
        found += [f"torch.{m}{one}" for m in ("", "nn.functional.", "Tensor.", "special.", "linalg.", "fft.")]
    return [p for p in found if all(w.isidentifier() and not keyword.iskeyword(w) for w in p.split("."))]


def _resolve_torch_path(path: str) -> Callable[..., Any] | None:
    import torch

    at: Any = torch
    for word in path.split(".")[1:]:
        if word.startswith("_") and not word.endswith("__"):
            return None  # not public
        at = getattr(at, word, None)
    return at if callable(at) else None


def _give_same_bits(candidate: Callable[..., Any], own: Callable[..., Any], form: Form, target: str) -> bool:
    """True if both functions give the same bits, of the gradient if the form is one's, or raise the same, on fresh
    copies of the inputs."""
    import torch

    leaf = torch_tree.make_tensor_decoder(form.arrays.__getitem__, target)
    starts = [
        None if i < 0 else torch_tree.tensor_from_numpy(form.arrays[i].copy()).to(target) for i in form.cotangents
    ]

    def outcome(call: Callable[..., Any]) -> Any:
        args, kwargs = decode_argument_tree(form.args, leaf), decode_argument_tree(form.kwargs, leaf)
        with torch.no_grad():
            try:
                found = (
                    call(*args, **kwargs)
                    if form.check == FORWARD
                    else compute_gradients(form, call, args, kwargs, starts)
                )
                made = torch_tree.list_output_arrays(found)
            except Exception as error:
                return type(error).__name__, str(error)
        return [(x.dtype.name, x.shape, x.tobytes() if x.dtype.kind != "O" else x.tolist()) for x in made]

    return bool(outcome(candidate) == outcome(own))


def _inline_torch_source(own: Callable[..., Any], group: Group) -> str:
    """The source of a function of a catalog that needs torch alone. Raises NoProgram."""
    try:
        text = textwrap.dedent(inspect.getsource(own))
        needs = inspect.getclosurevars(own)
    except (OSError, TypeError) as error:
        raise NoProgram(f"no folder: {group.op} has no public path in torch and no source ({error})") from None
    others = sorted({*needs.nonlocals, *needs.globals} - {"torch"})
    if others or not text.startswith("def "):
        what = f"it needs {', '.join(others)}" if others else "its source is no plain function"
        raise NoProgram(f"no folder: {group.op} has no public path in torch and cannot be inlined: {what}")
    return f"{text.rstrip()}\n\n\nop = {own.__name__}"
