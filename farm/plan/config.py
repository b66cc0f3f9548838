"""YAML to validated models: an error names the file, the line and the key, and the nearest valid names."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
import yaml
from packaging.requirements import InvalidRequirement, Requirement
from pydantic import BaseModel, ConfigDict, Field

from farm.plan import kernels as user
from tasks import catalogs, checks
from tasks.backends import BackendSpec, known
from tasks.judge import verdict
from tasks.model import DISTRIBUTIONS, DTYPES, np_dtype
from tasks.plugins import PluginError


class ConfigError(Exception):
    """A config that cannot be used; the text is one line "file:line:column: key: what and how to mend it"."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KernelConfig(_Model):
    """A kernel of the `user` catalog: the fields of `tasks.catalogs.user.ops.UserOp`, functions as "module:function" or
    "file.py:function". What its values may be is `tasks.catalogs.user.schema`'s."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    name: str
    kernel: str
    reference: str
    inputs: dict[str, Any]
    dims: dict[str, Any] = {}
    kwargs: dict[str, Any] = {}
    dtypes: list[str] = ["float32"]
    framework: str = "torch"
    op_class: str = Field(default="composite", alias="class")
    definition: str = ""
    values: str = "regular"
    outputs: list[Any] = []
    tolerances: dict[str, Any] = {}
    invariants: list[Any] = []
    repeats: int = 2
    mutates: list[str] = []
    aliases: bool = False
    gradient: list[str] = []


class CatalogConfig(_Model):
    """Which ops of a catalog, with how many samples.

    ops, exclude: globs over the op's name without its catalog ("nn.functional.*"); samples: how many of an op's
    list per dtype; samples_for: the same for backends whose name matches a glob (first match counts);
    distributions: where the values come from: the op's own list, and generated ones (`tasks.arrays.inputs`), each with as
    many samples; dtypes: instead of the run's ("*": all that an op declares); backends: globs of the backends that
    are given this catalog. Of the catalog `user`: modules with `@tasks.op` functions, kernels, and the folder that their
    files and modules are looked up in (default: the config's).
    """

    name: str
    ops: list[str] = ["*"]
    exclude: list[str] = []
    dtypes: list[str] | None = None
    samples: int = Field(default=8, ge=1, lt=2**31)
    distributions: list[str] = Field(default=["own"], min_length=1)
    samples_for: dict[str, Annotated[int, Field(ge=0, lt=2**31)]] = {}
    backends: list[str] = ["*"]
    root: str = ""
    modules: list[str] = []
    kernels: list[KernelConfig] = []


class BackendConfig(_Model):
    """A backend: its name, what it is like (a known name) when the name is its own, and the runtime's options.

    packages, python: its environment, pip requirements and a Python version, instead of what the runtime's own file asks
    for; a backend without a name is called after what it is like and the version of the first package
    ("ort-cpu@1.20.1"). fraction: the share of a device that one slot takes; memory_gib: bound of its child's resident memory;
    labels: what the Ray nodes that it may run on must be labelled, by glob (device-model: "H*").
    """

    name: str
    like: str = ""
    packages: list[str] = []
    python: str = ""
    options: dict[str, Any] = {}
    fraction: float = Field(default=1.0, gt=0, le=1)
    memory_gib: float = Field(default=6.0, gt=0, allow_inf_nan=False)
    labels: dict[str, str] = {}

    def spec(self) -> BackendSpec:
        return BackendSpec.parse(self.name, self.like, self.options, self.packages, self.python)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _named_by_version(cls, data: Any) -> Any:
        if (
            not isinstance(data, dict)
            or "name" in data
            or not data.get("like")
            or not isinstance(data.get("packages"), list)
        ):
            return data
        version = str(data["packages"][0]).partition("==")[2].partition(";")[0].strip() if data["packages"] else ""
        return data | {"name": f"{data['like']}@{version}"} if version else data

    @pydantic.field_validator("packages")
    @classmethod
    def _requirements(cls, value: list[str]) -> list[str]:
        for text in value:
            try:
                Requirement(text)
            except InvalidRequirement as error:
                raise ValueError(f"{text!r} is no pip requirement ({str(error).splitlines()[0]})") from None
        return value

    @pydantic.field_validator("python", mode="before")
    @classmethod
    def _python_version(cls, value: Any) -> Any:
        if not isinstance(value, str) or (value and not re.fullmatch(r"3\.\d+(\.\d+)?", value)):
            raise ValueError(f'a Python version in quotes, e.g. "3.10", not {value!r}')
        return value


class Skip(_Model):
    """Cells not to be run, and why; globs over op names (with catalog), dtypes and backends."""

    ops: list[str] = ["*"]
    dtypes: list[str] = ["*"]
    backends: list[str] = ["*"]
    reason: str = Field(min_length=1)


class KnownFailure(_Model):
    """Failures that do not make a run fail; globs over op labels (with catalog and variant), dtypes, backends."""

    op: str
    dtype: str = "*"
    backend: str = "*"
    status: Literal["wrong", "imprecise", "error", "crash", "timeout", "oom", "*"] = "*"
    reason: str = Field(min_length=1)


class Config(_Model):
    """A run as its YAML file says it; see the README for every key.

    node_wait_s: how long, in seconds, the cells of a backend wait for a node when the last one that offered it is gone.
    """

    name: str = ""
    seed: int = Field(default=0, ge=0, lt=2**63)
    checks: list[str] = Field(default=["forward"], min_length=1)
    policy: str = "error_units"
    deadline_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    node_wait_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    dtypes: list[str] = ["float32", "float16", "bfloat16"]
    catalogs: list[CatalogConfig] = Field(min_length=1)
    backends: list[BackendConfig] = Field(min_length=1)
    skip: list[Skip] = []
    known_failures: list[KnownFailure] = []

    @pydantic.model_validator(mode="before")
    @classmethod
    def _kernels_have_dtypes(cls, data: Any) -> Any:
        """A run that names no dtypes takes those that its own kernels declare."""
        if not isinstance(data, dict) or "dtypes" in data or not isinstance(data.get("catalogs"), list):
            return data
        own = [
            {"dtypes": ["*"]} | c if isinstance(c, dict) and c.get("name") == "user" else c for c in data["catalogs"]
        ]
        return data | {"catalogs": own}

    @pydantic.field_validator("backends", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        return [{"name": v} if isinstance(v, str) else v for v in value] if isinstance(value, list) else value

    @pydantic.field_validator("catalogs", mode="before")
    @classmethod
    def _catalog_names(cls, value: Any) -> Any:
        return [{"name": v} if isinstance(v, str) else v for v in value] if isinstance(value, list) else value


def load(path: str | Path) -> Config:
    """Read and validate a config file. Raises ConfigError."""
    file = Path(path)
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        others = sorted(str(p) for p in (file.parent if file.parent.is_dir() else Path("configs")).glob("*.yaml"))
        raise ConfigError(f"{file}: no such file{nearest(str(file), others)}") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read ({error})") from None
    try:
        text = raw.decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        _check_nodes(file, node)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else str(file)
        raise ConfigError(f"{where}: not YAML: {error.problem or error.context}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_line(file, raw[: error.start].decode())}: not UTF-8 ({error.reason})") from None
    except yaml.reader.ReaderError as error:
        raise ConfigError(f"{_line(file, text[: error.position])}: not YAML: {error.reason}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{file}: not YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{file}:1:1: a config is a mapping with at least the keys catalogs and backends")
    known = data.get("known_failures")
    if isinstance(known, str):
        data["known_failures"] = _listed(file, node, known)
    elif isinstance(known, list):  # files and entries may stand side by side
        data["known_failures"] = [y for x in known for y in (_listed(file, node, x) if isinstance(x, str) else [x])]
    try:
        config = Config.model_validate({"name": file.stem} | data)
    except pydantic.ValidationError as error:
        # A key that is missing may be the one that is misspelt.
        found = sorted(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise ConfigError("\n".join(_explain(file, node, e) for e in found[:5])) from None
    own = [user.resolved(c, file.parent) if c.name == "user" else c for c in config.catalogs]
    # Named from the config's directory, as every other file; absolute, so that a resumed run finds it from anywhere.
    policy = str((file.parent / config.policy).resolve()) if config.policy.endswith(".json") else config.policy
    config = config.model_copy(update={"catalogs": own, "policy": policy})
    _check_names(config, lambda *key: _place(file, node, key))
    return config


def place(path: str | Path, key: tuple[Any, ...]) -> str:
    """file:line:column of a key in a config file."""
    return _place(Path(path), yaml.compose(Path(path).read_text(), Loader=yaml.SafeLoader), key)


def _listed(file: Path, node: Any, name: str) -> list[dict[str, Any]]:
    """The known failures of a file of their own, named from the config's directory. Raises ConfigError."""
    path, where = file.parent / name, _place(file, node, ("known_failures",))
    try:
        found = [KnownFailure.model_validate(entry) for entry in yaml.safe_load(path.read_text()) or []]
    except OSError as error:
        raise ConfigError(f"{where}: known_failures: {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as error:
        raise ConfigError(
            f"{where}: known_failures: {path}: not a YAML list ({' '.join(str(error).split())})"
        ) from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "entry"
        raise ConfigError(f"{where}: known_failures: {path}: {key}: {first['msg']} (in {first['input']!r})") from None
    return [entry.model_dump() for entry in found]


def _line(file: Path, before: str) -> str:
    return f"{file}:{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _check_nodes(file: Path, root: Any) -> None:
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


def _explain(file: Path, node: Any, error: Any) -> str:
    place = tuple(error["loc"])
    key = ".".join(map(str, place))
    text = error["msg"]
    if error["type"] == "extra_forbidden":
        models: dict[str, type[BaseModel]] = {
            "catalogs": CatalogConfig,
            "backends": BackendConfig,
            "skip": Skip,
            "known_failures": KnownFailure,
        }
        model = models.get(str(place[0]), Config) if len(place) > 1 else Config
        if place[2:3] == ("kernels",) and len(place) > 3:
            model = KernelConfig
        if model is KernelConfig and place[-1] in CatalogConfig.model_fields:
            return f"{_place(file, node, place)}: {key}: it is a key of the catalog, not of a kernel"
        text = (
            f"unknown key{nearest(str(place[-1]), sorted(f.alias or name for name, f in model.model_fields.items()))}"
        )
    return f"{_place(file, node, place)}: {key}: {text}"


def _place(file: Path, node: Any, key: tuple[Any, ...]) -> str:
    """file:line:column of a key in the YAML tree, as deep as it can be followed."""
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


def nearest(name: str, valid: list[str]) -> str:
    near = difflib.get_close_matches(name, valid, 3, 0.5)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; valid: {', '.join(valid[:12])}{' …' if len(valid) > 12 else ''}" if valid else ""


def _check_names(config: Config, place: Any) -> None:
    def refuse(key: tuple[Any, ...], text: str) -> None:
        raise ConfigError(f"{place(*key)}: {'.'.join(map(str, key))}: {text}")

    for i, name in enumerate(config.checks):
        if name not in (valid := checks.names()):
            raise ConfigError(f"{place('checks', i)}: checks: unknown check {name!r}{nearest(name, valid)}")
    _check_dtypes(config.dtypes, lambda k: str(place("dtypes", k)))
    if not config.policy.endswith(".json") and config.policy not in verdict.names():
        raise ConfigError(
            f"{place('policy')}: policy: unknown {config.policy!r}{nearest(config.policy, verdict.names())}"
        )
    try:
        verdict.load(config.policy)
    except verdict.PolicyError as error:
        raise ConfigError(f"{place('policy')}: policy: {error}") from None
    for i, catalog in enumerate(config.catalogs):
        if catalog.name not in catalogs.known():
            near = nearest(catalog.name, sorted(catalogs.known()))
            raise ConfigError(f"{place('catalogs', i, 'name')}: catalogs: unknown catalog {catalog.name!r}{near}")
        for k, name in enumerate(catalog.distributions):
            if name not in DISTRIBUTIONS:
                where = place("catalogs", i, "distributions", k)
                raise ConfigError(f"{where}: distributions: unknown {name!r}{nearest(name, list(DISTRIBUTIONS))}")
        user.check(catalog, ("catalogs", i), refuse)
        _check_dtypes(catalog.dtypes or [], lambda k, i=i: str(place("catalogs", i, "dtypes", k)))  # type: ignore[misc]
    seen: set[str] = set()
    for i, backend in enumerate(config.backends):
        check_backend(backend, str(place("backends", i)))
        with contextlib.suppress(PluginError):  # a line of the preflight
            runs = backend.spec().create().checks
            if not any(checks.installed(name).planned(runs) for name in config.checks):
                only = " and ".join(runs)
                refuse(("backends", i), f"{backend.name} runs only the check {only}: add {only} to the config's checks")
        if backend.name in seen:
            raise ConfigError(f"{place('backends', i)}: backends: {backend.name!r} is named twice")
        seen.add(backend.name)


def _check_dtypes(names: list[str], where: Callable[[int], str]) -> None:
    for k, name in enumerate(names):
        check_dtype(name, where(k))
        if name in names[:k]:
            raise ConfigError(f"{where(k)}: dtypes: {name!r} is named twice")


def check_dtype(name: str, where: str) -> None:
    """Raise ConfigError unless ``name`` is a dtype or "*"."""
    if name == "*":
        return
    if name not in DTYPES:
        common = [
            "float32",
            "float16",
            "bfloat16",
            "float64",
            "complex64",
            "int8",
            "int16",
            "int32",
            "int64",
            "uint8",
            "bool",
        ]
        near = nearest(name, common if not difflib.get_close_matches(name, DTYPES, 1, 0.5) else list(DTYPES))
        raise ConfigError(f"{where}: dtypes: unknown dtype {name!r}{near}")
    try:
        np_dtype(name)
    except TypeError as error:
        raise ConfigError(f"{where}: dtypes: {error}") from None


def check_backend(backend: BackendConfig, where: str) -> None:
    """Raise ConfigError unless the backend's runtime is known and takes its options."""
    try:
        backend.spec().create()
    except KeyError:
        examples = ["torch-cpu", "torch-cuda", "inductor-cpu", "ort-cpu", "ort-cuda", "ort-tensorrt", "openvino-cpu"]
        name = backend.like or backend.name
        raise ConfigError(
            f"{where}: backends: unknown backend {name!r}{nearest(name, examples)} "
            f"(a backend is <runtime>-<device>, the runtimes are {', '.join(sorted(known()))})"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{where}: backends: {error}") from None
    except PluginError:
        pass  # a line of the preflight: the other backends can run
