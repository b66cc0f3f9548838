"""How much there is to read and to choose from: python docs/_size.py [TREE]

Prints words of the docs, commands, their options, configs and their keys. TREE is another checkout of the farm, to
compare with. Words are those of what is written (README, CONTRIBUTING, the pages), so tables that the code makes count
as their one line.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent


def count_words(tree: Path) -> dict[str, int]:
    """Words of each file that a reader is given, by its path in the tree."""
    files = [tree / "README.md", tree / "CONTRIBUTING.md", *sorted((tree / "docs").rglob("*.md"))]
    return {str(file.relative_to(tree)): len(file.read_text().split()) for file in files}


def list_options(tree: Path) -> dict[str, set[str]]:
    """The options of each command, as its file and what the file imports from the same folder spell them.

    Read from the source, so that another checkout needs no environment: every word with two dashes that a call of
    ``add_argument`` has, and what a function outside the commands adds that a command calls.
    """
    commands = tree / "farm" / "options"
    if not commands.is_dir():  # they stood with the work
        commands = tree / "farm" / "commands"
    others = (file for file in sorted((tree / "farm").rglob("*.py")) if file.parent != commands)
    shared = {name: options for file in others for name, options in _read_helpers(file) if options}
    return {
        file.stem: _options_of(ast.parse(file.read_text()), shared)
        for file in sorted(commands.glob("*.py"))
        if file.stem != "__init__"
    }


def _read_helpers(file: Path) -> Iterator[tuple[str, set[str]]]:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, _options_of(node, {})


def _options_of(tree: ast.AST, shared: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        found |= shared.get(name, set())
        if name == "add_argument":
            words = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            found |= {word for word in words if word.startswith("--")}
    return found


def list_keys() -> dict[str, list[str]]:
    """The keys of a config, by the part of it that has them; of the installed farm."""
    from pydantic import BaseModel

    from farm.plan import config_schema

    kinds = (kind for kind in vars(config_schema).values() if isinstance(kind, type) and issubclass(kind, BaseModel))
    return {kind.__name__: sorted(kind.model_fields) for kind in kinds if kind.model_fields}


def main(arguments: list[str]) -> None:
    tree = Path(arguments[0]).resolve() if arguments else HERE
    words, options = count_words(tree), list_options(tree)
    configs = list((tree / "configs").glob("*.yaml"))
    for page, count in sorted(words.items(), key=lambda pair: -pair[1]):
        print(f"{count:7,} {page}")
    print(f"{sum(words.values()):7,} words of docs")
    print(f"{len(options):7,} command lines")
    print(f"{sum(map(len, options.values())):7,} options, {len(set().union(*options.values()))} distinct")
    print(f"{len(configs):7,} configs")
    if tree == HERE:
        print(f"{sum(map(len, list_keys().values())):7,} keys of a config")


if __name__ == "__main__":
    main(sys.argv[1:])
