"""What a config says: the models of its keys, and the one error for all that is wrong with it."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import pydantic
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import InitErrorDetails

from tasks.backends import PYTHON_VERSION, BackendSpec
from tasks.catalogs.user import keys, sources
from tasks.catalogs.user.ops import UserOp
from tasks.model import JUDGED, RACE_S, Refusal, names
from tasks.model.errors import mask_details
from tasks.packages import INDEX

if TYPE_CHECKING:
    FailureStatus = str
else:  # what was judged and is a finding
    FailureStatus = Literal[(*names(status for status in JUDGED if status.finding), "*")]


#: Values of the key `passports` that are no run's id.
NO_PASSPORTS, NEWEST_PASSPORTS = "none", "newest"


class ConfigError(Refusal):
    """A config that cannot be used; the text is one line "file:line:column: key: what and how to mend it"."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _requirement(text: str) -> None:
    if text.startswith(INDEX):
        if not re.match(r"(https?|file)://\S+$", text.removeprefix(INDEX)):
            raise ValueError(f"{text!r} names no index ({INDEX}https://…)")
        return
    try:
        Requirement(text)
    except InvalidRequirement as error:
        options = f"; of pip's options, {INDEX}URL may stand here" if text.startswith("-") else ""
        raise ValueError(f"{text!r} is no pip requirement ({str(error).splitlines()[0]}){options}") from None


def _read_kernel(given: Any) -> UserOp:
    """A kernel as a config has it: the keys of `UserOp`, functions by name. Raises ValidationError with every mistake
    at its key."""
    if isinstance(given, UserOp):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"keys and values are needed, e.g. {{name: …}}, not {given!r}")
    wrong = []
    for key, text in keys.read(UserOp, given):
        of_catalog = key[0] in CatalogConfig.model_fields and key[0] not in UserOp.__dataclass_fields__
        told = ValueError("it is a key of the catalog, not of a kernel" if of_catalog else text)
        wrong.append(InitErrorDetails(type="value_error", loc=key, input=given.get(key[0]), ctx={"error": told}))
    if wrong:
        raise pydantic.ValidationError.from_exception_data("kernel", wrong)
    return keys.make(UserOp, given)


#: A kernel of the catalog `user`. What its values may be is `tasks.catalogs.user.schema`'s.
KernelConfig = Annotated[UserOp, pydantic.PlainValidator(_read_kernel), pydantic.PlainSerializer(keys.write)]


class OwnModel(_Model):
    """A model of the user's: its name as an op, an .onnx file, a SavedModel's folder or "module:function" (that returns
    a torch module), and .npz files of inputs by name, one a sample; or by name what is drawn: "float32[4,8]"
    (`tasks.catalogs.models.drawn_inputs`)."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")
    model: str
    inputs: list[str] | dict[str, str] = []

    @pydantic.field_validator("inputs", mode="before")
    @classmethod
    def _one(cls, value: Any) -> Any:
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, (list, dict)) or not all(isinstance(x, str) for x in value):
            raise ValueError(f"an .npz file, a list of them, or names with DTYPE[SIZES] each, not {value!r}")
        if isinstance(value, dict) and (wrong := [x for x in value.values() if not isinstance(x, str)]):
            raise ValueError(f"{wrong[0]!r} is no DTYPE[SIZES]; in quotes within braces: {{x: 'float32[4,8]'}}")
        return value

    @property
    def drawn_inputs(self) -> list[str]:
        """The inputs that are drawn, as a command line has them."""
        given = self.inputs if isinstance(self.inputs, dict) else {}
        return [name + "=" * (not said.startswith("<")) * bool(said) + said for name, said in given.items()]

    @property
    def files(self) -> list[str]:
        """The .npz files of the inputs that are not."""
        return self.inputs if isinstance(self.inputs, list) else []


class CatalogConfig(_Model):
    """Which ops of a catalog, with how many samples.

    ops, exclude: globs over the op's name without its catalog ("nn.functional.*"); samples: how many of an op's
    list per dtype; samples_for: the same for backends whose name matches a glob (first match counts);
    distributions: where the values come from: the op's own list, and generated ones (`tasks.arrays.inputs`), each with
    as many samples; dtypes: instead of the run's ("*": all that an op declares); backends: globs of the backends that
    are given this catalog; checks: instead of the run's. Of the catalog `user`: modules with `@farm.op` functions,
    kernels, and the folder that their files and modules are looked up in (default: the config's). Of the catalog
    `nodes`: the folder that they are in. Of the catalog `models`: the user's own; where no ops are named, those alone
    are run.
    """

    name: str
    ops: list[str] = Field(default=["*"], min_length=1)
    exclude: list[str] = []
    dtypes: list[str] | None = None
    samples: int = Field(default=8, ge=1, lt=2**31)
    distributions: list[str] = Field(default=["own"], min_length=1)
    samples_for: dict[str, Annotated[int, Field(ge=0, lt=2**31)]] = {}
    backends: list[str] = ["*"]
    checks: list[str] | None = Field(default=None, min_length=1)
    root: str = ""
    modules: list[str] = []
    kernels: list[KernelConfig] = []
    path: str = ""
    own: list[OwnModel] = []


class BackendConfig(_Model):
    """A backend: its name, what it is like (a known name) when the name is its own, and the runtime's options.

    packages, python: its environment, pip requirements and a Python version, or the path of an interpreter that is
    taken as it is, instead of what the runtime's own file asks for (with "--extra-index-url=URL" for an index of that
    environment alone); launcher: a command in front of that interpreter, which then may be a name behind it; a backend
    without a name is called after what it is like and the version of the first package ("ort-cpu@1.20.1"). fraction:
    the share of a device that a job takes, "auto" (None) for as many jobs as its memory and the CPUs allow; memory_gib:
    bound of its child's resident memory; labels: what the Ray nodes that it may run on must be labelled, by glob
    (device-model: "H*"). kernel: the file of a submission (`farm.plan.submissions`).
    """

    name: str
    like: str = ""
    packages: list[str] = []
    launcher: list[str] = []
    python: str = ""
    options: dict[str, Any] = {}
    fraction: float | None = Field(default=None, gt=0, le=1)
    memory_gib: float = Field(default=6.0, gt=0, allow_inf_nan=False)
    labels: dict[str, str] = {}
    kernel: str = ""

    def spec(self) -> BackendSpec:
        made = BackendSpec.parse(self.name, self.like, self.options, self.packages, self.python, self.launcher)
        return replace(made, kernel=self.kernel, digest=sources.digest([Path(self.kernel)])) if self.kernel else made

    @pydantic.model_validator(mode="before")
    @classmethod
    def _name_backend_by_version(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "name" in data or not isinstance(like := data.get("like"), str):
            return data
        packages = data.get("packages")
        named = [str(p) for p in packages if not str(p).startswith(INDEX)] if isinstance(packages, list) else []
        first = named[0] if named else ""
        if version := first.partition("==")[2].partition(";")[0].strip():
            return data | {"name": f"{like}@{version}"}
        if first:
            _requirement(first)
        why = f"the first package, {first!r}, has no version (NAME==VERSION)" if first else "there are no packages"
        raise ValueError(f"no name is given, and none follows from {like} and a version: {why}; add a name")

    @pydantic.field_validator("fraction", mode="before")
    @classmethod
    def _read_device_share(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "auto":
            raise ValueError(f"a share above 0 and up to 1, or auto, not {value!r}")
        return None if value == "auto" else value

    @pydantic.field_validator("packages")
    @classmethod
    def _requirements(cls, value: list[str]) -> list[str]:
        for text in value:
            _requirement(text)
        return value

    @pydantic.field_validator("launcher", mode="before")
    @classmethod
    def _command(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(isinstance(x, str) and x for x in value):
            raise ValueError(f"a command as a list of words, e.g. [ssh, board], not {value!r}")
        return value

    @pydantic.field_validator("python", mode="before")
    @classmethod
    def _check_python_version_or_path(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        if isinstance(value, str) and (info.data.get("launcher") or os.path.isabs(os.path.expanduser(value))):
            return value if info.data.get("launcher") else os.path.expanduser(value)
        if not isinstance(value, str) or (value and not PYTHON_VERSION.fullmatch(value)):
            raise ValueError(
                f'a Python version in quotes, e.g. "3.10", or the path of an interpreter (a name, behind a launcher), not {value!r}'
            )
        return value

    @pydantic.model_validator(mode="after")
    def _refuse_packages_into_interpreter(self) -> BackendConfig:
        if self.packages and self.python and not PYTHON_VERSION.fullmatch(self.python):
            raise ValueError(
                f"packages: nothing is installed into {self.python}, which is there; leave out one of the two"
            )
        return self


class Skip(_Model):
    """Cells not to be run, and why; globs over op names (with catalog), dtypes and backends."""

    ops: list[str] = ["*"]
    dtypes: list[str] = ["*"]
    backends: list[str] = ["*"]
    reason: str = Field(min_length=1)


class KnownFailure(_Model):
    """Failures that do not make a run fail: of which cases, failing in which way, for how long, and whose they are.

    Of which cases: globs over op labels (with catalog and variant), and over the lake's columns of the same name;
    flags: globs that each match a word of the row's; reduced: the ops of the case made small, all of them and no other
    (`farm.lake.minimal`). In which way (`tasks.model.failing.Manner`): status, kind (one glob or several), stage,
    error_type, a part of the error's text; cause: a glob over the error model that explains the result; culprit: a
    glob. On which devices: a failure belongs to the code that has it, and devices of one runtime share code. backend: a
    glob over those that share it ("torch-*"); seen: globs over those where it was seen (none: wherever ``backend``
    says). On the others it covers what fails in the same way, and reports show that apart. Such an entry says how it
    fails. How long: versions of the backend's runtime as pip writes them (">=1.20,<1.25"); expires: the last day, after
    which it covers nothing more. owner: who sees to it; link: where it is reported. fault: whose it is: the backend's,
    the exporter's (the graph that the backend was given is another function), the suite's (what it expects is wrong),
    or "open": not settled. Only the backend's own count against it.
    """

    op: str
    dtype: str = "*"
    backend: str = "*"
    check: str = "*"
    distribution: str = "*"
    flags: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    status: FailureStatus = "*"
    kind: str | tuple[str, ...] = "*"
    stage: str = "*"
    error_type: str = "*"
    error: str = ""
    cause: str = "*"
    culprit: str = "*"
    seen: tuple[str, ...] = ()
    versions: str = ""
    expires: str = ""
    fault: Literal["backend", "exporter", "suite", "open"] = "backend"
    reason: str = Field(min_length=1)
    owner: str = ""
    link: str = ""

    @pydantic.field_validator("error")
    @classmethod
    def _refuse_error_without_words(cls, value: str) -> str:
        if value and not mask_details(value):
            raise ValueError(
                f"{value!r} has only parts in which similar errors differ: numbers, paths, quoted names; omit it"
            )
        return value

    @pydantic.field_validator("versions", mode="before")
    @classmethod
    def _check_version_specifiers(cls, value: Any) -> Any:
        try:
            SpecifierSet(value if isinstance(value, str) else "")
        except InvalidSpecifier:
            raise ValueError(f'{value!r} is not a pip version range, e.g. ">=1.20,<1.25" or "==1.31.*"') from None
        return value

    @pydantic.field_validator("expires", mode="before")
    @classmethod
    def _check_expiry_day(cls, value: Any) -> Any:
        try:
            return str(datetime.date.fromisoformat(str(value))) if value else ""
        except ValueError:
            raise ValueError(f"{value!r} is not a date; write 2027-01-31") from None

    @pydantic.field_validator("seen", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @pydantic.model_validator(mode="after")
    def _check_seen_failure_is_specific(self) -> Self:
        if self.seen and not self.error and "*" in (self.status, self.kind):
            raise ValueError(
                "with seen it covers devices that nobody has looked at: say how it fails, by status and kind or by error"
            )
        strange = [x for x in self.seen if not (fnmatchcase(x, self.backend) or fnmatchcase(self.backend, x))]
        if strange:
            raise ValueError(f"seen: {strange[0]!r} is none of the backends {self.backend!r}")
        return self

    @pydantic.model_serializer(mode="wrap")
    def _dump_changed_fields(self, handler: Any) -> dict[str, Any]:
        """What differs from the defaults: a run's record has hundreds of them."""
        told: dict[str, Any] = handler(self)
        fields = type(self).model_fields
        return {name: value for name, value in told.items() if value not in (fields[name].default, [], ())}


class Floor(_Model):
    """Cells, by globs over op labels and backends, and what a number of theirs is at least."""

    ops: list[str] = Field(default=["*"], min_length=1)
    backends: list[str] = Field(default=["*"], min_length=1)
    at_least: float


class Share(Floor):
    """A floor of a share: 0.95 are 95 %."""

    at_least: float = Field(ge=0, le=1)


class Flaky(_Model):
    """What is held to be flaky: in the last ``of`` runs, on the same inputs with the same version of the runtime, a
    case passed again ``times`` times after it had failed. backend: or, where so many cases of its backend did so, a
    case that fails no oftener in a row than chance explains: of a backend that fails anywhere by chance; 0: never."""

    times: int = Field(default=1, ge=1)
    of: int = Field(default=10, ge=2)
    backend: int = Field(default=0, ge=0)


class Gate(_Model):
    """When a run may ship: `farm.report.tables.gate`.

    new, imprecise, less_precise: cells at most with a failure that no known failure covers, with an imprecise result
    that none covers, and with fourfold error units since the last run of the config; coverage, speedup: floors; known:
    whether known failures that are stale, expired or fail otherwise close it; flaky: what is quarantined.
    """

    new: int = Field(default=0, ge=0)
    imprecise: int | None = Field(default=None, ge=0)
    less_precise: int | None = Field(default=None, ge=0)
    coverage: list[Share] = []
    speedup: list[Floor] = []
    known: Literal["", "strict"] = ""
    flaky: Flaky | None = None


class Config(_Model):
    """A run as its YAML file says it; docs/config.md explains every key.

    include: other configs, which are run as well: `farm.plan.include`. A config that was loaded holds theirs and names
    none; localise_s: how long, in seconds, the culprit of a failing model is looked for; race_s: how long, in seconds,
    a kernel and its baseline are timed, beyond the fewest rounds; node_wait_s: how long, in seconds, the cells of a
    backend wait for a node when the last one that offered it is gone; isolation: whether kernels of one's own run in a
    process that does not judge ("process"), or in the one that does ("none"); download: whether environments may be
    built from an index; else a backend runs with what is here; passports: what sums are held against beside the policy:
    "none", the "newest" passports of the run's lake, or those of the run of this id.
    """

    name: str = ""
    include: list[str] = []
    download: bool = True
    isolation: Literal["process", "none"] = "process"
    seed: int = Field(default=0, ge=0, lt=2**63)
    checks: list[str] = Field(default=["forward"], min_length=1)
    policy: str = "error_units"
    passports: str = NO_PASSPORTS
    deadline_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    localise_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    race_s: float = Field(default=RACE_S, gt=0, allow_inf_nan=False)
    node_wait_s: float = Field(default=60.0, ge=0, allow_inf_nan=False)
    dtypes: list[str] = ["float32", "float16", "bfloat16"]
    catalogs: list[CatalogConfig] = Field(min_length=1)
    backends: list[BackendConfig] = Field(min_length=1)
    skip: list[Skip] = []
    known_failures: list[KnownFailure] = []
    gate: Gate | None = None

    @property
    def all_checks(self) -> list[str]:
        """Its checks, and those that catalogs have instead."""
        return list(dict.fromkeys(name for c in self.catalogs for name in c.checks or self.checks))

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_kernel_dtypes(cls, data: Any) -> Any:
        """A run that names no dtypes takes those that its own kernels declare, and its nodes have."""
        if not isinstance(data, dict) or "dtypes" in data or not isinstance(data.get("catalogs"), list):
            return data
        own = [
            {"dtypes": ["*"]} | c if isinstance(c, dict) and c.get("name") in ("user", "nodes") else c
            for c in data["catalogs"]
        ]
        return data | {"catalogs": own}

    @pydantic.field_validator("backends", "catalogs", mode="before")
    @classmethod
    def _expand_names(cls, value: Any) -> Any:
        return [{"name": v} if isinstance(v, str) else v for v in value] if isinstance(value, list) else value


class Including(Config):
    """A config that includes others: the catalogs and backends may be theirs."""

    catalogs: list[CatalogConfig] = []
    backends: list[BackendConfig] = []
