"""What a config says: the models of its keys, and the one error for all that is wrong with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from packaging.requirements import InvalidRequirement, Requirement
from pydantic import Field
from pydantic_core import InitErrorDetails

from farm.plan.known_failure import ConfigModel, KnownFailure
from tasks import user_sources
from tasks.backends import BackendSpec, is_interpreter_path
from tasks.catalogs.user import declaration_keys
from tasks.catalogs.user.ops import UserOp
from tasks.model import RACE_S, Refusal
from tasks.packages import INDEX

#: Values of the key `passports` that are no run's id.
NO_PASSPORTS, NEWEST_PASSPORTS = "none", "newest"
#: What a backend's `launcher` is.
COMMAND = "a command as a list of words, e.g. [ssh, board]"


class ConfigError(Refusal):
    """A config that cannot be used; the text is one line "file:line:column: key: what and how to mend it"."""


def _check_requirement_text(text: str) -> None:
    if text.startswith(INDEX):
        if not re.match(r"(https?|file)://\S+$", text.removeprefix(INDEX)):
            raise ValueError(f"{text!r} names no index ({INDEX}https://…)")
        return
    try:
        Requirement(text)
    except InvalidRequirement as error:
        options = f"; of pip's options, {INDEX}URL may stand here" if text.startswith("-") else ""
        raise ValueError(f"{text!r} is no pip requirement ({str(error).splitlines()[0]}){options}") from None


def _read_config_kernel(given: Any) -> UserOp:
    """A kernel as a config has it: the keys of `UserOp`, functions by name. Raises ValidationError with every mistake
    at its key."""
    if isinstance(given, UserOp):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"keys and values are needed, e.g. {{name: …}}, not {given!r}")
    wrong = []
    for key, text in declaration_keys.read_declared_keys(UserOp, given):
        of_catalog = key[0] in CatalogConfig.model_fields and key[0] not in UserOp.__dataclass_fields__
        told = ValueError("it is a key of the catalog, not of a kernel" if of_catalog else text)
        wrong.append(InitErrorDetails(type="value_error", loc=key, input=given.get(key[0]), ctx={"error": told}))
    if wrong:
        raise pydantic.ValidationError.from_exception_data("kernel", wrong)
    return declaration_keys.make_declaration(UserOp, given)


#: A kernel of the catalog `user`. What its values may be is `tasks.catalogs.user.declaration_schema`'s.
KernelConfig = Annotated[
    UserOp, pydantic.PlainValidator(_read_config_kernel), pydantic.PlainSerializer(declaration_keys.write_declaration)
]


class OwnModel(ConfigModel):
    """A model or a training of the user's. What is drawn is `tasks.catalogs.models.drawn_inputs`'s."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", description="its name as an op")
    model: str = Field(
        description="an .onnx file, a SavedModel's folder, a Python file with a torch module, or `FILE:NAME` or"
        " `MODULE:NAME` of a class or a function that makes one"
    )
    inputs: list[str] | dict[str, str] = Field(
        default=[],
        description="an .npz file, or a list of them, one a sample; or by name what is [drawn](models.md#inputs):"
        ' `{x: "float32[4,8]"}`; none: those of the model\'s file',
    )

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


class CatalogConfig(ConfigModel):
    """Which ops of a catalog, with how many samples."""

    name: str = Field(description="one of [the catalogs](#catalogs), or of a [plugin](plugins.md)")
    ops: list[str] = Field(
        default=["*"], min_length=1, description="globs over the ops' names, with or without catalog and variant"
    )
    exclude: list[str] = Field(default=[], description="globs of those left out")
    dtypes: list[str] | None = Field(default=None, description="instead of the run's")
    samples: int = Field(
        default=8, ge=1, lt=2**31, description="how many of an op's list per dtype, spread over it, strong ones first"
    )
    distributions: list[str] = Field(
        default=["own"],
        min_length=1,
        description="[where values come from](inputs.md#inputs), as many samples of each: `own`, `regular`, `boundary`,"
        " `adversarial`, `nan`; `structured`, for ops of torch, ONNX and `critical` with an input that selects and for"
        " kernels; `exhaustive`, for `casts` and for ops of torch and ONNX, and kernels of the class `elementary` or"
        " `exact`, of one tensor or of two of 8 bits; for kernels `fuzz`: sizes and values from the seed",
    )
    samples_for: dict[str, Annotated[int, Field(ge=0, lt=2**31)]] = Field(
        default={}, description="`samples` for backends whose name matches a glob; the first match counts; 0: none"
    )
    backends: list[str] = Field(default=["*"], description="globs of the backends that get this catalog")
    checks: list[str] | None = Field(default=None, min_length=1, description="instead of the run's")
    root: str = Field(
        default="",
        description="of `user`: the folder in which files and modules are looked up; none: the config's folder",
    )
    modules: list[str] = Field(default=[], description="of `user`: Python files or modules with `@farm.op` functions")
    kernels: list[KernelConfig] = Field(default=[], description="of `user`: [kernels](kernels.md#declare-it)")
    path: str = Field(
        default="",
        description="of `nodes`, and required there: the folder that [`farm init harvest`](reports.md#harvest) wrote",
    )
    own: list[OwnModel] = Field(
        default=[],
        description="of `training`: [your own trainings](training.md#your-own); of `models`: [your own"
        " models](models.md#your-own). If no ops are named, only these are run",
    )


class BackendConfig(ConfigModel):
    """A backend as a config has it."""

    name: str = Field(
        description="`<runtime>-<device>`, or its own name with `like`; without one it is called `like@version`, after"
        " its first package",
        json_schema_extra={"default": "like@version"},
    )
    like: str = Field(default="", description="the backend it is based on")
    packages: list[str] = Field(
        default=[],
        description="pip requirements of [its environment](environments.md), instead of the runtime's own;"
        " `--extra-index-url=URL` is of this environment only",
    )
    launcher: list[str] = Field(
        default=[],
        description="[a command in front of its interpreter](environments.md#a-launcher), as a list of words; `python`"
        " is then the interpreter on the other side",
    )
    python: str = Field(
        default="",
        description="of its environment: a Python version in quotes, or the path of [an interpreter that is taken as it"
        " is](environments.md#an-interpreter-that-is-there)",
    )
    options: dict[str, Any] = Field(default={}, description="of the [runtime](backends.md)")
    fraction: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="the share of a device that one job takes; none or `auto`: [as many jobs as memory and CPUs"
        " allow](devices.md#which-device-a-cell-gets)",
    )
    memory_gib: float = Field(
        default=6.0,
        gt=0,
        allow_inf_nan=False,
        description="limit of its process's resident memory, and of what prepares its cases, at most nine tenths of the"
        " machine's; a case that exceeds it after others is first run again alone in a new process",
    )
    labels: dict[str, str] = Field(default={}, description="globs that the labels of a Ray node must match")
    kernel: str = Field(
        default="",
        description="the path of a [submission](leaderboards.md), whose function is called instead of the kernels of"
        " `user`",
    )

    def spec(self) -> BackendSpec:
        made = BackendSpec.parse(self.name, self.like, self.options, self.packages, self.python, self.launcher)
        return (
            replace(made, kernel=self.kernel, digest=user_sources.digest_source_files([Path(self.kernel)]))
            if self.kernel
            else made
        )

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
            _check_requirement_text(first)
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
            _check_requirement_text(text)
        return value

    @pydantic.field_validator("launcher", mode="before")
    @classmethod
    def _command(cls, value: Any) -> Any:
        if not isinstance(value, list) or not all(isinstance(x, str) and x for x in value):
            raise ValueError(f"{COMMAND}, not {value!r}")
        return value

    @pydantic.field_validator("python", mode="before")
    @classmethod
    def _check_python_version_or_path(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        if isinstance(value, str) and (info.data.get("launcher") or os.path.isabs(os.path.expanduser(value))):
            return value if info.data.get("launcher") else os.path.expanduser(value)
        if not isinstance(value, str) or is_interpreter_path(value):
            raise ValueError(
                f'a Python version in quotes, e.g. "3.10", or the path of an interpreter (a name, behind a launcher), not {value!r}'
            )
        return value

    @pydantic.model_validator(mode="after")
    def _refuse_packages_into_interpreter(self) -> BackendConfig:
        if self.packages and is_interpreter_path(self.python):
            raise ValueError(
                f"packages: nothing is installed into {self.python}, which is there; leave out one of the two"
            )
        return self


class Skip(ConfigModel):
    """Cells not to be run, and why."""

    ops: list[str] = Field(default=["*"], description="globs over the ops' names, with their catalog")
    dtypes: list[str] = Field(default=["*"], description="globs")
    backends: list[str] = Field(default=["*"], description="globs")
    reason: str = Field(min_length=1, description="why")


class Floor(ConfigModel):
    """Cells, and what a number of theirs is at least."""

    ops: list[str] = Field(default=["*"], min_length=1, description="globs over op labels")
    backends: list[str] = Field(default=["*"], min_length=1, description="globs")
    at_least: float = Field(description="the least value")


class Share(Floor):
    """A floor of a share: 0.95 are 95 %."""

    at_least: float = Field(ge=0, le=1, description="the least share")


class Flaky(ConfigModel):
    """What is held to be flaky, on the same inputs with the same version of the runtime."""

    times: int = Field(default=1, ge=1, description="how often a case passed again after it had failed")
    of: int = Field(default=10, ge=2, description="in how many of the lake's last runs")
    backend: int = Field(
        default=0,
        ge=0,
        description="or: so many failures of its backend passed again, and the case fails no oftener in a row than"
        " chance explains (at least once in a hundred runs, at the observed rate); 0: never",
    )


class Gate(ConfigModel):
    """When a run may ship: `farm.report.tables.gate`."""

    new: int = Field(default=0, ge=0, description="at most so many cells with a failure that no known failure covers")
    imprecise: int | None = Field(
        default=None,
        ge=0,
        description="at most so many cells with imprecise results that no known failure covers; none: any number",
    )
    less_precise: int | None = Field(
        default=None,
        ge=0,
        description="at most so many cells with fourfold error units since the last run of this config; none: any number",
    )
    coverage: list[Share] = Field(
        default=[], description="judged ÷ valid: floors, `at_least` from 0 to 1, each with globs `ops` and `backends`"
    )
    speedup: list[Floor] = Field(
        default=[], description="floors; closed if the whole interval of a case is below `at_least`"
    )
    known: Literal["", "strict"] = Field(
        default="", description="`strict`: known failures that are stale, expired or fail otherwise close it"
    )
    flaky: Flaky | None = Field(
        default=None,
        description="what is quarantined: `times`, `of` and `backend` ([flaky](history.md#flaky-failures))",
    )


class Config(ConfigModel):
    """A run as its YAML file says it. A config that was loaded holds what it includes (`farm.plan.include`), and
    names none."""

    name: str = Field(default="", description="the run's name in reports; none: the file's")
    include: list[str] = Field(default=[], description="[other configs](#include), whose cells run as well")
    download: bool = Field(
        default=True,
        description="no: download nothing, [run with what is here](environments.md#without-a-network); `--offline` does"
        " the same",
    )
    isolation: Literal["process", "none"] = Field(
        default="process",
        description="`process`: kernels of your own run [in a process that does not judge](isolation.md); `none`: in"
        " the one that does",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the samples")
    checks: list[str] = Field(default=["forward"], min_length=1, description="[what is checked](#checks)")
    policy: str = Field(
        default="error_units",
        description="[how it is judged](verdict_numbers.md#policies): `error_units`, `classic`, `absolute`, or a JSON"
        " file",
    )
    passports: str = Field(
        default=NO_PASSPORTS,
        description="what sums are [held against](arithmetic.md#held-against-its-own-passport) beside the policy:"
        " `none`; `newest` of the run's lake; or the id of the run that read them",
    )
    deadline_s: float = Field(
        default=60.0,
        gt=0,
        allow_inf_nan=False,
        description="seconds a case may take, of a training run each of its steps; up to ten times that when the machine is"
        " too busy to run it",
    )
    localise_s: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds of CPU to spend on finding the [culprit](localise.md) of a failing model; 0: do not look",
    )
    race_s: float = Field(
        default=RACE_S,
        gt=0,
        allow_inf_nan=False,
        description="seconds for which `speedup` times a sample, in at least eleven rounds",
    )
    node_wait_s: float = Field(
        default=60.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds that a backend's cells wait for a node after its last one is gone",
    )
    dtypes: list[str] = Field(
        default=["float32", "float16", "bfloat16"], description="under test; `*`: all that an op declares"
    )
    catalogs: list[CatalogConfig] = Field(
        min_length=1, description="[which ops](#keys-of-a-catalog); with `include` not required"
    )
    backends: list[BackendConfig] = Field(
        min_length=1, description="[on which backends](#keys-of-a-backend); with `include` not required"
    )
    skip: list[Skip] = Field(
        default=[], description="cells not to run: globs `ops`, `dtypes`, `backends`, and a `reason`"
    )
    known_failures: list[KnownFailure] = Field(
        default=[],
        description="failures that do not make the exit code 1: [entries](#keys-of-a-known-failure), or files with"
        " lists of them, by name, folder or glob",
    )
    gate: Gate | None = Field(
        default=None, description="[when the run may ship](history.md#gates); none: new failures make the exit code 1"
    )

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

    catalogs: list[CatalogConfig] = Field(default=[], description="besides those that are included")
    backends: list[BackendConfig] = Field(default=[], description="besides those that are included")
