"""Folders as other benchmarks have them, as tasks: told by what their files define.

KernelBench: a file with Model, get_inputs and get_init_inputs; submissions have ModelNew. gpu-mode: reference.py with
ref_kernel, generate_input and check_implementation, task.yml with tests; submissions have custom_kernel. BackendBench:
a folder for each operator, with files OP_implementation*.py that have OP_kernel_impl.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from farm.plan.config import ConfigError, read_config_yaml
from farm.plan.task_files import ANY_TASK, TaskFiles, find_task_files, list_submission_files, list_task_submissions
from tasks.cache import default_cache
from tasks.catalogs.user.ops import UserOp
from tasks.catalogs.user.published import SIZES
from tasks.importing import make_module_command
from tasks.user_sources import TASK_TYPES

#: Elements of a sample up to which values are drawn in the shapes of a problem beside its own.
DRAWN = 1 << 20
#: Tests of a gpu-mode task that are taken, the first ones: each is an op.
TESTS = 4
#: Seconds that a problem may take to make its inputs.
DEADLINE_S = 300.0

#: What BackendBench looks for: `add_implementation_v1.py`, `add_implementation_2.py`, `add__Tensor_implementation.py`.
_IMPLEMENTATION = re.compile(r"(?P<op>.+)_(?P<version>implementation.*)\.py")


@dataclass(frozen=True)
class Published:
    """A task of another benchmark. given: ops with the problem's own values; drawn: ops with its shapes, whose values
    are drawn; root: where modules are looked up; problem: whose the files of its folder are; files: the submissions by
    name, None for all other files."""

    given: tuple[UserOp, ...]
    drawn: tuple[UserOp, ...]
    root: Path
    problem: TaskFiles = field(default_factory=TaskFiles)
    files: dict[str, Path] | None = None


#: Reads a task. Raises ConfigError for one that is not whole.
Read = Callable[[], Published]


def find_published_tasks(folder: Path) -> Iterator[tuple[str, Read]]:
    """(prefix of the submissions' names, what reads the task) of each task that a folder has in another benchmark's
    layout: one that is not whole leaves the others as they are. Raises ConfigError where no task is whole."""
    found = {path: _list_published_names(path) for path in sorted(folder.glob("*.py"))}
    if "ref_kernel" in found.get(folder / "reference.py", ()):
        yield "", partial(_read_gpumode, folder)
    elif problems := [path for path, names in found.items() if _is_kernelbench_problem(names)]:
        for path in problems:
            yield ("" if len(problems) == 1 else f"{path.stem}."), partial(_read_kernelbench, path, problems)
    elif half := [path for path, names in found.items() if "Model" in names and "ModelNew" not in names]:
        raise ConfigError(f"{half[0]}: there is no get_inputs in it, which a KernelBench problem has beside its Model")
    else:
        yield from _read_backendbench(folder)


def _is_kernelbench_problem(names: set[str]) -> bool:
    """Whether a file with such names is a problem: one that has an answer too is a submission, and is not run where
    problems are."""
    return {"Model", "get_inputs"} <= names and "ModelNew" not in names


def _list_published_names(file: Path) -> set[str]:
    """The functions, classes and variables at the top of a file, and a submission's `ModelNew` wherever it is named; none
    where it is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return set()
    named = {x.name for x in tree.body if isinstance(x, ast.FunctionDef | ast.ClassDef)}
    named |= {t.id for x in tree.body if isinstance(x, ast.Assign) for t in x.targets if isinstance(t, ast.Name)}
    inside = {getattr(x, key, None) for x in ast.walk(tree) for key in ("name", "asname", "id")}
    return named | ({"ModelNew"} & inside)


def _ask_published_problem(
    layout: str, file: Path, asked: Any = (), others: Sequence[Path] = ()
) -> list[dict[str, Any]]:
    """What the problem says of itself, in a process of its own. others: files that are no module there. Raises
    ConfigError."""
    program = [*make_module_command(sys.executable, "tasks.catalogs.user.published"), layout, str(file.resolve())]
    out = default_cache() / "inputs"
    try:
        done = subprocess.run(
            [*program, str(out), json.dumps(list(asked)), json.dumps(list(map(str, others)))],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{file}: it took more than {DEADLINE_S:.0f} s to make its inputs") from None
    except (ValueError, IndexError):
        said = done.stderr.strip().splitlines()[-1:] or [f"its process ended with exit code {done.returncode}"]
        raise ConfigError(f"{file}: its inputs cannot be made: {said[0]}") from None
    if isinstance(found, dict):
        raise ConfigError(found["error"])
    return list(found)


def _read_kernelbench(problem: Path, problems: list[Path]) -> Published:
    folder = problem.parent
    own = find_task_files(folder, problems, str(folder))
    (told,) = _ask_published_problem("kernelbench", problem, others=list_task_submissions(folder, own.own))
    made = _build_published_ops([told], problem.stem, f"{problem.resolve()}:Model", "ModelNew", folder, own)
    if len(problems) == 1:
        return made
    files = dict(list_submission_files(folder, own.own))
    answers = {name: [x for x in problems if _answers_problem(name, x.stem)] for name in files}
    mine = {name: path for name, path in files.items() if problem in answers[name]}
    lost = {name: path for name, path in files.items() if not answers[name] and problem == problems[0]}
    why = "its name says of none of the problems here that it answers it: begin it with the problem's name"
    refused = {Path(os.path.realpath(path)): f"{path}: {why}" for path in lost.values()}
    return replace(made, problem=replace(own, refused=own.refused | refused), files=mine | lost)


def _answers_problem(name: str, problem: str) -> bool:
    """Whether a submission's name says which of several problems it answers: by the problem's name, or, as
    level_1_problem_7_sample_0 does, by its number."""
    number = problem.partition("_")[0]
    return name.startswith(f"{problem}_") or bool(number.isdigit() and re.search(rf"(^|_)problem_{number}(_|$)", name))


def _read_gpumode(folder: Path) -> Published:
    reference, declared = folder / "reference.py", next(iter(folder.glob(ANY_TASK)), None)
    if declared is None:
        raise ConfigError(f"{folder}: there is no task.yml, which has the tests of a gpu-mode task")
    _, data = read_config_yaml(declared)
    tests = data.get("tests") or data.get("benchmarks")
    if not isinstance(tests, list) or not all(isinstance(x, dict) for x in tests):
        raise ConfigError(
            f"{declared}: it has no tests: a list of the arguments of generate_input, e.g. - {{size: 128, seed: 1}}"
        )
    # Its utils.py is copied beside it when it is run, from the folder above.
    root = folder if (folder / "utils.py").is_file() or not (folder.parent / "utils.py").is_file() else folder.parent
    known = [folder / x for x in ("reference.py", "utils.py", TASK_TYPES, "eval.py", "template.py")]
    own = find_task_files(folder, known, str(root))
    told = _ask_published_problem("gpumode", reference, tests[:TESTS], list_task_submissions(folder, own.own))
    name = folder.resolve().name
    return _build_published_ops(told, name, f"{reference.resolve()}:ref_kernel", "custom_kernel", root, own)


def _read_backendbench(folder: Path) -> Iterator[tuple[str, Read]]:
    files: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.glob("*/*_implementation*.py")):
        if (found := _IMPLEMENTATION.fullmatch(path.name)) and found["op"] == path.parent.name:
            files.setdefault(found["op"], {})[found["version"].removeprefix("implementation_")] = path
    if not files:
        return
    for (name, submitted), told in zip(files.items(), _ask_published_problem("backendbench", folder, files)):
        yield f"{name}.", partial(_read_backendbench_operator, folder, name, submitted, told)


def _read_backendbench_operator(folder: Path, name: str, submitted: dict[str, Path], told: dict[str, Any]) -> Published:
    """An operator of BackendBench's. told: what torch says of it."""
    if "error" in told:
        raise ConfigError(f"{folder / name}: {told['error']}")
    op = UserOp(
        name.replace("-", "_"),
        f"{name}_kernel_impl",
        f"tasks.catalogs.user.aten:{name}",
        {x: ["rows", "columns"] for x in told["names"]},
        dims=SIZES,
        reference_framework="torch",
        positions=told["names"],
    )
    return Published((), (op,), folder, files=submitted)


def _build_published_ops(
    told: list[dict[str, Any]], name: str, reference: str, kernel: str, root: Path, problem: TaskFiles
) -> Published:
    name = re.sub(r"[^\w.\-]", "_", name if name[0].isalpha() else f"problem_{name}")
    several = [f"{name}.{k}" for k in range(len(told))] if len(told) > 1 else [name]
    given = [_build_published_op(own, reference, kernel, x, drawn=False) for own, x in zip(several, told)]
    sizes = [sum(math.prod(x["shape"]) for x in one["inputs"].values()) for one in told]
    drawn = []
    if min(sizes) <= DRAWN:
        drawn = [_build_published_op(f"{name}.drawn", reference, kernel, told[sizes.index(min(sizes))], drawn=True)]
    return Published(tuple(given), tuple(drawn), root, problem)


def _build_published_op(name: str, reference: str, kernel: str, told: dict[str, Any], drawn: bool) -> UserOp:
    """drawn: its values are the farm's, of integers within the bounds of the problem's own; a buffer for the output has
    none anyway."""
    inputs = {}
    for own, x in told["inputs"].items():
        kept = {"shape", "dtype"} | ({"low", "high"} if drawn or own in told["mutates"] else {"data"})
        inputs[own] = {k: v for k, v in x.items() if k in kept}
    return UserOp(
        name,
        kernel,
        reference,
        inputs,
        kwargs=told["kwargs"],
        dtypes=[told["dtype"]],
        reference_framework="torch",
        positions=told["names"],
        packed=told["packed"],
        init=told["init"],
        mutates=told["mutates"],
        aliases=bool(told["mutates"]),
    )
