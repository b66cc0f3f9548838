"""The program of a finding whose case is no ONNX model: ``program.py``, its inputs in order, and the files that it takes.

As a module it has ``program``, the function that is called. Of torch it also has ``tensors``, which makes the arguments
of the inputs; ``hold``, where it has weights, which puts them on a device; and of a training step ``step``, which calls
the program and differentiates it.
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farm.reproduction import in_framework, in_torch, networks, own_code
from tasks.arrays.training import TrainingStep
from tasks.backends.shared.function_form import list_function_inputs
from tasks.backends.shared.recipe import NoProgram
from tasks.catalogs import user_definitions
from tasks.catalogs.models import own_models
from tasks.counterparts.table import FRAMEWORKS
from tasks.model import Form, Group

#: Names of collections.abc in annotations of what is copied.
_ABSTRACT = ("Callable", "Iterable", "Iterator", "Mapping", "Sequence")
_HELD = """
held = {}
for key, x in np.load(Path(__file__).with_name("weights.npz")).items():
    name, _, dtype = key.rpartition(":")
    held[name] = x.view(dtype)
"""


@dataclass(frozen=True)
class FindingProgram:
    """text: of program.py; arrays: its inputs in order; held: constants and weights by name, which lie in weights.npz;
    files: others, by name."""

    text: str
    arrays: Sequence[np.ndarray]
    held: Mapping[str, np.ndarray] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def write_finding_program(
    form: Form, group: Group, state: Mapping[str, np.ndarray], tried: bool = True
) -> FindingProgram:
    """The program of a form that is no ONNX model. state: the tensors that a module of the user's holds; tried: whether
    a public name of torch's is run beside the catalog's function, to see that it is the same. Raises NoProgram,
    Unsupported."""
    title, files = f"{group.label}, as the case calls it.", dict[str, bytes]()
    if form.kind in FRAMEWORKS:
        parts, held = in_framework.write_framework_program(form)
        return FindingProgram(compose_program_text(title, parts, held), list_function_inputs(form), held)
    if form.kind != "torch":
        raise NoProgram(f"no folder: none is known for the form {form.kind!r}")
    held, arrays = {}, in_torch.list_program_arrays(form)
    if group.catalog == "models" and (form.model is None or isinstance(form.call, TrainingStep)):
        module = own_models.list_own_models().get(group.op_name)
        if module is not None and module.is_module:
            parts, files = own_code.define_module_program(module, form)
            held = {name.removeprefix("model."): x for name, x in state.items()}
        else:
            parts, held = networks.define_network_program(form, group)
    elif form.model is not None or hasattr(form.call, "graph"):
        arrays = list_function_inputs(form)  # contiguous, with the weights of a whole network
        parts, held = _render_torch_graph(form)
        form = replace(form, args=None)
    elif group.catalog == user_definitions.USER:
        parts, files = own_code.define_kernel_program(form, group)
    else:
        op = in_torch.define_torch_op(form, group, tried=tried)
        parts = [op, f"def program(*x):\n    return op({in_torch.write_torch_arguments(form)})"]
    exotic = any(x.dtype.isbuiltin != 1 for x in (*arrays, *held.values()))
    parts = [
        "import torch",
        *parts,
        in_torch.define_torch_tensors(form, len(arrays), exotic or "to_tensor(" in "".join(parts)),
    ]
    return FindingProgram(compose_program_text(title, parts, held, files), arrays, held, files)


def compose_program_text(title: str, parts: Sequence[str], held: Mapping[str, Any], files: Collection[str] = ()) -> str:
    """The text of a program: its imports, its weights, then its parts, two lines apart. What is imported from ``files``
    beside it is imported where a part says so: what is before may decide how."""
    local = {name.partition("/")[0].removesuffix(".py") for name in files}

    def is_import(line: str) -> bool:
        return line.startswith(("import ", "from ")) and line.split()[1].partition(".")[0] not in local

    given = [*([_HELD.strip()] if held else []), *parts]
    imports, body = dict[str, None](), list[str]()
    for part in given:
        lines = part.splitlines()
        imports |= dict.fromkeys(x for x in lines if is_import(x))
        body.append("\n".join(x for x in lines if not is_import(x)).strip("\n"))
    text = "\n\n\n".join(filter(None, body))
    own = [x for x in imports if x.split()[1].partition(".")[0] in sys.stdlib_module_names]
    own += [f"import {name}" for name in ("operator",) if f" {name}." in text]
    own += ["from pathlib import Path"] * (bool(held) and "from pathlib import Path" not in own)
    own += ["from typing import Any"] * bool(re.search(r"\bAny\b", text))
    abstract = [x for x in _ABSTRACT if re.search(rf"\b{x}\b", text)]
    own += [f"from collections.abc import {', '.join(abstract)}"] * bool(abstract)
    more = [x for x in dict.fromkeys(imports) if x not in own]
    more += ["import numpy as np"] * ("np." in text and "import numpy as np" not in more)
    more += ["import ml_dtypes  # numpy learns of its dtypes"] * any(x.dtype.isbuiltin != 1 for x in held.values())
    head = [f'"""{title}"""', "from __future__ import annotations", "\n".join(own), "\n".join(more)]
    return "\n\n".join(filter(None, head)) + f"\n\n{text}\n"


def _render_torch_graph(form: Form) -> tuple[list[str], dict[str, np.ndarray]]:
    """(parts of the text of a graph of torch's operations, one a line; its constants)."""
    program: Any = form.call
    held, body, names = dict[str, np.ndarray](), list[str](), list[str]()
    for node in program.graph.nodes:
        if node.op == "get_attr":
            held[node.name] = operator.attrgetter(node.target)(program).detach().numpy()
            body.append(f'    {node.name} = to_tensor(held["{node.name}"])')
        elif node.op == "call_function":
            target = "operator.getitem" if node.target is operator.getitem else f"torch.ops.{node.target}"
            given = [
                *map(_write_program_argument, node.args),
                *(f"{name}={_write_program_argument(x)}" for name, x in node.kwargs.items()),
            ]
            body.append(f"    {node.name} = {target}({', '.join(given)})")
        elif node.op == "output":
            body.append(f"    return {_write_program_argument(node.args[0])}")
        else:
            names.append(node.name)
    return ["\n".join([f"def program({', '.join(names)}):", *body])], held


def _write_program_argument(x: Any) -> str:
    """Source of an argument of torch's: a tensor by its name."""
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(map(_write_program_argument, x))}]"
    if isinstance(x, float) and x - x != 0:
        return f'float("{x}")'
    if type(x).__name__ == "device":
        return repr(str(x))
    return str(x.name) if hasattr(x, "name") else repr(x)
