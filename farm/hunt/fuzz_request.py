"""A fuzzing run that is asked for: a config's generated cases, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from farm.lake import Lake
from farm.plan import config as configs
from farm.plan.config import CatalogConfig, Config, ConfigError
from farm.plan.left_out import LeftOut
from farm.plan.request import RunRequest, narrow_config_backends, narrow_config_dtypes
from farm.plan.whose import FOLDER
from tasks.cache import default_cache
from tasks.catalogs.fuzz import GENERATED
from tasks.judge import policy_files
from tasks.model import FORWARD


def make_fuzz_request(
    path: str,
    lake: Lake,
    samples: int,
    seed: int | None = None,
    ops: Sequence[str] = (),
    dtypes: Sequence[str] = (),
    backends: Sequence[str] = (),
    **more: Any,
) -> RunRequest:
    """A run of generated cases, ``samples`` of an op and dtype at a time, on a config's backends or those that are
    named, in all dtypes that there are but for those that are named. Without a config, the lists of known failures in
    `FOLDER` count. Raises ConfigError."""
    if path:
        config = configs.load_config(path)
    else:
        config = Config.model_validate(
            {"name": GENERATED, "catalogs": [{"name": GENERATED}], "backends": [{"name": "ort-cpu"}]}
        )
        if FOLDER.is_dir():
            config = config.model_copy(update={"known_failures": configs.load_known_failures(FOLDER)})
    generated = [c for c in config.catalogs if c.name == GENERATED]
    if not generated:
        raise ConfigError(
            f"{path}: catalogs: none is {GENERATED!r}, whose cases are generated: add {{name: {GENERATED}}}"
            + "; for your own kernels, farm run draws cases with distributions: [fuzz]"
            * any(c.kernels for c in config.catalogs)
        )
    left_out = tuple(_list_not_fuzzed(config, generated, path))
    more_of = {"samples": samples, "samples_for": {}, "checks": None, "distributions": ["own"]}
    chosen = [c.model_copy(update=more_of | {"dtypes": c.dtypes or ["*"]}) for c in generated]
    config = config.model_copy(update={"catalogs": chosen, "checks": ["forward"]})
    config = config if seed is None else config.model_copy(update={"seed": seed})
    if dtypes:
        config = narrow_config_dtypes(
            config.model_copy(update={"catalogs": [c.model_copy(update={"dtypes": None}) for c in chosen]}), dtypes
        )
    if backends:
        config = narrow_config_backends(config, backends)
    policy = policy_files.load_policy(config.policy)
    return RunRequest(config, policy, lake, default_cache(), path, tuple(ops), False, left_out=left_out, **more)


def _list_not_fuzzed(config: Config, generated: Sequence[CatalogConfig], path: str) -> Iterator[LeftOut]:
    """What a config names and a fuzzing run does not do. Raises ConfigError where that is all that it checks."""
    others = dict.fromkeys(c.name for c in config.catalogs if c.name != GENERATED)
    if others:
        yield LeftOut("catalogs", tuple(others), "farm fuzz generates cases, farm run runs these")
    named = dict.fromkeys(name for c in generated for name in c.checks or config.checks)
    if FORWARD not in named:
        raise ConfigError(f"{path}: checks: {', '.join(named)}: generated cases have the check {FORWARD} alone")
    if len(named) > 1:
        names = tuple(name for name in named if name != FORWARD)
        yield LeftOut("checks", names, f"generated cases have the check {FORWARD} alone", "of", (GENERATED,))
    if sources := tuple(dict.fromkeys(x for c in generated for x in c.distributions if x != "own")):
        yield LeftOut("distributions", sources, "generated cases have values of their own", "of", (GENERATED,))
