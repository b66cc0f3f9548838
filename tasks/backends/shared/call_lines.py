"""A call of a framework's counterpart (`tasks.counterparts`) as source, with what of the table's words it takes.

The words are read, not imported: the framework may not be in this environment.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Iterator
from pathlib import Path

from tasks import counterparts
from tasks.backends.shared.few_lines import FewLines, NoScript
from tasks.counterparts import WORDS, Counterpart
from tasks.model import Form


def in_framework(form: Form, imported: str, lines: tuple[str, ...], before: tuple[str, ...] = ()) -> FewLines:
    """Of a framework whose functions the table names: ``lines`` make ``got`` of ``arrays`` and ``call``, which calls OP;
    imported: the line that imports the framework. Raises NoScript."""
    if not isinstance(form.call, Counterpart) or form.model is not None:
        raise NoScript("no short script: it is no call of one function")
    imports, made = _source(form.call)
    return FewLines(tuple(dict.fromkeys((imported, *imports))), (*made, *lines), before)


def _source(call: Counterpart) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(imports, the lines that make OP) of a counterpart. Raises NoScript."""
    words, imports, made = _words(call.framework), dict[str, None](), dict[str, str]()

    def add(code: ast.AST, own: set[str]) -> None:
        names = dict.fromkeys(x.id for x in ast.walk(code) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load))
        for name in (x for x in names if x not in own | _made(code) | made.keys()):
            word = words.get(name)
            if isinstance(word, str):
                imports[word] = None
            elif name == "absent":
                made[name] = "def absent(what): raise ValueError(what)"
            elif word is not None:
                add(word, set())
                made[name] = ast.unparse(word)
            elif not hasattr(builtins, name):
                raise NoScript(f"no short script: {call.text} needs {name}")

    add(ast.parse(call.text), set(call.signature.parameters))
    parameters = str(call.signature)[1:-1]
    return tuple(imports), (
        *(line for text in made.values() for line in text.splitlines()),
        f"OP = lambda {parameters}: {call.text}",
    )


def _made(code: ast.AST) -> set[str]:
    """Names that code itself gives to something."""
    given = {x.arg for x in ast.walk(code) if isinstance(x, ast.arg)}
    return given | {x.id for x in ast.walk(code) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


@functools.cache
def _words(framework: str) -> dict[str, str | ast.stmt]:
    """What an expression of the table may name: the line that imports it, or its statement, of a function without text and types."""
    found: dict[str, str | ast.stmt] = {}
    for name in (*WORDS, f"in_{framework}"):
        text = (Path(counterparts.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        found |= {name: word for statement in ast.parse(text).body for name, word in _named(statement)}
    return found


def _named(statement: ast.stmt) -> Iterator[tuple[str, str | ast.stmt]]:
    """(name, what it stands for) of a statement of a module."""
    if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
        if ast.get_docstring(statement):
            statement.body = statement.body[1:]
        statement.returns = None
        for one in ast.walk(statement):
            if isinstance(one, ast.arg):
                one.annotation = None
            elif isinstance(one, ast.AnnAssign):
                one.annotation = ast.Constant(None)  # of a local name: never looked at
        yield statement.name, statement
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        yield statement.targets[0].id, statement
    elif isinstance(statement, ast.Import) or (
        isinstance(statement, ast.ImportFrom) and (statement.module or "").partition(".")[0] not in ("tasks", "typing")
    ):
        for alias in statement.names:
            one = (
                ast.ImportFrom(statement.module, [alias], 0)
                if isinstance(statement, ast.ImportFrom)
                else ast.Import([alias])
            )
            yield alias.asname or alias.name, ast.unparse(one)
