"""What a script of few lines holds a result to that is defined up to a choice: the judge's own definition of it, in its own words."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farm.reproduce.in_torch import literal
from tasks import judging
from tasks.backends.shared.bare import bare
from tasks.backends.shared.few_lines import NoScript
from tasks.judge import definitions
from tasks.model import Form, Leaf
from tasks.prepare.cases import PreparedSample


@dataclass(frozen=True)
class Defined:
    """A definition by name (`tasks.judge.definitions`), the encoded arguments that it is given, and what it is to make of right
    outputs. double: whether an input is float64."""

    name: str
    args: Any
    kwargs: Any
    leaves: Sequence[Leaf]
    double: bool

    @classmethod
    def of(cls, sample: PreparedSample, precision: str) -> Defined | None:
        """That of a prepared sample; None of one that is judged by its numbers."""
        record = sample.record
        if not record.definition:
            return None
        double = any(x.dtype == "float64" for x in sample.inputs())
        return cls(record.definition, record.args, record.kwargs, judging.derived(sample, precision), double)

    def lines(self, form: Form) -> list[str]:
        """Lines that make ``got``, what came, what the definition makes of it. Raises NoScript."""
        if form.paired:
            raise NoScript("no short script: its outputs are pairs of real numbers")
        function: Any = definitions.DEFINITIONS[self.name]
        more = ""
        if isinstance(function, functools.partial):
            function, more = function.func, "".join(f", {k}={v!r}" for k, v in function.keywords.items())
        count = iter(range(10**6))

        def written(node: Any) -> str:
            return literal(node, form, lambda _, __: f"x[{next(count)}]")

        arguments = [*map(written, self.args["v"]), *(f"{name}={written(x)}" for name, x in self.kwargs["v"])]
        if "torch." in "".join(arguments):
            raise NoScript("no short script: an argument of its definition is torch's own")
        inputs = "list(feeds.values())" if form.model is not None else "arrays"
        if form.model is None and form.kind == "torch":
            inputs = "[(t.double() if t.is_floating_point() else t).numpy(force=True) for t in given]"
        given = [f"x = [wide(v) for v in {inputs}]"] * (next(count) > 0)
        return [
            "# What is compared does not depend on the choice that the result is defined up to.",
            "Part = lambda value, scale=0.0: np.asarray(value)",
            'wide = lambda y: y if y.dtype.kind in "biuO" else y.astype(np.result_type(y.dtype.kind == "c" and y, np.float64))',
            *_source(function.__name__),
            *given,
            f"got = {function.__name__}([wide(np.asarray(y)) for y in got]{''.join(f', {a}' for a in arguments)}{more})",
        ]


#: A line after the expected results: float64 numbers that must be equal, as integers (`tasks.judge.definitions`).
EQUAL = (
    "got = [np.ascontiguousarray(np.where(a != a, np.nan, a + 0.0)).view(np.int64) if a.dtype == float and e[0] == np.int64 else a "
    "for a, e in zip(got, expected)]"
)


def _source(name: str) -> list[str]:
    """The lines of a function of the definitions with those that it calls and the constants that they use, without what they say of
    their types."""
    found, todo = dict[str, list[str]](), [name]
    while todo:
        if (one := todo.pop()) in found or one not in _module():
            continue
        node = _module()[one]
        if isinstance(node, ast.FunctionDef):
            found[one] = _joined(node)
        else:
            found[one] = ast.unparse(node).splitlines()
        todo += [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]
    return [line for lines in found.values() for line in lines]


@functools.cache
def _module() -> dict[str, ast.FunctionDef | ast.Assign]:
    """Functions and constants of the definitions by name."""
    found: dict[str, ast.FunctionDef | ast.Assign] = {}
    for node in ast.parse(inspect.getsource(definitions)).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node
    return found


def _joined(node: ast.FunctionDef) -> list[str]:
    """A function, bare, statements that follow one another in one line."""
    node, lines = bare(node), list[str]()
    for line in ast.unparse(node).splitlines():
        before = lines[-1] if lines else ":"
        if _indent(before) == _indent(line) and not before.endswith(":") and not line.endswith(":"):
            lines[-1] += f"; {line.strip()}"
        elif before.endswith(":") and len(lines) == 1 and len(node.body) == 1:
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return lines


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
