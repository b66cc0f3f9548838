"""A run that is asked for, complete: what to run, on what, into which lake, by which policy. Arguments end here."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pydantic

from farm import lake as lakes
from farm.lake import Lake, LakeError
from farm.plan import config as configs
from farm.plan import kernels, named_model
from farm.plan.config import BackendConfig, Config, ConfigError
from farm.plan.left_out import LeftOut
from farm.plan.submissions import Refused, list_refused_paths, read_submissions_folder
from tasks.cache import default_cache
from tasks.checks import list_check_names
from tasks.judge import policy_files
from tasks.judge.policy_files import Policy
from tasks.nearest import suggest_nearest_names


def parse_budget_seconds(text: str | None) -> float | None:
    """The seconds of a time as --budget takes it; None of none. Raises ConfigError."""
    if text is None:
        return None
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    seconds = sum(int(n or 0) * unit for n, unit in zip(found.groups(), (3600, 60, 1))) if found else 0
    if not seconds:
        raise ConfigError(f"--budget {text!r}: a time is written as 10m, 90s or 1h30m")
    return float(seconds)


@dataclass(frozen=True)
class RunRequest:
    """A run that is asked for.

    path: the config's file, to give the place of a mistake in it ("" if there is none); ops: globs that narrow the
    config further; record: of the run that is resumed, None for a new one; whole: nothing was narrowed, so that a
    pattern that matches nothing is most likely misspelt; how: where jobs run, one of `farm.work.executor_registry`, or
    "auto" for what `farm.work.ray_or_local` says; address, dashboard: of Ray's cluster; cpus: how many jobs run at once
    on CPUs of this machine; fresh: what backends have answered before does not count; dry: only to show what would be
    run; budget_s: seconds that the run may take, None for as long as it does; left_out: what its config names and this
    command does not run; model: the user's own that is run, and nothing else ("" for a config); refused: of a folder of
    submissions, those that are not run; begun: when they began (monotonic).
    """

    config: Config
    policy: Policy
    lake: Lake
    cache: Path
    path: str = ""
    ops: tuple[str, ...] = ()
    whole: bool = True
    record: dict[str, Any] | None = None
    how: str = "auto"
    address: str | None = None
    cpus: int | None = None
    dashboard: bool = True
    fresh: bool = False
    dry: bool = False
    budget_s: float | None = None
    left_out: tuple[LeftOut, ...] = ()
    model: str = ""
    refused: tuple[Refused, ...] = ()
    begun: float = field(default_factory=time.monotonic)

    @property
    def submissions(self) -> tuple[str, ...]:
        """The names of those that are run, and of those that are not."""
        there = tuple(b.name for b in self.config.backends if b.kernel)
        return there + tuple(one.name for one in self.refused)

    @property
    def left_s(self) -> float | None:
        """Seconds left of the budget, at least 0; None without a budget."""
        return None if self.budget_s is None else max(self.begun + self.budget_s - time.monotonic(), 0.0)

    def announce(self, home: str = "") -> None:
        """Put the config's kernels where children find them, and make the cache. home: see
        `kernels.announce_config_kernels`. Raises ConfigError."""
        refused = list_refused_paths(self.record) if self.record else [x for one in self.refused for x in one.paths]
        hidden = [] if "://" in self.lake.uri else [str(Path(self.lake.uri).resolve())]
        kernels.announce_config_kernels(self.config, home, hidden, refused)
        try:
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot create the cache {self.cache} ({error}); set FARM_CACHE to another place"
            ) from None


def make_run_request(
    path: str,
    lake: Lake,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    backends: Sequence[str] = (),
    checks: Sequence[str] = (),
    samples: int | None = None,
    model: str = "",
    inputs: Sequence[str] = (),
    drawn: Sequence[str] = (),
    **more: Any,
) -> RunRequest:
    """A new run of a config, or of a folder of submissions, narrowed to ``ops``, ``dtypes``, ``backends``, ``checks``
    and ``samples`` of an op and dtype.

    here: what submissions run on where nobody says anything; model, inputs, drawn: a model of the user's (see
    `farm.plan.named_model`), run instead of the config's ops; path may then be "". more: further fields of `RunRequest`.
    Raises ConfigError.
    """
    given: Config | None = None
    if path and not model and Path(path).is_dir():
        if more.get("how") == "inline":
            raise ConfigError("--on inline: each submission has a process of its own: leave it out")
        board = read_submissions_folder(Path(path), backends, more.pop("here", "torch-cpu"))
        given, more["refused"], backends, path = board.config, board.refused, (), ""
    elif path or not model:
        given = configs.load_config(path)
    config = named_model.make_config_of_model(model, inputs, given, drawn, samples) if model or given is None else given
    if dtypes:
        config = narrow_config_dtypes(config, dtypes)
    if samples is not None:
        config = _limit_config_samples(config, samples)
    if backends:
        config = narrow_config_backends(config, backends)
    if checks:
        config = _select_config_checks(config, checks)
    whole = not (ops or dtypes or backends or checks or model)
    policy = policy_files.load_policy(config.policy)
    return RunRequest(config, policy, lake, default_cache(), path, tuple(ops), whole, model=model, **more)


def read_run_request(run_id: str, lake: Lake, path: str | None = None, **more: Any) -> RunRequest:
    """A run of the lake once more, as its record says; "last": the newest one (of the config at ``path``, if given).

    Raises LakeError or ConfigError, the latter too if this version cannot resume it.
    """
    record = (
        _read_newest_run(lake, configs.load_config(path).name if path else None)
        if run_id == "last"
        else lakes.read_run(lake, run_id)
    )
    where = f"run {record.get('run_id')} cannot be resumed"
    if path and (name := configs.load_config(path).name) != record.get("name", name):
        raise ConfigError(f"{where} with {path}: it is of the config {record['name']}; omit {path}")
    if missing := [key for key in ("config", "ops", "policy") if key not in record]:
        raise ConfigError(f"{where}: its record has no {missing[0]!r}; start a new run")
    try:
        config = Config.model_validate(record["config"])
        policy = policy_files.read_policy_json(record["policy"])
    except (pydantic.ValidationError, policy_files.PolicyError) as error:
        text = str(error).replace("\n", " ")
        raise ConfigError(f"{where}: its record is of another version ({text}); start a new run") from None
    for backend in config.backends:
        configs.check_config_backend(backend, where)
    return RunRequest(config, policy, lake, default_cache(), "", tuple(record["ops"]), False, record, **more)


def _read_newest_run(lake: Lake, name: str | None) -> dict[str, Any]:
    for candidate in reversed(lakes.run_ids(lake)):
        with contextlib.suppress(LakeError):
            record = lakes.read_run(lake, candidate)
            if name is None or record["name"] == name:
                return record
    raise LakeError(f"no run{f' of {name}' if name else ''} in {lake.uri!r} to resume")


def narrow_config_dtypes(config: Config, dtypes: Sequence[str]) -> Config:
    for dtype in dtypes:
        configs.check_config_dtype(dtype, "--dtypes")
    # A catalog's own dtypes are narrowed, never widened.
    own = [
        None if c.dtypes is None or "*" in c.dtypes else [d for d in c.dtypes if d in dtypes] for c in config.catalogs
    ]
    catalogs = [c.model_copy(update={"dtypes": left}) for c, left in zip(config.catalogs, own)]
    return config.model_copy(update={"dtypes": list(dtypes), "catalogs": catalogs})


def _select_config_checks(config: Config, names: Sequence[str]) -> Config:
    for name in names:
        if name not in list_check_names():
            raise ConfigError(f"--checks: no check {name!r}{suggest_nearest_names(name, list_check_names())}")
    # A catalog's own checks are narrowed, never widened.
    own = [None if c.checks is None else [x for x in c.checks if x in names] for c in config.catalogs]
    kept = [c.model_copy(update={"checks": left}) for c, left in zip(config.catalogs, own) if left != []]
    if not kept:
        raise ConfigError(f"--checks: no catalog of {config.name} has {', '.join(names)}")
    return config.model_copy(update={"checks": list(names), "catalogs": kept})


def _limit_config_samples(config: Config, samples: int) -> Config:
    if samples < 1:
        raise ConfigError("--samples: at least 1")
    catalogs = [
        c.model_copy(
            update={
                "samples": min(c.samples, samples),
                "samples_for": {k: min(v, samples) for k, v in c.samples_for.items()},
            }
        )
        for c in config.catalogs
    ]
    return config.model_copy(update={"catalogs": catalogs})


def narrow_config_backends(config: Config, names: Sequence[str]) -> Config:
    known = {b.name: b for b in config.backends}
    chosen = [known.get(name) or BackendConfig(name=name) for name in names]
    for backend in chosen:
        configs.check_config_backend(backend, "--backends")
    return config.model_copy(update={"backends": chosen})
