"""The tables of these pages, made from the tables of the code: a hook of mkdocs. As a script it prints them."""

from __future__ import annotations

import functools
import itertools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

#: "<!-- table: NAME -->" in a page stands for the table of that name; "<!-- table: columns NAME, … -->" for some columns of
#: the lake.
MARK = re.compile(r"<!-- table: (?:columns (.+?)|(.+?)) -->")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this for every page."""
    return MARK.sub(lambda found: some_columns(found[1].split(", ")) if found[1] else TABLES[found[2]](), markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """mkdocs calls this when the site is written: its search is replaced by one that also works from disk
    (`docs/_search.js`)."""
    folder = Path(config["site_dir"]) / "search"
    index = (folder / "search_index.json").read_text()
    (folder / "search_index.js").write_text(f"window.searchIndex = {index};\n")
    (folder / "main.js").write_text((HERE / "_search.js").read_text())


def table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(values: Iterable[object]) -> str:
    return ", ".join(f"`{value}`" for value in values) or "–"


def layouts() -> str:
    from tasks.arrays.layouts import CONTIGUOUS, LAYOUTS

    first = (f"`{CONTIGUOUS}`", "as `torch.empty` and `np.empty` make it")
    return table(["layout", "what it is"], [first, *((f"`{x.name}`", x.about) for x in LAYOUTS.values())])


def audit() -> str:
    from tasks.model.kind import OF_AUDIT

    return table(["kind", "what is seen"], ((f"`{name}`", words) for name, words in OF_AUDIT.items()))


def structures() -> str:
    """What an input may be, and what each kind is tried in."""
    from tasks.draw.structure import KINDS, WORDS

    rows = (
        [f"`{name}`", kind.words, "; ".join(WORDS[code] for code in kind.structures)] for name, kind in KINDS.items()
    )
    return table(["`is`", "meaning", "structures"], rows)


def leaderboard() -> str:
    from farm.report.tables.submissions import TOLD

    return table(["key", "meaning"], ((f"`{name}`", words) for name, words in TOLD.items()))


def orders() -> str:
    from tasks.passport.sum_trees import NAMES

    return table(["name", "the terms are added"], NAMES.items())


def forbidden() -> str:
    from tasks.confine import FORBIDDEN

    heads = ["what", "by", "where it cannot be had"]
    return table(heads, ([one.what, one.by, one.but] for one in FORBIDDEN))


def classes() -> str:
    from tasks.model.op_class import RIGHT

    rows = ((", ".join(names), *words) for names, words in RIGHT.items())
    return table(["class", "for example", "a result is right when"], rows)


def second_oracles() -> str:
    from tasks.gradients.analytic import ABOUT

    return table(["`second_oracle`", "how", "good to"], ((f"`{name}`", *words) for name, words in ABOUT.items()))


def baselines() -> str:
    from tasks.catalogs.user.ops import BASELINES

    return table(["`baseline`", "it is timed against"], ((f"`{name}`", words) for name, words in BASELINES.items()))


def passport_codes() -> str:
    from tasks.passport import CODES

    return table(["code", "it means"], ((f"`{code}`", words) for code, words in CODES.items()))


def declared(of: str) -> str:
    """The keys of a declaration's class."""
    from dataclasses import fields

    from tasks.catalogs.user import declaration_keys, ops, tensors

    rows = (
        [
            f"`{declaration_keys.name_declared_key(one)}`",
            one.metadata["about"],
            declaration_keys.describe_declared_default(one),
        ]
        for one in fields(getattr(ops, of, None) or getattr(tensors, of))
    )
    return table(["key", "meaning", "default"], rows)


def configured(of: str) -> str:
    """The keys of a part of a config."""
    from farm.plan import config_schema

    def default(one: Any) -> str:
        if one.is_required():  # unless what reads it fills it in, by the rule that the field itself tells
            return code([said]) if (said := (one.json_schema_extra or {}).get("default")) else "required"
        if isinstance(one.default, bool):
            return "yes" if one.default else "no"
        values = one.default if isinstance(one.default, list | tuple) else [one.default]
        return code(f"{x:g}" if isinstance(x, float) else x for x in values if x not in ("", None, {})).replace(
            "–", "none"
        )

    fields = getattr(config_schema, of).model_fields.items()
    return table(["key", "meaning", "default"], ([f"`{key}`", one.description, default(one)] for key, one in fields))


def catalogs() -> str:
    from tasks.catalogs import ABOUT

    return table(["catalog", "what it has"], ([f"`{name}`", text] for name, text in ABOUT.items()))


def checks() -> str:
    from tasks.checks import BUILT_IN

    return table(["check", "what it asks"], ([f"`{check.name}`", check.about] for check in BUILT_IN.values()))


def relations() -> str:
    from tasks.checks.serving import ABOUT
    from tasks.zoo.engines import FAULTS, SAMPLER_FAULTS

    def of(name: str) -> str:
        found = [fault for fault, one in FAULTS.items() if name in one.found_by] or [*SAMPLER_FAULTS] * (
            name == "sampling"
        )
        return ", ".join(fault.replace("_", " ") for fault in found)

    return table(
        ["op", "what is compared", "planted faults that it finds"],
        ([f"`engine:{k}`", about, of(k)] for k, about in ABOUT.items()),
    )


def asked() -> str:
    """Which checks are asked of the ops of which catalog."""
    from farm.work import catalog_lists
    from tasks import catalogs
    from tasks.cache import default_cache
    from tasks.catalogs.base import Entry
    from tasks.catalogs.user.catalog import list_kernel_checks
    from tasks.catalogs.user.ops import UserOp
    from tasks.checks import BUILT_IN

    plain = UserOp("x", "k:x", "k:y", {"x": [1]})
    own = {
        "nodes": [Entry("nodes:x", "", ("float32",))],  # whatever a folder has
        "user": [
            Entry("user:x", op.name, (), list_kernel_checks(op))
            for op in (plain, replace(plain, name="y", gradient=["x"], steps="n"))
        ],
    }
    # Those of older releases are the node suite again.
    columns = {name: catalogs.get_catalog(name) for name in catalogs.BUILT_IN if not name.startswith("onnx-")}
    entries = {
        name: own.get(name) or catalog_lists.list_entries_here(name, default_cache(), inline=True) for name in columns
    }

    def cell(check: Any, name: str) -> str:
        having = {entry.label for entry in entries[name] if not check.unasked(entry, columns[name])}
        return "all" if having == {entry.label for entry in entries[name]} else "some" if having else "–"

    rows = ([f"`{check.name}`", *(cell(check, name) for name in columns)] for check in BUILT_IN.values())
    return table(["check", *(f"`{name}`" for name in columns)], rows)


def answered() -> str:
    """What becomes of each check on each backend: planned, a row that says unsupported, or a line that says it is left
    out."""
    from tasks import checks
    from tasks.backends import BackendSpec, list_backend_names

    every = [BackendSpec.parse(name).create() for name in list_backend_names()]
    rows = []
    for check in checks.BUILT_IN.values():
        # Who only compiles has the check build alone.
        asked = [b for b in every if not (check.runs and checks.name_check_of_another_kind(check.name, b))]
        why = {b.name: checks.explain_check_exclusion(check.name, b) for b in asked}
        there = [b for b in asked if not why[b.name]]
        able = [b for b in there if not check.unanswered(b)]
        where = (
            "all that run programs" if able == asked else code(dict.fromkeys(b.name.partition("-")[0] for b in able))
        )
        left = "; ".join(dict.fromkeys(filter(None, why.values())))
        others = ["`unsupported`"] * (able != there) + [f"left out: {left}"] * bool(left)
        rows.append([f"`{check.name}`", where, "; ".join(others) or "–"])
    return table(["check", "backends (of each, those devices that can)", "elsewhere"], rows)


def rooms() -> str:
    """Every package, in the first sentence of its own docstring."""
    tops = (HERE.parent / name for name in ("farm", "farm_pytest", "tasks"))
    found = [file for top in tops for file in sorted(top.glob("*/__init__.py")) or [top / "__init__.py"]]
    rows = ([f"`{file.parent.relative_to(HERE.parent)}/`", _first_sentence(file)] for file in found)
    return table(["room", "what is in it"], rows)


def files() -> str:
    """Every module beside the packages, likewise."""
    found = (file for name in ("farm", "tasks") for file in sorted((HERE.parent / name).glob("[a-z]*.py")))
    return table(["file", "what is in it"], ([f"`{x.relative_to(HERE.parent)}`", _first_sentence(x)] for x in found))


def _first_sentence(file: Path) -> str:
    import ast

    first = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0]
    sentence = re.match(r".*?\.(?= [A-Z]|$)", " ".join(first.split()))
    return sentence[0][:-1] if sentence else ""


def layers() -> str:
    """The rooms of both packages, as the contracts of the imports have them."""
    import tomllib

    contracts = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    of = {c["containers"][0]: c["layers"] for c in contracts if c["type"] == "layers"}
    rows = itertools.zip_longest(*of.values(), fillvalue="")
    return table(
        (f"`{name}`" for name in of), ((code(re.split(r" [|:] ", x)) if x else "" for x in row) for row in rows)
    )


def deprecated() -> str:
    from farm.client import minimising  # noqa: F401  what is deprecated is marked where it is defined
    from tasks.deprecation import KNOWN

    heads = ["name", "use", "warns since", "goes with"]
    return table(heads, ([f"`{x.name}`", f"`{x.use}`", x.since, x.until] for x in KNOWN))


def commands() -> str:
    """What each command does, and the exit codes as its own help has them."""
    import argparse
    import importlib
    import importlib.util

    from farm.command_names import LEAVES, find_command_file

    def exits(name: str) -> str:
        parser = importlib.import_module(f"farm.options.{find_command_file(name)}").make_parser()
        groups = (x for x in parser._actions if isinstance(x, argparse._SubParsersAction))
        parser = next((one for x in groups if (one := x.choices.get(name.split()[-1]))), parser)
        return str(parser.epilog).removeprefix("exit code: ")

    rows = ([f"`farm {name}`", text, exits(name)] for name, text in LEAVES.items())
    return table(["command", "what it does", "exit codes"], rows)


def columns(of: str = "") -> str:
    from farm.lake import PASSPORT_SCHEMA, SCHEMA, TRACE_SCHEMA

    def row(field: Any) -> list[str]:
        words = _say(field)
        return [f"`{field.name}`", str(field.type), words["unit"] or "", words["description"]]

    return table(
        ["column", "type", "unit", "what it says"],
        map(row, {"trace": TRACE_SCHEMA, "passports": PASSPORT_SCHEMA}.get(of, SCHEMA)),
    )


def some_columns(names: Iterable[str]) -> str:
    """What columns of the lake say, by name. Raises KeyError for a name that none has."""
    from farm.lake import SCHEMA

    return table(["column", "what it says"], ([f"`{x}`", _say(SCHEMA.field(x))["description"]] for x in names))


def _say(field: Any) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}


def dtypes() -> str:
    from tasks.model import dtypes as own

    def power(exponent: int | None) -> str:
        return "" if exponent is None else f"2^{exponent}"

    rows = (
        [f"`{d.name}`", power(-d.digits), power(d.lowest), "" if d.largest is None else f"{d.largest:g}"]
        for d in own.TABLE.values()
        if d.digits is not None
    )
    return table(["dtype", "ε", "smallest normal", "largest"], rows)


#: What a case is on its way from a config to the lake, in order.
WAY = (
    "tasks.catalogs.base.Entry",
    "tasks.model.case.Group",
    "farm.plan.matrix.Matrix",
    "tasks.wire.ToPrepare",
    "tasks.catalogs.base.Sample",
    "tasks.prepare.record.SampleRecord",
    "tasks.prepare.cases.PreparedSample",
    "tasks.wire.ToExport",
    "farm.work.job.Job",
    "tasks.wire.ToRun",
    "tasks.runner.CaseRun",
    "tasks.model.case.Form",
    "tasks.model.case.Program",
    "tasks.checks.base.Observation",
    "tasks.judging.JudgedCase",
    "tasks.judging.Judgement",
    "tasks.model.row.Row",
    "tasks.wire.Done",
)


def way() -> str:
    import importlib
    import inspect

    def row(name: str) -> list[str]:
        module, _, found = name.rpartition(".")
        text = inspect.getdoc(getattr(importlib.import_module(module), found)) or ""
        return [f"`{found}`", f"`{module.replace('.', '/')}.py`", " ".join(text.partition("\n\n")[0].split())]

    return table(["class", "where", "what it is"], map(row, WAY))


def judge() -> str:
    """The judge's steps as it runs them, in the words of their docstrings."""
    import inspect

    from tasks import judging

    count = itertools.count(1)
    parts = {
        "read": judging.READING,
        "judge": judging.STEPS,
        "look again": judging.SECOND_LOOK,
        "look last": judging.LAST_LOOK,
    }
    rows = (
        [next(count), part, f"`{step.__name__}`", " ".join((inspect.getdoc(step) or "").split())]
        for part, steps in parts.items()
        for step in steps
    )
    return table(["", "part", "step", "what it decides, and on what"], rows)


def limits() -> str:
    from tasks.judge import policy_files

    policy = policy_files.load_policy("error_units")
    rows = []
    for limit in policy.limits:
        if not limit.ops:
            bound = f"{limit.units:g} error units" if limit.units is not None else f"{limit.ulps:g} ulps"
            rows.append(
                [
                    ", ".join(limit.classes) or "all",
                    code(limit.dtypes) if limit.dtypes else "all",
                    bound,
                    limit.evidence,
                ]
            )
    return table(["class", "dtypes", "up to", "evidence"], rows)


def backends() -> str:
    from tasks.backends import BackendSpec, list_backends

    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for runtime, part in list_backends().items():
        for device in part.load().devices if not part.package else ():
            backend = BackendSpec(f"{runtime}-{device}", runtime, device).create()
            words = {"onnx": "ONNX", "torch": "torch", "saved_model": "SavedModel", "tflite": "TFLite"}
            takes = ", ".join(words.get(form, "functions") for form in backend.forms)
            rows[backend.vendor, runtime, takes, "its own" if backend.packages else "the farm's"].append(backend.name)
    return table(
        ["vendor", "backends", "takes", "environment"],
        ([vendor, code(names), takes, where] for (vendor, _, takes, where), names in sorted(rows.items())),
    )


def needs() -> str:
    from tasks.backends import BackendSpec, list_backends

    rows: dict[str, tuple[Any, list[str]]] = {}
    for runtime, part in list_backends().items():
        for device in part.load().devices if not part.package else ():
            for need in BackendSpec(f"{runtime}-{device}", runtime, device).create().needs:
                rows.setdefault(need.what, (need, []))[1].append(f"{runtime}-{device}")
    return table(
        ["what", "backends", "Debian, Ubuntu", "Fedora", "Arch"],
        (
            [what, code(names), *(code(filter(None, [need.packages.get(x)])) for x in ("apt-get", "dnf", "pacman"))]
            for what, (need, names) in rows.items()
        ),
    )


def vendors() -> str:
    from tasks.devices import DEVICES

    def row(v: Any) -> list[str]:
        tools = [command.argv[0] for command in v.commands]
        pci = [f"PCI {vendor}, class {kind}" for vendor, kind in v.pci]
        found = [code(v.files)] * bool(v.files) + pci + [code(tools)] * bool(tools)
        return [
            f"`{v.label}`",
            v.name,
            f"`{v.resource}`",
            code(v.visible) + f", else `{v.instead}`" * bool(v.instead),
            "; ".join(found),
        ]

    return table(["label", "vendor", "Ray resource", "visible devices", "detected by"], map(row, DEVICES))


#: What the facts of a status say about where it counts.
COUNTS = {"passed": "coverage, pass rate", "failed": "coverage, pass rate", "gap": "lowers coverage", "void": "nowhere"}


def vendor_configs() -> str:
    """What to run on whose device first, those alike together."""
    from tasks.devices import DEVICES

    names: dict[tuple[str, str], list[str]] = defaultdict(list)
    for device in DEVICES:
        names[device.config, device.before].append(device.name)
    rows = ([", ".join(of), f"`{config}`", before] for (config, before), of in names.items())
    return table(["vendor", "config", "what must be there first"], rows)


def containers() -> str:
    from tasks.devices import DEVICES

    heads = ["device", "`docker run --shm-size=8g -v farm-cache:/root/.cache/validation-farm …`"]
    return table(heads, ([x.name, f"`{x.container}`"] for x in DEVICES if x.container))


def statuses() -> str:
    from tasks.model import Status

    rows = ([f"`{s.value}`", s.facts.sign, s.facts.meaning, COUNTS[s.facts.counts]] for s in Status)
    return table(["status", "sign", "it means", "counts in"], rows)


def measured() -> str:
    rows = ([f"`{b['command']}`", b["text"], f"{b['when']}, {b['machine']}"] for b in _benches().values())
    return table(["command", "figures", "when, where"], rows)


def evaluator() -> str:
    from tasks.fuzz.table import SPECS

    rows = (
        [f"`{op}`", what, f"“{sentence}”"]
        for op, (what, sentence) in sorted((s.op, s.at_fault) for s in SPECS.values() if s.at_fault)
    )
    return table(["operator", "onnx's evaluator", "the operator's text"], rows)


def generated() -> str:
    from tasks.fuzz.table import SPECS, list_fuzz_dtypes

    by_dtypes: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for op in sorted(SPECS):
        by_dtypes[list_fuzz_dtypes(op)].append(op)
    rows = sorted(by_dtypes.items(), key=lambda line: -len(line[1]))
    return table(["operators", "dtypes under test"], ([code(ops), code(names)] for names, ops in rows))


def configs() -> str:
    """The shipped configs, each in the first sentence of its own first comment."""

    def describe(path: Path) -> str:
        lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text().splitlines())
        words = " ".join(line.removeprefix("#").strip() for line in lines)
        first = re.match(r".*?[.?](?= |$)", words)
        return first[0].removesuffix(".") if first else words

    files = sorted((HERE.parent / "configs").glob("*.yaml"))
    return table(["config", "what it runs"], ((f"`configs/{file.name}`", describe(file)) for file in files))


def operators() -> str:
    """Torch's operators by whether the farm calls them, from the file that docs/_operators.py writes."""
    import csv

    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in csv.DictReader((HERE / "operators.csv").open()):
        found[
            row["status"], row["why"] or ("only inside of others" if row["inside"] and not row["called"] else "")
        ].append(row["operator"])
    rows = sorted(found.items(), key=lambda pair: (pair[0][0] != "covered", pair[0][0], -len(pair[1])))
    return table(
        ["status", "why", "operators", "of them"],
        (
            [status, why or "–", len(names), code(sorted(names, key=lambda x: (x.startswith("_"), x))[:8])]
            for (status, why), names in rows
        ),
    )


def terms() -> str:
    from farm.glossary import TERMS

    return table(["word", "it means"], TERMS.items())


def phases() -> str:
    from tasks.training.phases import ABOUT

    return table(["phase", "what"], ABOUT.items())


def states() -> str:
    from farm.report.tables.known_failures import STATES

    return table(["state", "it means"], STATES.items())


def changes() -> str:
    from farm.report.tables.changes import KINDS

    heads = ["change", "it means", "counts as", "exit code"]
    rows = ([f"`{x.name}`", x.about, x.group or "–", "1" if x.closes else "0"] for x in KINDS.values())
    return table(heads, rows)


def kinds() -> str:
    from tasks.model.kind import OF_INVALID

    return table(
        ["kind", "why it is not judged"],
        ([code([kind]) if kind else "none", text] for kind, text in OF_INVALID.items()),
    )


def kinds_of_wrong() -> str:
    from tasks.model.kind import OF_WRONG

    return table(["kind", "what is wrong"], ((f"`{kind}`", text) for kind, text in OF_WRONG.items()))


def culprits() -> str:
    from tasks.model.culprit import OF_MODELS

    return table(["culprit", "known by"], ((f"`{name}`", words) for name, words in OF_MODELS.items()))


def culprits_of_checks() -> str:
    from tasks.model.culprit import OF_CHECKS

    return table(["check", "culprit", "it means"], ((f"`{a}`", f"`{b}`", words) for a, b, words in OF_CHECKS))


def block_formats() -> str:
    from tasks.arrays.block_scaled import FORMATS

    rows = ([x.name.upper(), code(x.elements), f"for {x.block}, in `{x.scale}`"] for x in FORMATS.values())
    return table(["format", "elements", "a scale"], rows)


def vendor_row() -> str:
    """Coverage and pass rate of every backend of configs/vendors.yaml: judged, valid and passed are figures of the
    bench."""
    figures = _benches()["vendors"]["figures"]
    rows = []
    for name in sorted({key.partition(" ")[0] for key in figures if key.endswith(" judged")}):
        judged, valid, passed = (int(figures[f"{name} {what}"]) for what in ("judged", "valid", "passed"))
        rows.append([f"`{name}`", _share(judged, valid), _share(passed, judged)])
    return table(["backend", "coverage (judged/valid)", "pass rate (passed/judged)"], rows)


def matrix_units() -> str:
    from tasks.matrix_units.table import ARCHITECTURES, UNITS

    def row(unit: Any) -> list[str]:
        scales = f", a scale in `{unit.scale}` for {unit.block}" if unit.scale else ""
        taken = f", cut off to {unit.taken}" if unit.taken else ""
        adder = unit.adder
        step, words = (str(adder.fused), adder.words) if adder else ("–", "exact in 32 bits, wraps around")
        more = f"; to float32 after each {unit.promoted}" if unit.promoted else ""
        known = ARCHITECTURES[unit.architecture]
        cells = (f"`{unit.architecture}`", known.device, f"`{unit.dtype}`{taken}{scales}", unit.instruction, step)
        return [*cells, words + more, ", ".join(unit.sources)]

    heads = ["architecture", "device", "matrices of", "instruction", "products a step", "how they are added", "source"]
    return table(heads, map(row, UNITS.values()))


def sources_of_units() -> str:
    from tasks.matrix_units.table import SOURCES

    return table(["source", "what it is"], SOURCES.items())


def published_values() -> str:
    from tasks.matrix_units.published import PUBLISHED, SEEN

    heads = ["what was measured", "architecture", "dtype", "published", "source"]
    lines = [
        (x.what, f"`{x.architecture}`", f"`{x.dtype}`", f"2^{x.value}" if x.what == SEEN else str(x.value), x.source)
        for x in PUBLISHED
    ]
    return table(heads, lines)


def screen() -> str:
    """What the bench of that name says, a line each."""
    kept = _benches().get("screen", {"text": "not measured yet"})
    return "\n".join(f"- {line}" for line in kept["text"].split("; "))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} % ({part}/{whole})" if whole else "–"


def _benches() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "measured.json").read_text())
    return found


TABLES: dict[str, Callable[[], str]] = {
    "answered": answered,
    "asked": asked,
    "backends": backends,
    "baselines": baselines,
    "catalogs": catalogs,
    "checks": checks,
    "classes": classes,
    "columns": columns,
    "configs": configs,
    "phases": phases,
    "states": states,
    "changes": changes,
    "terms": terms,
    "trace": functools.partial(columns, "trace"),
    "passports": functools.partial(columns, "passports"),
    "codes of passports": passport_codes,
    "commands": commands,
    "deprecated": deprecated,
    "dtypes": dtypes,
    "evaluator": evaluator,
    "forbidden": forbidden,
    "files": files,
    "generated": generated,
    "judge": judge,
    "keys of a run": functools.partial(configured, "Config"),
    "keys of a catalog": functools.partial(configured, "CatalogConfig"),
    "keys of a model": functools.partial(configured, "OwnModel"),
    "keys of a backend": functools.partial(configured, "BackendConfig"),
    "keys of a known failure": functools.partial(configured, "KnownFailure"),
    "keys of a gate": functools.partial(configured, "Gate"),
    "keys of flaky": functools.partial(configured, "Flaky"),
    "keys of a kernel": functools.partial(declared, "UserOp"),
    "keys of an input": functools.partial(declared, "InputKeys"),
    "kinds of invalid": kinds,
    "kinds of wrong": kinds_of_wrong,
    "culprits": culprits,
    "culprits of checks": culprits_of_checks,
    "block formats": block_formats,
    "layers": layers,
    "layouts": layouts,
    "leaderboard": leaderboard,
    "audit": audit,
    "limits": limits,
    "matrix units": matrix_units,
    "measured": measured,
    "needs": needs,
    "operators": operators,
    "orders": orders,
    "sources of matrix units": sources_of_units,
    "published values": published_values,
    "relations": relations,
    "rooms": rooms,
    "screen": screen,
    "second oracles": second_oracles,
    "statuses": statuses,
    "structures": structures,
    "vendor row": vendor_row,
    "vendors": vendors,
    "vendors' configs": vendor_configs,
    "containers": containers,
    "way": way,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or TABLES:
        print(f"{name}\n\n{TABLES[name]()}\n")
