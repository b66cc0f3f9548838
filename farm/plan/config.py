"""YAML to validated models: an error names the file, the line and the key, and the nearest valid names."""

from __future__ import annotations

import contextlib
import glob
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pydantic
import yaml

from farm.plan import include, kernels
from farm.plan.config_schema import (
    COMMAND,
    BackendConfig,
    CatalogConfig,
    Config,
    ConfigError,
    Flaky,
    Floor,
    Gate,
    Including,
    KnownFailure,
    OwnModel,
    Skip,
)
from tasks import catalogs, checks
from tasks.backends import BackendSpec, list_backend_names, list_backends
from tasks.judge import policy_files
from tasks.model import DISTRIBUTIONS, DTYPES, get_numpy_dtype
from tasks.model.dtypes import NATIVE
from tasks.nearest import find_near_names, suggest_nearest_names

#: Reads lists of thousands of lines ten times as fast, where PyYAML has libyaml; it says less of what is no YAML.
QUICK: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: How much a name has to be like one that is known for the rule of such names not to be told as well.
TYPO = 0.85
#: What is said of a value that is none where several may be given.
NO_LIST = "a list is needed, e.g. [a, b]"


#: What a Python file is run by, whose name goes in: its kernels, on values from everywhere, on the runtime that takes
#: most of them.
_OF_KERNELS = """\
catalogs: [{{name: user, samples: 8, distributions: [own, adversarial, fuzz], modules: [{module}]}}]
backends: [torch-cpu]
"""


def _read_config_text(file: Path) -> str:
    """The YAML of a config's file. Raises OSError and UnicodeDecodeError."""
    text = file.read_bytes().decode()
    return _OF_KERNELS.format(module=json.dumps(file.name)) if file.suffix == ".py" else text


def load_config(path: str | Path, within: tuple[Path, ...] = ()) -> Config:
    """Read and validate a config file and those that it includes; a Python file stands for a config of its kernels.
    within: the files that include it, outermost first. Raises ConfigError."""
    file = Path(path)
    node, data = read_config_yaml(file)
    known = data.get("known_failures")
    if isinstance(known, str | list):  # files and entries may stand side by side
        listed = [known] if isinstance(known, str) else known
        data["known_failures"] = [
            y for x in listed for y in (_read_known_failures(file, node, x) if isinstance(x, str) else [x])
        ]
    try:
        config = (Including if data.get("include") else Config).model_validate({"name": file.stem} | data)
    except pydantic.ValidationError as error:
        # A key that is missing may be the one that is misspelt.
        found = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise ConfigError("\n".join(_explain_config_error(file, node, e) for e in found[:5])) from None
    own = [
        kernels.resolve_catalog_paths(c, file.parent)
        if c.name in ("user", kernels.NODES, *kernels.OF_OWN_MODELS)
        else c
        for c in config.catalogs
    ]
    backends = [kernels.resolve_class_path(b, file.parent) for b in config.backends]
    config = config.model_copy(update={"catalogs": own, "backends": backends})
    if config.policy.endswith(".json"):
        # Named from the config's directory, as every other file; absolute, so that a resumed run finds it from
        # anywhere.
        config = config.model_copy(update={"policy": str((file.parent / config.policy).resolve())})

    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ConfigError(f"{_find_yaml_place(file, node, key)}: {'.'.join(map(str, key))}: {text}")

    _check_config_names(config, lambda *key: _find_yaml_place(file, node, key))
    if config.include:
        config = include.join_included_configs(config, _load_includes(file, config, within, refuse), refuse)
    _check_config_builds(config, refuse)
    return config


def read_config_yaml(file: Path) -> tuple[Any, dict[str, Any]]:
    """A YAML file's tree, which knows line numbers, and its content. Raises ConfigError."""
    try:
        text = _read_config_text(file)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_config_keys(file, node)
        data = yaml.safe_load(text)
    except FileNotFoundError:
        others = sorted(str(p) for p in (file.parent if file.parent.is_dir() else Path("configs")).glob("*.yaml"))
        raise ConfigError(f"{file}: no such file{suggest_nearest_names(str(file), others)}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(f"{where}: not YAML: {error.problem or error.context}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{_find_config_line(file, error.object[: error.start].decode())}: not UTF-8 ({error.reason})"
        ) from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{_find_config_line(file, text[: error.position])}: not YAML: {error.reason}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file}:1:1: a config is a mapping with at least the keys catalogs and backends")
    return node, data


def _load_includes(
    file: Path, config: Config, within: tuple[Path, ...], refuse: kernels.Refuse
) -> list[tuple[str, Config]]:
    """The configs that a config includes, named from its directory. Raises ConfigError."""
    within = (*within, file.resolve())
    parts = []
    for i, name in enumerate(config.include):
        path = file.parent / name
        if path.resolve() in within:
            circle = [p.name for p in within[within.index(path.resolve()) :]]
            refuse(("include", i), f"{name} includes itself: {' → '.join([*circle, path.name])}")
        if not path.is_file():
            near = suggest_nearest_names(name, sorted(p.name for p in file.parent.glob("*.yaml")))
            refuse(("include", i), f"no such file {path}{near}")
        parts.append((str(path), load_config(path, within)))
    return parts


def is_config_path(name: str) -> bool:
    """Whether what is given beside names of backends is the path of a config."""
    return name.endswith((".yaml", ".yml"))


def read_config_backends(what: Iterable[str], where: str) -> list[BackendSpec]:
    """Backends given by name, or by the path of a config that has them. Raises ConfigError; ``where``: who asks."""
    found: list[BackendSpec] = []
    for name in what:
        if is_config_path(name):
            found += [b.spec() for b in load_config(name).backends]
        else:
            backend = BackendConfig(name=name)
            check_config_backend(backend, where)
            found.append(backend.spec())
    return found


def list_config_files(path: str | Path) -> list[Path]:
    """The file of a config that could be loaded, and those that it includes."""
    file = Path(path)
    named = yaml.safe_load(_read_config_text(file)).get("include") or []
    return [file, *(inner for name in named for inner in list_config_files(file.parent / name))]


def find_config_place(path: str | Path, key: tuple[Any, ...]) -> str:
    """file:line:column of a key in a config file."""
    file = Path(path)
    return _find_yaml_place(file, yaml.compose(_read_config_text(file), Loader=yaml.SafeLoader), key)


def locate(path: str | Path, key: tuple[Any, ...]) -> str:
    """How an error at a key of a config begins: "file:line:column: key: ". Of a Python file, which has no keys, "": its
    kernels' errors have their own place."""
    return "" if Path(path).suffix == ".py" else f"{find_config_place(path, key)}: {'.'.join(map(str, key))}: "


def _read_known_failures(file: Path, node: Any, name: str) -> list[dict[str, Any]]:
    """The known failures of a file of their own, of all in a folder, or of those that a glob matches; named from the
    config's directory. Raises ConfigError."""
    path, where = file.parent / name, _find_yaml_place(file, node, ("known_failures",))
    if path.is_dir():
        paths = sorted(path.glob("*.yaml"))
    else:
        paths = [Path(p) for p in sorted(glob.glob(str(path)))] if glob.has_magic(name) else [path]
    if not paths:
        raise ConfigError(f"{where}: known_failures: {path}: no YAML file there")
    return [entry for one in paths for entry in _read_known_entries(one, f"{where}: known_failures")]


def _read_known_entries(path: Path, where: str) -> list[dict[str, Any]]:
    found = []
    try:
        text = path.read_text()
        for i, entry in enumerate(yaml.load(text, Loader=QUICK) or []):
            try:
                found.append(KnownFailure.model_validate(entry).model_dump())
            except pydantic.ValidationError as error:
                first = error.errors()[0]
                key = ".".join(map(str, first["loc"])) or "entry"
                extra = first["type"] == "extra_forbidden"
                text = _explain_unknown_key(first["loc"][-1], KnownFailure) if extra else reword_pydantic_error(first)
                raise ConfigError(f"{where}: {find_config_place(path, (i, *first['loc']))}: {key}: {text}") from None
    except OSError as error:
        raise ConfigError(f"{where}: {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ConfigError(f"{where}: {path}: not a YAML list ({' '.join(str(error).split())})") from None
    return found


def load_known_failures(path: Path) -> list[KnownFailure]:
    """The known failures of a config, of a list of them, or of all lists in a folder. Raises ConfigError."""
    if path.is_dir():
        return [known for one in sorted(path.glob("*.yaml")) for known in load_known_failures(one)]
    with contextlib.suppress(OSError, yaml.YAMLError, ValueError):  # which is said of the list as well
        if isinstance(yaml.load(path.read_text(), Loader=QUICK), dict):
            return list(load_config(path).known_failures)
    return [KnownFailure.model_validate(entry) for entry in _read_known_entries(path, "known failures")]


def _find_config_line(file: Path, before: str) -> str:
    return f"{file}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _check_config_keys(file: Path, root: Any) -> None:
    """Raise ConfigError for a key that is no string (an unquoted "on" is none) or is given twice in a mapping,
    and for a scalar that is not what it looks like (a 13th month)."""
    left, met, scalars = [root], set(), yaml.SafeLoader("")
    while left:
        node = left.pop()
        if id(node) in met:
            continue
        met.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            try:
                scalars.construct_object(node)
            except ValueError as error:
                where = f"{file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
                raise ConfigError(f"{where}: not YAML: {node.value!r}: {error}") from None
        elif isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            left += [value for _, value in node.value]
            seen: set[str] = set()
            for key, _ in node.value:
                where = f"{file}:{key.start_mark.line + 1}:{key.start_mark.column + 1}"
                if key.tag == "tag:yaml.org,2002:merge":
                    continue
                if key.tag != "tag:yaml.org,2002:str":
                    name = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
                    raise ConfigError(f"{where}: {name}: a key is a string (quote it if it is meant as one)")
                if key.value in seen:
                    raise ConfigError(f"{where}: {key.value}: the key is given twice; YAML would drop the first")
                seen.add(key.value)


def _explain_config_error(file: Path, node: Any, error: Any) -> str:
    place = tuple(error["loc"])
    key = ".".join(map(str, place)) or "the config"
    text = reword_pydantic_error(error)
    if error["type"] == "extra_forbidden":
        models: dict[str, type[pydantic.BaseModel]] = {
            "catalogs": CatalogConfig,
            "backends": BackendConfig,
            "skip": Skip,
            "known_failures": KnownFailure,
            "gate": Gate,
        }
        model = models.get(str(place[0]), Config) if len(place) > 1 else Config
        if place[0] == "gate" and len(place) > 2:
            model = Flaky if place[1] == "flaky" else Floor
        if place[2:3] == ("own",) and len(place) > 3:
            model = OwnModel
        text = _explain_unknown_key(place[-1], model)
    return f"{_find_yaml_place(file, node, place)}: {key}: {text}"


def _explain_unknown_key(key: Any, model: type[pydantic.BaseModel]) -> str:
    return f"unknown key{suggest_nearest_names(str(key), sorted(f.alias or name for name, f in model.model_fields.items()))}"


#: What is needed, by the types of pydantic's errors.
_NEEDED = {
    **dict.fromkeys(("list_type", "tuple_type"), NO_LIST),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "keys and values are needed, e.g. {name: …}"),
    "string_type": "text is needed",
}


def reword_pydantic_error(error: Any) -> str:
    """Pydantic's error in our words, with the fix."""
    text, kind, given = str(error["msg"]).removeprefix("Value error, "), error["type"], error["input"]
    if kind == "missing":
        return f"{text}: add the key {error['loc'][-1]}"
    if kind == "too_short":
        return "it is empty: name at least one"
    text = _NEEDED.get(kind, text)
    if given is None and kind != "value_error":
        return f"{text}; it is empty: give one or leave it out"
    if kind in ("list_type", "tuple_type"):
        return text
    if kind == "string_type":
        return f"{text}, not {given!r}" + "; put it in quotes" * (not isinstance(given, dict | list))
    if kind in _NEEDED:
        return f"{text}, not {given!r}"
    return text if kind == "value_error" or isinstance(given, dict | list) else f"{text}, not {given!r}"


def _find_yaml_place(file: Path, node: Any, key: tuple[Any, ...]) -> str:
    """file:line:column of a key in the YAML tree, as deep as it can be followed; of a Python file its name, which has
    no keys."""
    if file.suffix == ".py":
        return str(file)
    mark = node.start_mark
    for step in key:
        if isinstance(node, yaml.MappingNode):
            found = [(k, v) for k, v in node.value if k.value == str(step)]
            if not found:
                break
            mark, node = found[0][0].start_mark, found[0][1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            mark = node.start_mark
        else:
            break
    return f"{file}:{mark.line + 1}:{mark.column + 1}"


def _check_config_names(config: Config, place: Any) -> None:
    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ConfigError(f"{place(*key)}: {'.'.join(map(str, key))}: {text}")

    asked: list[tuple[tuple[Any, ...], str]] = [(("checks", i), name) for i, name in enumerate(config.checks)]
    asked += [
        (("catalogs", k, "checks", i), name)
        for k, catalog in enumerate(config.catalogs)
        for i, name in enumerate(catalog.checks or [])
    ]
    for key, name in asked:
        if name not in (valid := checks.list_check_names()):
            raise ConfigError(f"{place(*key)}: checks: unknown check {name!r}{suggest_nearest_names(name, valid)}")
    _check_config_dtypes(config.dtypes, lambda k: str(place("dtypes", k)))
    try:
        policy_files.load_policy(config.policy)
    except policy_files.PolicyError as error:
        raise ConfigError(f"{place('policy')}: policy: {error}") from None
    for i, catalog in enumerate(config.catalogs):
        if catalog.name not in catalogs.list_catalogs():
            near = suggest_nearest_names(catalog.name, sorted(catalogs.list_catalogs()))
            raise ConfigError(f"{place('catalogs', i, 'name')}: catalogs: unknown catalog {catalog.name!r}{near}")
        for k, name in enumerate(catalog.distributions):
            if name not in DISTRIBUTIONS:
                where = place("catalogs", i, "distributions", k)
                raise ConfigError(
                    f"{where}: distributions: unknown {name!r}{suggest_nearest_names(name, list(DISTRIBUTIONS))}"
                )
        if catalog.dtypes == []:
            refuse(("catalogs", i, "dtypes"), "it is empty: name at least one")
        kernels.check_config_kernels(
            catalog, ("catalogs", i), refuse, any(b.packages or b.python for b in config.backends)
        )
        _check_config_dtypes(catalog.dtypes or [], lambda k, i=i: str(place("catalogs", i, "dtypes", k)))  # type: ignore[misc]
    seen: set[str] = set()
    for i, backend in enumerate(config.backends):
        check_config_backend(backend, str(place("backends", i)))
        kernels.check_class_option(backend, ("backends", i), refuse)
        if (
            "launcher" in backend.model_fields_set and not backend.launcher
        ):  # as a run's record has it; a file means one
            refuse(("backends", i, "launcher"), f"it is empty: name {COMMAND}, or leave the key out")
        if backend.name in seen:
            raise ConfigError(f"{place('backends', i)}: backends: {backend.name!r} is named twice")
        seen.add(backend.name)


def _check_config_builds(config: Config, refuse: kernels.Refuse) -> None:
    for i, backend in enumerate(config.backends):
        made = backend.spec().create_if_there()
        if made and all(checks.name_check_of_another_kind(name, made) for name in config.all_checks):
            told = f"{backend.name} runs none of the config's checks ({', '.join(config.all_checks)})"
            refuse(("backends", i), f"{told}: add {'one of ' * (len(made.checks) > 1)}{', '.join(made.checks)}")


def _check_config_dtypes(names: list[str], where: Callable[[int], str]) -> None:
    for k, name in enumerate(names):
        check_config_dtype(name, where(k))
        if name in names[:k]:
            raise ConfigError(f"{where(k)}: dtypes: {name!r} is named twice")


def check_config_dtype(name: str, where: str) -> None:
    """Raise ConfigError unless ``name`` is a dtype or "*"."""
    if name == "*":
        return
    if name not in DTYPES:
        common = sorted((d for d in DTYPES if d in NATIVE or d == "bfloat16"), key=lambda d: "float" not in d)
        raise ConfigError(
            f"{where}: dtypes: unknown dtype {name!r}{suggest_nearest_names(name, DTYPES if find_near_names(name, DTYPES) else common)}"
        )
    try:
        get_numpy_dtype(name)
    except TypeError as error:
        raise ConfigError(f"{where}: dtypes: {error}") from None


def check_config_backend(backend: BackendConfig, where: str) -> None:
    """Raise ConfigError unless the backend's runtime is known and takes its options."""
    try:
        backend.spec().create_if_there()
    except KeyError:
        name = backend.like or backend.name
        known = list_backend_names()
        rule = f" (a backend is <runtime>-<device>, the runtimes are {', '.join(sorted(list_backends()))})"
        raise ConfigError(
            f"{where}: backends: unknown backend {name!r}{suggest_nearest_names(name, known)}{rule * (not find_near_names(name, known, TYPO))}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{where}: backends: {error}") from None
