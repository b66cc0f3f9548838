"""Scripts on torch: the op by a public name or its own source, its arguments as Python."""

from __future__ import annotations

import inspect
import keyword
import os
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from farm.reproduce.source import Data, Runtime, Source
from tasks import catalogs
from tasks.arrays import torch_tree
from tasks.arrays.autograd import computed
from tasks.arrays.tree import decode, spec_of
from tasks.backends.shared.bare import bare_lines
from tasks.backends.shared.few_lines import NoScript, Setting, sparse
from tasks.backends.torch import TorchEager
from tasks.catalogs.models import of_file, own
from tasks.catalogs.torch import variants
from tasks.catalogs.torch.differentiable import ORDERED, PROCESS
from tasks.catalogs.torch.variants import IN_PLACE, METHOD, OUT
from tasks.catalogs.user import load
from tasks.model import FORWARD, Form, Group
from tasks.model.dtypes import NATIVE

#: Where torch's own test database is, which takes packages beside torch (`tasks.packages.TORCH_CATALOG`).
OP_DB = "torch.testing._internal.common_methods_invocations"


def in_torch(source: Source, data: Data) -> Runtime:
    """How torch, eager or compiled, is called. Raises NoScript."""
    form, target = source.form, getattr(source.backend, "target", "cpu")
    for array in form.arrays:
        _embed(array, data)
    module = own.declared().get(source.group.op_name) if source.group.catalog == "models" else None
    of_own = module is not None and module.is_module
    values = {
        "target": repr(target),
        "op": _own_module(module, source, data) if of_own and module else op_lines(form, source.group, target),
        "of_own": of_own,
        "setting": source.backend.setting() if isinstance(source.backend, TorchEager) else Setting(),
        "compiled": source.runtime == "inductor",
        "args": literal(form.args, form),
        "kwargs": literal(form.kwargs, form),
    }
    return Runtime("torch.py.j2", values, "torch")


def _embed(array: np.ndarray, data: Data) -> str:
    """The arguments of the template's ``tensor`` for an array, put into the script. Raises NoScript."""
    name = array.dtype.name
    raw = torch_tree.AS_INTEGER.get(name)
    if raw is None and name not in NATIVE:
        raise NoScript(f"no script: a tensor of {name} cannot be embedded")
    place = data.add(array.view(raw) if raw else array)
    return f"{place}, torch.{name}" if raw else f"{place}"


def literal(node: Any, form: Form, tensor: Callable[[dict[str, Any], Form], str] | None = None) -> str:
    """Python source of an argument tree: names of torch are looked up here, everything else goes through repr(). tensor:
    writes a tensor (default: as the template torch.py.j2 has it)."""
    if isinstance(node, list):
        return f"[{', '.join(literal(x, form, tensor) for x in node)}]"
    if not isinstance(node, dict):
        if node is None or isinstance(node, (bool, int, float, str)):
            return repr(node)
        raise NoScript(f"no script: an argument of type {type(node).__name__} cannot be written down")
    kind: str = node["$"]
    v: Any = node.get("v")
    if kind == "tuple":
        inner = ", ".join(literal(x, form, tensor) for x in v)
        return f"({inner},)" if len(v) == 1 else f"({inner})"
    if kind == "dict":
        return "{" + ", ".join(f"{literal(k, form, tensor)}: {literal(x, form, tensor)}" for k, x in v) + "}"
    if kind == "float":
        return f"float({repr(float(v))!r})"
    if kind == "complex":
        return f"complex(float({repr(float(v[0]))!r}), float({repr(float(v[1]))!r}))"
    if kind == "slice":
        return f"slice({', '.join(literal(x, form, tensor) for x in v)})"
    if kind == "ellipsis":
        return "..."
    if kind == "range":
        return f"range({', '.join(repr(int(x)) for x in v)})"
    if kind == "torch.device":
        return "torch.device(DEVICE)"
    if kind in ("torch.dtype", "torch.layout", "torch.memory_format"):
        import torch

        name = str(node["name"])
        if not name.isidentifier() or type(getattr(torch, name, None)).__name__ != kind.partition(".")[2]:
            raise NoScript(f"no script: torch has no {kind} called {name!r}")
        return f"torch.{name}"
    if kind == "tensor":
        return (tensor or _tensor_literal)(node, form)
    raise NoScript(f"no script: an argument of kind {kind!r} cannot be written down")


def _tensor_literal(node: dict[str, Any], form: Form) -> str:
    def part(i: int) -> str:
        name = form.arrays[i].dtype.name
        return f"{int(i)}, torch.{name}" if name in torch_tree.AS_INTEGER else f"{int(i)}"

    spec = spec_of(node)
    if spec.layout == "strided":
        made = f"tensor({part(spec.id)})" + ".to(torch.complex32)" * (spec.flags == torch_tree.COMPLEX32)
        if spec.strides is None:
            return made
        shape, strides = _ints(spec.shape or ()), _ints(spec.strides)
        if min(strides, default=0) < 0:  # NumPy's alone
            size = form.arrays[spec.id].itemsize
            steps = tuple(s * size for s in strides)
            return f"np.lib.stride_tricks.as_strided({made}.numpy()[{int(spec.offset)}:], {shape!r}, {steps!r})"
        return f"{made}.as_strided({shape!r}, {strides!r}, {int(spec.offset)})"
    return sparse(spec, ", ".join(f"tensor({part(i)})" for i in spec.parts))


def _ints(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(x) for x in values)


def op_lines(form: Form, group: Group, target: str = "cpu", tried: bool = True) -> str:
    """The lines that define OP; tried: whether a public function is compared with it first. Raises NoScript."""
    if group.catalog == "user":
        return _own_kernel(form, group)
    if group.check in (OUT, IN_PLACE, METHOD):
        return _otherwise(form, group, target, tried)
    own = form.call if form.call is not None else catalogs.get(group.catalog).call(group)
    processed = form.check != FORWARD and PROCESS in dict(form.kwargs["v"])  # which is no argument of the function's
    for path in () if processed else _public_paths(group.op_name, own):
        found = _resolved(path)
        if found is own or (found is not None and (not tried or _same_bits(found, own, form, target))):
            return f"OP = {path}"
    if group.catalog == "torch":
        return _wrapped(form, group)
    return _inlined(own, group)


def _wrapped(form: Form, group: Group) -> str:
    """The lines that take OP from torch's own test database. Raises NoScript."""
    found = f"next(x for x in op_db if (x.name, x.variant_test_name) == {(group.op_name, group.variant)!r})"
    said = (
        "# No public function gives these bits on these inputs: torch's own test database wraps it.\n"
        f"from {OP_DB} import op_db  # noqa: E402\n\n"
    )
    if form.check == FORWARD:
        return f"{said}OP = {found}.op"
    if group.op_name in ORDERED:
        raise NoScript(f"no script: {group.op} has its outputs put in an order before they are differentiated")
    process = dict(form.kwargs["v"]).get(PROCESS)
    made = "found" if process is None else "process(found)"
    several = 'INFO.sample_inputs("cpu", torch.float64, requires_grad=True)'
    own = f"s.output_process_fn_grad for s in {several} if s.output_process_fn_grad.__qualname__ == {process!r}"
    return (
        f"{said}INFO = {found}\n{'' if process is None else f'process = next({own})' + chr(10)}"
        f"def OP(*args, {PROCESS}=None, **kwargs):\n"
        "    found = INFO.gradcheck_wrapper(INFO.op, *args, **kwargs)\n"
        f"    return {made}"
    )


def _otherwise(form: Form, group: Group, target: str, tried: bool) -> str:
    """The lines that define OP as the op called with out=, in place, or as a method. Raises NoScript."""
    if group.check == OUT:
        plain = op_lines(replace(form, call=None), replace(group, check=FORWARD), target, tried)
        return "\n".join([plain, *bare_lines(variants.gapped), *bare_lines(variants.into), "OP = into(OP)"])
    path = f"torch.Tensor.{group.op_name.rpartition('.')[2]}{'_' * (group.check == IN_PLACE)}"
    if _resolved(path) is None:
        raise NoScript(f"no script: there is no {path}")
    return (
        f"OP = {path}"
        if group.check == METHOD
        else f"OP = lambda x, *args, **kwargs: [{path}(x, *args, **kwargs), x][1]"
    )


#: A kernel of NumPy arrays, by its name, as a function of tensors.
_IN_NUMPY = """
def OP(**x):
    made = module.{}(**{{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in x.items()}})
    one = lambda y: torch.from_numpy(np.array(y)) if isinstance(y, (np.ndarray, np.generic)) else y
    return tuple(map(one, made)) if isinstance(made, tuple) else one(made)
""".strip()


def _own_kernel(form: Form, group: Group) -> str:
    """The lines that load a user's kernel from its own file. Raises NoScript."""
    one = load.declared()[group.op_name]
    if one.op.steps:
        raise NoScript(f"no script: {group.op} is a session, which is called step by step")
    kernel = one.function("kernel")
    file, name = inspect.getsourcefile(inspect.unwrap(kernel)), getattr(kernel, "__qualname__", "<")
    if not file or "<" in name:
        raise NoScript(f"no script: {group.op} is no named function in a file")
    made = f"OP = module.{name}"
    if one.backward and (form.check != FORWARD or hasattr(kernel, "backward")):
        raise NoScript(f"no script: autograd does not know the gradient of {group.op}, a kernel of NumPy arrays")
    if one.op.framework == "numpy":
        if any(x.dtype.name in torch_tree.AS_INTEGER for x in form.arrays):
            raise NoScript(f"no script: {group.op} takes arrays of a dtype that numpy lacks")
        made = _IN_NUMPY.format(name)
    elif (taken := getattr(kernel, "by_position", None)) is not None:
        given = [name for name, _ in form.kwargs["v"]]
        arguments = ", ".join(f"x[{k!r}]" if k in given else repr(v) for k, v in taken.items())
        made = f"OP = lambda **x: module.{name}.apply({arguments})"
    asked = one.outside()
    beside = ["    sys.modules['farm'] = unittest.mock.MagicMock()"] * ("farm" in asked)
    beside += ["os.environ.setdefault('TRITON_INTERPRET', str(int(not torch.accelerator.is_available())))"] * (
        "triton" in asked
    )
    return "\n".join(
        [
            "# The kernel is loaded from its own file: it must still be there. Of the farm, that file needs the decorator alone.",
            "import importlib.util, os, sys, types, unittest.mock  # noqa: E401, E402",
            "",
            "if importlib.util.find_spec('tasks') is None:",
            "    sys.modules['tasks'] = types.SimpleNamespace(op=lambda **_: lambda function: function)",
            *beside,
            *load_lines(file, one.root),
            made,
        ]
    )


def _own_module(one: own.Own, source: Source, data: Data) -> str:
    """The lines that make a module of the user's from its own file, OP, and give it the tensors that were judged. Raises NoScript."""
    name, _, function = one.source.rpartition(":")
    found = load.load(name, one.root, ())
    if not found.__file__:
        raise NoScript(f"no script: {source.group.op} is in no file")
    made, given = getattr(found, function, None), ""
    if isinstance(made, type) and hasattr(found, of_file.INIT):
        given = f"*module.{of_file.INIT}()"
    called = "" if not isinstance(made, type) and hasattr(made, "forward") else f"({given})"
    held = [f"    {key.removeprefix('model.')!r}: tensor({_embed(x, data)})," for key, x in source.state.items()]
    return "\n".join(
        [
            "# The module is made from its own file, which must still be there, and given the tensors that were judged.",
            "import importlib.util, os, random, sys  # noqa: E401, E402",
            "",
            *load_lines(found.__file__, one.root),
            "torch.manual_seed(0), np.random.seed(0), random.seed(0)",
            f"net = OP = module.{function}{called}.eval().to(DEVICE)",
            *_HOLD.splitlines(),
            "    state = {",
            *(f"    {x}" for x in held),
            "    }",
            "    with torch.no_grad():",
            "        for name, value in state.items():",
            "            x = part(net, name)",
            "            if hasattr(x, 'materialize'):  # a lazy one",
            "                x.materialize(value.shape)",
            "            x.copy_(value)",
            *_written(getattr(source.form.call, "written", ())),
        ]
    )


def _written(names: Sequence[str]) -> list[str]:
    """Lines that make OP return, after the module's outputs, the tensors that it writes to (`tasks.catalogs.models.own`)."""
    held, given = "part(net, {!r})", "inputs[{}]"
    left = [
        (given if name.startswith("inputs.") else held).format(name.removeprefix("inputs.").removeprefix("model."))
        for name in names
    ]
    if not left:
        return []
    return [
        "",
        "",
        "def OP(*inputs):",
        '    """The outputs, and after them what the call leaves in the tensors that it writes to."""',
        f"    return net(*inputs), [x.detach().clone() for x in [{', '.join(left)}]]",
    ]


#: Lines that find a part of a module by its name.
_HOLD = """

def part(x, name):
    for word in name.split("."):
        if isinstance(x, dict):
            x = {str(k): v for k, v in x.items()}[word]
        else:
            x = x[int(word)] if isinstance(x, (list, tuple)) else getattr(x, word)
    return x


def hold():
    \"\"\"What a call may have written to is as it was.\"\"\""""


def load_lines(file: str, root: str) -> list[str]:
    """Lines that load a user's ``module`` from its own file."""
    return [
        f"sys.path += {list(dict.fromkeys([root, os.path.dirname(file)]))!r}",
        f"spec = importlib.util.spec_from_file_location('kernel', {file!r})",
        "module = sys.modules['kernel'] = importlib.util.module_from_spec(spec)",
        "spec.loader.exec_module(module)",
    ]


def _public_paths(name: str, own: Callable[..., Any]) -> list[str]:
    """Where a function may be found in torch's public names, likeliest first."""
    names = list(dict.fromkeys([name, str(getattr(own, "__name__", name))]))
    found = []
    for one in names:
        found += [f"torch.{m}{one}" for m in ("", "nn.functional.", "Tensor.", "special.", "linalg.", "fft.")]
    return [p for p in found if all(w.isidentifier() and not keyword.iskeyword(w) for w in p.split("."))]


def _resolved(path: str) -> Callable[..., Any] | None:
    import torch

    at: Any = torch
    for word in path.split(".")[1:]:
        if word.startswith("_") and not word.endswith("__"):
            return None  # not public
        at = getattr(at, word, None)
    return at if callable(at) else None


def _same_bits(candidate: Callable[..., Any], own: Callable[..., Any], form: Form, target: str) -> bool:
    """True if both functions give the same bits, of the gradient if the form is one's, or raise the same, on fresh copies of
    the inputs."""
    import torch

    leaf = torch_tree.decoder(form.arrays.__getitem__, target)
    starts = [None if i < 0 else torch_tree.from_numpy(form.arrays[i].copy()).to(target) for i in form.cotangents]

    def outcome(call: Callable[..., Any]) -> Any:
        args, kwargs = decode(form.args, leaf), decode(form.kwargs, leaf)
        with torch.no_grad():
            try:
                found = call(*args, **kwargs) if form.check == FORWARD else computed(form, call, args, kwargs, starts)
                made = torch_tree.outputs(found)
            except Exception as error:
                return type(error).__name__, str(error)
        return [(x.dtype.name, x.shape, x.tobytes() if x.dtype.kind != "O" else x.tolist()) for x in made]

    return bool(outcome(candidate) == outcome(own))


def _inlined(own: Callable[..., Any], group: Group) -> str:
    """The source of a function of a catalog that needs torch alone. Raises NoScript."""
    try:
        text = textwrap.dedent(inspect.getsource(own))
        needs = inspect.getclosurevars(own)
    except (OSError, TypeError) as error:
        raise NoScript(f"no script: {group.op} has no public path in torch and no source ({error})") from None
    others = sorted({*needs.nonlocals, *needs.globals} - {"torch"})
    if others or not text.startswith("def "):
        what = f"it needs {', '.join(others)}" if others else "its source is no plain function"
        raise NoScript(f"no script: {group.op} has no public path in torch and cannot be inlined: {what}")
    return f"{text.rstrip()}\n\n\nOP = {own.__name__}"
