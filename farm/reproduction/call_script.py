"""A finding of torch's as its maintainer would type it: the tensors as literals, the call, what is expected and what came."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.model.dtypes import name_numpy_dtype

#: Elements of all inputs together, and of a result, that are written down.
MOST = 64
#: Columns of a line.
_WIDTH = 120
#: The usual way to make the inputs of a program; where they are views or have gaps, a literal would not be what the
#: call was given.
_MADE = {"torch.from_numpy", "to_tensor"}


def write_call_script(
    program: str,
    arrays: Sequence[np.ndarray],
    settings: Mapping[str, Any],
    setup: Sequence[str],
    versions: str,
    results: Mapping[str, Sequence[np.ndarray] | None],
) -> str:
    """The text of a script of a screen; "" where the case is none: its program is more than one expression, its inputs
    are many numbers.

    program: the text of program.py; settings: of `torch_run.recipe`; setup: lines before the call; results: arrays by
    what they are, said in comments.
    """
    call = _find_program_expression(ast.parse(program), len(arrays))
    if call is None or sum(x.size for x in arrays) > MOST or any(name_numpy_dtype(x.dtype) == "str" for x in arrays):
        return ""
    device, compiled = settings["device"], settings.get("compiled")
    names = _name_script_inputs(len(arrays))
    given = [f"{name} = {write_tensor_source(x, device)}" for name, x in zip(names, arrays, strict=True)]
    if compiled is not None:
        options = "".join(f", {key}={value!r}" for key, value in compiled.items())
        call = f"torch.compile(lambda {', '.join(names)}: {call}{options})({', '.join(names)})"
    wide = max(map(len, results), default=0)
    said = [f"# {name:{wide}}  {_write_results_comment(found)}" for name, found in results.items() if found is not None]
    lines = [
        f"import torch  # {versions}",
        *(x for x in setup if x != "import torch"),
        *_list_kernel_imports(ast.parse(program)),
        "",
        *given,
        f"print({call})",
        *said,
    ]
    return "\n".join(lines) + "\n"


def _name_script_inputs(count: int) -> list[str]:
    return ["x"] if count == 1 else [f"x{k}" for k in range(count)]


def _find_program_expression(module: ast.Module, count: int) -> str | None:
    """The call of a program that is one expression of its inputs, in their names; None of any other."""
    functions = {x.name: x for x in module.body if isinstance(x, ast.FunctionDef)}
    program, tensors, op = functions.get("program"), functions.get("tensors"), None
    for x in module.body:
        if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "op":
            op = x.value
    if program is None or tensors is None or functions.keys() - {"program", "tensors", "to_tensor"}:
        return None
    body, made = program.body[-1], tensors.body[-1]
    plain = (
        isinstance(made, ast.Return) and isinstance(made.value, ast.ListComp) and isinstance(made.value.elt, ast.Call)
    )
    if not plain or ast.unparse(made.value.elt.func) not in _MADE:  # type: ignore[attr-defined]
        return None
    if (called := _find_kernel_call(program)) is None and (len(program.body) != 1 or not isinstance(body, ast.Return)):
        return None
    value = called or body.value  # type: ignore[attr-defined]
    return None if value is None else ast.unparse(_Inlined(op, _name_script_inputs(count)).visit(value))


def _find_kernel_call(program: ast.FunctionDef) -> ast.expr | None:
    """The call of a kernel, which a program keeps as ``found`` to see whether it is one result or several."""
    first = program.body[0]
    kept = isinstance(first, ast.Assign) and ast.unparse(first.targets[0]) == "found"
    return first.value if kept and isinstance(first, ast.Assign) else None


def _list_kernel_imports(module: ast.Module) -> list[str]:
    """Lines without which the files that a program calls a kernel of cannot be imported: Triton asks for a variable."""
    programs = [x for x in module.body if isinstance(x, ast.FunctionDef) and x.name == "program"]
    if not any(map(_find_kernel_call, programs)):
        return []
    variables = [ast.unparse(x) for x in module.body if isinstance(x, ast.Expr) and "os.environ" in ast.unparse(x)]
    imports = [ast.unparse(x) for x in module.body if isinstance(x, ast.Import)]
    return ["import os", *variables] * bool(variables) + [x for x in imports if x not in ("import torch", "import os")]


class _Inlined(ast.NodeTransformer):
    """An expression with a function in place of ``op`` and names in place of ``x[k]``."""

    def __init__(self, op: ast.expr | None, names: Sequence[str]) -> None:
        self.op, self.names = op, names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A public name of torch's reads as it is; another is put in brackets by what unparses it."""
        return self.op if node.id == "op" and self.op is not None else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """x[0] → its name."""
        k = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(node.value, ast.Name) and node.value.id == "x" and isinstance(k, int):
            return ast.Name(self.names[k])
        return self.generic_visit(node)


def write_tensor_source(x: np.ndarray, device: str = "cpu") -> str:
    """Source of a tensor of an array's values: the fewest digits that give them."""
    where = "" if device == "cpu" else f", device={device!r}"
    return f"torch.tensor({_write_values_source(x)}, dtype=torch.{name_numpy_dtype(x.dtype)}{where})" + (
        f".reshape({list(x.shape)})" if not x.size else ""
    )


def _write_values_source(x: np.ndarray) -> str:
    if x.ndim:
        return f"[{', '.join(map(_write_values_source, x))}]"
    if x.dtype.kind == "c":
        return f"complex({_write_values_source(x.real)}, {_write_values_source(x.imag)})"
    if x.dtype.kind in "biu":
        return repr(x.item())
    value, short = float(x), float(str(x))
    if value - value != 0:
        return f'float("{value}")'
    return repr(short if np.asarray(short).astype(x.dtype) == x else value)


def _write_results_comment(found: Sequence[np.ndarray]) -> str:
    """Results on one line."""
    told = []
    for x in found:
        values = np.array2string(np.asarray(x), separator=", ", max_line_width=10**6, threshold=MOST)
        told.append(f"{name_numpy_dtype(x.dtype)} {' '.join(values.split())}")
    line = "; ".join(told)
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 2]} …"
