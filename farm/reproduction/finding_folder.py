"""A finding written down: a folder with the model or program, its inputs and what is expected, and a run.py that shows the failure.

run.py needs the runtime and NumPy alone. What calls the runtime in it is the text of the backend's own file
(`Backend.recipe`), what judges the result is that of `farm.reproduction.finding_checks`. What comes from a lake or a cache gets
into a text through repr() only.
"""

from __future__ import annotations

import inspect
import io
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farm.fleet.envs import OWN_PACKAGES
from farm.reproduction import finding_checks
from farm.reproduction.bounds import list_expected_arrays
from farm.reproduction.call_script import write_call_script
from farm.reproduction.finding_definition import write_definition
from farm.reproduction.finding_program import write_finding_program
from tasks import judging
from tasks.backends.base import Backend
from tasks.backends.shared import torch_run
from tasks.backends.shared.onnx_form import name_onnx_inputs
from tasks.backends.shared.recipe import NoProgram, ProgramRecipe
from tasks.catalogs.user import load_kernels
from tasks.checks.determinism import THREADS
from tasks.judge import properties
from tasks.judge.error_metrics import BIAS
from tasks.judge.policy import Policy
from tasks.model import EPS, Form, Group, Leaf, OpClass, Status, Unsupported, flags, get_numpy_dtype, is_inexact_dtype
from tasks.model.dtypes import SMALLEST_NORMAL, name_numpy_dtype, round_to_dtype
from tasks.model.kind import KIND_ACCEPTED, KIND_BIASED, KIND_PROPERTY, KIND_ZERO
from tasks.prepare.cases import PreparedSample

#: Files of a finding.
RUN, COMPARE, PROGRAM, DEFINITION, CALL = "run.py", "compare.py", "program.py", "definition.py", "call.py"
MODEL, CASE, WEIGHTS = "model.onnx", "case.npz", "weights.npz"
#: Kinds of a row that are wrong beside their numbers, and need no more than one program.
BEHAVIOURS = ("mutation", "aliasing", "nondeterministic", "process", "threads", "batch")
#: Columns of a line of run.py.
_WIDTH = 120
#: Runs on the same inputs of what may give other bytes.
_RUNS = 3


@dataclass(frozen=True)
class FindingCase:
    """What a folder is made of. row: of the lake, or of a run now; actual: its outputs, None where there are none;
    leaves: in place of the sample's expected outputs; state: the tensors that a module of the user's holds."""

    title: str
    form: Form
    group: Group
    backend: Backend
    policy: Policy
    row: Mapping[str, Any]
    expected: Sequence[Leaf]
    actual: Sequence[np.ndarray] | None = None
    derived: FindingDefinition | None = None
    state: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class FindingDefinition:
    """That of a result which is defined up to a choice (`tasks.judge.definitions`): its name, its encoded arguments,
    what it is to make of right outputs; double: whether an input is float64."""

    name: str
    args: Any
    kwargs: Any
    leaves: Sequence[Leaf]
    double: bool

    @classmethod
    def of(cls, sample: PreparedSample, precision: str) -> FindingDefinition | None:
        """That of a prepared sample; None of one that is judged by its numbers."""
        record = sample.record
        if not record.definition:
            return None
        double = any(x.dtype == "float64" for x in sample.inputs())
        return cls(
            record.definition, record.args, record.kwargs, judging.predict_derived_leaves(sample, precision), double
        )


def write_finding_folder(
    case: FindingCase, packages: Sequence[str], earlier: Sequence[tuple[Form, Group]] = ()
) -> dict[str, bytes]:
    """The files of a finding by name. packages: what it is run with; earlier: cases that are run before it, in the same
    process. Raises NoProgram."""
    try:
        return _FindingFolder(case, packages).write(earlier)
    except Unsupported as error:
        raise NoProgram(f"no folder: {error}") from None


@dataclass(frozen=True)
class _FindingCheck:
    """How a run is judged: a function of `checks`, the source of its arguments, arrays that these name."""

    function: Callable[..., int]
    arguments: Sequence[str]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    before: Sequence[str] = ()
    uses: tuple[Callable[..., Any], ...] = ()


class _FindingFolder:
    def __init__(self, case: FindingCase, packages: Sequence[str]) -> None:
        self.case, self.packages = case, packages
        self.status = Status(case.row["status"])
        self.files: dict[str, bytes] = {}
        self.exotic = False

    def write(self, earlier: Sequence[tuple[Form, Group]]) -> dict[str, bytes]:
        form = self.case.form
        if self.case.row["kind"] == "batch" and form.model is not None and form.kind == "onnx":
            form = self.case.backend.rows_open(form)
        recipe = self.case.backend.recipe(form)
        inputs = self._write_program_and_inputs(form, self.case.group, "")
        check = self._check(form)
        former = [f"before_{k}." for k, _ in enumerate(earlier)]
        for stem, one in zip(former, earlier):
            arrays = self._write_program_and_inputs(one[0], one[1], stem)
            self.files[f"{stem}{CASE}"] = self._pack_npz({f"input.{name}": x for name, x in arrays.items()})
        arrays = {f"input.{name}": x for name, x in inputs.items()} | dict(check.arrays)
        self.files[CASE] = self._pack_npz(arrays)
        self.files[COMPARE] = self._compare(check).encode()
        self.files[RUN] = self._run(recipe, form, check, former).encode()
        plain = DEFINITION not in self.files and all(name.endswith(".py") for name in set(self.files) - {CASE})
        if recipe.run is torch_run.run_program and not earlier and plain:
            if call := self._call(recipe, list(inputs.values())):
                self.files[CALL] = call.encode()
        return self.files

    def _write_program_and_inputs(self, form: Form, group: Group, stem: str) -> dict[str, np.ndarray]:
        """Write the model, or the program with its files; its inputs by name or place."""
        if form.kind == "onnx":
            if form.model is None:
                raise NoProgram(f"no folder: {group.op} has no ONNX model")
            self.files[f"{stem}{MODEL}"] = form.model
            named = name_onnx_inputs(form)
            if not all(isinstance(x, np.ndarray) for x in named.values()):
                raise NoProgram("no folder: an input is no tensor")
            return named
        if stem:
            raise NoProgram("no folder: a case that is run before it is no ONNX model")
        made = write_finding_program(form, group, self.case.state or {}, not self.status.deadly)
        self.files |= {PROGRAM: made.text.encode(), **made.files}
        if made.held:
            self.files[WEIGHTS] = self._pack_npz(made.held)
        return {str(k): x for k, x in enumerate(made.arrays)}

    def _pack_npz(self, arrays: Mapping[str, np.ndarray]) -> bytes:
        """Arrays under "name:dtype": one of a dtype that numpy lacks is kept as its bits."""
        named, out = dict[str, Any](), io.BytesIO()
        for name, x in arrays.items():
            if name_numpy_dtype(x.dtype) == "str":
                x = np.array([v.decode() if isinstance(v, bytes) else str(v) for v in x.ravel()]).reshape(x.shape)
            exotic = x.dtype.isbuiltin != 1 and x.dtype.kind != "U"
            self.exotic |= exotic
            named[f"{name}:{x.dtype.name if exotic else x.dtype.str}"] = x.view(f"u{x.itemsize}") if exotic else x
        np.savez_compressed(out, **named)
        return out.getvalue()

    def _call(self, recipe: ProgramRecipe, arrays: Sequence[np.ndarray]) -> str:
        """The text of call.py: what a maintainer would type; "" where that is more than a screen."""
        rounded = [round_finding_leaf(leaf) for leaf in self.case.expected]
        results = {
            "expected": [x for x in rounded if x is not None] if all(x is not None for x in rounded) else None,
            "got": self.case.actual,
        }
        # No package brings a build of one's own.
        named = self.packages or [str(self.case.row.get("runtime_version") or "")]
        versions = ", ".join(filter(None, [*named, *(f"{k}={v}" for k, v in recipe.variables.items())]))
        return write_call_script(self.files[PROGRAM].decode(), arrays, recipe.settings, recipe.setup, versions, results)

    # -- run.py and compare.py ---------------------------------------------------------------------------------

    def _run(self, recipe: ProgramRecipe, form: Form, check: _FindingCheck, former: Sequence[str]) -> str:
        """The text of run.py: how the runtime is called, and what is made of the result."""
        is_model, threads = form.kind == "onnx", "threads" in recipe.settings
        settings = [
            _format_script_argument(x, f"        {name}=") for name, x in recipe.settings.items() if name != "threads"
        ]
        taken = ["inputs", *['before=""'] * bool(former), *["threads=1"] * threads]
        model = 'HERE / f"{before}model.onnx"' if former else 'HERE / "model.onnx"'
        given = [f"str({model})" if is_model else "program", "inputs", *settings, *["threads=threads"] * threads]
        needs = [*self.packages, *(x for x in OWN_PACKAGES if x == "numpy" or self.exotic)]
        named = ["load_case", *(x.__name__ for x in (*check.uses, check.function))]
        head = [
            f'"""{_quote_script_text(self.case.title)}\n\n    pip install {_quote_script_text(shlex.join(needs))}\n\n'
            'Exit code: 1 the failure is there, 0 it is not.\n"""\n\nfrom __future__ import annotations\n',
            *["import os"] * bool(recipe.variables),
            "import sys",
            "from pathlib import Path",
            *["from typing import Any"] * any(" Any" in x for x in recipe.sources),
            "",
            "HERE = Path(__file__).parent",
            "sys.path.insert(0, str(HERE))",
            *(
                f"os.environ[{_format_script_literal(k)}] = {_format_script_literal(v)}"
                for k, v in recipe.variables.items()
            ),
            "",
            *["import ml_dtypes  # noqa: E402, F401: numpy learns of its dtypes"] * self.exotic,
            *["import numpy as np  # noqa: E402"] * any("np." in x for x in (*recipe.sources, *check.before)),
            *["import program  # noqa: E402"] * (not is_model),
            f"from compare import {', '.join(sorted(named))}  # noqa: E402",
            *["from definition import derive  # noqa: E402"] * (DEFINITION in self.files),
            *([""] if recipe.setup else []),
            *recipe.setup,
        ]
        main = [
            'if __name__ == "__main__":',
            *(f'    run(load_case(HERE / "{stem}case.npz")[0], "{stem}")' for stem in former),
            '    inputs, case = load_case(HERE / "case.npz")',
            *["    inputs = list(inputs.values())"] * (not is_model),
            *(textwrap.indent(x, "    ") for x in check.before),
            f"    sys.exit({check.function.__name__}({', '.join(check.arguments)}))",
        ]
        call = _format_script_call(f"    return {recipe.run.__name__}(", given)
        parts = [*recipe.sources, f"def run({', '.join(taken)}):\n{call}", "\n".join(main)]
        return "\n".join(head) + "\n\n\n" + "\n\n\n".join(parts) + "\n"

    def _compare(self, check: _FindingCheck) -> str:
        """The text of compare.py: how a case is read, and what its result is held to."""
        functions: tuple[Callable[..., Any], ...] = (finding_checks.load_case, *check.uses, check.function)
        sources = [inspect.getsource(x).rstrip() for x in functions]
        typed = ["from typing import Any"] * any("Any" in x for x in sources)
        head = ['"""How the result of run.py is judged."""', "", "from __future__ import annotations", ""]
        imports = [*head, *typed, *[""] * bool(typed), "import numpy as np"]
        return "\n\n\n".join(["\n".join(imports), *sources]) + "\n"

    # -- what is expected --------------------------------------------------------------------------------------

    def _check(self, form: Form) -> _FindingCheck:
        """How a run of it is judged. Raises NoProgram."""
        row = self.case.row
        if self.status not in (Status.WRONG, Status.IMPRECISE, Status.PASS):
            return _FindingCheck(finding_checks.find_no_error, ("run", "inputs"), {})
        if (made := self._make_behaviour_check(form)) is not None:
            return made
        if row["kind"] == KIND_PROPERTY:
            return self._make_promise_check(form)
        return self._make_number_check(form)

    def _make_behaviour_check(self, form: Form) -> _FindingCheck | None:
        """Of a kind that is wrong beside the numbers: what the call did to its inputs, or did otherwise the next time,
        or in a batch."""
        row, kind = self.case.row, self.case.row["kind"]
        if kind == "mutation":
            op = load_kernels.load_user_ops()[self.case.group.op_name].op if self.case.group.catalog == "user" else None
            names = [name for name, _ in form.kwargs["v"]]
            held = [k for k, name in enumerate(names) if name not in op.mutates] if op and op.mutates else None
            return _FindingCheck(finding_checks.find_changed_inputs, ("run", "inputs", repr(held)), {})
        if kind == "aliasing":
            return _FindingCheck(finding_checks.find_shared_memory, ("run", "inputs"), {})
        if kind == "nondeterministic":
            return _FindingCheck(finding_checks.compare_runs, ("run", "inputs", f"times={_RUNS}"), {})
        if kind == KIND_ACCEPTED:
            return _FindingCheck(finding_checks.find_result, ("run", "inputs"), {})
        if kind in ("process", "threads"):
            if "threads" not in self.case.backend.recipe(form).settings:
                raise NoProgram("no folder: the runtime is told no number of threads")
            counts = [1, 1] if kind == "process" else [1, *THREADS]
            return _FindingCheck(finding_checks.compare_processes, ("run", "inputs", repr(counts)), {})
        if kind == "batch":
            where = flags.read_row_flags(row).get("row", "")
            if not where or form.kind not in ("torch", "onnx"):
                raise NoProgram("no folder: its inputs have no rows to separate")
            place, count = map(int, where.split("/"))
            rows: list[Any] = list(form.batched)
            if form.kind == "onnx":
                rows = [list(name_onnx_inputs(form))[k] for k in rows]
            return _FindingCheck(
                finding_checks.compare_batches,
                ("run", "inputs", _format_script_literal(rows), str(place), str(count)),
                {},
            )
        return None

    def _make_promise_check(self, form: Form) -> _FindingCheck:
        """Of results that break what mathematics promises of the op. Raises NoProgram."""
        given = list(name_onnx_inputs(form).values()) if form.kind == "onnx" else list(form.arrays)
        actual = self.case.actual
        found = properties.find_broken_property(self.case.group.op, given, np.asarray(actual[0])) if actual else None
        if found is None:
            raise NoProgram("no folder: the promise that was broken is kept now")
        eps, smallest = (
            EPS.get(name_numpy_dtype(given[0].dtype), 0.0),
            SMALLEST_NORMAL.get(name_numpy_dtype(given[0].dtype), 0.0),
        )
        x, values = "list(inputs.values())[0]" if form.kind == "onnx" else "inputs[0]", list(map(repr, found.values))
        made: Mapping[str, tuple[Callable[..., int], list[str]]] = {
            "rising": (finding_checks.find_disorder, [x, "1", repr(eps), repr(smallest)]),
            "falling": (finding_checks.find_disorder, [x, "-1", repr(eps), repr(smallest)]),
            "odd": (finding_checks.find_asymmetry, [x, "-1"]),
            "even": (finding_checks.find_asymmetry, [x, "1"]),
            "bounds": (finding_checks.find_outside, [x, *(f"float({v!r})" for v in values)]),
            "point": (finding_checks.find_missed_point, [x, *values]),
            "again": (finding_checks.find_other_twice, [x, "inverse=False"]),
            "inverse": (finding_checks.find_other_twice, [x, "inverse=True"]),
            "commutative": (finding_checks.find_order_asymmetry, []),
        }
        if found.code not in made:
            raise NoProgram(f"no folder: none is known for the promise {found.code!r}")
        function, arguments = made[found.code]
        return _FindingCheck(function, ["run(inputs)", *arguments], {})

    def _make_number_check(self, form: Form) -> _FindingCheck:
        """Of results that are off by their numbers, their shapes or their dtypes. Raises NoProgram."""
        case, row, kind = self.case, self.case.row, self.case.row["kind"]
        got, op_class = "run(inputs)", OpClass(row["op_class"] or OpClass.COMPOSITE)
        before, uses = list[str](), tuple[Callable[..., Any], ...]()
        if form.paired:
            got, uses = "got", (finding_checks.join_pairs,)
            before = [f"got = join_pairs(run(inputs), {list(form.paired)!r})"]
        leaves = list(case.expected)
        if case.derived is None and (kind in ("shape", "dtype") or op_class in (OpClass.RANDOM, OpClass.UNINITIALISED)):
            finite = [k for k, leaf in enumerate(leaves) if op_class is OpClass.RANDOM and _is_leaf_finite(leaf)]
            told = [(leaf.dtype, tuple(int(n) for n in leaf.shape)) for leaf in leaves]
            return _FindingCheck(
                finding_checks.compare_shapes, [got, _format_script_literal(told), repr(finite)], {}, before, uses
            )
        if case.derived is not None:
            if form.paired:
                raise NoProgram("no folder: its outputs are pairs of real numbers")
            one = case.derived
            text = write_definition(one.name, one.args, one.kwargs, one.double)
            self.files[DEFINITION] = text.encode()
            given = "inputs.values()" if form.kind == "onnx" else "to_arrays(program.tensors(inputs))"
            before = [f"got = derive(run(inputs), {given})"]
            got, leaves = "got", list(one.leaves)
            row = {**row, "op_class": OpClass.COMPOSITE.value, "compute_precision": ""}
        if any(leaf.reference is None for leaf in leaves):
            raise NoProgram("no folder: an output is defined only by its shape")
        if any(leaf.dtype == "str" for leaf in leaves):
            function: Callable[..., int] = finding_checks.compare_equal
        else:
            by_kind: Mapping[str, Callable[..., int]]
            by_kind = {KIND_BIASED: finding_checks.compare_bias, KIND_ZERO: finding_checks.compare_signs}
            function = by_kind.get(kind, finding_checks.compare_output)
        more = [f"bound={BIAS}"] if kind == KIND_BIASED else []
        arrays = list_expected_arrays(leaves, row, case.policy, kind)
        return _FindingCheck(function, [got, "case", *more], arrays, before, uses)


def round_finding_leaf(leaf: Leaf) -> np.ndarray | None:
    """The exact result as a number of its dtype; None where it is defined by its shape alone."""
    if leaf.reference is None or not is_inexact_dtype(leaf.dtype):
        return leaf.reference
    with np.errstate(all="ignore"):
        return round_to_dtype(leaf.reference, leaf.dtype).astype(get_numpy_dtype(leaf.dtype))


def _is_leaf_finite(leaf: Leaf) -> bool:
    return is_inexact_dtype(leaf.dtype) and (leaf.reference is None or bool(np.isfinite(leaf.reference).all()))


def _format_script_call(begin: str, arguments: Sequence[str]) -> str:
    """A call, an argument a line where one line does not hold all, as a formatter has it."""
    line = f"{begin}{', '.join(arguments)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    indent = " " * (len(begin) - len(begin.lstrip()))
    inside = f"{indent}    {', '.join(arguments)}"
    lines = [inside] if len(inside) <= _WIDTH and "\n" not in inside else [f"{indent}    {x}," for x in arguments]
    return "\n".join([begin, *lines, f"{indent})"])


def _format_script_argument(value: Any, begin: str) -> str:
    """An argument whose line begins so, a value a line where one line does not hold all."""
    name, line = begin.lstrip(), f"{begin}{_format_script_literal(value)},"
    if len(line) <= _WIDTH or not isinstance(value, (Mapping, list)) or not value:
        return f"{name}{_format_script_literal(value)}"
    indent = " " * (len(begin) - len(name))
    keys = [f"{_format_script_literal(k)}: " for k in value] if isinstance(value, Mapping) else [""] * len(value)
    values = value.values() if isinstance(value, Mapping) else value
    first, last = "{}" if isinstance(value, Mapping) else "[]"
    rows = [
        f"{indent}    {key}{_format_script_argument(x, f'{indent}    {key}')[len(key) :]},"
        for key, x in zip(keys, values)
    ]
    return "\n".join([f"{name}{first}", *rows, f"{indent}{last}"])


def _format_script_literal(value: Any) -> str:
    """Source of plain data, with the quotes of a formatter."""
    if isinstance(value, str):
        text = repr(value)
        return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_format_script_literal(k)}: {_format_script_literal(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, tuple):
        return f"({', '.join(map(_format_script_literal, value))}{',' * (len(value) == 1)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_script_literal, value))}]"
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    raise NoProgram(f"no folder: a setting of type {type(value).__name__} cannot be written down")


def _quote_script_text(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'")
