"""Writes the standalone script of one case: data embedded, the runtime called as its backend calls it, the judge's source.

What comes from a lake or a cache gets into a script as base64 or through repr() only, never as code.
"""

from __future__ import annotations

import ast
import functools
import json
import pprint
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import tasks
from farm.fleet.envs import OWN_PACKAGES, Environment
from farm.reproduce import trial
from farm.reproduce.bundled import bundled
from farm.reproduce.in_onnx import in_onnxruntime, in_openvino
from farm.reproduce.in_torch import OP_DB, in_torch
from farm.reproduce.source import Data, Runtime, Source, templates, whole
from tasks.backends.needs import vulkan_lines
from tasks.backends.shared.few_lines import NoScript, Setting
from tasks.judge.plain import unit_of
from tasks.judge.policy import Policy
from tasks.model import Leaf, OpClass, Status
from tasks.model.dtypes import NATIVE, PACKED_BITS, dtype_name
from tasks.packages import TORCH_CATALOG, pinned

#: What a script embeds as it stands: the judge, and what that knows of dtypes and classes of ops.
JUDGE = (
    "model/dtypes.py",
    "model/kind.py",
    "model/op_class.py",
    "model/leaf.py",
    "judge/plain.py",
    "judge/meaning.py",
    "judge/policy.py",
    "judge/worst.py",
)
#: Of a case whose row breaks what mathematics promises of its op.
PROMISES = ("judge/ascending.py", "judge/properties.py")
#: What else the script's own text needs.
_IMPORTS = ("base64", "enum", "json", "math", "zlib")

_RUNTIMES: dict[str, Callable[[Source, Data], Runtime]] = {
    "torch": in_torch,
    "inductor": in_torch,
    "ort": in_onnxruntime,
    "openvino": in_openvino,
}


def generate(source: Source) -> str:
    """The text of the script. Raises NoScript."""
    if source.form.check != "forward":
        raise NoScript(f"no script: none can be written for the {source.form.check} check")
    data = Data()
    runtime = _RUNTIMES.get(source.runtime, bundled)(source, data)
    filled = runtime.values | _head(source, runtime) | _numbers(source, data)
    return templates().get_template("script.py.j2").render(filled)


def _head(source: Source, runtime: Runtime) -> dict[str, Any]:
    """What the first lines of a script say, and the judge."""
    imports, judge = judge_source(JUDGE + PROMISES * bool(source.promised))
    setting: Setting | None = runtime.values.get("setting")
    own = {(name, "") for name in (*_IMPORTS, *(["ctypes"] if runtime.values.get("exotic") else []))}
    return {
        "runtime": runtime.template,
        "module": runtime.module,
        "alias": runtime.alias,
        "before": (*vulkan_lines(source.backend.needs), *(setting.before if setting else ())),
        "after": setting.imports if setting else (),
        "install": _install(source, runtime),
        "needs": _needs(source, runtime),
        "imports": import_lines(imports | own),
        "title": repr(source.title),
        "found": repr(source.found),
        "version": repr(source.version),
        "device": repr(source.device),
        "statuses": repr([(status.name, status.value) for status in Status]),
        "judge": judge,
    }


def _numbers(source: Source, data: Data) -> dict[str, Any]:
    """What a script judges by, and the arrays that it holds."""
    expected = [repr(_expected(leaf, source, data)) for leaf in source.expected]
    limited = source.policy.limit_value(*_case(source)) is not None
    return {
        "expected": expected,
        "metrics": repr({label: name for name, label in trial.LABELS.items()}),
        "label": repr(source.group.label),
        "dtype": repr(source.group.dtype),
        "op_class": repr(source.op_class.value),
        "oracle": repr(source.oracle),
        "precision": repr(source.precision),
        "policy": pprint.pformat(_policy(source), width=110),
        "limit": repr(f": up to {source.policy.limit(*_case(source))}" if limited else ""),
        "promised": [data.add(x) for x in source.promised],
        "broken": repr(source.group.op),
        "arrays": [repr(x) for x in data.index],
        "data": data.text(),
    }


@functools.cache
def judge_source(files: tuple[str, ...] = JUDGE) -> tuple[frozenset[tuple[str, str]], str]:
    """((module, name) of every import, text) of the judge: its files one after another, without what they say of each
    other. A name of "" stands for the module itself."""
    imports, parts = set(), []
    for name in files:
        text = (Path(tasks.__file__).parent / name).read_text(encoding="utf-8")
        lines, tree = text.splitlines(), ast.parse(text)
        for node in tree.body:
            if isinstance(node, ast.Import):
                imports |= {(alias.name, "") for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imports |= {(node.module or "", alias.name) for alias in node.names}
            elif node is not tree.body[0]:
                continue
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
        parts.append("\n".join(lines).strip())
    outside = {(m, n) for m, n in imports if m not in ("__future__", "numpy") and m.partition(".")[0] != "tasks"}
    return frozenset(outside), "\n\n\n".join(parts)


def import_lines(imports: Iterable[tuple[str, str]]) -> list[str]:
    """The import statements of a script, one a module, as a formatter would order them."""
    modules: dict[str, set[str]] = {}
    for module, name in imports:
        modules.setdefault(module, set()).add(name)
    whole = [f"import {module}" for module in sorted(modules) if "" in modules[module]]
    parts = [
        f"from {module} import {', '.join(sorted(names - {''}))}"
        for module, names in sorted(modules.items())
        if names - {""}
    ]
    return whole + parts


def _install(source: Source, runtime: Runtime) -> str:
    """Comments that say what it was run with and what to install, as PEP 723 has them: `uv run` obeys."""
    setting: Setting | None = runtime.values.get("setting")
    modules = {runtime.module, source.runtime, setting.plugin.partition(".")[0] if setting else ""}
    own = dict.fromkeys((*installed(modules), *imported(runtime.values.get("op", ""))))
    environment = source.environment or Environment(tuple(own))
    if source.environment and environment.existing:
        return f"# It was run with {environment.label}, which has {source.version}.\n"
    packages = [*environment.packages, *OWN_PACKAGES]
    lines = [
        f"It was run with Python {environment.version} and: pip install {' '.join(map(shlex.quote, packages))}",
        "",
        "/// script",
        f'requires-python = "=={environment.version}.*"',
        f"dependencies = {json.dumps([*environment.requirements, *OWN_PACKAGES])}",
        *(f"[[tool.uv.index]]\nurl = {json.dumps(url)}" for url in environment.indexes),
        "///",
    ]
    return "".join(
        f"# {' '.join(line.split())}".rstrip() + "\n" for text in lines for line in text.splitlines() or [""]
    )


def installed(modules: Iterable[str]) -> tuple[str, ...]:
    """Requirements that bring modules as they are installed here."""
    brings = _brings()
    found = sorted({x for module in modules for x in brings.get(module, ())} - {*OWN_PACKAGES, "validation-farm"})
    return tuple(x for name in found for x in pinned(name, metadata.version(name)))


def imported(text: str) -> tuple[str, ...]:
    """Requirements that bring what a script imports, as it is installed here."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {alias.name for x in nodes if isinstance(x, ast.Import) for alias in x.names}
    names |= {x.module or "" for x in nodes if isinstance(x, ast.ImportFrom)}
    return installed({*(x.partition(".")[0] for x in names), *(TORCH_CATALOG if OP_DB in names else ())})


@functools.cache
def _brings() -> Mapping[str, list[str]]:
    """Distributions by the modules that they bring: a look at every file of this environment."""
    return metadata.packages_distributions()


def _needs(source: Source, runtime: Runtime) -> str:
    if runtime.template == "bundled.py.j2":
        return "numpy, ml_dtypes and the runtime; how it is called is embedded, see run()"
    lacking = {leaf.dtype for leaf in source.expected} - NATIVE - PACKED_BITS.keys() - {"str", "bfloat16", "complex32"}
    lacking |= {dtype_name(x.dtype) for x in source.promised} - NATIVE
    return f"numpy, {runtime.module} and ml_dtypes" if lacking else f"numpy and {runtime.module} only"


def _case(source: Source) -> tuple[str, str, str, str]:
    return source.group.label, source.op_class.value, source.group.dtype, source.precision


def _policy(source: Source) -> Policy:
    """What of the policy speaks of the case: every limit that `Policy.limit` may come to."""
    label, op_class, dtype, _ = _case(source)
    asked = (dtype, "float16", "bfloat16")  # those of 16 bits bound a coarser declared precision
    limits = (x for x in source.policy.limits if any(x.covers(label, op_class, d) for d in asked))
    return replace(source.policy, limits=tuple(limits))


def _expected(leaf: Leaf, source: Source, data: Data) -> tuple[Any, ...]:
    """(dtype, shape, numbers of the exact result and of its noise floor, (rtol, atol and, where it is stated, meaning))."""
    exact = noise = None
    if leaf.reference is not None and source.op_class is not OpClass.UNINITIALISED:
        exact = data.add(whole(leaf.reference))
        if leaf.noise is not None and unit_of(leaf, source.op_class, source.precision)[2] is not None:
            noise = data.add(leaf.noise)
    own = (leaf.rtol, leaf.atol, *([leaf.meaning] if leaf.meaning else []))
    return leaf.dtype, tuple(leaf.shape), (exact, noise), own
