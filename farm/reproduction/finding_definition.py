"""What a finding holds a result to that is defined up to a choice: the judge's own definition of it, in its own words."""

from __future__ import annotations

import ast
import functools
import inspect
from itertools import count
from typing import Any

from farm.reproduction.in_torch import write_torch_literal
from tasks.backends.shared.recipe import NoProgram
from tasks.judge import definitions

_HEAD = '''"""What is compared does not depend on the choice that the result is defined up to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
'''

_DERIVE = '''
def wide(y):
    return y if y.dtype.kind in "biuOUS" else y.astype(np.result_type(y.dtype.kind == "c" and y, np.float64))


def derive(outputs, inputs):
    """The arrays that are compared in place of the outputs."""
    x = [wide(np.asarray(v)) for v in inputs]
    parts = {function}([wide(np.asarray(y)) for y in outputs]{arguments})
    return [part.value for part in {parts}]
'''


def write_definition(name: str, args: Any, kwargs: Any, double: bool) -> str:
    """The text of definition.py for a definition by its name and encoded arguments; double: whether an input is
    float64, where what must be equal is compared as integers. Raises NoProgram."""
    function: Any = definitions.DEFINITIONS[name]
    more = ""
    if isinstance(function, functools.partial):
        function, more = function.func, "".join(f", {k}={v!r}" for k, v in function.keywords.items())
    places = count()

    def tensor() -> str:
        return f"x[{next(places)}]"

    arguments = [write_torch_literal(node, tensor) for node in args["v"]]
    arguments += [f"{key}={write_torch_literal(node, tensor)}" for key, node in kwargs["v"]]
    if "torch." in "".join(arguments):
        raise NoProgram("no folder: an argument of its definition is torch's own")
    integers = definitions._view_as_integers.__name__
    names = [function.__name__, *[integers] * double]
    given = "".join(f", {x}" for x in arguments) + more
    parts = f"map({integers}, parts)" if double else "parts"
    derive = _DERIVE.strip().format(function=function.__name__, arguments=given, parts=parts)
    return "\n\n\n".join([_HEAD.strip(), *_collect_definition_source([*names, "Part"]), derive]) + "\n"


def _collect_definition_source(names: list[str]) -> list[str]:
    """What functions of the definitions take, as it is written there: the functions that they call, and constants."""
    every, text = _parse_definitions(), inspect.getsource(definitions)
    found, todo = set[str](), list(names)
    while todo:
        if (one := todo.pop()) in found or one not in every:
            continue
        found.add(one)
        todo += [x.id for x in ast.walk(every[one]) if isinstance(x, ast.Name)]
    lines = text.splitlines()

    def get_source(node: ast.stmt) -> str:
        decorators = getattr(node, "decorator_list", [])
        return "\n".join(lines[min([node.lineno, *(x.lineno for x in decorators)]) - 1 : node.end_lineno])

    return [get_source(every[name]) for name in every if name in found]


@functools.cache
def _parse_definitions() -> dict[str, ast.stmt]:
    """Functions, classes and constants of the definitions by name, in their order."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(inspect.getsource(definitions)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found
