"""The reader's test: does a function's name say in which room it is?

`python -m tests.reader SEED` prints the rooms (folders with the first line of what they are for, and their files) and
ten names of functions and methods drawn from `farm/` and `tasks/`, as a traceback has them: a method after its class, a
nested function after the one around it. A reader who has seen nothing else says for each where to look: `python -m
tests.reader SEED ANSWER…` takes ten folders or files and prints where the functions are, how many answers name the
folder and how many its room: the package below `farm` or `tasks` that the folder is in.

Not drawn: dunder methods; methods that a base class or a protocol of the tree names, for its name is that of the
protocol; public functions that three files of a folder define, as every command defines its arguments; specimens of the
zoo.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
DRAWN = 10


@dataclass(frozen=True)
class Function:
    """A function of the tree: its file from the root, the classes and functions around it, its bare name."""

    file: str
    outer: tuple[str, ...]
    name: str
    in_class: bool

    @property
    def qualified(self) -> str:
        return ".".join((*self.outer, self.name))

    @property
    def folder(self) -> str:
        return str(PurePosixPath(self.file).parent)

    @property
    def room(self) -> str:
        return room_of(self.folder)


def room_of(folder: str) -> str:
    """farm, tasks, farm/x or tasks/x."""
    return "/".join(PurePosixPath(folder).parts[:2])


def list_files(root: Path) -> list[str]:
    return sorted(
        str(p.relative_to(root).as_posix()) for room in ("farm", "tasks") for p in (root / room).rglob("*.py")
    )


def walk_functions(file: str, node: ast.AST, outer: tuple[str, ...] = (), in_class: bool = False) -> Iterator[Function]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from walk_functions(file, child, (*outer, child.name), True)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Function(file, outer, child.name, in_class)
            yield from walk_functions(file, child, (*outer, child.name))
        else:
            yield from walk_functions(file, child, outer, in_class)


def find_protocol_methods(trees: dict[str, ast.Module]) -> set[tuple[str, str]]:
    """(class, method) of the tree whose name a base, a subclass or a class declared as a protocol has as well."""
    classes = [c for tree in trees.values() for c in ast.walk(tree) if isinstance(c, ast.ClassDef)]
    bases: dict[str, set[str]] = defaultdict(set)
    methods: dict[str, set[str]] = defaultdict(set)
    for c in classes:
        bases[c.name] |= {ast.unparse(b).partition("[")[0].rpartition(".")[2] for b in c.bases}
        methods[c.name] |= {s.name for s in c.body if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)}
    named = {m for c in methods if "Protocol" in bases[c] for m in methods[c]}
    found = {(c, m) for c in methods for m in methods[c] & named}

    def list_ancestors(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        above = bases.get(name, set()) - seen
        return above | {x for b in above for x in list_ancestors(b, seen | above | {name})}

    for c in list(methods):
        for above in list_ancestors(c) - {c}:
            for m in methods[c] & methods.get(above, set()):
                found |= {(c, m), (above, m)}
    return found


def list_functions(root: Path = ROOT) -> list[Function]:
    """What a draw is from, in the order of files and lines: renaming a function does not change the draw."""
    trees = {
        file: ast.parse((root / file).read_text()) for file in list_files(root) if not file.startswith("tasks/zoo/")
    }
    protocol = find_protocol_methods(trees)
    functions = [f for file, tree in trees.items() for f in walk_functions(file, tree)]
    modules = Counter((f.folder, f.name) for f in functions if not f.outer and not f.name.startswith("_"))
    return [
        f
        for f in functions
        if not (f.name.startswith("__") and f.name.endswith("__"))
        and not (f.in_class and (f.outer[-1], f.name) in protocol)
        and not (not f.outer and modules[f.folder, f.name] >= 3)
    ]


def list_rooms(root: Path = ROOT) -> Iterator[str]:
    files = list_files(root)
    for folder in sorted({str(PurePosixPath(f).parent) for f in files}):
        inside = [PurePosixPath(f).stem for f in files if str(PurePosixPath(f).parent) == folder]
        doc = ast.get_docstring(ast.parse((root / folder / "__init__.py").read_text())) or ""
        yield f"{folder}: {doc.partition(chr(10))[0]}\n    " + " ".join(name for name in inside if name != "__init__")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reader", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seed", type=int)
    parser.add_argument("answers", nargs="*", metavar="ANSWER", help="a folder or a file for each of the names")
    asked = parser.parse_args()
    drawn = random.Random(asked.seed).sample(list_functions(), DRAWN)
    if not asked.answers:
        print("\n".join(list_rooms()), "", *(f.qualified for f in drawn), sep="\n")
        return
    if len(asked.answers) != DRAWN:
        parser.error(f"{len(asked.answers)} answers for {DRAWN} names")
    folders = [str(PurePosixPath(a).parent) if a.endswith(".py") else a.rstrip("/") for a in asked.answers]
    right = [f.folder == folder for f, folder in zip(drawn, folders, strict=True)]
    near = [f.room == room_of(folder) for f, folder in zip(drawn, folders, strict=True)]
    for f, answer, folder, room in zip(drawn, asked.answers, right, near, strict=True):
        print(f"{'right' if folder else 'room ' if room else 'WRONG'} {f.qualified}: {answer}; it is {f.file}")
    print(f"{sum(right)} of {DRAWN} to the folder, {sum(near)} to the room")


if __name__ == "__main__":
    main()
