"""A call of a framework's counterpart (`tasks.counterparts`) as source, with what of the table's words it takes.

The words are read, not imported: the framework may not be in this environment.
"""

from __future__ import annotations

import ast
import builtins
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks import counterparts
from tasks.backends.shared.bare import bare
from tasks.backends.shared.few_lines import NoScript
from tasks.counterparts import WORDS, Counterpart


def sources(calls: Mapping[str, Counterpart]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(imports, the lines that make each) of counterparts of one framework by the names that they are to have. Raises NoScript."""
    imports, made = dict[str, None](), dict[str, str]()

    def add(code: ast.AST, own: set[str], words: Mapping[str, str | ast.stmt], text: str) -> None:
        names = dict.fromkeys(x.id for x in ast.walk(code) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Load))
        for name in (x for x in names if x not in own | _made(code) | made.keys()):
            word = words.get(name)
            if isinstance(word, str):
                imports[word] = None
            elif name == "absent":
                made[name] = "def absent(what): raise ValueError(what)"
            elif word is not None:
                add(word, set(), words, text)
                made[name] = ast.unparse(word)
            elif not hasattr(builtins, name):
                raise NoScript(f"no short script: {text} needs {name}")

    for call in calls.values():
        add(ast.parse(call.text), set(call.signature.parameters), words_of(call.framework), call.text)
    return tuple(imports), (
        *(line for text in made.values() for line in text.splitlines()),
        *(f"{name} = lambda {str(call.signature)[1:-1]}: {call.text}" for name, call in calls.items()),
    )


def _made(code: ast.AST) -> set[str]:
    """Names that code itself gives to something."""
    given = {x.arg for x in ast.walk(code) if isinstance(x, ast.arg)}
    return given | {x.id for x in ast.walk(code) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}


@functools.cache
def words_of(framework: str) -> dict[str, str | ast.stmt]:
    """What an expression of the table may name: the line that imports it, or its statement, of a function without text and types."""
    found: dict[str, str | ast.stmt] = {}
    for name in (*WORDS, f"in_{framework}"):
        text = (Path(counterparts.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        found |= {name: word for statement in ast.parse(text).body for name, word in _named(statement)}
    return found


def _named(statement: ast.stmt) -> Iterator[tuple[str, str | ast.stmt]]:
    """(name, what it stands for) of a statement of a module."""
    if isinstance(statement, ast.FunctionDef) and not statement.decorator_list:
        yield statement.name, bare(statement)
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
