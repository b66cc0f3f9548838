"""A case as a program of a framework that takes no ONNX: its calls by torch's names, one a line, and what the table of counterparts
(`tasks.counterparts`) has for these names.

The table is read, not imported: the framework may not be in this environment.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tasks import counterparts
from tasks.arrays.tree import decode_argument_tree
from tasks.backends.shared.function_form import list_function_inputs
from tasks.backends.shared.network import TENSOR, get_framework_functions, read_onnx_network
from tasks.backends.shared.recipe import NoProgram
from tasks.counterparts import WITHOUT_EFFECT, WORDS, Counterpart, by_torch
from tasks.counterparts.arguments import refuse_argument
from tasks.model import Form

#: A dtype by its name.
_DTYPE = {"jax": "jax.numpy.{}", "tensorflow": "tf.{}", "paddle": "'{}'", "mlx": "mx.{}"}
#: Modules that these, and what makes a tensor, are of.
_MODULE = {
    "jax": "import jax.numpy",
    "tensorflow": "import tensorflow\nimport tensorflow as tf",
    "paddle": "import paddle",
    "mlx": "import mlx.core\nimport mlx.core as mx",
}


def write_framework_program(form: Form) -> tuple[list[str], dict[str, np.ndarray]]:
    """(parts of the text of a program, the arrays that it takes by name). Raises NoProgram, Unsupported."""
    calls = FrameworkCalls(form.kind)
    arrays = list_function_inputs(form)
    found = (
        _write_framework_graph(form, calls, arrays)
        if form.model is not None
        else _write_framework_call(form, calls, arrays)
    )
    body = [f"    {line}" for line in (*calls.lines, f"return {found}")]
    program = "\n".join(["def program(*x):", *body])
    return [_MODULE[form.kind], *write_framework_words(calls.called), program], calls.held


def _write_framework_call(form: Form, calls: FrameworkCalls, arrays: Sequence[np.ndarray]) -> str:
    """What one function returns. Raises NoProgram."""
    if not isinstance(form.call, Counterpart):
        raise NoProgram("no folder: it is no call of one function")
    given = iter([WrittenTensor(f"x[{k}]", calls) for k, _ in enumerate(arrays)])

    def leaf(kind: str, node: dict[str, Any]) -> Any:
        if kind == "torch.dtype":
            name = "bool_" if node["name"] == "bool" and form.kind in ("jax", "mlx") else node["name"]
            return WrittenTensor(_DTYPE[form.kind].format(name), calls)
        return next(given) if kind == "tensor" else None  # layouts and devices say where a tensor is, not what

    return calls.call(
        form.call, decode_argument_tree(form.args, leaf), dict(decode_argument_tree(form.kwargs, leaf))
    ).text


def _write_framework_graph(form: Form, calls: FrameworkCalls, arrays: Sequence[np.ndarray]) -> str:
    """What a graph returns. torch computes it meanwhile, which is here: what shapes it gives decides what is called
    next."""
    import torch

    assert form.model is not None
    of: Callable[[str], Any] = get_framework_functions(form.kind)

    def find_framework_call(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = by_torch.find_torch_counterpart(name)(
                *_restore_torch_tensors(args), **_restore_torch_tensors(kwargs)
            )
            return calls.call(of(name), args, kwargs).also(found)

        return call

    def tensor(x: Any) -> Any:
        if isinstance(x, WrittenTensor):
            return x
        made = calls.line(f"{'.'.join(TENSOR[form.kind])}({calls.source(x)})")
        return made.also(torch.from_numpy(np.array(x)))

    given = [WrittenTensor(f"x[{k}]", calls, torch.from_numpy(np.array(x))) for k, x in enumerate(arrays)]
    return calls.source(read_onnx_network(form.kind, form.model).by(find_framework_call, tensor, given))


def _restore_torch_tensors(x: Any) -> Any:
    """Arguments with torch's own tensors in them."""
    if isinstance(x, WrittenTensor):
        return x.known
    if isinstance(x, dict):
        return {key: _restore_torch_tensors(y) for key, y in x.items()}
    return type(x)(map(_restore_torch_tensors, x)) if type(x) in (list, tuple) else x


@dataclass
class FrameworkCalls:
    """The calls of a program. lines: each gives something a name; called: counterparts by their names there; held:
    arrays by name."""

    framework: str
    lines: list[str] = field(default_factory=list)
    called: dict[str, Counterpart] = field(default_factory=dict)
    held: dict[str, np.ndarray] = field(default_factory=dict)

    def call(self, counterpart: Counterpart, args: Sequence[Any], kwargs: Mapping[str, Any]) -> WrittenTensor:
        """What a counterpart returns. Raises Unsupported for an argument that it does not take."""
        counterpart.bind_arguments(args, kwargs)
        name = "op_" + counterpart.label.removeprefix("nn.functional.").replace(".", "_").replace(":", "_")
        self.called[name] = counterpart
        heeded = {key: x for key, x in kwargs.items() if key not in WITHOUT_EFFECT}
        given = [*map(self.source, args), *(f"{key}={self.source(x)}" for key, x in heeded.items())]
        return self.line(f"{name}({', '.join(given)})")

    def line(self, text: str) -> WrittenTensor:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return WrittenTensor(name, self)

    def source(self, x: Any) -> str:
        """Source of an argument. Raises NoProgram for what has none."""
        if isinstance(x, WrittenTensor):
            return x.text
        if isinstance(x, list):
            return f"[{', '.join(map(self.source, x))}]"
        if isinstance(x, tuple):
            return f"({', '.join(map(self.source, x))}{',' * (len(x) == 1)})"
        if isinstance(x, np.generic):
            return self.source(x.item())
        if isinstance(x, float) and x - x != 0:
            return f'float("{x}")'
        if isinstance(x, slice):
            return f"slice({self.source(x.start)}, {self.source(x.stop)}, {self.source(x.step)})"
        if isinstance(x, np.ndarray):
            name = f"c{len(self.held)}"
            self.held[name] = x
            return f'held["{name}"]'
        if x is None or isinstance(x, (bool, int, float, str)):
            return repr(x)
        if x is ...:
            return "..."
        raise NoProgram(f"no folder: an argument of type {type(x).__name__} cannot be written down")


class WrittenTensor:
    """Something of a framework by its source; known: torch's tensor in its place, where there is one."""

    def __init__(self, text: str, calls: FrameworkCalls, known: Any = None) -> None:
        self.text, self.calls, self.known = text, calls, known

    def also(self, known: Any) -> Any:
        """The same, or its parts, with what torch made of the same."""
        if isinstance(known, (list, tuple)):
            return [WrittenTensor(f"{self.text}[{k}]", self.calls, x) for k, x in enumerate(known)]
        return WrittenTensor(self.text, self.calls, known)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.known.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        return WrittenTensor(f"{self.text}.dtype", self.calls, self.known.dtype)

    def __getitem__(self, key: Any) -> WrittenTensor:
        found = self.calls.line(f"{self.text}[{self.calls.source(key)}]")
        return WrittenTensor(found.text, self.calls, None if self.known is None else self.known[key])

    def __str__(self) -> str:
        return self.text if self.known is None else str(self.known)


def write_framework_words(calls: Mapping[str, Counterpart]) -> list[str]:
    """Parts of a text: imports and definitions of what the expressions of counterparts of one framework name, then each
    of these as a function of its name. Raises NoProgram."""
    imports, made = dict[str, None](), dict[str, str]()

    def add(code: ast.AST, own: set[str], words: Mapping[str, FrameworkWord], text: str) -> None:
        names = dict.fromkeys(x.id for x in ast.walk(code) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load))
        for name in (x for x in names if x not in own | _find_bound_names(code) | made.keys()):
            word = words.get(name)
            if word is not None and word.node is None:
                imports[word.text] = None
            elif name == refuse_argument.__name__:
                made[name] = f"def {name}(what):\n    raise ValueError(what)"
            elif word is not None and word.node is not None:
                add(word.node, set(), words, text)
                made[name] = word.text
            elif not hasattr(builtins, name):
                raise NoProgram(f"no folder: {text} needs {name}")

    for call in calls.values():
        add(ast.parse(call.text), set(call.signature.parameters), list_framework_words(call.framework), call.text)
    own = [f"def {name}{call.signature}:\n    return {call.text}" for name, call in calls.items()]
    return ["\n".join(imports), *made.values(), *own]


def _find_bound_names(code: ast.AST) -> set[str]:
    """Names that code itself gives to something, and those in what it says of types."""
    given = {x.arg for x in ast.walk(code) if isinstance(x, ast.arg)}
    types = [x.annotation for x in ast.walk(code) if isinstance(x, (ast.arg, ast.AnnAssign)) and x.annotation]
    types += [x.returns for x in ast.walk(code) if isinstance(x, ast.FunctionDef) and x.returns]
    given |= {x.id for one in types for x in ast.walk(one) if isinstance(x, ast.Name)}
    return given | {x.id for x in ast.walk(code) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


@dataclass(frozen=True)
class FrameworkWord:
    """What a name of the table stands for: its definition as it is written, or the line that imports it (node None)."""

    text: str
    node: ast.stmt | None = None


@functools.cache
def list_framework_words(framework: str) -> dict[str, FrameworkWord]:
    """What an expression of the table may name."""
    found: dict[str, FrameworkWord] = {}
    for name in (*WORDS, f"in_{framework}"):
        text = (Path(counterparts.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        found |= {
            name: word for statement in ast.parse(text).body for name, word in _read_statement_names(statement, text)
        }
    return found


def _read_statement_names(statement: ast.stmt, text: str) -> Iterator[tuple[str, FrameworkWord]]:
    """(name, what it stands for) of a statement of a module."""
    written = ast.get_source_segment(text, statement) or ""
    if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
        yield statement.name, FrameworkWord(written, statement)
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        yield statement.targets[0].id, FrameworkWord(written, statement)
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id, FrameworkWord(written, statement)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.asname or alias.name, FrameworkWord(ast.unparse(ast.Import([alias])))
    elif isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] not in (
        "tasks",
        "typing",
    ):
        for alias in statement.names:
            yield alias.asname or alias.name, FrameworkWord(ast.unparse(ast.ImportFrom(statement.module, [alias], 0)))
