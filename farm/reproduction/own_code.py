"""A program of the user's own code: the files of a kernel or of a module, copied as they are, and how they are called."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from pathlib import Path

from farm.reproduction.in_torch import write_torch_arguments
from tasks import user_sources
from tasks.arrays import module_state, torch_tree
from tasks.backends.shared.recipe import NoProgram
from tasks.catalogs.models import of_file
from tasks.catalogs.models.own_models import OwnModelFile
from tasks.catalogs.user import functions, load_kernels
from tasks.model import FORWARD, Form, Group

#: In place of the farm's packages: of them, a kernel's file needs the decorators alone, and these say nothing of how it
#: computes.
_STAND_IN = b'''"""Stands in for the validation farm: its decorators leave a function as it is, all else of it does nothing."""

import unittest.mock


def op(*args, **kwargs):
    """A decorator that leaves a function as it is."""
    return lambda function: function


autograd = op


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return unittest.mock.MagicMock()
'''

_INTERPRETED = """import os

os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.accelerator.is_available())))"""

#: What a kernel returned, of tensors alone: what is none counts as no output.
_TENSORS = """
def program(*x):
    found = {call}
    several = found if isinstance(found, tuple) and len(found) > 1 else (found,)
    return [y for y in several if isinstance(y, torch.Tensor)]
"""

#: The same of a kernel of NumPy's arrays.
_IN_NUMPY = """
def kernel(**x):
    found = {name}(**{{k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in x.items()}})
    several = found if isinstance(found, tuple) else (found,)
    return tuple(torch.from_numpy(np.array(y)) for y in several if isinstance(y, (np.ndarray, np.generic)))


def program(*x):
    return kernel({arguments})
"""


def define_kernel_program(form: Form, group: Group) -> tuple[list[str], dict[str, bytes]]:
    """(parts of the text of a program that calls a user's kernel, the files that it takes). Raises NoProgram."""
    one = load_kernels.load_user_ops()[group.op_name]
    if one.op.steps:
        raise NoProgram(f"no folder: {group.op} is a session, which is called step by step")
    kernel = one.function("kernel")
    file, name = inspect.getsourcefile(inspect.unwrap(kernel)), getattr(kernel, "__qualname__", "<")
    if not file or "<" in name:
        raise NoProgram(f"no folder: {group.op} is no named function in a file")
    if one.backward and (form.check != FORWARD or hasattr(kernel, "backward")):
        raise NoProgram(f"no folder: autograd does not know the gradient of {group.op}, a kernel of NumPy arrays")
    files, module = _copy_kernel_files(file, one.root)
    asked = one.outside()
    files |= {f"{name}.py": _STAND_IN for name in ("farm", "tasks") if name in asked}
    parts = [*[_INTERPRETED] * ("triton" in asked), f"import {module}"]
    called = f"{module}.{name}"
    if one.op.framework == "numpy":
        if any(x.dtype.name in torch_tree.AS_INTEGER for x in form.arrays):
            raise NoProgram(f"no folder: {group.op} takes arrays of a dtype that numpy lacks")
        return [*parts, _IN_NUMPY.strip().format(name=called, arguments=write_torch_arguments(form))], files
    if (taken := functions.list_function_parameters(kernel)) is not None:
        given = [name for name, _ in form.kwargs["v"]]
        positions = ", ".join(f"x[{k!r}]" if k in given else repr(v) for k, v in taken.items())
        parts.append(f"def kernel(**x):\n    return {called}.apply({positions})")
        called = "kernel"
    return [*parts, _TENSORS.strip().format(call=f"{called}({write_torch_arguments(form)})")], files


def _copy_kernel_files(file: str, root: str) -> tuple[dict[str, bytes], str]:
    """(a file and those that it imports, by their names in a finding; the module that the first one is there). Raises
    NoProgram."""
    path = Path(file).resolve()
    every = user_sources.list_imported_files(path, root)
    home = Path(root).resolve()
    if not all(x.is_relative_to(home) for x in every):
        home = path.parent
    try:
        inside = [x for x in every if x.is_relative_to(home)]
        names = {str(x.relative_to(home)): x.read_bytes() for x in inside}
        for x in inside:  # a package has its own file beside
            for folder in x.relative_to(home).parents:
                if folder != Path(".") and (init := home / folder / "__init__.py").is_file():
                    names[str(folder / "__init__.py")] = init.read_bytes()
    except OSError as error:
        raise NoProgram(f"no folder: {file} cannot be read: {error.strerror or error}") from None
    module = ".".join(path.relative_to(home).with_suffix("").parts)
    if not all(word.isidentifier() for word in module.split(".")) or module in (
        "program",
        "compare",
        "definition",
        "run",
    ):
        raise NoProgram(f"no folder: {path.name} cannot be imported by its name")
    return names, module


def define_module_program(one: OwnModelFile, form: Form) -> tuple[list[str], dict[str, bytes]]:
    """(parts of the text of a program that makes a module of the user's, OP, and gives it the tensors that were judged,
    the files that it takes). Raises NoProgram."""
    name, _, function = one.source.rpartition(":")
    found = load_kernels.load_user_module(name, one.root, ())
    if not found.__file__:
        raise NoProgram(f"no folder: {one.name} is in no file")
    files, module = _copy_kernel_files(found.__file__, one.root)
    made, given = getattr(found, function, None), ""
    if isinstance(made, type) and hasattr(found, of_file.INIT):
        given = f"*{module}.{of_file.INIT}()"
    called = "" if not isinstance(made, type) and hasattr(made, "forward") else f"({given})"
    net = f"torch.manual_seed(0)\nnp.random.seed(0)\nrandom.seed(0)\nnet = {module}.{function}{called}.eval()"
    parts = [
        "import random",
        f"import {module}",
        net,
        _HOLD.strip(),
        _write_outputs_expression(form.call.written if isinstance(form.call, module_state.Renewable) else ()),
    ]
    return parts, files


#: Functions that give a module the tensors of weights.npz: what a call may have written to is as it was.
_HOLD = """
def part(x, name):
    for word in name.split("."):
        if isinstance(x, dict):
            x = {str(k): v for k, v in x.items()}[word]
        else:
            x = x[int(word)] if isinstance(x, (list, tuple)) else getattr(x, word)
    return x


def hold(device):
    \"\"\"Give the module the tensors that were judged.\"\"\"
    net.to(device)
    with torch.no_grad():
        for name, value in held.items():
            x = part(net, name)
            if hasattr(x, "materialize"):  # a lazy one
                x.materialize(value.shape)
            x.copy_(to_tensor(value))
"""


def _write_outputs_expression(names: Sequence[str]) -> str:
    """``program``: the module's outputs, and after them the tensors that it writes to
    (`tasks.catalogs.models.own_models`)."""
    left = [
        f"inputs[{name.removeprefix('inputs.')}]"
        if name.startswith("inputs.")
        else f"part(net, {name.removeprefix('model.')!r})"
        for name in names
    ]
    if not left:
        return "program = net"
    return (
        "def program(*inputs):\n"
        '    """The outputs, and after them what the call leaves in the tensors that it writes to."""\n'
        f"    return net(*inputs), [x.detach().clone() for x in [{', '.join(left)}]]"
    )
