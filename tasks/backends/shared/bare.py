"""The source of a function without what it says of its types and of itself."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from typing import Any


def bare(statement: ast.FunctionDef) -> ast.FunctionDef:
    """A function without annotations and docstrings, its own and those of what is defined in it."""
    found = copy.deepcopy(statement)
    for node in ast.walk(found):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node):
            node.body = node.body[1:]
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)  # of a local name: never looked at
    return found


def bare_lines(function: Callable[..., Any]) -> list[str]:
    """The lines of a function, bare."""
    (statement,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(statement, ast.FunctionDef)
    return [line for line in ast.unparse(bare(statement)).splitlines() if line]
