"""The config's own kernels: their files made absolute, their mistakes with place, and their way to every child."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from farm.plan.config_schema import BackendConfig, CatalogConfig, Config, OwnModel
from farm.plan.task_files import ANY_TASK
from tasks import user_sources
from tasks.catalogs import user_definitions
from tasks.catalogs.models import classes, drawn_inputs, of_file, table
from tasks.catalogs.user import declaration_keys
from tasks.catalogs.user.declaration_schema import list_declaration_mistakes
from tasks.catalogs.user.ops import BASELINES, FUNCTIONS
from tasks.nearest import suggest_nearest_names
from tasks.training import networks

#: Share of a case's deadline that a reference script may take: it is to end before the process that waits for it is
#: ended.
SCRIPT_SHARE = 0.8

#: The catalog whose ops are in a folder that the config names.
NODES = "nodes"
#: The catalogs that take models of the user's, and a training of them.
MODELS, TRAINING = "models", "training"
OF_OWN_MODELS = (MODELS, TRAINING)

#: Called with a path into the config and a text: raises the error.
Refuse = Callable[[tuple[Any, ...], str], None]


def resolve_catalog_paths(catalog: CatalogConfig, folder: Path) -> CatalogConfig:
    """The catalog with its root and its files absolute; they are relative to ``folder``, that of the config."""
    if catalog.name == NODES:
        return catalog.model_copy(update={"path": str((folder / catalog.path).resolve())} if catalog.path else {})
    root = (folder / catalog.root).resolve()
    if catalog.name in OF_OWN_MODELS:
        return _resolve_model_paths(catalog, root)

    def absolute(name: str) -> str:
        path, colon, function = name.rpartition(":") if ":" in name and not name.endswith(".py") else (name, "", "")
        return f"{root / path}{colon}{function}" if path.endswith(".py") else name

    kernels = [k.with_functions(lambda _, name: absolute(name)) for k in catalog.kernels]
    return catalog.model_copy(
        update={"root": str(root), "modules": [absolute(m) for m in catalog.modules], "kernels": kernels}
    )


def resolve_class_path(backend: BackendConfig, folder: Path) -> BackendConfig:
    """The backend with the file of its option class ("file.py:Class") absolute; it is relative to ``folder``, that of
    the config."""
    path, colon, name = str(backend.options.get("class", "")).rpartition(":")
    if not path.endswith(".py"):
        return backend
    return backend.model_copy(
        update={"options": backend.options | {"class": f"{(folder / path).resolve()}{colon}{name}"}}
    )


def check_class_option(backend: BackendConfig, at: tuple[Any, ...], refuse: Refuse) -> None:
    """Refuse an option class that names none, as far as it shows without importing it. What is not found here may be in
    the backend's own environment."""
    given = backend.options.get("class")
    if given is None:
        return
    key = (*at, "options", "class")
    module, _, name = str(given).rpartition(":")
    if not module or not name:
        refuse(key, f"{given!r} names no class: write file.py:Class or module:Class")
    elsewhere = bool(backend.packages or backend.python)
    root = str(Path(module).parent) if module.endswith(".py") else str(Path.cwd())
    _check_module_exists(module, root, key, refuse, elsewhere)
    if not elsewhere:
        _read_module_names(str(given), root, key, refuse)


def _resolve_model_paths(catalog: CatalogConfig, root: Path) -> CatalogConfig:
    if not catalog.own:
        return catalog
    own = [
        m.model_copy(
            update={
                "model": whole
                if is_model_function(whole := find_model_in_file(m.model, root))
                else str((root / whole).resolve()),
                "inputs": m.inputs if m.drawn_inputs else [str((root / x).resolve()) for x in m.files],
            }
        )
        for m in catalog.own
    ]
    ops = [m.name for m in own] if catalog.ops == ["*"] else catalog.ops
    return catalog.model_copy(update={"root": str(root), "own": own, "ops": ops})


def is_model_function(model: str) -> bool:
    """Whether a model is given as "module:function"."""
    return ":" in model and not model.endswith(".onnx")


def find_model_in_file(model: str, root: Path) -> str:
    """A model of one's own with its class, where only its Python file is named and that has one; else as it is."""
    if not model.endswith(".py"):
        return model
    try:
        name = classes.find_model_classes(root / model).model
    except (OSError, SyntaxError):  # told by `check_config_kernels`
        return model
    return f"{model}:{name}" if name else model


def _check_own_models(catalog: CatalogConfig, at: tuple[Any, ...], refuse: Refuse) -> None:
    names: set[str] = set()
    for i, own in enumerate(catalog.own):
        key: tuple[Any, ...] = (*at, "own", i)
        if own.name in names:
            refuse((*key, "name"), f"the name {own.name!r} is given twice")
        if (own.name, "") in table.MODELS:
            refuse((*key, "name"), f"the catalog has a network {own.name!r}: take another name")
        names.add(own.name)
        if is_model_function(own.model):
            _check_module_exists(own.model.rpartition(":")[0], catalog.root, (*key, "model"), refuse)
            beside = _read_module_names(own.model, catalog.root, (*key, "model"), refuse)
            _check_model_arguments(own, catalog.root, beside, key, refuse)
        elif not Path(own.model).exists():
            refuse((*key, "model"), f"no such file {own.model}")
        elif own.model.endswith(".py"):
            try:
                told_of = classes.find_model_classes(Path(own.model)).refusal(os.path.relpath(own.model))
            except SyntaxError as error:
                told_of = f"{own.model}:{error.lineno}: {error.msg}"
            refuse((*key, "model"), told_of)
        for k, file in enumerate(own.files):
            if not Path(file).is_file():
                refuse((*key, "inputs", k), f"no such file {file}")
        for text in own.drawn_inputs:
            if wrong := _explain_wrong_input(text, whole=not own.model.endswith(".onnx")):
                refuse((*key, "inputs", text.partition("=")[0]), wrong)


def _check_own_trainings(catalog: CatalogConfig, at: tuple[Any, ...], refuse: Refuse) -> None:
    names: set[str] = set()
    for i, own in enumerate(catalog.own):
        key: tuple[Any, ...] = (*at, "own", i)
        if own.name in names or own.name in networks.BUILT_IN:
            refuse((*key, "name"), f"the name {own.name!r} is given twice, or the catalog has it: take another")
        names.add(own.name)
        if not is_model_function(own.model):
            refuse(
                (*key, "model"), f"{own.model!r} names no function that returns what is trained: write module:function"
            )
        if own.inputs:
            refuse((*key, "inputs"), "the function of a training returns its own data")
        _check_module_exists(own.model.rpartition(":")[0], catalog.root, (*key, "model"), refuse)
        _read_module_names(own.model, catalog.root, (*key, "model"), refuse)


def _explain_wrong_input(text: str, whole: bool) -> str:
    """What is wrong with an input that is to be drawn; whole: its dtype and sizes are asked for, which an ONNX model
    knows."""
    try:
        one = drawn_inputs.parse_drawn_input(text)
    except ValueError as error:
        return str(error)
    lacking = [what for what, given in (("dtype", one.dtype), ("sizes", one.shape is not None)) if not given]
    return f"{text!r} has no {lacking[0]}: write {drawn_inputs.FORM}" if whole and lacking else ""


def check_config_kernels(
    catalog: CatalogConfig, at: tuple[Any, ...], refuse: Refuse, elsewhere: bool = False, task: bool = False
) -> None:
    """Refuse what is wrong with the modules and kernels of a catalog, as far as it shows without importing them.
    elsewhere: whether a module that is not found here may be in the environment of a backend; task: whether submissions
    bring the kernels."""

    def exists(module: str, key: tuple[Any, ...]) -> None:
        _check_module_exists(module, catalog.root, key, refuse, elsewhere)

    if catalog.path and catalog.name != NODES:
        refuse((*at, "path"), f"only the catalog {NODES} takes a folder of nodes")
    if catalog.name != "user":
        for field in ("modules", "kernels"):
            if getattr(catalog, field):
                refuse((*at, field), "only the catalog user takes kernels of your own")
        if catalog.own and catalog.name not in OF_OWN_MODELS:
            refuse((*at, "own"), f"only the catalogs {' and '.join(OF_OWN_MODELS)} take models of your own")
        if catalog.name == TRAINING:
            _check_own_trainings(catalog, at, refuse)
        elif catalog.own:
            _check_own_models(catalog, at, refuse)
        if catalog.name == NODES and not catalog.path:
            refuse(at, f"the catalog {NODES} needs a path: the folder that farm init harvest wrote")
        return
    if not catalog.modules and not catalog.kernels:
        refuse(at, "the catalog user needs modules (with @farm.op) or kernels")
    for i, module in enumerate(catalog.modules):
        exists(module, (*at, "modules", i))
    names: dict[str, int] = {}
    for i, kernel in enumerate(catalog.kernels):
        key: tuple[Any, ...] = (*at, "kernels", i)
        if kernel.name in names:
            refuse((*key, "name"), f"the name {kernel.name!r} is given twice (kernels.{names[kernel.name]} has it)")
        names[kernel.name] = i
        for inner, text in list_declaration_mistakes(kernel):
            refuse((*key, *inner), text)
        for what in FUNCTIONS:
            if what == "kernel" and task and kernel.is_task:
                continue
            given = getattr(kernel, what)
            if (what == "backward" and not given) or (what == "baseline" and given in ("", *BASELINES)):
                continue
            module, _, function = given.rpartition(":")
            if what == "reference" and given.endswith(".py"):
                module = given
            elif not module or not function:
                also = " or the path of a script" if what == "reference" else ""
                refuse((*key, what), f"{given!r} names no function: write module:function or file.py:function{also}")
            exists(module, (*key, what))


def _check_module_exists(module: str, root: str, key: tuple[Any, ...], refuse: Refuse, elsewhere: bool = False) -> None:
    file = user_sources.locate_module_source(module, root)
    if file is None:
        if elsewhere:
            return
        refuse(key, f"no module {module!r} in {root} or on Python's path (a file's name ends in .py)")
    elif not file.is_file():
        near = sorted(p.name for p in file.parent.glob("*.py")) if file.parent.is_dir() else []
        refuse(key, f"no such file {file}" + (f"; there are: {', '.join(near[:12])}" if near else ""))


def _read_module_names(given: str, root: str, key: tuple[Any, ...], refuse: Refuse) -> set[str] | None:
    """The names at the top of the file of a "module:name", None where its source does not show them. Refuses one whose
    source shows that it cannot be imported, or that there is no such name in it."""
    module, _, name = given.rpartition(":")
    file = user_sources.locate_module_source(module, root)
    assert file is not None
    try:
        if lacking := user_sources.find_first_lacking_import(file, root):
            line, package = lacking
            refuse(key, f"{file}:{line}: there is no module {package!r} here: install it beside the farm")
        names = user_sources.list_names_at_top(file)
        there = classes.find_model_classes(file).whole
    except SyntaxError as error:
        refuse(key, f"{file}:{error.lineno}: {error.msg}")
        return None
    except ValueError:  # bytes that are no text: importing it says so
        return None
    first = name.partition(".")[0]
    if names is not None and first not in names:
        public = there or sorted(x for x in names if not x.startswith("_"))
        refuse(key, f"{given}: there is no {first!r} in it{suggest_nearest_names(first, public)}")
    return names


def _check_model_arguments(
    own: OwnModel, root: str, beside: set[str] | None, at: tuple[Any, ...], refuse: Refuse
) -> None:
    """Refuse inputs that the source shows not to fit the arguments of forward. beside: names at the top of the model's
    file."""
    module, _, name = own.model.rpartition(":")
    file = user_sources.locate_module_source(module, root)
    taken = classes.read_forward_arguments(file, name) if file is not None else None
    if taken is None or taken.more or own.files:
        return
    if any(_explain_wrong_input(text, whole=True) for text in own.drawn_inputs):
        return  # what is wrong with it says more
    if own.drawn_inputs:
        given = [drawn_inputs.parse_drawn_input(text).name for text in own.drawn_inputs]
    elif beside is None or beside & {of_file.INPUTS, of_file.LIST}:
        return
    else:
        given = [x for x in taken.names if x in beside]
    key = (*at, "inputs" if own.drawn_inputs else "model")
    signature = f"forward({', '.join(taken.names)})"
    for x in given:
        if x not in taken.names:
            refuse(key, f"{own.model}: {signature} has no argument {x!r}{suggest_nearest_names(x, taken.names)}")
    if lacking := [x for x in taken.needed if x not in given]:
        asked = " ".join(f"--input '{x}=float32[4,8]'" for x in (lacking if own.drawn_inputs else taken.needed))
        way = "" if own.drawn_inputs else f", or let {of_file.INPUTS}() in its file return them"
        refuse(key, f"{own.model}: {signature} has no input for {', '.join(map(repr, lacking))}: {asked}{way}")


def announce_config_kernels(
    config: Config,
    home: str = "",
    hidden: Sequence[str] = (),
    refused: Sequence[str] = (),
    declaration: Path | None = None,
) -> None:
    """Tell this process the definitions; its children are told by their supervisors. home: the backend in whose
    environment the user's modules are imported, "" for the farm's own; hidden: files and folders that the processes
    of kernels and baselines are not to read; refused: files and folders of submissions that are not run; declaration:
    the file of a task, which may say its seed, that no kernel's process is to read, beside those that lie with the
    references."""
    found: list[dict[str, Any]] = [
        {
            "at": i,
            "root": c.root,
            "modules": c.modules,
            "kernels": [declaration_keys.write_declaration(k) for k in c.kernels],
        }
        for i, c in enumerate(config.catalogs)
        if c.name == "user"
    ]
    nodes = [{"at": i, "path": c.path} for i, c in enumerate(config.catalogs) if c.name == NODES]
    models = [
        {"at": i, "root": c.root, "name": own.name, "model": own.model, "inputs": own.files, "drawn": own.drawn_inputs}
        for i, c in enumerate(config.catalogs)
        if c.name == MODELS
        for own in c.own
    ]
    trainings = [
        {"at": i, "root": c.root, "name": own.name, "source": own.model}
        for i, c in enumerate(config.catalogs)
        if c.name == TRAINING
        for own in c.own
    ]
    if not (found or nodes or models or trainings):
        user_definitions.announce_definitions("")
        return
    made: dict[str, Any] = {
        "deadline_s": config.deadline_s * SCRIPT_SHARE,
        "sources": found,
        "nodes": nodes,
        "models": models,
        "trainings": trainings,
        "isolation": config.isolation,
        "hidden": sorted(hidden),
        "declarations": sorted(
            map(str, {*_list_task_declarations(found), *([declaration.resolve()] if declaration else [])})
        ),
        "submissions": [*(b.kernel for b in config.backends if b.kernel), *refused],
    }
    for backend in config.backends:
        if backend.name == home:
            made["home"] = asdict(backend.spec())
    user_definitions.announce_definitions(json.dumps(made))


def _list_task_declarations(sources: Iterable[Mapping[str, Any]]) -> set[Path]:
    """Files that declare tasks: in the folders of sources and of their references."""
    folders = {Path(one["root"]) for one in sources}
    references = [(one["root"], k.get("reference")) for one in sources for k in one["kernels"]]
    folders |= {Path(root, x.partition(":")[0]).parent for root, x in references if isinstance(x, str)}
    return {x.resolve() for folder in folders for x in folder.glob(ANY_TASK)}


def find_deadly_kernel(dies: Callable[[], bool]) -> tuple[tuple[Any, ...], str] | None:
    """Key and name of the first module or kernel announced with which alone ``dies`` is true; None if there is none."""
    whole = user_definitions.get_announced_definitions()
    given = json.loads(whole or "{}")
    try:
        for source in given.get("sources", []):
            for what in ("modules", "kernels"):
                for i, one in enumerate(source[what]):
                    alone = source | {"modules": [], "kernels": []} | {what: [one]}
                    user_definitions.announce_definitions(json.dumps(given | {"sources": [alone]}))
                    if dies():
                        return ("catalogs", source["at"], what, i), one if what == "modules" else one["kernel"]
    finally:
        user_definitions.announce_definitions(whole)
    return None
